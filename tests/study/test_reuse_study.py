"""Studies of approximate steps: cells and their identity, tables, report, and the same tables after kill -9."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.study import small

from sinkscope.base.errors import InputError
from sinkscope.report.study import make_report
from sinkscope.reuse.study.table import Rule
from sinkscope.study import spec
from sinkscope.study.cells import combined
from sinkscope.study.store import Store

pytestmark = pytest.mark.slow

RULES = ["none", "prefix:block", "sparse:0.3", "sparse:0.3,by=recent", "sparse:0.3,by=random"]
TIMES = ["seconds", "seconds_exact", "timed_with", "time_saved", "time_saved_low", "time_saved_high"]


def write_study(folder: Path) -> Path:
    """A diffusion and a causal model under rules, graded and compared with the exact run; a trace under a rule."""
    lines = ["[decodings.short]", "llada = { length = 8, steps = 8, block = 4 }", "causal = { length = 6 }"]
    common = ['task = "word_problems"', 'decodings = ["short"]']
    causal = [rule for rule in RULES if not rule.startswith("prefix")]
    for family, rules in (("llada", RULES), ("llama", causal)):
        own = [*common, f'models = ["{family}"]', "controls = 2"]
        lines += ["[[evaluate]]", *own, "samples = 4", f"reuse = {json.dumps(rules)}"]
        lines += ["[[replay]]", *own, "samples = 3", f"reuse = {json.dumps(rules[1:])}"]
    lines += ["[[trace]]", *common, 'models = ["llada"]', "samples = 1", "maps = 1", 'reuse = ["none", "prefix:2"]']
    return small.write_blocks(folder, ("llada", "llama"), "\n".join(lines), "small-reuse")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    folder = tmp_path_factory.mktemp("reuse")
    study, out = write_study(folder / "study"), folder / "out"
    return study, out, small.run_here(study, out, "--no-report")


def table(out: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(out / "tables" / f"{name}.parquet")


def test_rules_are_rows_beside_the_exact_loop(done: tuple[Path, Path, str]) -> None:
    _, out, printed = done
    found = table(out, "reuse").set_index(["model", "reuse"])
    llada = found.loc["llada"]
    assert list(llada.index) == RULES
    assert llada.loc["none", "work_saved"] == 0
    sparse = llada.loc[[name for name in RULES if name.startswith("sparse")]]
    assert sparse["work_saved"].nunique() == 1  # at equal cost
    assert 0 < llada.loc["prefix:block", "work_saved"] < sparse["work_saved"].iloc[0]
    assert llada.loc["sparse:0.3,by=random", "draws"] == 2
    assert llada.loc["sparse:0.3", "over_random"] == pytest.approx(
        llada.loc["sparse:0.3", "accuracy"] - llada.loc["sparse:0.3,by=random", "accuracy"]
    )
    assert pd.isna(llada.loc["sparse:0.3,by=random", "over_random"])
    assert pd.isna(llada.loc["prefix:block", "over_random"])
    assert llada.loc["sparse:0.3", "kl"] > llada.loc["prefix:block", "kl"] > 0
    assert llada["agreement_n"].dropna().eq(3).all()
    assert set(found.loc["llama"].index) == {rule for rule in RULES if not rule.startswith("prefix")}
    assert "approximate steps" in printed


def test_every_record_says_what_is_approximate(done: tuple[Path, Path, str]) -> None:
    _, out, _ = done
    assert set(table(out, "results")["policy"]) == {"none"}
    assert "reuse" not in table(out, "records")
    records = table(out, "reuse_records")
    assert set(records["reuse"]) == {*RULES[1:], "sparse:0.3,by=random,seed=1"}
    assert (records["macs"] < records["macs_exact"]).all()
    agreement = table(out, "agreement")
    assert agreement["tokens_equal"].between(0, 1).all()
    assert (agreement[["seconds", "seconds_exact"]] > 0).all(axis=None)
    cells = [cell["identity"] for cell in Store(out).known_cells().values()]
    assert {identity.get("reuse") for identity in cells} == {None, *records["reuse"], "prefix:2"}
    for folder in out.glob("cells/*/shards/*"):
        settings = json.loads((folder / "settings.json").read_text())
        for line in (folder / "generations.jsonl").read_text().splitlines():
            assert json.loads(line)["more"].get("reuse") == settings.get("reuse")
    sinks = table(out, "sinks")
    assert set(sinks["reuse"].dropna()) == {"prefix:2"}
    assert sum(identity["kind"] == "maps" for identity in cells) == 1  # of the exact trace alone


def test_the_report_shows_the_frontier(done: tuple[Path, Path, str], tmp_path: Path) -> None:
    from sinkscope.report.study.drawing import study_figures
    from sinkscope.report.study.source import read

    _, out, _ = done
    assert [figure.name for figure in study_figures(read(out))] == ["sensitivity", "frontier"]
    page = make_report(out).read_text(encoding="utf-8")
    assert 'id="reuse"' in page
    assert page.count('data-at="reuse/') > 20
    assert 'alt="Approximate steps"' in page
    row = table(out, "reuse").index[table(out, "reuse")["reuse"] == "sparse:0.3"][0]
    assert f"reuse/{row}/tokens_equal_over_random" in page


def test_cells_of_exact_steps_keep_their_identity(tmp_path: Path, done: tuple[Path, Path, str]) -> None:
    """A study without rules has the cells that it had before there were any."""
    study, out, _ = done
    data = spec.read_data(study)
    for block in (*data["evaluate"], *data["trace"]):
        block.pop("reuse")
        block.pop("controls", None)
    data["replay"] = []
    plain = tmp_path / "plain.toml"
    plain.write_text(spec.to_toml(spec.from_data(data)), encoding="utf-8")
    small.run_here(plain, tmp_path / "out", "--no-report")
    with_rules = {name for name, cell in Store(out).known_cells().items() if "reuse" not in cell["identity"]}
    assert set(Store(tmp_path / "out").known_cells()) == with_rules


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_killed_and_resumed_gives_the_same_tables(tmp_path: Path, done: tuple[Path, Path, str]) -> None:
    study, quiet, _ = done
    out = tmp_path / "killed"
    for wanted in (1, 25):
        process = subprocess.Popen(
            small.command(study, out, "--workers", "1", "--no-report", "--shard", "2"),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=small.environment(), cwd=small.ROOT,
        )  # fmt: skip
        lines = 0
        while process.poll() is None and lines < wanted:
            time.sleep(0.02)
            lines = sum(path.read_bytes().count(b"\n") for path in out.glob("cells/*/shards/*/generations.jsonl"))
        assert process.poll() is None
        process.kill()
        process.wait()
    small.run_here(study, out, "--no-report")
    for name in ("reuse", "reuse_records", "agreement", "results", "records"):
        one, two = (table(folder, name).drop(columns=TIMES, errors="ignore") for folder in (out, quiet))
        pd.testing.assert_frame_equal(one, two, check_exact=True, obj=name)


def test_wrong_studies_are_refused(tmp_path: Path) -> None:
    grid = {"task": "word_problems", "reuse": ["prefix:2"]}
    base = {"name": "x", "models": ["organism/scratch"]}
    with pytest.raises(InputError, match="cannot act together"):
        spec.from_data({**base, "evaluate": [{**grid, "policies": ["top:1"]}]})
    with pytest.raises(InputError, match="leave reuse out"):
        spec.from_data({**base, "inspect": [grid]})
    with pytest.raises(InputError, match="prefix"):
        spec.from_data({**base, "evaluate": [{**grid, "reuse": ["prefx:2"]}]})
    from sinkscope import GreedyDecoding, LladaDecoding

    with pytest.raises(InputError, match="diffusion"):
        combined({"reuse": ["prefix:2"]}, 1, GreedyDecoding())
    listed = {"reuse": ["none", "dkv-cache", "sparse:4,by=random,seed=3"]}
    assert [
        {name: str(rule) for name, rule in extras.items()} for extras in combined(listed, 2, LladaDecoding(block=64))
    ] == [
        {},
        {"reuse": "prefix:8,fresh=masks"},
        {"reuse": "sparse:4,by=random,seed=3"},
        {"reuse": "sparse:4,by=random,seed=4"},
    ]


def _compared(document: str, first_step: int | None, seconds: float, timed_with: str) -> dict[str, object]:
    return {
        "document": document, "tokens_equal": 0.5, "kl": 0.1, "first_step": first_step, "seconds": seconds,
        "seconds_exact": 1.0, "timed_with": timed_with,
    }  # fmt: skip


def _rule(*compared: dict[str, object]) -> Rule:
    return Rule("none", pd.DataFrame(compared))


def test_draws_that_part_in_different_documents_are_averaged() -> None:
    draws = [_compared("a", 2, 0.5, "a"), _compared("b", None, 0.5, "b"),
             _compared("a", 4, 0.5, "a"), _compared("b", 6, 0.5, "b")]  # fmt: skip
    assert _rule(*draws).of("first_step").to_dict() == {"a": 3.0, "b": 6.0}


def test_documents_that_ran_together_were_timed_once() -> None:
    """Copies of one measurement are no evidence on its spread."""
    together = [_compared(name, None, 0.5, "a") for name in "abcd"]
    assert np.isnan(_rule(*together).time_ratio().low)
    apart = [_compared(name, None, seconds, name) for name, seconds in zip("ab", (0.4, 0.6), strict=True)]
    twice = [_compared("c", None, 0.4, "a"), _compared("d", None, 0.6, "b")]
    assert _rule(*apart, *twice).time_ratio() == _rule(*apart).time_ratio()


@pytest.mark.parametrize("family", ["dream", "llama"])
def test_documents_that_run_together_agree_as_alone(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU prompts of different lengths run together, padded; here that is asked for."""
    from sinkscope.models.load import load
    from sinkscope.reuse.study.agreements import compared
    from sinkscope.study.cells import identify, outline
    from sinkscope.study.facts import facts_of

    blocks = ["[decodings.short]", "dream = { length = 8, steps = 8 }", "causal = { length = 8 }"]
    blocks += ["[[replay]]", 'task = "word_problems"', 'decodings = ["short"]', "samples = 2"]
    rules = ["sparse:0.3,by=sinks", "sparse:0.3,by=random"]
    rules += [] if family == "llama" else ["prefix:block", "prefix:2,fresh=masks", "drift:0.9"]
    blocks += [f"reuse = {json.dumps(rules)}"]
    study = spec.read(str(small.write_blocks(tmp_path / "study", (family,), "\n".join(blocks))))
    facts = {model.name: facts_of(model, "cpu") for model in study.models}
    model = load(study.models[0].source, "cpu", "float32")
    for cell in identify(outline(study, facts)):
        items = cell.items()
        alone = [row for item in items for rows in compared(cell, model, [item], 1) for row in rows]
        monkeypatch.setattr("sinkscope.decoding.groups.runs_together", lambda *_: True)
        monkeypatch.setattr("sinkscope.reuse.study.agreements.batches", lambda *_: [[0, 1]])
        (together,) = compared(cell, model, items, "auto")
        monkeypatch.undo()
        assert len({row.more["prompt_tokens"] for row in alone}) > 1
        for one, other in zip(alone, together, strict=True):
            ours, theirs = (
                {name: value for name, value in row.more.items() if name not in (*TIMES, "kl")} for row in (one, other)
            )
            assert ours == theirs
            assert one.more["kl"] == pytest.approx(other.more["kl"], rel=1e-3, abs=1e-6)
            assert (one.output, one.steps) == (other.output, other.steps)
