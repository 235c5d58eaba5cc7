"""The rules that decide on a claim: pure functions from evidence to supported, contradicted, or not testable.

A claim is supported, or contradicted, when the whole 95 % interval lies on one side of a limit that is stated beside it. An
interval that holds the limit decides nothing, however suggestive its middle. What was not measured decides nothing either.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from sinkscope.report.study.evidence import Evidence, Scores, Span, more_lost
from sinkscope.report.study.numbers import number
from sinkscope.sinks.diagnosis import BASE_ACCURACY, POINTS_LOST
from sinkscope.sinks.drift import LEAST_DRIFT
from sinkscope.statistics import wilson

SUPPORTED, CONTRADICTED, OPEN = "supported", "contradicted", "not testable"

LEAST_HIT = 0.5
"""A mask that hid fewer of the step's own sinks than this does not test what happens without them."""


class Judgement(NamedTuple):
    """supported, contradicted or not testable, and the numbers or the reason, in words."""

    status: str
    evidence: str


Rule = Callable[[Evidence], Judgement]


def side(span: Span | None, limit: float, above: bool, said: str) -> Judgement:
    """By which side of a limit the whole interval lies on."""
    if span is None or not math.isfinite(span.value):
        return Judgement(OPEN, "not measured in this study")
    if not span.known:
        return Judgement(OPEN, f"{said}; one prompt has no interval")
    if span.low > limit:
        return Judgement(SUPPORTED if above else CONTRADICTED, said)
    if span.high < limit:
        return Judgement(CONTRADICTED if above else SUPPORTED, said)
    return Judgement(OPEN, f"{said}: not testable at this n, the interval holds {limit:g}")


def measure(name: str, limit: float, above: bool, text: str, complement: bool = False) -> Rule:
    """A measure of the table `sinks` against a limit. text: what the share is of; complement: 1 − the measure."""

    def decide(evidence: Evidence) -> Judgement:
        span = evidence.measures.get(name)
        if span is not None and complement:
            span = Span(1 - span.value, 1 - span.high, 1 - span.low)
        return side(span, limit, above, "" if span is None else f"{shares(span)} {text}")

    return decide


def enriched(category: str) -> Rule:
    """A kind of token carries sinks more often than chance would have it."""

    def decide(evidence: Evidence) -> Judgement:
        span = evidence.measures.get(f"{category}: enrichment")
        if span is None or not math.isfinite(span.value):
            return Judgement(OPEN, f"no {category} token was there to carry a sink")
        return side(span, 1.0, True, f"{plain(span)} times chance")

    return decide


def drifts(sign: int) -> Rule:
    """Sinks drift to the right (+1) or left (−1) by at least `LEAST_DRIFT` of the length."""

    def decide(evidence: Evidence) -> Judgement:
        span = evidence.measures.get("drift against position")
        note = evidence.notes.get("drift against position", "")
        if span is None or not math.isfinite(span.value):
            return Judgement(OPEN, "not measured in this study")
        said = f"{plain(span, '+.2f')} of the length"
        if note.startswith("no verdict"):
            return Judgement(OPEN, f"{said}; {note.split(';')[0]}")
        if not span.known:
            return Judgement(OPEN, f"{said}; one prompt has no interval")
        low, high = sorted((sign * span.low, sign * span.high))
        if low > 0 and sign * span.value >= LEAST_DRIFT:
            return Judgement(SUPPORTED, said)
        if high < LEAST_DRIFT:
            return Judgement(CONTRADICTED, said)
        return Judgement(OPEN, f"{said}: not testable at this n")

    return decide


def verdict(question: str, wanted: str, opposite: str) -> Rule:
    """As `diagnose` answers a question."""

    def decide(evidence: Evidence) -> Judgement:
        found = evidence.verdicts.get(question)
        if found in (wanted, opposite):
            return Judgement(SUPPORTED if found == wanted else CONTRADICTED, f"diagnosis: {found}")
        return Judgement(OPEN, "not measured in this study" if found is None else f"diagnosis: {found}")

    return decide


def deeper(column: str, fewer: bool, unit: str) -> Rule:
    """A number of the last layer beside that of the first: apart when their intervals are."""

    def decide(evidence: Evidence) -> Judgement:
        spans = evidence.layers.get(column, ())
        if len(spans) < 2:
            return Judgement(OPEN, "not measured in this study")
        first, last = spans[0], spans[-1]
        said = f"{plain(first)} in the first layer, {plain(last)} in the last {unit}"
        if not (first.known and last.known):
            return Judgement(OPEN, f"{said}; one prompt has no interval")
        if last.high < first.low:
            return Judgement(SUPPORTED if fewer else CONTRADICTED, said)
        if last.low > first.high:
            return Judgement(CONTRADICTED if fewer else SUPPORTED, said)
        return Judgement(OPEN, f"{said}: not testable at this n, the intervals overlap")

    return decide


def last_layer(column: str, limit: float, unit: str) -> Rule:
    """A number of the last layer is at most a limit."""

    def decide(evidence: Evidence) -> Judgement:
        spans = evidence.layers.get(column, ())
        span = spans[-1] if spans else None
        return side(span, limit, False, "" if span is None else f"{plain(span)} {unit}")

    return decide


def absent(reason: str) -> Rule:
    """No table of a study holds this."""
    return lambda evidence: Judgement(OPEN, reason)


# ---- masking -------------------------------------------------------------------------------------


def keeps(policy: str) -> Rule:
    """At most `POINTS_LOST` of the accuracy is lost under a policy that really hides sinks."""

    def decide(evidence: Evidence) -> Judgement:
        stop = nothing_to_lose(evidence, policy)
        lost = evidence.lost(policy)
        if stop is not None or lost is None:
            return stop or Judgement(OPEN, "not measured in this study")
        said = loss(policy, lost)
        if lost.high <= POINTS_LOST:
            return hit_enough(evidence, policy, Judgement(SUPPORTED, said))
        if lost.low > POINTS_LOST:
            return beyond_control(evidence, policy, Judgement(CONTRADICTED, said))
        return Judgement(OPEN, f"{said}: not testable at n = {evidence.n}")

    return decide


def collapses(policy: str) -> Rule:
    """Less than half of the accuracy is left, and the control keeps more."""

    def decide(evidence: Evidence) -> Judgement:
        stop = nothing_to_lose(evidence, policy)
        if stop is not None:
            return stop
        base, left = mean(evidence.scores["none"]), evidence.scores[policy]
        kept = wilson(sum(left.values()), len(left))
        said = f"{mean(left):.2f} ({kept.low:.2f} to {kept.high:.2f}) left of {base:.2f}"
        if kept.high < base / 2:
            return beyond_control(evidence, policy, Judgement(SUPPORTED, said))
        if kept.low > base / 2:
            return hit_enough(evidence, policy, Judgement(CONTRADICTED, said))
        return Judgement(OPEN, f"{said}: not testable at n = {evidence.n}")

    return decide


def worse(policy: str, than: str) -> Rule:
    """One policy costs more than another by over `POINTS_LOST`."""

    def decide(evidence: Evidence) -> Judgement:
        stop = nothing_to_lose(evidence, policy)
        more = evidence.lost(policy, base=than)
        if stop is not None or more is None:
            return stop or Judgement(OPEN, "not measured in this study")
        said = f"{policy} costs {points(more)} more than {than}"
        if more.low > POINTS_LOST:
            return beyond_control(evidence, policy, Judgement(SUPPORTED, said))
        if more.high <= POINTS_LOST:
            return Judgement(CONTRADICTED, said)
        return Judgement(OPEN, f"{said}: not testable at n = {evidence.n}")

    return decide


def loses_less_than_causal(policy: str) -> Rule:
    """The causal model of the study loses more than this one, by over `POINTS_LOST`."""

    def decide(evidence: Evidence) -> Judgement:
        stop = nothing_to_lose(evidence, policy)
        if stop is not None:
            return stop
        if evidence.rival is None:
            return Judgement(OPEN, "the study has no causal model")
        more = more_lost(evidence.rival, evidence.scores, policy)
        if more is None:
            return Judgement(OPEN, "the causal model answered other documents, or not under this policy")
        said = f"under {policy} the causal model loses {points(more)} more"
        if more.low > POINTS_LOST:
            return Judgement(SUPPORTED, said)
        if more.high <= POINTS_LOST:
            return Judgement(CONTRADICTED, said)
        return Judgement(OPEN, f"{said}: not testable at n = {evidence.n}")

    return decide


def due_to_sinks(policy: str) -> Rule:
    """What is lost is due to the sinks: count-matched control, mass-matched control and `silence` all agree."""

    def decide(evidence: Evidence) -> Judgement:
        stop = nothing_to_lose(evidence, policy)
        lost = evidence.lost(policy)
        if stop is not None or lost is None:
            return stop or Judgement(OPEN, "not measured in this study")
        if lost.low <= POINTS_LOST:
            return Judgement(OPEN, f"{loss(policy, lost)}: no loss is certain, so none is to be explained")
        count, mass, quiet = (
            f"random({policy})",
            f"random({policy}),match=mass",
            f"{policy},effect=silence",
        )
        lacking = [name for name in (count, mass, quiet) if name not in evidence.scores]
        if lacking:
            return Judgement(OPEN, f"{loss(policy, lost)}, but this study did not run {' or '.join(lacking)}")
        over = {name: evidence.lost(policy, base=name) for name in (count, mass)}
        silent = evidence.lost(quiet)
        for name, span in over.items():
            if span is not None and span.high <= POINTS_LOST:
                return Judgement(CONTRADICTED, f"{name} loses as much: only {points(span)} less")
        agree = all(span is not None and span.low > 0 for span in over.values())
        if agree and silent is not None and silent.low > POINTS_LOST:
            beside = ", ".join(f"{points(span)} more than {name}" for name, span in over.items() if span)
            return Judgement(SUPPORTED, f"{loss(policy, lost)}: {beside}; {loss('silence', silent)}")
        if silent is not None and silent.high <= POINTS_LOST:
            return Judgement(
                OPEN, f"silence disagrees: it loses {points(silent)} where hiding loses {points(lost)}"
            )
        return Judgement(OPEN, f"{loss(policy, lost)}; controls and silence do not agree at n = {evidence.n}")

    return decide


def nothing_to_lose(evidence: Evidence, policy: str) -> Judgement | None:
    """Why a policy cannot be judged at all; None when it can."""
    if "none" not in evidence.scores or policy not in evidence.scores:
        return Judgement(OPEN, "not measured in this study")
    base = mean(evidence.scores["none"])
    if base < BASE_ACCURACY:
        return Judgement(OPEN, f"an accuracy of {base:.2f} without a policy leaves nothing to lose")
    return None


def beyond_control(evidence: Evidence, policy: str, judgement: Judgement) -> Judgement:
    """A loss speaks about sinks only when hiding as many random keys costs less."""
    name = f"random({policy})"
    over = evidence.lost(policy, base=name)
    if over is None:
        return Judgement(OPEN, f"{judgement.evidence}, but this study has no {name} to compare with")
    said = f"{judgement.evidence}, {points(over)} more than {name}"
    if over.low > 0:
        return Judgement(judgement.status, said)
    return Judgement(OPEN, f"{said}: the control may lose as much")


def hit_enough(evidence: Evidence, policy: str, judgement: Judgement) -> Judgement:
    """An accuracy that stays speaks about sinks only when they were really hidden."""
    hit = evidence.hits.get(policy, math.nan)
    if hit >= LEAST_HIT:
        return Judgement(judgement.status, f"{judgement.evidence}; {hit:.0%} of the sinks were hidden")
    share = "an unknown share" if math.isnan(hit) else f"only {hit:.0%}"
    return Judgement(OPEN, f"{judgement.evidence}, but {share} of the sinks were hidden")


# ---- words ---------------------------------------------------------------------------------------


def mean(scores: Scores) -> float:
    """The accuracy: mean over documents."""
    return sum(scores.values()) / len(scores) if scores else math.nan


def shares(span: Span) -> str:
    """43 % (41 to 46)."""
    text = f"{span.value:.0%}".replace("%", " %")
    return f"{text} ({100 * span.low:.0f} to {100 * span.high:.0f})" if span.known else text


def plain(span: Span, form: str = ".2g") -> str:
    """1.6 (1.4 to 1.8)."""
    text = number(span.value, form)
    return f"{text} ({number(span.low, form)} to {number(span.high, form)})" if span.known else text


def points(span: Span) -> str:
    """81 points (49 to 96)."""
    value, low, high = (number(100 * one, ".0f") for one in span)
    return f"{value} points ({low} to {high})"


def loss(policy: str, lost: Span) -> str:
    """top:1 loses 81 points (49 to 96)."""
    return f"{policy} loses {points(lost)}"
