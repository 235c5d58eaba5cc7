"""Rules on accuracies under masks: what breaks without sinks.

A loss counts only beyond the control that hides the same number of random keys; an accuracy that stays counts only if the
mask hid the sinks; where nothing is left, nothing can be told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sinkscope.report.study.evidence import ModelEvidence
from sinkscope.report.study.rules import (
    CONTRADICTED,
    NOT_MEASURED,
    OPEN,
    SUPPORTED,
    Judgement,
    loss,
    points,
    rule,
    shares,
)
from sinkscope.sinks.diagnosis import BASE_ACCURACY, CONTROL_TOO, LEAST_HIT, POINTS_LOST, depends
from sinkscope.statistics import difference, wilson
from sinkscope.tasks.choices import GUESSED

MATCHED = 0.1
"""How far the attention that a mass-matched control removed may be from the policy's, as a share of it."""
LEAST_DOCUMENTS = 93
"""Fewer documents cannot show a loss of at most 5 points, not even when all of them agree."""


@rule
def keeps(evidence: ModelEvidence, policy: str) -> Judgement:
    """At most `POINTS_LOST` of the accuracy is lost under a policy that really hides sinks."""
    stop = nothing_to_lose(evidence, policy)
    lost, over = evidence.lost(policy), evidence.lost(policy, base=f"random({policy})")
    if stop is not None or lost is None:
        return stop or NOT_MEASURED
    said = beside_control(evidence, policy, loss(policy, lost))
    found = depends(lost, over)
    if found == "no":
        return hit_enough(evidence, policy, Judgement(SUPPORTED, said))
    if found == "yes":
        return Judgement(CONTRADICTED, said)
    if found == CONTROL_TOO:
        return Judgement(OPEN, f"{said}: hiding any keys costs that")
    if lost.above(POINTS_LOST):
        return Judgement(OPEN, f"{said}: the control may lose as much")
    too_few = evidence.counted and evidence.n < LEAST_DOCUMENTS
    few = f"; under {LEAST_DOCUMENTS} documents it cannot be supported" if too_few else ""
    return Judgement(OPEN, f"{said}: not testable at n = {evidence.n}{few}")


@rule
def collapses(evidence: ModelEvidence, policy: str) -> Judgement:
    """Less than half of the accuracy is left, the control keeps more, and it was the strongest sink that was masked.

    Guessing must not keep half by itself.
    """
    stop = nothing_to_lose(evidence, policy)
    kept = evidence.kept(policy)
    if stop is not None or kept is None:
        return stop or NOT_MEASURED
    guessed = GUESSED.get(evidence.about.partition(",")[0].partition(":")[0])
    if guessed is not None and 2 * guessed >= float(evidence.whole):
        return Judgement(OPEN, f"guessing alone leaves {guessed} of {evidence.whole}, so half cannot be lost")
    said = f"{shares(kept)} left of {evidence.whole}"
    if kept.above(0.5):
        return hit_enough(evidence, policy, Judgement(CONTRADICTED, said))
    if not kept.below(0.5):
        return Judgement(OPEN, f"{said}: not testable at n = {evidence.n}")
    found = beyond_control(evidence, policy, Judgement(SUPPORTED, said))
    # Records of earlier versions say how many sinks were masked, not whether the strongest was.
    strongest, of = evidence.strongest.get(policy, math.nan), "the strongest sink was masked in {} of heads"
    if math.isnan(strongest):
        strongest, of = evidence.hits.get(policy, math.nan), "{} of the sinks were masked"
    if not strongest >= LEAST_HIT:
        share = "an unknown share" if math.isnan(strongest) else f"only {strongest:.0%}"
        return Judgement(OPEN, f"{found.evidence}, but {of.format(share)}: other keys may matter")
    beside = [of.format(f"{strongest:.0%}")]
    over = evidence.lost(policy, base=f"random({policy}),match=mass")
    if over is not None:
        beside.append(f"{points(over)} more than random keys with as much attention")
    return Judgement(found.status, "; ".join((found.evidence, *beside)))


@rule
def worse(evidence: ModelEvidence, policy: str, than: str) -> Judgement:
    """One policy costs more than another by over `POINTS_LOST`; the other must leave something to lose."""
    stop = nothing_to_lose(evidence, policy) or nothing_left(evidence, than)
    more = evidence.lost(policy, base=than)
    if stop is not None or more is None:
        return stop or NOT_MEASURED
    said = f"{policy} costs {points(more)} more than {than}"
    if more.above(POINTS_LOST):
        return beyond_control(evidence, policy, Judgement(SUPPORTED, said))
    if more.below(POINTS_LOST):
        return hit_enough(evidence, policy, Judgement(CONTRADICTED, said))
    return Judgement(OPEN, f"{said}: not testable at n = {evidence.n}")


@rule
def loses_less_than_causal(evidence: ModelEvidence, policy: str) -> Judgement:
    """Relative to its accuracy without a policy, the study's causal model loses more than this one."""
    causal = evidence.other("causal")
    if causal is None:
        return Judgement(OPEN, "the study has no causal model on this task")
    return loses_more(causal, evidence, policy)


@rule
def loses_most(evidence: ModelEvidence, policy: str, families: Sequence[str]) -> Judgement:
    """Relative to its accuracy without a policy, this model loses more than every other one of these families."""
    others = [one for one in evidence.others if one.family in families]
    if not others:
        return Judgement(OPEN, "the study has no other diffusion model on this task")
    found = [loses_more(evidence, other, policy) for other in others]
    said = "; ".join(
        f"beside {other.model}: {one.evidence}" for other, one in zip(others, found, strict=True)
    )
    statuses = {one.status for one in found}
    if statuses == {SUPPORTED}:
        return Judgement(SUPPORTED, said)
    return Judgement(CONTRADICTED if CONTRADICTED in statuses else OPEN, said)


def loses_more(first: ModelEvidence, second: ModelEvidence, policy: str) -> Judgement:
    """Whether the first model loses more than the second, each relative to its accuracy without a policy.

    Both masks must have hidden half of their model's sinks, both controls must have been run, and the loss of the one that
    loses more must exceed its control's. Where nothing is left in either, they cannot be told apart.
    """
    for one in (first, second):
        stop = nothing_to_lose(one, policy)
        if stop is not None:
            return Judgement(OPEN, f"{one.model}: {stop.evidence}")
        if f"random({policy})" not in one.scores:
            return Judgement(OPEN, f"{one.model} has no random({policy}) to compare with")
        missed = missed_sinks(one, policy)
        if missed:
            return Judgement(OPEN, f"in {one.model} {missed} of the sinks were hidden")
    kept = [one.kept(policy) for one in (first, second)]
    if kept[0] is None or kept[1] is None or not (kept[0].known and kept[1].known):
        return NOT_MEASURED
    said = f"under {policy} {first.model} keeps {shares(kept[0])} of its accuracy and {second.model} {shares(kept[1])}"
    if max(one.accuracy(policy) for one in (first, second)) < POINTS_LOST:
        return Judgement(OPEN, f"{said}: nothing is left in either")
    more = difference(kept[1], kept[0])
    if more.above(POINTS_LOST):
        return beyond_control(first, policy, Judgement(SUPPORTED, said))
    if more.below(-POINTS_LOST):
        return beyond_control(second, policy, Judgement(CONTRADICTED, said))
    return Judgement(OPEN, f"{said}: not apart at n = {first.n}")


@rule
def due_to_sinks(evidence: ModelEvidence, policy: str) -> Judgement:
    """What is lost is due to the sinks: count-matched control, mass-matched control and `silence` all agree.

    A control that removes less attention than the policy loses less whatever the keys are, so it has to have matched.
    """
    stop = nothing_to_lose(evidence, policy)
    lost = evidence.lost(policy)
    if stop is not None or lost is None:
        return stop or NOT_MEASURED
    if not lost.above(POINTS_LOST):
        return Judgement(OPEN, f"{loss(policy, lost)}: no loss is certain, so none is to be explained")
    controls = f"random({policy})", f"random({policy}),match=mass"
    quiet = f"{policy},effect=silence"
    lacking = [name for name in (*controls, quiet) if name not in evidence.scores]
    if lacking:
        return Judgement(OPEN, f"{loss(policy, lost)}, but this study did not run {' or '.join(lacking)}")
    over = {name: evidence.lost(policy, base=name) for name in controls}
    silent = evidence.lost(quiet)
    reached = evidence.removed.get(controls[1], math.nan) / evidence.removed.get(policy, math.nan)
    share = "an unknown share" if math.isnan(reached) else f"{reached:.0%}"
    unmatched = Judgement(
        OPEN, f"{loss(policy, lost)}, but {controls[1]} removed {share} of the policy's attention"
    )
    for name, more in over.items():
        if more is not None and more.below(POINTS_LOST):
            # One that removes more attention may lose as much for that alone.
            stop = nothing_left(evidence, name) or (
                unmatched if name == controls[1] and not reached <= 1 + MATCHED else None
            )
            return stop or Judgement(CONTRADICTED, f"{name} loses as much: only {points(more)} less")
    agree = all(more is not None and more.above(0.0) for more in over.values())
    if agree and silent is not None and silent.above(POINTS_LOST):
        if not reached >= 1 - MATCHED:
            return unmatched
        beside = ", ".join(f"{points(more)} more than {name}" for name, more in over.items() if more)
        return Judgement(SUPPORTED, f"{loss(policy, lost)}: {beside}; {loss('silence', silent)}")
    if silent is not None and silent.below(POINTS_LOST):
        return Judgement(
            OPEN, f"silence disagrees: it loses {points(silent)} where hiding loses {points(lost)}"
        )
    return Judgement(OPEN, f"{loss(policy, lost)}; controls and silence do not agree at n = {evidence.n}")


def nothing_to_lose(evidence: ModelEvidence, policy: str) -> Judgement | None:
    """Why a policy cannot be judged at all; None when it can."""
    if "none" not in evidence.scores or policy not in evidence.scores:
        return NOT_MEASURED
    if evidence.n < evidence.least:
        return Judgement(OPEN, f"{evidence.n} texts, and a verdict needs at least {evidence.least}")
    if evidence.weak:
        return Judgement(OPEN, f"{evidence.weak} without a policy leaves nothing to lose")
    return None


def nothing_left(evidence: ModelEvidence, policy: str) -> Judgement | None:
    """Why no further loss could be seen beyond a policy; None when one could: it leaves more than `POINTS_LOST` for certain."""
    if policy not in evidence.scores:
        return NOT_MEASURED
    left, n = evidence.accuracy(policy), len(evidence.scores[policy])
    if left < BASE_ACCURACY or wilson(left * n, n).low <= POINTS_LOST:
        return Judgement(OPEN, f"{policy} leaves {evidence.word} of {left:.2f}: too little to lose more")
    return None


def beyond_control(evidence: ModelEvidence, policy: str, judgement: Judgement) -> Judgement:
    """A loss speaks about sinks only when hiding the same number of random keys costs less."""
    over = evidence.lost(policy, base=f"random({policy})")
    said = beside_control(evidence, policy, judgement.evidence)
    if over is None:
        return Judgement(OPEN, said)
    if over.above(0.0):
        return Judgement(judgement.status, said)
    return Judgement(OPEN, f"{said}: the control may lose as much")


def beside_control(evidence: ModelEvidence, policy: str, said: str) -> str:
    """The evidence, with what the control says beside it."""
    name = f"random({policy})"
    over = evidence.lost(policy, base=name)
    if over is None:
        return f"{said}, but this study has no {name} to compare with"
    return f"{said}, {points(over)} more than {name}"


def missed_sinks(evidence: ModelEvidence, policy: str) -> str:
    """How few of the sinks a policy hid, in words; empty when they were enough."""
    hit = evidence.hits.get(policy, math.nan)
    if hit >= LEAST_HIT:
        return ""
    return "an unknown share" if math.isnan(hit) else f"only {hit:.0%}"


def hit_enough(evidence: ModelEvidence, policy: str, judgement: Judgement) -> Judgement:
    """An accuracy that stays speaks about sinks only when they were really hidden."""
    missed = missed_sinks(evidence, policy)
    if missed:
        return Judgement(OPEN, f"{judgement.evidence}, but {missed} of the sinks were hidden")
    hit = f"{evidence.hits[policy]:.0%} of the sinks were hidden"
    return Judgement(judgement.status, f"{judgement.evidence}; {hit}")
