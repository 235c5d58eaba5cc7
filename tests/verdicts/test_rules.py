"""The rules that decide on the paper's claims: noise is never support, missing controls and a floor decide nothing."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from tests.sinks import synthetic
from tests.verdicts.planted import NAMES, interval, masked, read, scores, traced

from sinkscope.sinks import summary
from sinkscope.sinks.compare import BEYOND, LESS
from sinkscope.statistics import Estimate, paired_interval
from sinkscope.verdicts import Measure, Reason, Status, Verdict, wording
from sinkscope.verdicts.mask_rules import (
    LEAST_DOCUMENTS,
    POINTS_LOST,
    collapses,
    due_to_sinks,
    loses,
    loses_less_than_causal,
    loses_most,
    worse,
)
from sinkscope.verdicts.measures import LEAST_TEXTS, Kind, Measures, PolicyRun, estimates_of
from sinkscope.verdicts.questions import CLAIMS, DIFFUSION, judge, overall, sensitivity
from sinkscope.verdicts.trace_rules import against, drifts, either, fewer_than, later_and_less_sure, present
from sinkscope.verdicts.verdict import Question

SUPPORTED, CONTRADICTED, OPEN = Status
keeps = functools.partial(loses, side="below")
CLAIM = {claim.name: claim for claim in CLAIMS}


def test_what_was_not_measured_decides_nothing():
    for family in (*DIFFUSION, "causal"):
        empty = [Measures("m", family, kind) for kind in (Kind.ACCURACIES, Kind.TRACES, Kind.PAIRS)]
        for row in judge(empty).values():
            assert all(verdict.status == OPEN for verdicts in row.values() for verdict in verdicts)
            assert all(verdict.reason is not None for verdicts in row.values() for verdict in verdicts)


# ---- masking -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "status", "reason"),
    [
        ({"none": 95, "top": 95, "count": 95}, SUPPORTED, None),
        ({"none": 95, "top": 40, "count": 94}, CONTRADICTED, None),
        ({"none": 95, "top": 40, "count": 42}, OPEN, Reason.CONTROL_MAY),
        ({"none": 95, "top": 40, "count": 40}, OPEN, Reason.CONTROL_TOO),
        ({"none": 95, "top": 40}, OPEN, Reason.NO_CONTROL),
        ({"none": 95, "top": 88, "count": 95}, OPEN, Reason.INTERVAL),
        ({"none": 15, "top": 15, "count": 15}, OPEN, Reason.NOTHING_TO_LOSE),
    ],
)
def test_robustness(right, status, reason):
    found = keeps(masked(**right), "top:1")
    assert (found.status, found.reason) == (status, reason)


def test_an_effect_within_noise_is_never_support_and_the_least_n_is_said():
    for rule in (loses, keeps):  # whichever way it is asked, and only where so little may be lost
        found = rule(masked(n=16, none=16, top=16, count=16), "top:1")
        assert (found.status, found.reason) == (OPEN, Reason.INTERVAL)
        assert found.number(Measure.LEAST).value == LEAST_DOCUMENTS
        assert "93 documents are needed to show that so little is lost" in wording.evidence(found)
        assert rule(masked(n=16, none=16, top=13, count=16), "top:1").number(Measure.LEAST) is None
    for n, status in ((LEAST_DOCUMENTS - 1, OPEN), (LEAST_DOCUMENTS, SUPPORTED)):
        assert keeps(masked(n=n, none=n, top=n), "top:1").status == status
        assert paired_interval([1.0] * n, [1.0] * n).below(POINTS_LOST) == (status == SUPPORTED)


@pytest.mark.parametrize(
    ("nats", "status"),
    [
        ({"none": 3.0, "top": 3.01, "count": 3.0}, SUPPORTED),
        ({"none": 3.0, "top": 3.9, "count": 3.01}, CONTRADICTED),
        ({"none": 3.0, "top": 3.9, "count": 3.9}, OPEN),  # random keys cost as much
        ({"none": 3.0, "top": 3.9}, OPEN),  # no control
        ({"none": 3.0, "top": 3.05, "count": 3.0}, OPEN),  # around the limit, a perplexity 5 % higher
        ({"none": 7.0, "top": 7.0, "count": 7.0}, OPEN),  # nothing to lose
    ],
)
def test_texts_are_judged_by_the_same_rules(nats, status):
    assert keeps(read(**nats), "top:1").status == status


def test_too_few_texts_decide_nothing():
    for texts, status, reason in ((LEAST_TEXTS, CONTRADICTED, None), (LEAST_TEXTS - 1, OPEN, Reason.TOO_FEW)):
        found = keeps(read(none=3.0, top=3.9, count=3.01, texts=texts), "top:1")
        assert (found.status, found.reason) == (status, reason)


def test_a_text_of_which_all_is_lost():
    """Over 37 nats are a loss that rounds to 1: nothing divides by what is left."""
    known = read(none=3.0, top=60.0, count=3.0, mass=3.0)
    runs = {NAMES["mass"]: replace(known.runs[NAMES["mass"]], removed=0.095)}  # of more attention than the mask
    (found,) = judge([replace(known, runs=known.runs | runs)])["robust-1"]["m"]
    assert (found.status, round(found.estimate.value, 9)) == (CONTRADICTED, 1.0)
    assert "masking each head’s strongest key costs 1" in wording.of_model({Question.NEEDS_SINKS: found}, brief=True)
    assert collapses(replace(known, runs=known.runs | runs), "top:1").status == SUPPORTED


def test_a_text_collapses_where_perplexity_doubles_and_models_are_compared_by_what_they_keep():
    doubled = 3.0 + math.log(2)
    assert collapses(read(none=3.0, top=doubled + 0.1, count=3.0, mass=3.2), "top:1").status == SUPPORTED
    assert collapses(read(none=3.0, top=doubled - 0.1, count=3.0), "top:1").status == CONTRADICTED
    causal = read(family="causal", subject="c", none=3.0, top=4.0, count=3.01, mass=3.2)
    for top, status in ((3.3, SUPPORTED), (4.5, CONTRADICTED), (4.0, OPEN)):
        twin = replace(read(family="dream", none=3.0, top=top, count=3.01, mass=3.2), others=(causal,))
        assert loses_less_than_causal(twin, "top:1").status == status
    lost = {"none": 3.0, "top": 4.0, "count": 3.01, "mass": 3.2, "silence": 3.9, "sinks": 3.9, "rest": 3.1}
    assert due_to_sinks(read(**lost), "top:1").status == SUPPORTED


def test_robustness_needs_a_mask_that_hit_the_sinks():
    """Half of the sinks, or the strongest of half of the heads, or half of the attention that sinks get."""
    right = {"none": 95, "top": 95}
    assert keeps(masked(hits=0.2, strongest=0.9, **right), "top:1").status == SUPPORTED
    for hits, strongest in ((0.1, 0.3), (math.nan, math.nan)):
        missed = masked(hits=hits, strongest=strongest, **right)
        assert keeps(missed, "top:1").reason == Reason.SINKS_MISSED
        runs = {name: replace(run, sinks_removed=0.6) for name, run in missed.runs.items()}
        assert keeps(replace(missed, runs=runs), "top:1").status == SUPPORTED


@pytest.mark.parametrize(
    ("right", "status", "reason"),
    [
        ({"none": 95, "top": 3, "count": 90, "mass": 80}, SUPPORTED, None),
        ({"none": 95, "top": 3, "count": 4, "mass": 80}, OPEN, Reason.CONTROL_MAY),
        ({"none": 95, "top": 20, "count": 90, "mass": 15}, OPEN, Reason.CONTROL_TOO),
        ({"none": 95, "top": 3, "count": 90}, OPEN, Reason.NO_CONTROL),
        ({"none": 95, "top": 85, "count": 90}, CONTRADICTED, None),
        ({"none": 95, "top": 48, "count": 90}, OPEN, Reason.INTERVAL),
        ({"none": 12, "top": 0, "count": 12}, OPEN, Reason.NOTHING_TO_LOSE),
    ],
)
def test_collapse(right, status, reason):
    found = collapses(masked(family="causal", **right), "top:1")
    assert (found.status, found.reason) == (status, reason)


def test_what_is_guessed_is_neither_there_to_be_lost_nor_left():
    """A model that guesses between two answers keeps half of any accuracy, and has lost everything at 50 %."""
    guessing = replace(masked(n=1000, none=520, top=515, count=518), guess=0.5)
    assert keeps(guessing, "top:1").reason == Reason.NOTHING_TO_LOSE
    assert keeps(replace(guessing, guess=0.0), "top:1").status == SUPPORTED
    lost = masked(family="causal", subject="c", n=1000, none=900, top=520, count=890, mass=890)
    assert collapses(lost, "top:1").status == CONTRADICTED
    assert collapses(replace(lost, guess=0.5), "top:1").status == SUPPORTED
    # Diffusion .70 → .52 loses nearly all it knows, causal .95 → .75 under half of it; in points it is the other way round.
    own = masked(n=1000, none=700, top=520, count=695, mass=690)
    causal = masked(family="causal", subject="c", n=1000, none=950, top=750, count=945)
    both = [replace(each, guess=0.5) for each in (own, causal)]
    assert rival(*both).status == CONTRADICTED
    assert rival(own, causal).status != CONTRADICTED


@pytest.mark.parametrize("reached", [math.nan, 0.01, 0.04, 0.06, 0.2])
def test_a_control_that_removes_other_attention_decides_nothing_about_sinks(reached: float) -> None:
    """Harm in proportion to the attention that is removed, from whatever keys: a control with less of it loses less."""

    def status(mass: int) -> Status:
        measures = masked(none=95, top=30, count=93, mass=mass, silence=35, sinks=35, rest=85)
        runs = dict(measures.runs)
        runs[NAMES["mass"]] = replace(runs[NAMES["mass"]], removed=reached)
        return due_to_sinks(replace(measures, runs=runs), "top:1").status

    assert status(80) == OPEN
    assert status(28) == OPEN


@pytest.mark.parametrize("reached", [0.9, 1.0])
def test_a_loss_in_proportion_to_the_attention_removed_is_not_the_sinks(reached: float) -> None:
    """Within the tolerance the control may have removed a tenth less, and lost a tenth less for that alone."""
    lost = 6000
    control = round(9500 - reached * lost)
    measures = masked(
        n=10_000, none=9500, top=9500 - lost, count=9300, mass=control, silence=3600, sinks=4000, rest=8500
    )  # fmt: skip
    runs = dict(measures.runs)
    runs[NAMES["mass"]] = replace(runs[NAMES["mass"]], removed=0.05 * reached)
    found = due_to_sinks(replace(measures, runs=runs), "top:1")
    assert found.status != SUPPORTED
    runs[NAMES["mass"]] = replace(runs[NAMES["mass"]], scores=scores(9000, 10_000))
    assert due_to_sinks(replace(measures, runs=runs), "top:1").status == SUPPORTED


def test_a_collapse_is_one_of_sinks_only_where_the_strongest_one_was_masked():
    right = {"none": 95, "top": 20, "count": 90, "mass": 85}
    for strongest in (0.36, math.nan):
        missed = masked(hits=0.9, strongest=strongest, **right)
        assert collapses(missed, "top:1").reason == Reason.STRONGEST_MISSED
    found = collapses(masked(hits=0.23, strongest=0.9, **right), "top:1")
    assert found.status == SUPPORTED
    assert found.number(Measure.STRONGEST).value == 0.9
    assert found.number(Measure.OVER_MASS).value == pytest.approx(0.65)


@pytest.mark.parametrize(
    ("right", "status", "reason"),
    [
        ({}, SUPPORTED, None),
        ({"mass": None}, OPEN, Reason.NO_CONTROL),
        ({"rest": None}, OPEN, Reason.NO_HALVES),
        ({"mass": 30}, CONTRADICTED, None),
        ({"top": 2, "mass": 2}, OPEN, Reason.NOTHING_LEFT),
        ({"silence": 95}, OPEN, Reason.SILENCE_DISAGREES),
        ({"top": 94, "silence": 95}, OPEN, Reason.NO_LOSS),
        ({"rest": 36}, OPEN, Reason.OTHERS_MAY),
        ({"sinks": 95, "rest": 30}, CONTRADICTED, None),
    ],
)
def test_a_loss_is_the_sinks_only_when_controls_halves_and_silence_agree(right, status, reason):
    whole = {"none": 95, "top": 30, "count": 93, "mass": 80, "silence": 35, "sinks": 35, "rest": 85} | right
    found = due_to_sinks(masked(**{name: n for name, n in whole.items() if n is not None}), "top:1")
    assert (found.status, found.reason) == (status, reason)


@pytest.mark.parametrize(
    ("right", "status", "reason"),
    [
        ({"top": 90, "ten": 40, "count_ten": 85, "mass_ten": 80}, SUPPORTED, None),
        ({"top": 90, "ten": 40, "count_ten": 41, "mass_ten": 80}, OPEN, Reason.CONTROL_MAY),
        ({"top": 90, "ten": 40, "count_ten": 85, "mass_ten": 40}, OPEN, Reason.CONTROL_TOO),
        ({"top": 90, "ten": 40, "count_ten": 85}, OPEN, Reason.NO_CONTROL),
        ({"top": 90, "ten": 90, "count_ten": 90}, CONTRADICTED, None),
        ({"top": 90, "ten": 82, "count_ten": 90}, OPEN, Reason.INTERVAL),
        ({"top": 0, "ten": 0, "count_ten": 80}, OPEN, Reason.NOTHING_LEFT),  # nothing more can be lost
        ({"top": 4, "ten": 4, "count_ten": 80}, OPEN, Reason.NOTHING_LEFT),
    ],
)
def test_ten_against_one(right, status, reason):
    found = worse(masked(none=95, **right), "top:10", "top:1")
    assert (found.status, found.reason) == (status, reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"strongest": 0.36}, Reason.STRONGEST_MISSED), ({"reached": 0.59}, Reason.UNMATCHED), ({}, None)],
)
def test_the_loss_of_the_one_that_loses_counts_only_as_one_of_sinks(changes, reason):
    """Whichever of two models, or of two policies: its strongest sinks were hit, and keys with as much attention cost less."""

    def gated(**right: Any) -> Measures:
        measures = masked(strongest=changes.get("strongest", 0.9), **right)
        reached = {NAMES[name]: 0.05 * changes.get("reached", 1.0) for name in ("mass", "mass_ten")}
        runs = {name: replace(run, removed=reached.get(name, 0.05)) for name, run in measures.runs.items()}
        return replace(measures, runs=runs)

    stays = {"none": 93, "top": 91, "count": 92, "ten": 91, "count_ten": 92}
    goes = {"none": 95, "top": 3, "count": 90, "mass": 85}
    goes |= {"ten": 3, "count_ten": 90, "mass_ten": 85}
    for own, causal, status in ((stays, goes, SUPPORTED), (goes, stays, CONTRADICTED)):
        expected = (OPEN, reason) if reason else (status, None)
        found = rival(gated(**own), gated(family="causal", subject="c", **causal))
        assert (found.status, found.reason) == expected
        first, other = gated(family="mmada", **causal), gated(family="llada", subject="l", **own)
        found = loses_most(replace(first, others=(other,)), "top:10", DIFFUSION)
        assert (found.status, found.reason) == expected
    found = worse(gated(none=95, top=91, ten=3, count_ten=90, mass_ten=85), "top:10", "top:1")
    assert (found.status, found.reason) == ((OPEN, reason) if reason else (SUPPORTED, None))


def rival(own: Measures, causal: Measures) -> Verdict:
    return loses_less_than_causal(replace(own, others=(causal,)), "top:1")


def test_two_models_are_compared_relative_to_their_bases_with_both_gates():
    def causal(**right: int) -> Measures:
        return masked(family="causal", subject="c", **right)

    fragile, robust = causal(none=95, top=3, count=90, mass=85), masked(none=93, top=90, count=92)
    assert rival(robust, fragile).status == SUPPORTED
    lost = masked(none=93, top=2, count=90, mass=85)
    assert rival(lost, causal(none=95, top=93, count=95)).status == CONTRADICTED
    # Floor: a base of 30 and one of 95, both to nothing. In points one loses three times as much; it is the same loss.
    assert rival(masked(none=30, top=0, count=28), causal(none=95, top=0, count=90)).reason == Reason.NOTHING_LEFT
    # Both lose a third of what they had.
    assert rival(masked(none=30, top=20, count=30), causal(none=96, top=64, count=96)).reason == Reason.INTERVAL
    for changed, reason in (
        (masked(hits=0.05, strongest=0.3, none=93, top=90, count=92), Reason.SINKS_MISSED),
        (masked(none=93, top=90), Reason.NO_CONTROL),
        (masked(none=10, top=9, count=9), Reason.NOTHING_TO_LOSE),
    ):
        assert rival(changed, fragile).reason == reason
        assert rival(robust, replace(changed, family="causal", subject="c")).reason == reason
    # A causal model that loses as much under random keys does not lose because of its sinks.
    assert rival(robust, causal(none=95, top=3, count=4)).reason == Reason.CONTROL_MAY
    assert loses_less_than_causal(robust, "top:1").reason == Reason.NO_RIVAL


def test_mostly_in_one_model():
    def study(own: tuple[int, int], *others: tuple[int, int]) -> Verdict:
        models = [
            masked(hits=0.8, n=400, family=family, subject=family, none=base, ten=left, count_ten=base, mass_ten=base)
            for family, (base, left) in zip(("mmada", "llada", "dream"), (own, *others), strict=False)
        ]
        return loses_most(replace(models[0], others=tuple(models[1:])), "top:10", DIFFUSION)

    assert study((220, 60), (300, 280), (320, 300)).status == SUPPORTED
    # The paper's own table: LLaDA .76 to .55 and MMaDA .54 to .37 lose about as much of what they had.
    found = study((216, 148), (304, 220), (328, 300))
    assert (found.status, found.beside) == (OPEN, "llada")
    assert study((216, 210), (304, 100), (328, 300)).status == CONTRADICTED
    assert study((216, 60)).reason == Reason.NO_RIVAL


# ---- traces --------------------------------------------------------------------------------------


def test_drift_has_a_direction_a_size_an_event_and_no_ties():
    def drift(low: float, high: float, ties: float = 0.0, p: float = 0.01) -> Measures:
        return traced(
            (Measure.DRIFT, "position", interval(low, high)), (Measure.TIES, "", Estimate(ties, math.nan, math.nan)),
            (Measure.BLOCK_P, "", Estimate(p, math.nan, math.nan)),
        )  # fmt: skip

    assert drifts(drift(-0.4, -0.2), -1).status == SUPPORTED
    assert drifts(drift(0.2, 0.4), -1).status == CONTRADICTED
    assert drifts(drift(-0.05, 0.05), -1).status == CONTRADICTED
    assert drifts(drift(-0.3, 0.06), -1).status == OPEN
    assert drifts(drift(-0.3, -0.02), -1).status == OPEN  # certainly to the left, not certainly by a tenth
    assert drifts(drift(-0.4, -0.2, ties=0.37), -1).reason == Reason.TIES
    assert drifts(drift(0.2, 0.4), 1, "BLOCK_P").status == SUPPORTED
    assert drifts(drift(0.2, 0.4, p=0.4), 1, "BLOCK_P").reason == Reason.EVENTS_UNRELATED
    assert drifts(drift(0.2, 0.4, p=math.nan), 1, "BLOCK_P").reason == Reason.NO_EVENTS
    assert drifts(drift(-0.2, 0.0, p=0.4), 1, "BLOCK_P").status == CONTRADICTED


@pytest.mark.parametrize(
    ("moved", "static", "status"),
    [
        ((0.6, 0.8), (0.0, 0.1), SUPPORTED),
        ((0.0, 0.1), (0.6, 0.8), CONTRADICTED),
        ((0.0, 0.1), (0.0, 0.1), OPEN),  # noise flickers: neither moving nor static
        ((0.4, 0.6), (0.2, 0.4), OPEN),
    ],
)
def test_not_static_is_not_moving(moved, static, status):
    known = (Measure.MOVING, "", interval(*moved)), (Measure.KIND, "static", interval(*static))
    chance = Measure.MOVING_BEYOND, "", interval(0.2, 0.3)
    assert either(traced(*known, chance), "MOVING", "KIND", 0.5, opposite_of="static").status == status
    opposite = {SUPPORTED: CONTRADICTED, CONTRADICTED: SUPPORTED, OPEN: OPEN}
    assert either(traced(*known, chance), "KIND", "MOVING", 0.5, of="static").status == opposite[status]
    # What moves no more than noise that lasts as long neither moves nor speaks against staying.
    noise = traced(*known, (Measure.MOVING_BEYOND, "", interval(-0.1, 0.1)))
    for found in (
        either(noise, "MOVING", "KIND", 0.5, opposite_of="static"), either(noise, "KIND", "MOVING", 0.5, of="static")
    ):  # fmt: skip
        assert (found.reason == Reason.CHANCE) == (status == SUPPORTED)


def test_without_sinks_there_is_nothing_to_describe():
    """A last layer without any sink does not have "one or two"; a model without sinks is not described at all."""
    few = (Measure.ONE_OR_TWO, "", interval(0.0, 0.1))
    assert CLAIM["few"].verdict(traced(few)).status == CONTRADICTED
    none = traced(few, (Measure.WITHOUT, "", interval(0.995, 1.0)))
    assert CLAIM["few"].verdict(none).reason == Reason.NO_SINKS
    assert CLAIM["present"].verdict(none).status == CONTRADICTED


def test_masks_are_judged_by_their_share_and_by_enrichment():
    """A fifth of the sinks on masks is in the paper's range, and less than chance where more of the text is masks."""
    few = ((Measure.FREQUENCY, "mask", interval(0.18, 0.22)), (Measure.ENRICHMENT, "mask", interval(0.85, 0.95)))
    many = (Measure.FREQUENCY, "mask", interval(0.08, 0.12)), (Measure.ENRICHMENT, "mask", interval(1.2, 1.4))
    for known, share, beyond in ((few, SUPPORTED, CONTRADICTED), (many, CONTRADICTED, SUPPORTED)):
        assert CLAIM["masks"].verdict(traced(*known)).status == share
        assert CLAIM["masks-beyond"].verdict(traced(*known)).status == beyond


def test_a_verdict_that_flips_at_another_threshold_is_undecided():
    """The paper's sinks are strong: strong ones go, weak ones stay."""

    def at(moving: float, static: float, beyond: float = 0.2) -> Measures:
        return traced(
            (Measure.MOVING, "", interval(moving - 0.1, moving + 0.1)),
            (Measure.KIND, "static", interval(static - 0.1, static + 0.1)),
            (Measure.MOVING_BEYOND, "", interval(beyond - 0.05, beyond + 0.05)),
        )  # fmt: skip

    claim, steady = CLAIM["moving"], at(0.1, 0.7)
    assert claim.verdict(steady).status == CONTRADICTED
    for epsilon, reason in ((6.0, Reason.EPSILON), (2.0, Reason.EPSILON), (10.0, None)):
        elsewhere = {(epsilon, "auto"): at(0.6, 0.3).estimates, (3.0, "zscore"): at(0.6, 0.3).estimates}
        assert claim.verdict(replace(steady, elsewhere=elsewhere)).reason == reason
    same = replace(steady, elsewhere={(5.0, "auto"): at(0.3, 0.52).estimates})
    assert claim.verdict(same).status == CONTRADICTED
    told = [(epsilon, rule, one.status) for epsilon, rule, one in sensitivity([same]) if one.question == "moving"]
    assert told == [(5.0, "auto", OPEN)]
    assert claim.verdict(at(0.7, 0.1)).status == SUPPORTED
    assert claim.verdict(at(0.7, 0.1, 0.1)).reason == Reason.CHANCE


def test_what_another_threshold_finds_otherwise_is_told_also_where_it_gives_a_reason() -> None:
    """Sinks that drift, but not with the blocks, or are gone, at ε = 2 or 4."""

    def at(p: float, without: float) -> Measures:
        return traced(
            (Measure.DRIFT, "position", interval(0.2, 0.4)), (Measure.TIES, "", interval(0.0, 0.0)),
            (Measure.BLOCK_P, "", Estimate(p, math.nan, math.nan)), (Measure.ONE_STEP, "", interval(0.1, 0.2)),
            (Measure.WITHOUT, "", interval(without - 0.001, without + 0.001)),
        )  # fmt: skip

    here = at(0.01, 0.4)
    for name in ("right", "lasting"):
        assert CLAIM[name].verdict(here).status == SUPPORTED
    for changed, right, lasting in (
        (at(0.6, 0.4), Reason.EPSILON, None), (at(0.01, 0.998), Reason.EPSILON, Reason.EPSILON), (at(0.02, 0.6), None, None)
    ):  # fmt: skip
        elsewhere = replace(here, elsewhere={(2.0, "auto"): changed.estimates})
        assert (CLAIM["right"].verdict(elsewhere).reason, CLAIM["lasting"].verdict(elsewhere).reason) == (
            right,
            lasting,
        )


def test_there_are_no_sinks_only_where_that_is_certain() -> None:
    """0.8 % of heads and steps, and perhaps 10 %: neither are there sinks, nor are there none."""

    def of(without: Estimate) -> Verdict:
        return present(traced((Measure.WITHOUT, "", without), (Measure.ONE_STEP, "", interval(0.1, 0.2))))

    few = Estimate(0.992, 0.9, 1.0)
    assert (of(few).status, of(few).reason) == (OPEN, Reason.INTERVAL)
    described = traced((Measure.WITHOUT, "", few), (Measure.ONE_STEP, "", interval(0.1, 0.2)))
    assert against(described, "ONE_STEP", 0.5, "below").reason is None
    for none in (interval(0.994, 0.998), Estimate(1.0, 0.8, 1.0), Estimate(0.999, math.nan, math.nan)):
        assert of(none).status == CONTRADICTED
    assert of(interval(0.3, 0.5)).status == of(Estimate(0.5, math.nan, math.nan)).status == SUPPORTED


def test_a_control_that_removed_more_and_costs_less_is_the_stronger_evidence() -> None:
    """As in our diffusion models, where it removed 1.2 times as much. Where it costs as much, that says nothing."""
    reached = {"mass": 1.23, "mass_ten": 1.23}

    def study(mass: int) -> tuple[Verdict, ...]:
        loses = {"none": 95, "top": 30, "count": 93, "mass": mass, "ten": 3, "count_ten": 90, "mass_ten": mass // 2}
        own = masked(family="mmada", **loses, silence=35, sinks=35, rest=85)
        runs = dict(own.runs)
        for name, part in reached.items():
            runs[NAMES[name]] = replace(runs[NAMES[name]], removed=0.05 * part)
        own = replace(own, runs=runs)
        stays = {"none": 95, "top": 93, "count": 94, "ten": 93, "count_ten": 94}
        other = masked(family="llada", subject="l", **stays)
        causal = replace(own, family="causal", subject="c")
        return (
            collapses(own, "top:1"), worse(own, "top:10", "top:1"), rival(other, causal),
            loses_most(replace(own, others=(other,)), "top:10", DIFFUSION), due_to_sinks(own, "top:1"),
        )  # fmt: skip

    *apart, sinks = study(85)
    assert [verdict.status for verdict in apart] == [SUPPORTED] * 4
    assert sinks.reason == Reason.UNMATCHED  # attributing a loss asks for as much attention, either way
    *alike, sinks = study(8)
    assert {verdict.status for verdict in (*alike, sinks)} == {OPEN}
    assert alike[0].reason == alike[2].reason == Reason.CONTROL_MORE


def test_a_small_model_neither_confirms_nor_refutes():
    claim, measures = CLAIM["robust-1"], masked(none=95, top=40, count=94)
    assert not claim.verdict(measures).bears
    assert wording.status(claim.verdict(measures)) == "does not hold here"
    assert wording.status(claim.verdict(replace(measures, bears=True))) == "contradicted"


def test_rarer_than_the_other_model():
    def one(family: str, low: float, high: float) -> Measures:
        return traced((Measure.SINKS, "", interval(low, high)), family=family)

    def status(own: Measures, other: Measures) -> Status:
        return fewer_than(replace(own, others=(other,)), "llada").status

    assert status(one("mmada", 0.1, 0.2), one("llada", 0.5, 0.8)) == SUPPORTED
    assert status(one("mmada", 0.5, 0.8), one("llada", 0.1, 0.2)) == CONTRADICTED
    assert status(one("mmada", 0.4, 0.6), one("llada", 0.45, 0.7)) == OPEN
    assert status(one("mmada", 0.1, 0.2), one("dream", 0.5, 0.8)) == OPEN


def test_semantic_or_positional_by_intervals():
    def lead(semantic: tuple[float, float], positional: tuple[float, float]) -> Verdict:
        measures = traced((Measure.SEMANTIC, "", interval(*semantic)), (Measure.POSITIONAL, "", interval(*positional)))
        return either(measures, "SEMANTIC", "POSITIONAL", 0.0)

    assert lead((0.1, 0.2), (-0.5, -0.3)).status == SUPPORTED
    assert lead((-0.5, -0.3), (0.1, 0.2)).status == CONTRADICTED
    assert lead((-0.1, 0.2), (-0.5, -0.3)).reason == Reason.NO_MAJORITY
    assert lead((math.nan, math.nan), (math.nan, math.nan)).reason == Reason.NOT_IDENTIFIABLE


@pytest.mark.parametrize(
    ("confidence", "delay", "status"),
    [
        ((-0.2, -0.1), (1.0, 3.0), SUPPORTED),
        ((0.1, 0.2), (1.0, 3.0), CONTRADICTED),
        ((-0.2, 0.1), (1.0, 3.0), OPEN),
        ((-0.2, -0.1), (-1.0, 3.0), OPEN),
    ],
)
def test_dependent_tokens(confidence, delay, status):
    def changes(*names: str, more: Estimate | None = None) -> Measures:
        known = [
            (measure, of, more if more and of == BEYOND[1] and measure == Measure.CONFIDENCE_OF else interval(*bounds))
            for measure, bounds in ((Measure.CONFIDENCE_OF, confidence), (Measure.DELAY_OF, delay))
            for of in names
        ]
        return traced(*known, kind=Kind.PAIRS)

    assert later_and_less_sure(changes(LESS, *BEYOND)).status == status
    assert later_and_less_sure(changes(LESS)).reason == Reason.UNDAMAGED
    # Beside a control of more damage it is the other way round, or nothing: it may be the damage.
    for other in (interval(-0.1, 0.1), interval(0.1, 0.2) if confidence[1] < 0 else interval(-0.2, -0.1)):
        found = later_and_less_sure(changes(LESS, *BEYOND, more=other))
        assert (found.status, bool(found.reason)) == (OPEN, True)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.8, 1.5])
def test_noise_supports_nothing_about_movement_or_matter(sigma):
    """Traces of independent noise through the whole analysis: it has sinks by the rule, and nothing else is said of them."""
    lengths = (17, 23, 30, 41, 26, 35, 20, 28)
    table = summary(synthetic.trace("none", sigma=sigma, lengths=lengths, layers=4, heads=4))
    for family in DIFFUSION:
        measures = Measures("m", family, Kind.TRACES, estimates=estimates_of(table))
        found = {name: row["m"][0].status for name, row in judge([measures]).items() if row["m"]}
        for name in ("moving", "static", "semantic", "positional"):
            assert found.get(name, OPEN) == OPEN, name
        for name in (
            "right", "left", "rightmost", "start", "lasting", "newline", "punctuation", "masks-beyond", "early", "late"
        ):  # fmt: skip
            assert found.get(name, OPEN) != SUPPORTED, name
        assert found["present"] == SUPPORTED


# ---- the list ------------------------------------------------------------------------------------


def test_every_claim_is_about_a_known_family_and_says_how_it_is_decided():
    assert len(CLAIM) == len(CLAIMS)
    assert {"rarer", "rightmost", "mostly", "split", "late", "confidence"} <= set(CLAIM)
    for claim in CLAIMS:
        assert set(claim.families) <= {*DIFFUSION, "causal"}
        assert claim.rule
        assert claim.measured
        assert re.search(r"sec|tab|fig|app|abstract|paper", claim.where), claim.name
    found = judge([Measures("m", "causal"), Measures("n", "dream")])
    assert found["collapse"]["m"]
    assert found["collapse"]["n"] == found["left"]["m"] == ()


def test_a_claim_is_understood_without_those_before_it() -> None:
    assert [claim.text for claim in CLAIMS if claim.text.startswith(("…", "The same", "Nor", "They"))] == []


def test_claims_on_all_diffusion_models_are_about_every_such_family() -> None:
    for family in ("sdar", "llada2", "a2d", "llada"):
        assert CLAIM["robust-1"].concerns(family)
        assert CLAIM["rival"].concerns(family)
    assert not CLAIM["rarer"].concerns("sdar")
    assert not CLAIM["robust-1"].concerns("causal")


def test_every_task_is_judged():
    """HumanEval's half of table 1 counts as well as GSM8K's."""
    tasks = [
        replace(masked(none=95, top=top, count=94), about=task) for task, top in (("gsm8k", 95), ("humaneval", 40))
    ]
    found = judge(tasks)["robust-1"]["m"]
    assert [(one.about, one.status, one.n, one.unit) for one in found] == [
        ("gsm8k", SUPPORTED, 100, "document"), ("humaneval", CONTRADICTED, 100, "document")
    ]  # fmt: skip


def test_a_claim_on_a_model_is_decided_when_no_task_says_the_opposite():
    one, other, nothing = Verdict(status=SUPPORTED), Verdict(status=CONTRADICTED), Verdict()
    assert overall([one, nothing]) == SUPPORTED
    assert overall([other, other]) == CONTRADICTED
    assert overall([one, other]) == overall([nothing]) == OPEN
    said = wording.tallied({"x": {"m": (one, other), "n": (one, one), "o": ()}, "y": {"m": (nothing,)}})
    assert said.startswith("1 of 3 claims are decided, 1 as holding here and 0 as not holding")
    assert said.endswith("task by task there are 5 verdicts, 4 of them decided")
    bears = wording.tallied({"x": {"m": (replace(one, bears=True),)}})
    assert bears.startswith("1 of 1 claims are decided, 1 as supported and 0 as contradicted")
    assert wording.tallied({}) == ""


def test_a_measure_is_judged_against_a_limit():
    measures = traced((Measure.ON_FIRST, "", interval(0.6, 0.8)))
    assert against(measures, "ON_FIRST", 0.5).status == SUPPORTED
    assert against(measures, "ON_FIRST", 0.5, "below").status == CONTRADICTED
    assert against(measures, "ONE_STEP", 0.5).reason == Reason.NOT_MEASURED


def test_scores_of_documents_that_differ_are_not_paired():
    runs = {"none": PolicyRun(scores(90)), "top:1": PolicyRun(scores(50, 60))}
    assert Measures(runs=runs).lost("top:1") is None
