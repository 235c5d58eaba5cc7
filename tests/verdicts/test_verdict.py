"""The decision, the verdict as data, and its words."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from sinkscope.base.masked import Masked
from sinkscope.statistics import CLEARANCE, Estimate
from sinkscope.verdicts import Measure, Number, Reason, Side, Status, Verdict, certain, decide
from sinkscope.verdicts.diagnosis import NEEDS_SINKS, QUESTIONS
from sinkscope.verdicts.verdict import Question, point
from sinkscope.verdicts.wording import SHORT, bounded_below, counted, evidence, of_model, short, why

ABOVE, BELOW = Side.ABOVE, Side.BELOW


@pytest.mark.parametrize(
    ("estimate", "side", "status", "reason"),
    [
        (Estimate(0.7, 0.6, 0.8), ABOVE, Status.SUPPORTED, None),
        (Estimate(0.7, 0.6, 0.8), BELOW, Status.CONTRADICTED, None),
        (Estimate(0.3, 0.2, 0.4), ABOVE, Status.CONTRADICTED, None),
        (Estimate(0.3, 0.2, 0.4), BELOW, Status.SUPPORTED, None),
        (Estimate(0.6, 0.4, 0.8), ABOVE, Status.UNDECIDED, Reason.INTERVAL),
        (Estimate(0.9, math.nan, math.nan), ABOVE, Status.UNDECIDED, Reason.NO_INTERVAL),
        (Estimate(0.0, math.nan, math.nan), ABOVE, Status.UNDECIDED, Reason.NONE_SEEN),
        (Estimate(math.nan, math.nan, math.nan), ABOVE, Status.UNDECIDED, Reason.NOT_MEASURED),
        (None, ABOVE, Status.UNDECIDED, Reason.NOT_MEASURED),
    ],
)
def test_an_interval_against_a_limit(
    estimate: Estimate | None, side: Side, status: Status, reason: Reason | None
) -> None:
    assert decide(estimate, 0.5, side) == (status, reason)
    assert certain(estimate, 0.5, side) == (status == Status.SUPPORTED)


def test_the_interval_needs_its_clearance() -> None:
    low = 0.6 - 0.1 / CLEARANCE
    assert decide(Estimate(0.6, low + 1e-6, 0.7), 0.5).status == Status.SUPPORTED
    assert decide(Estimate(0.6, low - 1e-6, 0.7), 0.5).reason == Reason.INTERVAL


VERDICT = Verdict(
    question="robust-1", subject="a model", about="a task", status=Status.CONTRADICTED, rule="loses", measure=Measure.LOST,
    of="top:1", estimate=Estimate(0.8, 0.5, 1.0), limit=0.05, side=BELOW, control=Estimate(0.1, 0.0, 0.2), n=16,
    unit="document", numbers=(Number(Measure.STRONGEST, Estimate(0.7, math.nan, math.nan), "top:1"),),
)  # fmt: skip


@pytest.mark.parametrize("verdict", [VERDICT, Verdict(), VERDICT.undecided(Reason.SINKS_MISSED)])
def test_json_there_and_back(verdict: Verdict) -> None:
    text = verdict.to_json()
    assert Verdict.from_json(text).to_json() == text
    assert repr(Verdict.from_json(text)) == repr(verdict)
    assert "NaN" not in text
    assert json.loads(text)["status"] == verdict.status.value


def test_a_reason_is_stored_by_its_name_and_its_words_of_before_are_read() -> None:
    verdict = VERDICT.undecided(Reason.SINKS_MISSED)
    text = verdict.to_json()
    assert json.loads(text)["reason"] == "SINKS_MISSED"
    assert Verdict.from_json(text.replace("SINKS_MISSED", "too few of the sinks were masked")).reason == verdict.reason
    assert Verdict.from_json(text.replace("SINKS_MISSED", "the interval holds the limit")).reason == Reason.INTERVAL


def test_numbers_are_found_by_their_measure() -> None:
    assert VERDICT.decided
    assert VERDICT.number(Measure.STRONGEST) == VERDICT.numbers[0].estimate
    assert VERDICT.number(Measure.HITS) is None


def test_a_line_of_a_terminal_ends_with_a_whole_word() -> None:
    long = replace(VERDICT, reason=Reason.STRONGEST_MISSED, status=Status.UNDECIDED)
    whole, said = evidence(replace(long, numbers=())), short(long)
    assert len(said) <= SHORT < len(whole)
    assert said.endswith(" …")
    assert whole.startswith(f"{said[:-2]} ")


def test_what_was_masked_is_called_as_in_tables() -> None:
    for name in ("HITS", "STRONGEST"):
        assert Measure[name].named() == Masked[name].heading


def test_every_measure_has_a_name_of_its_own() -> None:
    titles = [measure.title for measure in Measure]
    assert len(titles) == len(set(titles)) == len(Measure.__members__)


def test_every_question_is_asked_by_its_name() -> None:
    assert [claim.name for claim in (*QUESTIONS, NEEDS_SINKS)] == list(Question)
    assert NEEDS_SINKS.rule == next(claim.rule for claim in QUESTIONS if claim.name == "needs its strongest keys")


def test_words() -> None:
    assert (
        evidence(VERDICT) == "top:1: 80 points (50 to 100) lost; top:1: 70 % of heads had their strongest sink masked"
    )
    open_ = Verdict(measure=Measure.WITH, estimate=Estimate(0.6, 0.4, 0.8), limit=0.5, n=3, reason=Reason.INTERVAL)
    assert (
        evidence(open_)
        == "60 % (40 to 80) of heads and steps have a sink; the interval includes the limit, 0.5 (n = 3)"
    )


def test_a_model_in_one_sentence():
    present = Verdict("sinks", status=Status.SUPPORTED, answer="present", estimate=Estimate(0.43, 0.41, 0.46), n=3)
    needs = Verdict(
        "needs its strongest keys", status=Status.SUPPORTED, answer="yes", estimate=Estimate(0.812, 0.488, 0.956),
        control=Estimate(0.062, -0.096, 0.207), n=16, unit="document",
    )  # fmt: skip
    hubs, mixed = (Verdict(status=Status.SUPPORTED, answer=answer) for answer in ("hubs", "mixed"))
    found = {"sinks": present, "drains or hubs": hubs, "moving": mixed, "needs its strongest keys": needs}
    said = of_model(found)
    assert said == (
        "Sinks in 43 % (41 to 46) of heads and steps, mostly hubs, some fixed and some moving; masking each head’s strongest key "
        "costs 81 points (49 to 96), random keys 6 (−10 to 21): that sinks are the reason is open."
    )
    assert of_model(found, brief=True) == (
        "Sinks in 43 % of heads and steps; masking each head’s strongest key costs 81 points, random keys 6: that sinks are the "
        "reason is open."
    )
    assert counted(found) == "3 prompts and 16 documents"
    for verdict, part in (
        (needs.settled(Status.CONTRADICTED), "random keys 6 (−10 to 21): hardly anything"),
        (needs.undecided(Reason.CONTROL_TOO), ": undecided (random too)."),
        (needs.undecided(Reason.INTERVAL), "random keys 6 (−10 to 21): undecided."),
        (Verdict(reason=Reason.NOT_MEASURED), "whether it needs them is undecided (not measured)"),
    ):
        assert part in of_model({**found, "needs its strongest keys": verdict})
    assert "No sinks were found" in of_model({"sinks": present.settled(Status.CONTRADICTED, "none")})
    assert "Whether it has sinks is undecided (not measured)" in of_model({})
    few, text = replace(needs.undecided(Reason.INTERVAL), n=4), replace(needs, unit="text")
    assert "strongest key costs is undecided: 4 documents are too few" in of_model(
        {**found, "needs its strongest keys": few}
    )
    cost = "costs 81 % (49 to 96) of a token’s probability, random keys 6 % (−10 to 21)"
    assert cost in of_model({**found, "needs its strongest keys": text})


@pytest.mark.parametrize(
    ("unit", "low", "reached", "said"),
    [
        ("document", 0.3, 1.2, "points (60 to 90), keys nearest in attention 30: more than both controls."),
        ("document", -0.1, 1.0, "keys nearest in attention 30: that sinks are the reason is open."),
        ("document", 0.3, 0.25, "keys nearest in attention (25 % of it) 30: that sinks are the reason is open."),
        ("text", 0.3, 0.95, "of a token’s probability, keys nearest in attention 60 %: more than both controls."),
    ],
)
def test_a_loss_is_told_beside_keys_of_like_attention(unit: str, low: float, reached: float, said: str) -> None:
    """A rule that only asks for more than random keys cost says nothing of why."""
    lost = Verdict(
        "needs its strongest keys", status=Status.SUPPORTED, estimate=Estimate(0.8, 0.6, 0.9), n=40, unit=unit
    )
    lost = lost.beside_it((Measure.OVER_MASS, Estimate(0.5, low, 0.7), "top:1"), (Measure.MATCHED, point(reached)))
    assert said in of_model({lost.question: lost})


def test_too_few_texts_have_no_interval() -> None:
    few = replace(VERDICT, unit="text", n=5, estimate=Estimate(0.05, -79.24, 0.99)).undecided(Reason.TOO_FEW)
    assert evidence(few).startswith("5 points of a token's probability lost; ")
    assert not bounded_below(few).control.known
    assert bounded_below(replace(few, n=16)) == replace(few, n=16)


def test_every_reason_has_a_word() -> None:
    assert [reason for reason in Reason if not 0 < len(why(Verdict(reason=reason))) <= 16] == []
    assert why(VERDICT) == ""
