"""Rules on measures of traces: how many sinks, where, moving or not, made of what."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Concatenate, ParamSpec

from sinkscope.report.study.evidence import ModelEvidence
from sinkscope.report.study.rules import (
    CONTRADICTED,
    NOT_MEASURED,
    OPEN,
    SUPPORTED,
    Judgement,
    plain,
    rule,
    shares,
    side,
)
from sinkscope.sinks.attribution import LEADS
from sinkscope.sinks.diagnosis import PRESENT_SHARE
from sinkscope.sinks.drift import LEAST_DRIFT, MOST_TIES
from sinkscope.statistics import Estimate, difference

LEAST_P = 0.05

Options = ParamSpec("Options")


def with_sinks(
    decide: Callable[Concatenate[ModelEvidence, Options], Judgement],
) -> Callable[Concatenate[ModelEvidence, Options], Judgement]:
    """A rule that describes sinks: open for a model that has none."""

    @functools.wraps(decide)
    def decided(evidence: ModelEvidence, /, *options: Options.args, **named: Options.kwargs) -> Judgement:
        without = evidence.measures.get("heads without")
        if without is not None and 1 - without.value < PRESENT_SHARE:
            return Judgement(OPEN, "it has no sinks to describe")
        return decide(evidence, *options, **named)

    return decided


def _measure(
    evidence: ModelEvidence, name: str, limit: float, above: bool, text: str, complement: bool = False, shown: str = "share"
) -> Judgement:  # fmt: skip
    """A measure of the table `sinks` against a limit.

    text: what it is a share of; complement: 1 − the measure; shown: "share" or "number".
    """
    estimate = evidence.measures.get(name)
    if estimate is None:
        return NOT_MEASURED
    if complement:
        estimate = Estimate(1 - estimate.value, 1 - estimate.high, 1 - estimate.low)
    words = shares(estimate) if shown == "share" else plain(estimate)
    return side(estimate, limit, above, f"{words} {text}")


measure = rule(_measure)
measure_of_sinks = rule(with_sinks(_measure))
"""The same for a claim that describes sinks: open for a model that has none."""


@rule
@with_sinks
def kinds(evidence: ModelEvidence, moving: bool) -> Judgement:
    """Most sinks belong to heads that move or vanish, or most belong to static heads."""
    moved, static = (evidence.measures.get(name) for name in ("moving or vanishing heads", "static heads"))
    if moved is None or static is None or not math.isfinite(moved.value):
        return NOT_MEASURED
    said = f"{shares(moved)} belong to heads that move or vanish, {shares(static)} to static ones"
    if not moved.known:
        return Judgement(OPEN, f"{said}; one prompt has no interval")
    if moved.above(0.5):
        return Judgement(SUPPORTED if moving else CONTRADICTED, said)
    if static.above(0.5):
        return Judgement(CONTRADICTED if moving else SUPPORTED, said)
    return Judgement(OPEN, f"{said}: neither is certainly the majority")


@rule
@with_sinks
def enriched(evidence: ModelEvidence, category: str, share: bool = False) -> Judgement:
    """A kind of token carries sinks more often than chance would have it. share: say its share of the detections too."""
    estimate = evidence.measures.get(f"{category}: enrichment")
    if estimate is None or not math.isfinite(estimate.value):
        return Judgement(OPEN, f"no {category} token was there to carry a sink")
    frequency = evidence.measures.get(f"{category}: frequency")
    detections = f", {shares(frequency)} of detections" if share and frequency is not None else ""
    return side(estimate, 1.0, True, f"{plain(estimate)} times chance{detections}")


@rule
@with_sinks
def drifts(evidence: ModelEvidence, sign: int, event: str = "") -> Judgement:
    """Sinks drift to the right (+1) or left (−1) by at least `LEAST_DRIFT` of the length.

    event: a title of the table `sinks`; the moves must coincide with it more often than at permuted times.
    """
    estimate = evidence.measures.get("drift against position")
    ties = evidence.measures.get("tied selections", Estimate(0.0, 0.0, 0.0)).value
    if estimate is None or not math.isfinite(estimate.value):
        return NOT_MEASURED
    said = f"{plain(estimate, '+.2f')} of the length"
    if ties > MOST_TIES:
        return Judgement(OPEN, f"{said}; {ties:.0%} of the selections were ties")
    if not estimate.known:
        return Judgement(OPEN, f"{said}; one prompt has no interval")
    wanted = Estimate(*(sign * one for one in (estimate.value, *estimate[1:][::sign])))
    if wanted.below(LEAST_DRIFT):
        return Judgement(CONTRADICTED, said)
    if not wanted.above(LEAST_DRIFT):
        limit = f"{sign * LEAST_DRIFT:+g}"
        return Judgement(OPEN, f"{said}: not testable at this n, the interval does not clear {limit}")
    if not event:
        return Judgement(SUPPORTED, said)
    p = evidence.measures.get(f"{event}: p", Estimate(math.nan, math.nan, math.nan)).value
    if p <= LEAST_P:
        return Judgement(SUPPORTED, f"{said}, {event} more often than by chance (p {p:.3f})")
    why = "the runs have no such events" if math.isnan(p) else f"not shown to move with them (p {p:.2f})"
    return Judgement(OPEN, f"{said}, but {why}")


@rule
@with_sinks
def leads(evidence: ModelEvidence, wanted: str, opposite: str) -> Judgement:
    """What category and position explain on held-out prompts: one of them holds two thirds."""
    lead, other = (evidence.measures.get(f"gain: {LEADS[name]}") for name in (wanted, opposite))
    if lead is None or other is None or not math.isfinite(lead.value):
        return Judgement(OPEN, "not identifiable from these prompts")
    for estimate, status, name in ((lead, SUPPORTED, wanted), (other, CONTRADICTED, opposite)):
        if estimate.above(0.0):
            return Judgement(status, f"{name}: {LEADS[name]} is {plain(estimate, '.2g')} nats per key-step")
    gain = f"{LEADS[wanted]} is {plain(lead, '.2g')} nats per key-step"
    return Judgement(OPEN, f"neither holds two thirds: {gain}")


@rule
def rarer(evidence: ModelEvidence, family: str) -> Judgement:
    """Fewer sinks per head than the study's model of another family."""
    other = evidence.other(family)
    own, theirs = (None if one is None else one.measures.get("sinks per head") for one in (evidence, other))
    if other is None or own is None or theirs is None:
        return Judgement(OPEN, f"the study has no traces of a model of the family {family} to compare with")
    said = f"{plain(own)} sinks per head, {plain(theirs)} in {other.model}"
    if not (own.known and theirs.known):
        return Judgement(OPEN, f"{said}; one prompt has no interval")
    return side(difference(theirs, own), 0.0, True, said)


@rule
def later_and_less_sure(evidence: ModelEvidence) -> Judgement:
    """Tokens that looked at the hidden sinks lose more confidence than the others, and are decided later."""
    names = [f"{title} of dependent less other tokens" for title in ("confidence change", "delay")]
    confidence, delay = (evidence.measures.get(name) for name in names)
    if confidence is None or delay is None or not (confidence.known and delay.known):
        return Judgement(
            OPEN, "needs pairs of traces with maps, of at least two documents (study mechanisms)"
        )
    said = f"confidence {plain(confidence, '+.2g')}, delay {plain(delay, '+.2g')} steps, dependent less other tokens"
    if confidence.below(0.0) and delay.above(0.0):
        return Judgement(SUPPORTED, said)
    if confidence.above(0.0) or delay.below(0.0):
        return Judgement(CONTRADICTED, said)
    return Judgement(OPEN, f"{said}: not testable at n = {evidence.prompts}")
