"""Tables of runs: what is paired with what, and what is refused."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sinkscope import statistics
from sinkscope.base.errors import InputError
from sinkscope.study.comparison import compare_runs, holm_over, untested
from sinkscope.study.names import control, natural, role
from sinkscope.study.paper import MODELS, POLICIES, TABLE, published
from sinkscope.study.shown import comparison
from sinkscope.tasks.evaluation import Evaluation, Record

GREEDY = {"kind": "greedy", "length": 64, "eos": "model"}
SAMPLING = {"kind": "sampling", "length": 64, "temperature": 0.7, "top_p": 1.0, "eos": "model"}


def _run(
    policy: str | None = None,
    accuracy: float = 0.5,
    n: int = 60,
    seeds: tuple[int, ...] = (0,),
    source: str = "organism/causal",
    task: str = "word_problems",
    decoding: dict[str, Any] = GREEDY,
    version: str = "word_problems/1",
) -> Evaluation:
    """A run in which each document is right by a fixed hash of document, policy and seed."""
    settings = {
        "version": "evaluation/1",
        "model": {"source": source, "family": "causal", "dtype": "float32", "weights": "abc"},
        "task": {"task": task, "version": version, "scheme": {"name": "plain"}},
        "decoding": decoding,
        "policy": policy,
    }
    records = [
        Record(
            document=f"test-{index}", index=index, seed=seed, prompt="q", output="a", extracted="1", reason="",
            passed=zlib.crc32(f"{policy}/{index}/{seed}".encode()) % 1000 < 1000 * accuracy, steps=64, forwards=64,
            hidden_share=None if policy is None else 0.25, sinks_hit=None if policy is None else 0.5,
            key_share=None if policy is None else 0.01, prompt_tokens=10, fingerprint=f"print-{index}", settings=settings,
        )
        for index in range(n) for seed in seeds
    ]  # fmt: skip
    return Evaluation(tuple(records), settings)


def replace_source(run: Evaluation, source: str) -> Evaluation:
    settings = {**run.settings, "model": {**run.settings["model"], "source": source}}
    return Evaluation(tuple(replace(record, settings=settings) for record in run.records), settings)


def _rows(table: pd.DataFrame) -> dict[str, Any]:
    return table.replace({np.nan: None}).set_index("policy").to_dict("index")


def _numbers(row: dict[str, Any], stem: str) -> tuple[Any, ...]:
    """A test's value, interval and p."""
    return tuple(row[stem + end] for end in ("", "_low", "_high", "_p"))


def test_the_paper_table_with_controls() -> None:
    runs = [_run(None, 0.9), _run("top:10", 0.3), _run("top:1", 0.6)]
    runs += [_run(f"random(top:10){seed}", 0.85) for seed in ("", ",seed=1", ",seed=2")]
    runs += [_run(f"random(top:1),match=mass{seed}", 0.85) for seed in ("", ",seed=1", ",seed=2")]
    table = compare_runs(runs)
    assert list(table["policy"]) == ["none", "top:1", "random(top:1),match=mass", "top:10", "random(top:10)"]
    rows = _rows(table)
    none, top = runs[0].scores(), runs[1].scores()
    order = sorted(none)
    expected = statistics.compare([top[i] for i in order], [none[i] for i in order])
    assert _numbers(rows["top:10"], "difference") == (*expected.difference, expected.p)
    assert expected.p == statistics.mcnemar([top[i] for i in order], [none[i] for i in order])
    draws = np.array([[run.scores()[i] for i in order] for run in runs[3:6]])
    effect = statistics.effect_over_control([top[i] for i in order], draws)
    assert _numbers(rows["top:10"], "effect_count") == (*effect.difference, effect.p)
    assert rows["top:10"]["effect_count_seeds"] == 3
    assert rows["top:10"]["effect_count_spread"] == pytest.approx(draws.mean(axis=1).std(ddof=1))
    assert rows["top:10"]["control"] == "random(top:10)"
    assert rows["top:10"]["over_control"] == pytest.approx(effect.difference.value)
    assert rows["top:1"]["effect_count"] is None
    assert rows["top:1"]["effect_mass"] is not None
    assert rows["random(top:10)"]["draws"] == 3
    assert rows["random(top:10)"]["accuracy"] == pytest.approx(draws.mean())
    assert rows["random(top:10)"]["control_of"] == "top:10"
    assert rows["none"]["difference"] is None
    assert rows["none"]["hidden_share"] is None
    assert rows["top:1"]["hidden_share"] == 0.25
    assert rows["top:1"]["sinks_hit"] == 0.5
    assert rows["top:1"]["key_share"] == pytest.approx(0.01)


def test_holm_is_over_all_tests_of_the_table() -> None:
    runs = [_run(None, 0.9), _run("top:1", 0.5), _run("top:5", 0.8)]
    runs += [_run(f"random(top:1){seed}", 0.85) for seed in ("", ",seed=1", ",seed=2")]
    runs += [_run(None, 0.9, source="other"), _run("top:1", 0.4, source="other")]
    table = compare_runs(runs)
    p = table[["difference_p", "effect_count_p", "effect_mass_p"]].to_numpy(dtype=float).ravel()
    assert np.isfinite(p).sum() == 5  # three policies and a control against none, one effect over a control
    corrected = table[["difference_p_holm", "effect_count_p_holm", "effect_mass_p_holm"]].to_numpy(dtype=float)
    np.testing.assert_array_equal(corrected.ravel(), statistics.holm(p))


def test_few_control_seeds_give_no_effect_and_a_note() -> None:
    runs = [_run(None, 0.9), _run("top:1"), _run("random(top:1)"), _run("random(top:1),seed=1")]
    table = compare_runs(runs)
    assert _rows(table)["top:1"]["effect_count"] is None
    assert untested(table) == [
        "random controls of top:1 (organism/causal) have 2 seeds; effects beyond them are tested from 3 on"
    ]
    # One sentence for all models and policies, not one for each.
    both = [replace_source(run, source) for run in (*runs, _run("top:5"), _run("random(top:5)"), _run("random(top:5),seed=1"))
            for source in ("organism/causal", "other")]  # fmt: skip
    assert untested(compare_runs(both)) == [
        "random controls of top:1, top:5 (organism/causal, other) have 2 seeds; effects beyond them are tested from 3 on"
    ]
    # seeds of one run are draws of the control as well
    table = compare_runs([*runs[:2], _run("random(top:1)", seeds=(0, 1, 2))])
    assert _rows(table)["top:1"]["effect_count_seeds"] == 3
    assert untested(table) == []
    (alone,) = untested(compare_runs([_run("top:1")]))
    assert "no run without a policy" in alone


def test_sampled_decodings_need_seeds() -> None:
    few = compare_runs([_run(None, decoding=SAMPLING), _run("top:1", decoding=SAMPLING)])
    assert _rows(few)["top:1"]["difference"] is None
    assert "the decoding draws and has one seed" in untested(few)[0]
    many = compare_runs([_run(policy, decoding=SAMPLING, seeds=(0, 1, 2)) for policy in (None, "top:1")])
    row = _rows(many)["top:1"]
    assert row["difference"] is not None
    assert (row["n"], row["draws"]) == (60, 3)
    with pytest.raises(InputError, match=r"seeds \[0, 1, 2\] and \[0, 1, 3\]"):
        compare_runs(
            [_run(None, decoding=SAMPLING, seeds=(0, 1, 2)), _run("top:1", decoding=SAMPLING, seeds=(0, 1, 3))]
        )


def test_mixed_runs_are_refused_by_name() -> None:
    none = _run(None)
    with pytest.raises(InputError, match=r"decoding\.length is 64 there and 32 here"):
        compare_runs([none, _run("top:1", decoding={**GREEDY, "length": 32})])
    with pytest.raises(
        InputError,
        match=r"task\.version is 'word_problems/1' there and 'word_problems/2' here\. "
        r"Compare runs that differ only in policy, reuse",
    ):
        compare_runs([none, _run("top:1", version="word_problems/2")])
    with pytest.raises(InputError, match="top:1 lacks 10, such as test-50"):
        compare_runs([none, _run("top:1", n=50)])
    other = _run("top:1")
    changed = Evaluation((replace(other.records[0], fingerprint="x"), *other.records[1:]), other.settings)
    with pytest.raises(InputError, match="different questions under the id test-0"):
        compare_runs([none, changed])
    weights = {**other.settings, "model": {**other.settings["model"], "weights": "def"}}
    with pytest.raises(InputError, match=r"model\.weights is 'abc' there and 'def' here"):
        compare_runs([none, Evaluation(other.records, weights)])
    with pytest.raises(InputError, match="organism/causal and other answered different documents of word_problems"):
        compare_runs([none, _run(None, n=50, source="other")])
    with pytest.raises(InputError, match="give each run once"):
        compare_runs([none, none])
    with pytest.raises(InputError, match="nothing to compare"):
        compare_runs([])


def test_shards_become_one_run() -> None:
    whole = _run(None)
    halves = [Evaluation(whole.records[:20], whole.settings), Evaluation(whole.records[20:], whole.settings)]
    pd.testing.assert_frame_equal(compare_runs([*halves, _run("top:1")]), compare_runs([whole, _run("top:1")]))


def test_papers_numbers_are_shown_where_the_model_is_one_of_its() -> None:
    source = "GSAI-ML/LLaDA-8B-Instruct"
    runs = [_run(policy, source=source, task="gsm8k") for policy in (None, "top:1", "top:10", "top:1@layer")]
    table = compare_runs(runs)
    rows = _rows(table)
    assert (rows["none"]["paper"], rows["none"]["paper_plus_minus"]) == (0.76, 0.01)
    assert (rows["top:10"]["paper"], rows["top:10"]["paper_plus_minus"]) == (0.55, 0.01)
    assert rows["top:1@layer"]["paper"] is None
    assert "paper (arXiv 2510.15731)" in comparison(table)
    assert published("organism/scratch", "gsm8k", "none") is None
    assert published(source, "word_problems", "none") is None
    assert "arXiv" not in comparison(compare_runs([_run(None)]))
    for task in TABLE.values():
        assert set(task) == set(MODELS)
        assert all(len(numbers) == len(POLICIES) for numbers in task.values())


def test_the_text_and_the_frame() -> None:
    table = compare_runs(
        [_run(None, 0.9), _run("top:5", 0.2), *(_run(f"random(top:5),seed={i}", 0.9) for i in (1, 2, 3))]
    )
    text = comparison(table)
    for words in ("organism/causal · word_problems:plain · 60 documents", "length=64", "25.0%", "50%", "1.0%"):
        assert words in text
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("policy"))
    row = next(line for line in lines if line.startswith("top:5"))
    assert row.index("0.") == head.index("accuracy")
    assert "equal attention" not in head, "columns that are empty are left out"
    assert list(table["policy"]) == ["none", "top:5", "random(top:5)"]
    for column in ("n", "low", "high", "hidden_share", "sinks_hit", "key_share", "decoding", "scheme"):
        assert column in table


def test_a_policy_has_one_role_whatever_its_text() -> None:
    causal = "top:1,epsilon=3,prefill=no,by=distant"
    assert role(causal, causal=True) == role("top:1,epsilon=3", causal=False) == "strongest sink"
    assert role("top:1,epsilon=3", causal=True) == role("top:1", causal=False) == role("top:5,epsilon=3", False) == ""
    assert role(f"random({causal}),match=mass,seed=2", causal=True) == "random(strongest sink),match=mass"
    assert role("window:32", False) == "window"
    assert role("window:32,first=4", False) == "window, first in sight"
    assert role("window:32,future=0", False) == ""


def test_small_things() -> None:
    assert sorted(["top:10", "top:5", "top:1@layer", "above:2"], key=natural) == [
        "above:2", "top:1@layer", "top:5", "top:10",
    ]  # fmt: skip
    assert control("top:5") is None
    assert control("none") is None
    assert control("a policy of a package that is not here:3") is None


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("none", None),
        ("top:1", None),
        ("random(top:1),seed=2", ("top:1", "count", "random(top:1)")),
        ("random(top:5@layer,effect=silence),seed=4",
         ("top:5@layer,effect=silence", "count", "random(top:5@layer,effect=silence)")),
        ("random(top:5),match=mass,seed=2", ("top:5", "mass", "random(top:5),match=mass")),
        ("window:32,first=4 & random(top:1),seed=1", ("window:32,first=4 & top:1", "count", "window:32,first=4 & random(top:1)")),
        ("random(top:1),seed=1 & window:8", ("top:1 & window:8", "count", "random(top:1) & window:8")),
        ("random(top:1) & random(top:5)", None),
    ],
)  # fmt: skip
def test_controls_are_known_by_their_text_also_beside_other_policies(
    policy: str, expected: tuple[str, str, str] | None
) -> None:
    assert control(policy) == expected


def test_a_study_has_one_family_of_tests() -> None:
    """Two tasks compared apart, one table: Holm's correction is over all of its tests."""
    tables = [
        compare_runs([_run(None, 0.9, task=task), _run("top:1", accuracy, task=task), _run("top:5", 0.5, task=task)])
        for task, accuracy in (("word_problems", 0.6), ("small_code", 0.7))
    ]
    alone = [p for table in tables for p in table["difference_p_holm"].dropna()]
    whole = holm_over(pd.concat(tables, ignore_index=True))
    p = whole["difference_p"].to_numpy(dtype=float)
    np.testing.assert_allclose(whole["difference_p_holm"].to_numpy(dtype=float), statistics.holm(p))
    assert (whole["difference_p_holm"].dropna().to_numpy() >= np.array(alone)).all()
    assert (whole["difference_p_holm"].dropna().to_numpy() > np.array(alone)).any()


def test_one_interval_for_every_paired_loss() -> None:
    """The result table, the diagnosis and the claims show the same interval of the same loss."""
    from sinkscope.verdicts.diagnosis import diagnose
    from sinkscope.verdicts.measures import Measures, PolicyRun

    none, top = _run(None, 0.9), _run("top:1", 0.6)
    row = _rows(compare_runs([none, top]))["top:1"]
    runs = {"none": PolicyRun(none.scores()), "top:1": PolicyRun(top.scores())}
    lost = Measures("m", "llada", runs=runs).lost("top:1")
    assert lost is not None
    assert (lost.low, lost.high) == pytest.approx((-row["difference_high"], -row["difference_low"]))
    assert diagnose(unmasked=none, top1=top, random1=none)["needs its strongest keys"].estimate == lost
