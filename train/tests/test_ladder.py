"""Training runs over seeds: known damages come back with their intervals, and fewer than three seeds conclude nothing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from tests.study import small

from sinkscope.base.errors import InputError
from sinkscope.report.study.page import report_page
from sinkscope.report.study.source import read
from sinkscope.verdicts import Measure, Verdict
from sinkscope_train import ladder
from sinkscope_train.figures import plot_ladder
from sinkscope_train.ladder import against_plain, by_run, measures_of, over_seeds, profiles
from sinkscope_train.trained_runs import TrainedRun, interventions, known_runs

T = 4.302652729911275
"""Student's 97.5 % quantile with 2 degrees of freedom."""


def a_run(recipe: str, seed: int, parameters: int = 1000, **settings: Any) -> TrainedRun:
    name = f"{recipe}-{parameters}-{'-'.join(settings)}-{seed}"
    own = {"name": recipe, "seed": seed, "size": {"layers": 2, "width": parameters}, "weight_decay": 0.1, **settings}
    weights = parameters + 10 * ("gate" in settings)  # a gate has weights of its own
    return TrainedRun(name, recipe, own, weights, seed, 500, 1.0, 0.4, 100)


def result(model: str, policy: str, accuracy: float, **more: Any) -> dict[str, Any]:
    return {
        "model": model, "task": "word_problems", "decoding_name": "short", "policy": policy, "n": 100, "accuracy": accuracy,
        "control_of": None, "match": None, "hidden_share": 0.1, "sinks_hit": 0.2, **more,
    }  # fmt: skip


def results(damages: dict[TrainedRun, float], unmasked: float = 0.9, control: float = 0.1) -> pd.DataFrame:
    rows = []
    for run, damage in damages.items():
        rows.append(result(run.model, "none", unmasked))
        rows.append(result(run.model, "top:1@layer", unmasked - damage))
        about = {"control_of": "top:1@layer", "match": "count"}
        rows.append(result(run.model, "random(top:1@layer)", unmasked - control, **about))
    return pd.DataFrame(rows)


def compared(runs: pd.DataFrame, profile: pd.DataFrame) -> pd.DataFrame:
    return against_plain(measures_of(runs, profile))


def test_damage_over_seeds_has_the_mean_and_students_interval() -> None:
    damages = {a_run("causal", seed): damage for seed, damage in enumerate((0.5, 0.6, 0.7))}
    runs = list(damages)
    (row,) = over_seeds(by_run(runs, results(damages))).to_dict("records")
    assert (row["objective"], row["scope"], row["seeds"], row["n"]) == ("causal", "layer", 3, 100)
    assert (row["unmasked"], row["damage"]) == pytest.approx((0.9, 0.6))
    half = T * 0.1 / math.sqrt(3)
    assert (row["damage_low"], row["damage_high"]) == pytest.approx((0.6 - half, 0.6 + half))
    assert row["beyond_count"] == pytest.approx(0.5)
    assert math.isnan(row["beyond_mass"])
    assert row["conclusion"] == "higher"


@pytest.mark.parametrize(
    ("damages", "unmasked", "said"),
    [
        ((0.6, 0.6), 0.9, "nothing: too few seeds (n = 2)"),
        ((0.6,), 0.9, "nothing: too few seeds (n = 1)"),
        ((0.0, 0.0, 0.0), 0.05, "nothing: too little is there to be lost"),
        ((0.0, 0.1, 0.25), 0.9, "not shown"),
        ((0.11, 0.11, 0.11), 0.9, "not shown"),  # by one document of 100
        ((0.0, 0.01, 0.0), 0.9, "lower"),
    ],
)
def test_what_is_concluded(damages: tuple[float, ...], unmasked: float, said: str) -> None:
    known = {a_run("scratch", seed): damage for seed, damage in enumerate(damages)}
    (row,) = over_seeds(by_run(list(known), results(known, unmasked))).to_dict("records")
    assert row["conclusion"] == said
    verdict = Verdict.from_json(row["verdict"])
    assert (verdict.n, verdict.unit, verdict.measure) == (len(damages), "seed", Measure.OVER_COUNT)
    assert verdict.status == {"higher": "supported", "lower": "contradicted"}.get(said, "undecided")
    assert math.isnan(row["damage_low"]) == (len(damages) < 3)


def test_two_runs_of_one_seed_are_one_replicate() -> None:
    damages = {a_run("causal", seed): damage for seed, damage in enumerate((0.5, 0.6, 0.7))}
    again = {replace(run, model=f"{run.model}-again"): damage for run, damage in damages.items()}
    columns = ["seeds", "damage", "damage_low", "damage_high", "beyond_count_low"]
    once = over_seeds(by_run(list(damages), results(damages)))[columns]
    both = damages | again
    twice = over_seeds(by_run(list(both), results(both)))[columns]
    pd.testing.assert_frame_equal(once, twice)
    two = dict(list(both.items())[:2]) | dict(list(again.items())[:2])
    assert over_seeds(by_run(list(two), results(two)))["conclusion"].tolist() == ["nothing: too few seeds (n = 2)"]


def test_interventions_are_what_differs_from_most_runs_of_the_recipe() -> None:
    plain = [a_run("causal", seed) for seed in range(3)] + [a_run("scratch", 0)]
    varied = [a_run("causal", 0, gate=True), a_run("causal", 1, weight_decay=0.3, softmax="one")]
    labels = interventions([*plain, *varied])
    assert [labels[run.model] for run in plain] == [""] * 4
    assert [labels[run.model] for run in varied] == ["gate", "weight_decay=0.3, softmax=one"]
    assert interventions(varied[:1]) == {varied[0].model: "gate"}, "without a plain run to compare with"


def test_an_intervention_is_compared_with_none_seed_by_seed() -> None:
    plain = {a_run("causal", seed): 0.5 + 0.1 * seed for seed in range(4)}
    gated = {a_run("causal", seed, gate=True): 0.3 + 0.1 * seed + 0.01 * (seed % 2) for seed in range(3)}
    runs = [*plain, *gated]
    sinks = pd.DataFrame(
        {"model": run.model, "policy": "none", "measure": "sinks per head", "value": 2.0 + bool(run in gated) + run.seed / 9}
        for run in runs
    )  # fmt: skip
    profile = profiles(runs, sinks)
    assert set(profile["emerged"]) == {100}
    changes = compared(by_run(runs, results({**plain, **gated})), profile).set_index("measure")
    lost = changes.loc["damage: word_problems, top:1@layer"]
    assert (lost["seeds"], lost["difference"]) == (3, pytest.approx(-0.2 + 0.01 / 3))
    assert lost["conclusion"] == "lower"
    assert changes.loc["sinks", "difference"] == pytest.approx(1.0)
    assert changes.loc["sinks", "conclusion"] == "higher"
    assert changes.loc["accuracy: word_problems", "conclusion"] == "not shown"
    assert set(changes["intervention"]) == {"gate"}
    least = {a_run("causal", seed): 0.5 for seed in range(3)}
    least |= {a_run("causal", seed, gate=True): 0.51 for seed in range(3)}  # by one document of 100, in every seed
    same = compared(by_run(list(least), results(least)), profiles(list(least), None)).set_index("measure")
    assert same.loc["damage: word_problems, top:1@layer", "conclusion"] == "not shown"
    poor = compared(by_run(runs, results({**plain, **gated}, unmasked=0.05)), profile)
    assert not poor["measure"].str.startswith("damage").any(), "a run that answers nothing is not robust"


def test_each_skill_of_the_battery_is_a_task_of_its_own() -> None:
    damages = {a_run("scratch", seed): 0.5 for seed in range(3)}
    shares = {"none": 0.9, "top:1": 0.4, "random(top:1)": 0.8, "random(top:1),match=mass": 0.7}
    rows = [
        {**result(run.model, policy, share - shift), "skill": skill, "difficulty": level, "scheme": "plain"}
        for run in damages
        for skill, shift in (("logic", 0.0), ("copying", 0.2))
        for level in (None, 2)
        for policy, share in shares.items()
    ]
    each = by_run(list(damages), results(damages), pd.DataFrame(rows))
    logic = each[each["task"] == "battery:logic"]
    assert list(logic["policy"]) == ["top:1"] * 3
    expected = {"unmasked": 0.9, "damage": 0.5, "beyond_count": 0.4, "beyond_mass": 0.3}
    assert {name: logic[name].tolist() for name in expected} == {
        name: pytest.approx([value] * 3) for name, value in expected.items()
    }
    tables = over_seeds(each)
    assert set(tables["task"]) == {"word_problems", "battery:logic", "battery:copying"}
    assert set(plot_ladder(tables).table["panel"]) == {"word_problems, top:1@layer"}


def test_texts_that_were_read_lose_nats() -> None:
    """More nats are a loss; no model is too poor to lose any, and an interval is as narrow as the seeds are near."""
    runs = [a_run("scratch", seed) for seed in range(3)]
    gated = [a_run("scratch", seed, gate=True) for seed in range(3)]
    nats = {"none": 0.05, "top:1": 1.0, "random(top:1)": 0.2, "random(top:1),match=mass": 0.4}
    read = pd.DataFrame(
        {
            **result(run.model, policy, 0.0), "task": "text", "decoding_name": "reading", "n": 4,
            "nll": value + (0.5 if run in gated and policy == "top:1" else 0.0) + 0.001 * run.seed * (policy != "none"),
            "control_of": "top:1" if "random" in policy else None,
            "match": "mass" if "mass" in policy else "count" if "random" in policy else None,
        }
        for run in (*runs, *gated)
        for policy, value in nats.items()
    ).drop(columns="accuracy")  # fmt: skip
    frames = ladder.tables([*runs, *gated], None, None, likelihood=read)
    plain, changed = frames["ladder"].to_dict("records")
    assert (plain["measure"], plain["unmasked"], plain["scope"]) == ("nll", pytest.approx(0.05), "head")
    assert plain["damage"] == pytest.approx(0.951)
    assert (plain["beyond_count"], plain["beyond_mass"]) == pytest.approx((0.8, 0.6))
    assert plain["damage_high"] - plain["damage"] == pytest.approx(T * 0.001 / math.sqrt(3))
    assert plain["conclusion"] == changed["conclusion"] == "higher"
    changes = frames["ladder_interventions"].set_index("measure")
    assert changes.loc["damage: text, top:1", "difference"] == pytest.approx(0.5)
    assert changes.loc["nats per token: text", "difference"] == pytest.approx(0.0)
    damages = dict.fromkeys(runs, 0.5)
    both = ladder.tables(runs, results(damages), None, likelihood=read)["ladder"]
    assert dict(zip(both["task"], both["measure"], strict=True)) == {"word_problems": "accuracy", "text": "nll"}
    assert set(plot_ladder(both).table["unit"]) == {"accuracy", "nats per token"}


def test_what_changes_with_size_is_a_slope_over_runs() -> None:
    """Damage that falls by 0.1 for ten times the parameters; seeds scatter around the line alike, and two sizes are too few."""
    runs = {
        a_run("causal", seed, parameters): 0.8 - 0.1 * place + 0.01 * (seed - 1)
        for place, parameters in enumerate((10**5, 10**6, 10**7))
        for seed in range(3)
    }
    (row,) = (
        row
        for row in ladder.tables(list(runs), results(runs), None)["ladder_trends"].to_dict("records")
        if row["measure"] == "damage: word_problems, top:1@layer"
    )
    assert (row["sizes"], row["runs"], row["slope"]) == (3, 9, pytest.approx(-0.1))
    error = math.sqrt(6 * 0.01**2 / 7 / 6)
    assert row["slope_high"] - row["slope"] == pytest.approx(
        2.3646 * error, rel=1e-3
    )  # Student's, 7 degrees of freedom
    assert row["conclusion"] == "lower"
    assert row["p"] == pytest.approx(stats.linregress([5, 5, 5, 6, 6, 6, 7, 7, 7], list(runs.values())).pvalue)
    assert row["p_holm"] >= row["p"]
    longer = {
        replace(run, tokens=2 * run.tokens, model=f"{run.model} longer"): 0.0 for run in runs if run.parameters > 10**6
    }
    (again,) = (
        other
        for other in ladder.tables([*runs, *longer], results(runs | longer), None)["ladder_trends"].to_dict("records")
        if other["measure"] == row["measure"]
    )
    assert (again["tokens"], again["runs"], again["slope"]) == (row["tokens"], 9, row["slope"])
    few = {run: damage for run, damage in runs.items() if run.parameters < 10**7}
    assert "ladder_trends" not in ladder.tables(list(few), results(few), None)


def test_size_beside_what_the_mask_hit() -> None:
    """Damage follows the hits alone, and these fall with size: beside them nothing is left of the slope with size."""
    random = np.random.default_rng(3)
    rows, runs = [], []
    for place, parameters in enumerate((10**5, 10**6, 10**7)):
        for seed in range(3):
            runs.append(a_run("scratch", seed, parameters))
            hit = 0.7 - 0.2 * place + 0.1 * random.random()
            read = {"none": 0.0, "top:1": 2 * hit + 0.01 * random.random()}
            rows += [
                {**result(runs[-1].model, policy, 0.0), "task": "text", "nll": nats, "strongest_hit": hit}
                for policy, nats in read.items()
            ]
    read = pd.DataFrame(rows).drop(columns="accuracy")
    table = ladder.tables(runs, None, None, likelihood=read)["ladder_hits"]
    (row,) = table[table["damage"] == "damage"].to_dict("records")
    assert (row["given"], row["runs"]) == ("strongest_hit", 9)
    assert row["alone_high"] < 0
    assert row["slope_low"] < 0 < row["slope_high"]
    assert row["hits_low"] < 2 < row["hits_high"]
    assert row["conclusion"] == "not shown"


def test_costs_at_the_same_share_of_attention_lie_between_masks_of_more_and_more_keys() -> None:
    run = a_run("scratch", 0)
    taken = {"top:1,by=sum": 0.04, "top:2,by=sum": 0.08, "top:1,epsilon=3": 0.5}
    read = pd.DataFrame(
        {
            **result(run.model, policy, 0.0), "task": "text", "nll": 10 * share, "hidden_share": share,
            "strongest_hit": 0.5 + share, "control_of": None, "match": None,
        }
        for policy, share in {"none": 0.0, **taken}.items()
    ).drop(columns="accuracy")  # fmt: skip
    each = by_run([run], None, likelihood=read)
    (row,) = ladder.at_shares(each, (0.05, 0.1)).to_dict("records")
    assert row["policy"] == "top:k,by=sum, 5% of attention"
    assert row["damage"] == pytest.approx(0.5)
    assert row["masked"] == pytest.approx(0.5)
    assert row["strongest_hit"] == pytest.approx(0.55)
    assert (row["model"], row["hidden_share"]) == (run.model, 0.05)


def test_runs_are_read_once_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    about = {"recipe": {"name": "causal", "seed": 3}, "parameters": 7, "tokens": 9, "loss": 0.5}
    (folder / "training.json").write_text(json.dumps(about))
    points = [{"tokens": tokens, "levels": {"0": {"sink_heads": share}}} for tokens, share in ((0, 0), (4, 1))]
    (folder / "emergence.json").write_text(json.dumps({"points": points}))
    kept = tmp_path / "ladder.json"
    models = {"a": folder, "organism/causal": Path("organism/causal")}
    first = known_runs(models, kept)
    assert [(run.model, run.seed, run.sink_heads, run.emerged) for run in first] == [("a", 3, 1.0, 4)]
    (folder / "training.json").unlink()
    assert known_runs(models, kept) == first
    (folder / "training.json").write_text(json.dumps({**about, "loss": 0.25, "start_digest": "ab"}))
    (again,) = known_runs(models, kept)
    assert (again.loss, again.recipe) == (0.25, "causal, continued"), "trained again, from other weights"
    kept.write_text('[{"model": "a"}]')
    with pytest.raises(InputError, match="delete it"):
        known_runs(models, kept)


@pytest.mark.slow
def test_tables_and_figure_of_a_ladder() -> None:
    damages = {
        a_run(recipe, seed, size): 0.1 * seed + 0.2
        for recipe in ("causal", "scratch")
        for size in (1000, 4000)
        for seed in range(3)
    }
    runs = list(damages)
    sinks = pd.DataFrame(
        {"model": run.model, "policy": "none", "measure": "moving or vanishing heads", "value": 0.3} for run in runs
    )
    frames = ladder.tables(runs, results(damages), sinks)
    assert set(frames) == {"ladder", "ladder_runs", "ladder_profiles", "ladder_sinks"}
    figure = plot_ladder(frames["ladder"], frames["ladder_sinks"])
    assert set(figure.table["panel"]) == {"word_problems, top:1@layer", "moving or vanishing heads"}
    assert len(figure.table) == 8
    assert ladder.tables(runs, None, None).keys() == {"ladder_profiles", "ladder_sinks"}


@pytest.mark.slow
def test_a_study_of_a_sweeps_runs_has_the_tables_and_the_section(tmp_path: Path) -> None:
    """Two checkpoints with a training.json each, as runs of a sweep; the study names none itself."""
    file = small.write_study(tmp_path / "study", samples=2)
    lines = file.read_text().splitlines()
    kept = slice(lines.index("[decodings.short]"), lines.index("[[trace]]"))
    file.write_text("\n".join([lines[0], *lines[kept]]))
    sweep = tmp_path / "sweep"
    (tmp_path / "study").rename(sweep)
    for place, name in enumerate(("llada", "llama")):
        recipe = {"name": ("scratch", "causal")[place], "seed": 0}
        about = {"recipe": recipe, "parameters": 1000 + place, "tokens": 9}
        (sweep / name / "training.json").write_text(json.dumps(about))
    runs = {"runs": [{"name": name} for name in ("llada", "llama", "not-finished")]}
    (sweep / "sweep.json").write_text(json.dumps(runs))
    out = tmp_path / "out"
    said = small.run_here(sweep / "small.toml", out, "--runs", str(sweep), "--no-report")
    assert "accuracy lost, mean over seeds" in said
    found = pd.read_parquet(out / "tables" / "ladder.parquet")
    assert sorted(found["objective"]) == ["causal", "scratch"]
    assert set(found["conclusion"]) == {"nothing: too few seeds (n = 1)"}
    assert {run["model"] for run in json.loads((out / "ladder.json").read_text())} == {"llada", "llama"}
    page = report_page(read(out))
    section = page.split('id="ladder"')[1].split("</section>")[0]
    assert section.count("nothing: too few seeds") == 2
    assert "data:image/svg" in section
    assert "Training runs" in page.split("<nav")[1].split("</nav>")[0]
