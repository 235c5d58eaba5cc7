"""The verdicts that rest on accuracies, the tables a person reads, and the intervals behind them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from tests.sinks import synthetic

from sinkscope.base.errors import InputError
from sinkscope.sinks import detect, sink_statistics, sink_table, summary
from sinkscope.verdicts import Reason
from sinkscope.verdicts.diagnosis import by_document, diagnose


def scores(n: int, right: int) -> list[int]:
    return [1] * right + [0] * (n - right)


def dependency(base: int, top1: int, random1: int, n: int = 100) -> str:
    found = diagnose(unmasked=scores(n, base), top1=scores(n, top1), random1=scores(n, random1))
    return found["needs its strongest keys"].answer


@pytest.mark.parametrize(
    ("base", "top1", "random1", "answer"),
    [
        (90, 5, 89, "yes"),
        (90, 5, 5, ""),  # the control loses it too
        (90, 5, 40, "yes"),  # the control loses 50, the mask 85: what counts is the difference
        (90, 5, 82, "yes"),
        (90, 71, 72, ""),  # 19 lost against 18: one is certainly above 5 points, the other nearly
        (90, 90, 89, "no"),
        (90, 82, 90, ""),  # 8 points lost, but the interval reaches below 5
        (19, 0, 19, ""),  # under 0.2 there is nothing to lose
    ],
)
def test_dependency(base, top1, random1, answer):
    assert dependency(base, top1, random1) == answer


def test_a_verdict_on_traces_that_another_threshold_reverses_is_undecided_and_says_so():
    """Keys at five times uniform attention are sinks at ε = 2 and 3, and none at 4 and 6."""
    weak, strong = (
        synthetic.trace(synthetic.static_first(at), lengths=(9, 12, 15), answer=8, layers=1, heads=2)
        for at in (4.0, 30.0)
    )
    found = diagnose(weak)
    assert found["sinks"].reason == Reason.EPSILON
    assert "another threshold between ε = 2 and 6 says something else" in repr(found)
    assert diagnose(strong)["sinks"].answer == "present"
    told = diagnose(sink_statistics(weak))  # these have one threshold alone
    assert (told["sinks"].answer, "not asked at another ε" in told.setting) == ("present", True)


def test_no_sinks_of_few_prompts_says_on_what_it_rests():
    """Three prompts leave an interval up to 63 %: what decides is that not one of all heads and steps had a sink."""
    uniform = synthetic.trace(synthetic.static_first(0.0), lengths=(9, 12, 15), answer=8, layers=1, heads=2)
    assert "none: 0 % (0 to 63) of heads and steps have a sink; not one was seen" in repr(diagnose(uniform))


def test_dependency_needs_its_control():
    found = diagnose(unmasked=scores(50, 45), top1=scores(50, 5))["needs its strongest keys"]
    assert found.reason == Reason.NO_CONTROL


@pytest.mark.parametrize(("window", "first", "answer"), [(20, 60, "yes"), (60, 60, "no"), (60, 20, "no"), (50, 57, "")])
def test_anchor_reliance(window, first, answer):
    n = 100
    rng = np.random.default_rng(0)
    base = scores(n, 80)
    without = rng.permutation(scores(n, window)).tolist() if not answer else scores(n, window)
    with_first = rng.permutation(scores(n, first)).tolist() if not answer else scores(n, first)
    found = diagnose(unmasked=base, window=without, window_first=with_first)["needs its first tokens"]
    assert found.answer == answer
    low = diagnose(unmasked=scores(n, 10), window=without, window_first=with_first)["needs its first tokens"]
    assert low.reason == Reason.NOTHING_TO_LOSE


@dataclass
class Record:
    document: str
    passed: bool


@dataclass
class Evaluation:
    """As `ss.evaluate` gives it."""

    records: list[Record]

    def scores(self) -> dict[str, float]:
        documents = {record.document for record in self.records}
        return {name: np.mean([one.passed for one in self.records if one.document == name]) for name in documents}


def test_outcomes_pair_documents_whatever_their_form():
    assert by_document({"b": 1, "a": 0}) == {"b": 1.0, "a": 0.0}
    assert by_document(Evaluation([Record("b", True), Record("a", False), Record("a", True)])) == {"b": 1.0, "a": 0.5}
    assert by_document(np.array([True, False])) == by_document([1, 0]) == {"0": 1.0, "1": 0.0}
    assert by_document(pd.Series([1, 0], index=["b", "a"])) == {"b": 1.0, "a": 0.0}
    with pytest.raises(InputError, match=r"different documents \(top:1 lacks 1, such as b\)"):
        diagnose(unmasked={"b": 1, "a": 0}, top1={"a": 1})
    for wrong in ("0101", 3, [], [{"id": 1, "score": 2}], [1, [0]]):
        with pytest.raises(InputError, match="a sequence of 0/1, or an evaluation"):
            by_document(wrong)


def test_no_is_not_a_point_estimate():
    """A true gain of 20 points must not read "no" because a small sample happened to show little of it."""
    rng = np.random.default_rng(0)
    said = []
    for _ in range(300):
        easy = rng.random(16)
        base, without, first = easy < 0.9, easy < 0.5, easy < 0.7
        noise = [scores ^ (rng.random(16) < 0.1) for scores in (base, without, first)]
        found = diagnose(
            **dict(zip(("unmasked", "window", "window_first"), [n.astype(int).tolist() for n in noise], strict=True))
        )
        said.append(found["needs its first tokens"].answer)
    assert said.count("no") <= 0.05 * len(said)


def test_a_mask_that_missed_the_sinks_shows_nothing():
    @dataclass
    class Masked(Record):
        sinks_hit: float = 0.1

    base = [1] * 100
    masked = Evaluation([Masked(f"{i:03d}", True) for i in range(100)])
    plain = {f"{i:03d}": 1 for i in range(100)}
    assert base
    found = diagnose(unmasked=plain, top1=masked, random1=plain)["needs its strongest keys"]
    assert found.reason == Reason.SINKS_MISSED
    for record in masked.records:
        record.sinks_hit = 0.9
    assert diagnose(unmasked=plain, top1=masked, random1=plain)["needs its strongest keys"].answer == "no"


def test_a_loss_is_no_dependency_on_sinks_where_the_strongest_one_was_missed():
    @dataclass
    class Masked(Record):
        strongest_hit: float = 0.36

    masked = Evaluation([Masked(f"{i:03d}", False) for i in range(100)])
    plain = {f"{i:03d}": 1 for i in range(100)}
    found = diagnose(unmasked=plain, top1=masked, random1=plain)["needs its strongest keys"]
    assert found.reason == Reason.STRONGEST_MISSED
    for record in masked.records:
        record.strongest_hit = 0.9
    assert diagnose(unmasked=plain, top1=masked, random1=plain)["needs its strongest keys"].answer == "yes"


def test_without_inputs_nothing_is_claimed():
    found = diagnose()
    assert {verdict.reason for verdict in found.verdicts} == {Reason.NOT_MEASURED}
    with pytest.raises(InputError, match="there are sinks"):
        found["sink"]


def test_a_diagnosis_is_read_and_tabled():
    found = diagnose(synthetic.trace("static", lengths=(9, 12), answer=8))
    lines = repr(found).splitlines()
    assert lines[0].endswith("(ε = 3, rule sum)")
    assert len(lines) == 9
    assert max(map(len, lines)) <= 120
    assert found.table["question"].tolist() == [verdict.question for verdict in found.verdicts]
    assert found.table.loc[0, "answer"] == "present"


def test_head_means_reach_the_verdict():
    data = synthetic.trace("static", lengths=(9, 12), answer=8)
    means = data.assign(received=data["received"].mean("head"))
    assert "mean over heads" in diagnose(means).setting
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
        "sample": row["sample"], "step": row["step"], "layer": row["layer"], "head": row["head"], "key": row["key"],
    }  # fmt: skip
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


@pytest.mark.slow
def test_the_summary_is_what_its_parts_say():
    data = synthetic.trace("newline", sigma=0.4, anatomy="drain")
    table = summary(data).set_index("measure")
    found = detect(data)
    heads = data.sizes["layer"] * data.sizes["head"] * data.sizes["step"] * data.sizes["sample"]
    assert table.loc["sinks per head", "value"] == pytest.approx(int(found.sum()) / heads)
    assert table.loc["heads without a sink", "value"] == pytest.approx(float((~found.any("key")).mean()))
    assert table.loc["drains", "value"] == 1.0
    assert table.loc["newline: frequency", "value"] > 0.9
    assert table.loc["newline: enrichment", "low"] > 2
    assert {"section", "value", "low", "high", "unit", "note"} <= set(table.columns)
    unknown = summary(data.drop_vars("value_norm")).set_index("measure")
    assert np.isnan(unknown.loc["drains", "value"])
    assert "anatomy=True" in unknown.loc["drains", "note"]


def test_sink_statistics_must_be_whole():
    part = sink_statistics(synthetic.trace("static", lengths=(9, 12), answer=8), parts=("depth",))
    with pytest.raises(InputError, match="lack '"):
        summary(part)
    with pytest.raises(InputError, match="did you mean depth"):
        sink_statistics(synthetic.trace("static", lengths=(9, 12), answer=8), parts=("deph",))
