"""Rules on scores under masks: what breaks without sinks.

A loss counts only beyond controls, and where the strongest sinks were among the masked keys; a score that stays counts only if
the mask took sinks away; where nothing is left, nothing can be told. Scores are what lies above guessing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sinkscope.base.sink_rule import EPSILON
from sinkscope.statistics import Estimate, difference
from sinkscope.verdicts.measures import BASE_ACCURACY, LEAST_TEXTS, Kind, Measure, Measures, control
from sinkscope.verdicts.verdict import Reason, Side, Status, Verdict, certain, point, weighed

POINTS_LOST = 0.05
"""A loss that counts, and a gain that does."""
LEAST_HIT = 0.5
"""A mask that took less than this of the sinks away does not test what happens without them."""
MATCHED = 0.1
"""How much less attention than the policy a mass-matched control may remove to speak for sinks, and how much more to speak
against them, as a share of it: one that removes more and costs less says all the more for them."""
LEAST_DOCUMENTS = 93
"""Fewer documents cannot show a loss of at most 5 points, not even when all of them agree."""

SUPPORTED, CONTRADICTED = Status.SUPPORTED, Status.CONTRADICTED


def loses(measures: Measures, policy: str, side: str = "above") -> Verdict:
    """More than `POINTS_LOST` are lost, and more than under the control; side "below": the same asked the other way round.

    What is lost counts where the strongest sinks were masked, what stays where sinks were.
    """
    verdict = _masked(measures, policy, Measure.LOST, measures.lost(policy), POINTS_LOST, Side(side))
    if verdict.decided and (verdict.status == SUPPORTED) == (side == Side.ABOVE):
        return verdict.unless(_missed(measures, policy, strongest=True), _control(measures, policy))
    few = measures.kind == Kind.ACCURACIES and measures.n < LEAST_DOCUMENTS
    if verdict.reason == Reason.INTERVAL and few and verdict.estimate.value <= POINTS_LOST:
        return verdict.beside_it((Measure.LEAST, point(LEAST_DOCUMENTS)))
    return verdict.unless(_missed(measures, policy)) if verdict.decided else verdict


def collapses(measures: Measures, policy: str) -> Verdict:
    """Less than half of the score is left, both controls keep more, and it was the strongest sink that was masked."""
    verdict = _masked(measures, policy, Measure.KEPT, measures.kept(policy), 0.5, Side.BELOW)
    if not verdict.decided:
        return verdict
    return verdict.unless((_not_sinks if verdict.status == SUPPORTED else _missed)(measures, policy))


def worse(measures: Measures, policy: str, than: str) -> Verdict:
    """One policy costs more than another by over `POINTS_LOST`, beyond its controls; the other must leave something to lose."""
    more = measures.lost(policy, base=than)
    verdict = replace(_masked(measures, policy, Measure.LOST_MORE, more, POINTS_LOST), beside=than)
    if not verdict.decided and verdict.reason != Reason.INTERVAL:
        return verdict
    gate = _not_sinks if verdict.status == SUPPORTED else _missed
    return verdict.unless(_nothing_left(measures, than), verdict.reason or gate(measures, policy))


def loses_less_than_causal(measures: Measures, policy: str) -> Verdict:
    """Relative to its score without a policy, the study's causal model loses more than this one."""
    causal = measures.other("causal")
    return _first_to_decide([] if causal is None else [_loses_more(causal, measures, policy, causal)], policy)


def loses_most(measures: Measures, policy: str, families: Sequence[str]) -> Verdict:
    """Relative to its score without a policy, this model loses more than every other one of these families."""
    others = [other for other in measures.others if other.family in families]
    return _first_to_decide([_loses_more(measures, other, policy, other) for other in others], policy)


def _first_to_decide(compared: Sequence[Verdict], policy: str) -> Verdict:
    """Of several comparisons the one that decides: a contradiction, else what is left open, else the closest."""
    order = (CONTRADICTED, Status.UNDECIDED, SUPPORTED)
    nothing = Verdict(reason=Reason.NO_RIVAL, measure=Measure.KEPT_MORE, of=policy)
    return min(compared, key=lambda each: (order.index(each.status), each.estimate.value), default=nothing)


def _loses_more(first: Measures, second: Measures, policy: str, rival: Measures) -> Verdict:
    """Whether the first model loses more than the second, each relative to its score without a policy.

    Both masks must have taken sinks away, both controls must have been run, and the loss of the one that loses more must be the
    sinks' (`_not_sinks`). Where nothing is left in either, they cannot be told apart.
    """
    both = first, second
    shares = [measures.kept(policy) for measures in both]
    more = difference(shares[1], shares[0])
    verdict = replace(weighed(Measure.KEPT_MORE, more, POINTS_LOST, of=policy), beside=rival.subject).beside_it(
        *(
            (measure, estimate, measures.subject)
            for measures, share in zip(both, shares, strict=True)
            for measure, estimate in ((Measure.KEPT, share), *_about(measures, policy))
        )
    )
    # Both must be testable: a mask that missed one model's sinks would make the other look needier.
    for measures in both:
        uncontrolled = None if control(policy) in measures.runs else Reason.NO_CONTROL
        reason = _untestable(measures, policy) or uncontrolled or _missed(measures, policy)
        if reason is not None:
            return verdict.undecided(reason)
    if not (shares[0].known and shares[1].known):
        return verdict.undecided(Reason.NOT_MEASURED)
    if max(measures.score(policy) for measures in both) < POINTS_LOST:
        return verdict.undecided(Reason.NOTHING_LEFT)
    if verdict.status == SUPPORTED:
        return verdict.unless(_not_sinks(first, policy))
    if certain(more, -POINTS_LOST, Side.BELOW):
        return verdict.settled(CONTRADICTED).unless(_not_sinks(second, policy))
    return verdict.undecided(Reason.INTERVAL)


def due_to_sinks(measures: Measures, policy: str) -> Verdict:
    """What is lost is due to the sinks: the two halves of the mask, both controls and `silence` agree.

    The halves are the mask where the key is a sink, and where it is none. A control that removes less attention than the policy
    loses less whatever the keys are, so the mass-matched one has to have matched.
    """
    verdict = _masked(measures, policy, Measure.LOST, measures.lost(policy), POINTS_LOST)
    if verdict.status == CONTRADICTED or verdict.reason == Reason.INTERVAL:
        return verdict.undecided(Reason.NO_LOSS)
    controls, quiet = (control(policy), control(policy, "mass")), f"{policy},effect=silence"
    sinks, rest = f"{policy},epsilon={EPSILON:g}", f"{policy},epsilon={EPSILON:g},among=others"
    matched = abs(reached(measures, policy) - 1) <= MATCHED
    if not verdict.decided or not {*controls, quiet} <= measures.runs.keys():
        return verdict.undecided(verdict.reason or Reason.NO_CONTROL)
    silent, apart, alone = measures.lost(quiet), measures.lost(sinks, base=rest), measures.lost(sinks)
    verdict = verdict.beside_it(
        (Measure.LOST, silent, "silence"), (Measure.MATCHED, point(reached(measures, policy))),
        (Measure.LOST, alone, sinks), (Measure.OVER_OTHERS, apart, sinks),
    )  # fmt: skip
    for name in controls[: 1 + matched]:
        if certain(measures.lost(policy, base=name), POINTS_LOST, Side.BELOW):
            return verdict.settled(CONTRADICTED).unless(_nothing_left(measures, name))
    if certain(alone, POINTS_LOST, Side.BELOW):
        return verdict.settled(CONTRADICTED).unless(_missed(measures, sinks))
    quiet_too = None if certain(silent, POINTS_LOST) else Reason.INTERVAL
    if certain(silent, POINTS_LOST, Side.BELOW):
        quiet_too = Reason.SILENCE_DISAGREES
    halves = Reason.NO_HALVES if apart is None else None if certain(apart, 0.0) else Reason.OTHERS_MAY
    unmatched = None if matched else Reason.UNMATCHED
    return verdict.unless(_control(measures, policy), unmatched, _mass(measures, policy), quiet_too, halves)


def anchored(measures: Measures, window: str, first: str) -> Verdict:
    """A window that keeps the first keys in sight beats one that does not by over `POINTS_LOST`.

    Where neither window leaves anything, that they are alike says nothing.
    """
    gain = measures.lost(window, base=first)
    verdict = weighed(Measure.GAIN_FIRST, gain, POINTS_LOST, of=window)
    verdict = verdict.beside_it((Measure.BASE, point(measures.base)))
    left = [_nothing_left(measures, name) for name in (window, first)]
    floor = left[0] if verdict.status == CONTRADICTED and all(left) else None
    return verdict.unless(_untestable(measures, window), _untestable(measures, first), floor)


# ---- gates: why a verdict is not to be drawn, or None --------------------------------------------------


def _masked(
    measures: Measures, policy: str, measure: Measure, estimate: Estimate | None, limit: float, side: Side = Side.ABOVE
) -> Verdict:  # fmt: skip
    """The estimate against its limit if the policy can be judged at all, with what a reader needs about the mask."""
    over = {Measure.OVER_COUNT: control(policy), Measure.OVER_MASS: control(policy, "mass")}
    verdict = weighed(measure, estimate, limit, side, policy).beside_it(
        (Measure.BASE, point(measures.base)),
        (Measure.GUESS, point(measures.guess or math.nan)),
        *((measure, measures.lost(policy, base=name)) for measure, name in over.items()),
        *_about(measures, policy),
    )
    verdict = replace(verdict, control=measures.lost(control(policy)))
    return verdict.unless(_untestable(measures, policy))


def _about(measures: Measures, policy: str) -> list[tuple[Measure, Estimate]]:
    """What a policy masked."""
    run = measures.runs.get(policy)
    return [] if run is None else [(measure, point(share)) for measure, share in run.shares.items()]


def _untestable(measures: Measures, policy: str) -> Reason | None:
    """Why a policy cannot be judged at all."""
    if not {"none", policy} <= measures.runs.keys():
        return Reason.NOT_MEASURED
    if measures.kind == Kind.TEXTS and measures.n < LEAST_TEXTS:
        return Reason.TOO_FEW
    return None if measures.able else Reason.NOTHING_TO_LOSE


def _nothing_left(measures: Measures, policy: str) -> Reason | None:
    """No further loss could be seen beyond a policy unless it leaves more than `POINTS_LOST` for certain."""
    short = measures.score(policy) < BASE_ACCURACY or measures.least(policy) <= POINTS_LOST
    return Reason.NOTHING_LEFT if short else None


def _missed(measures: Measures, policy: str, strongest: bool = False) -> Reason | None:
    """A score that stays speaks about sinks only when they were masked: half of them, or the strongest of half of the heads, or
    half of the attention that they get. strongest: what breaks a model is a sink only when the strongest were among the keys.
    """
    run = measures.runs[policy]
    if not run.told:
        return None
    if strongest:
        return None if run.strongest >= LEAST_HIT else Reason.STRONGEST_MISSED
    hit = any(share >= LEAST_HIT for share in (run.hits, run.strongest, run.sinks_removed))
    return None if hit else Reason.SINKS_MISSED


def _not_sinks(measures: Measures, policy: str) -> Reason | None:
    """Why a loss is not shown to be that of sinks: the strongest were missed, or a control may lose as much."""
    missed = _missed(measures, policy, strongest=True)
    return missed or _control(measures, policy) or _mass(measures, policy)


def _control(measures: Measures, policy: str, match: str = "count", limit: float = 0.0) -> Reason | None:
    """A loss speaks about these keys only when masking the same number of random keys costs less."""
    over = measures.lost(policy, base=control(policy, match))
    if over is None:
        return Reason.NO_CONTROL
    if certain(over, limit):
        return None
    return Reason.CONTROL_TOO if certain(over, POINTS_LOST, Side.BELOW) else Reason.CONTROL_MAY


def _mass(measures: Measures, policy: str) -> Reason | None:
    """… and keys with as much attention, or more, too. A control that removed a little less may lose less in proportion."""
    if control(policy, "mass") in measures.runs and not reached(measures, policy) >= 1 - MATCHED:
        return Reason.UNMATCHED
    reason = _control(measures, policy, "mass", measures.part_lost(policy, 1 - reached(measures, policy)))
    more = reason == Reason.CONTROL_TOO and reached(measures, policy) > 1 + MATCHED
    return Reason.CONTROL_MORE if more else reason


def reached(measures: Measures, policy: str) -> float:
    """The attention that the mass-matched control removed, as a share of what the policy did."""
    runs = [measures.runs.get(name) for name in (control(policy, "mass"), policy)]
    removed = [math.nan if run is None else run.removed for run in runs]
    return removed[0] / removed[1] if removed[1] else math.nan
