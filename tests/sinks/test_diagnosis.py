"""The verdicts that rest on accuracies, the tables a person reads, and the intervals behind them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from tests.sinks import synthetic

from sinkscope.errors import InputError
from sinkscope.sinks import detect, diagnose, partial, sink_table, summary
from sinkscope.sinks.diagnosis import outcomes
from sinkscope.sinks.intervals import mean_interval, paired_interval, ratio_interval


def scores(n: int, right: int) -> list[int]:
    return [1] * right + [0] * (n - right)


def dependency(base: int, top1: int, random1: int, n: int = 100) -> str:
    found = diagnose(unmasked=scores(n, base), top1=scores(n, top1), random1=scores(n, random1))
    return found["ARM-like dependency"].verdict


@pytest.mark.parametrize(
    ("base", "top1", "random1", "verdict"),
    [
        (90, 5, 89, "yes"),
        (90, 5, 40, "no: the random control loses it too"),
        (90, 5, 82, "yes"),  # the control may lose 8, as long as its interval is not wholly beyond 5
        (90, 89, 89, "no"),
        (90, 82, 90, "not enough evidence"),  # 8 points lost, but the interval reaches below 5
        (19, 0, 19, "not enough evidence"),  # under 0.2 there is nothing to lose
    ],
)
def test_dependency(base, top1, random1, verdict):
    assert dependency(base, top1, random1) == verdict


def test_dependency_needs_its_control_and_prints_its_thresholds():
    found = diagnose(unmasked=scores(50, 45), top1=scores(50, 5))["ARM-like dependency"]
    assert found.verdict == "not enough evidence"
    assert "random1" in found.evidence
    assert "> 5%" in found.thresholds
    assert "0.2" in found.thresholds


@pytest.mark.parametrize(
    ("window", "first", "verdict"),
    [(20, 60, "yes"), (60, 62, "no"), (60, 20, "no"), (50, 57, "not enough evidence")],
)
def test_anchor_reliance(window, first, verdict):
    n = 100
    rng = np.random.default_rng(0)
    base = scores(n, 80)
    without = rng.permutation(scores(n, window)).tolist() if verdict.startswith("not") else scores(n, window)
    with_first = rng.permutation(scores(n, first)).tolist() if verdict.startswith("not") else scores(n, first)
    found = diagnose(unmasked=base, window=without, window_first=with_first)["fixed-anchor reliance"]
    assert found.verdict == verdict
    low = diagnose(unmasked=scores(n, 10), window=without, window_first=with_first)["fixed-anchor reliance"]
    assert low.verdict == "not enough evidence"


@dataclass
class Record:
    document: str
    seed: int
    passed: bool


@dataclass
class Evaluation:
    records: list[Record]


def test_outcomes_pair_documents_whatever_their_form():
    mapping = {"b": 1, "a": 0}
    evaluation = Evaluation([Record("b", 0, True), Record("a", 0, False), Record("a", 1, True)])
    found = outcomes(mapping, evaluation, [{"id": "b", "correct": False}, {"id": "a", "correct": True}])
    assert [f.tolist() for f in found] == [[0, 1], [0.5, 1], [1, 0]]
    with pytest.raises(InputError, match="not of the same documents"):
        outcomes(mapping, {"a": 1})
    with pytest.raises(InputError, match="'passed' or 'correct'"):
        outcomes([{"id": 1, "score": 2}])
    with pytest.raises(InputError, match=r"\.records"):
        outcomes("0101")


def test_paired_intervals():
    lost = paired_interval(np.ones(16), np.zeros(16))
    assert lost.value == 1.0
    assert 0.7 < lost.low < 1.0
    same = paired_interval(np.ones(100), np.ones(100))
    assert same.value == 0
    assert same.low < 0 < same.high
    shares = paired_interval(np.array([1.0, 0.5, 1.0, 0.5]), np.array([0.5, 0.5, 0.5, 0.5]))
    assert shares.value == pytest.approx(0.25)
    assert shares.low < 0.25 < shares.high
    with pytest.raises(InputError, match="same documents"):
        paired_interval(np.ones(3), np.ones(4))


def test_bootstrap_intervals_cover():
    """A 95 % interval over 30 prompts covers the truth in about 95 of 100 draws."""
    rng = np.random.default_rng(0)
    covered = 0
    for i in range(200):
        found = mean_interval(rng.normal(1.0, 1.0, 30), seed=i, draws=400)
        covered += found.low <= 1.0 <= found.high
    assert 0.88 <= covered / 200 <= 0.99


def test_ratios_leave_missing_samples_out():
    found = ratio_interval(np.array([1.0, np.nan, 3.0]), np.array([2.0, 5.0, 2.0]))
    assert found.value == 1.0
    assert np.isnan(ratio_interval(np.array([1.0]), np.array([2.0])).low)
    with pytest.raises(InputError, match="at least one sample"):
        ratio_interval(np.zeros(0), np.zeros(0))


def test_without_inputs_nothing_is_claimed():
    found = diagnose()
    assert {f.verdict for f in found.findings} == {"not enough evidence"}
    with pytest.raises(InputError, match="there are sinks"):
        found["sink"]


def test_a_diagnosis_is_read_and_tabled():
    found = diagnose(synthetic.trace("static", lengths=(9, 12), answer=8))
    text = str(found)
    assert "only at the start" in text
    assert "≥ 95%" in text
    assert "ε = 3" in text
    assert found.table["question"].tolist() == [f.question for f in found.findings]
    assert found.table.loc[0, "verdict"] == "present"


def test_head_means_reach_the_verdict():
    data = synthetic.trace("static", lengths=(9, 12), answer=8)
    means = data.assign(received=data["received"].mean("head"))
    assert "mean over heads" in diagnose(means)["sinks"].evidence
    assert "mean over heads" in sink_table(means).attrs["note"]
    assert set(sink_table(means)["head"]) == {-1}
    called = detect(data).sum("head").astype("int16")
    counted = sink_table(means.assign(sink_heads=called.drop_attrs()))
    assert (counted["sink_heads"] == 3).all()


def test_the_sink_table_is_tidy():
    data = synthetic.trace("newline", sigma=0.4, anatomy="hub")
    table = sink_table(data)
    assert len(table) == int(detect(data).sum())
    row = table.iloc[7]
    place = {
        "sample": row["sample"],
        "step": row["step"],
        "layer": row["layer"],
        "head": row["head"],
        "key": row["key"],
    }
    assert row["received"] == pytest.approx(float(data["received"].sel(place)))
    assert row["token"] == int(data["tokens"].sel(sample=row["sample"], step=row["step"], key=row["key"]))
    assert table["category"].value_counts().index[0] == "newline"
    assert set(table["state"]) <= {"prompt", "masked", "decided"}
    assert (table["excess"] > 0).all()
    strongest = sink_table(data, top=1)
    assert (strongest["rank"] == 1).all()
    assert len(strongest) == len(table.groupby(["sample", "step", "layer", "head"]).size())
    best = table.loc[table.groupby(["sample", "step", "layer", "head"])["received"].idxmax()]
    assert sorted(best["received"]) == pytest.approx(sorted(strongest["received"]))
    assert table.attrs["units"]["received"] == "received attention, uniform = 1"
    empty = sink_table(synthetic.trace("none", sigma=0.1))
    assert len(empty) == 0
    assert list(empty.columns) == list(table.columns)


def test_the_summary_is_what_its_parts_say():
    data = synthetic.trace("newline", sigma=0.4, anatomy="drain")
    table = summary(data).set_index("measure")
    found = detect(data)
    heads = data.sizes["layer"] * data.sizes["head"] * data.sizes["step"] * data.sizes["sample"]
    assert table.loc["sinks per head", "value"] == pytest.approx(int(found.sum()) / heads)
    assert table.loc["heads without", "value"] == pytest.approx(float((~found.any("key")).mean()))
    assert table.loc["drains", "value"] == 1.0
    assert table.loc["newline: frequency", "value"] > 0.9
    assert table.loc["newline: enrichment", "low"] > 2
    assert summary(data).attrs["attribution"] == "semantic"
    assert {"section", "value", "low", "high", "unit", "note"} <= set(table.columns)
    unknown = summary(data.drop_vars("value_norm")).set_index("measure")
    assert np.isnan(unknown.loc["drains", "value"])
    assert "anatomy=True" in unknown.loc["drains", "note"]


def test_partial_results_must_be_whole():
    part = partial(synthetic.trace("static", lengths=(9, 12), answer=8), parts=("depth",))
    with pytest.raises(InputError, match="lacks"):
        summary(part)
    with pytest.raises(InputError, match="did you mean depth"):
        partial(synthetic.trace("static", lengths=(9, 12), answer=8), parts=("deph",))
