"""Rules on measures of traces: how many sinks, where, moving or not, made of what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from sinkscope.sinks.attribution import LEADS
from sinkscope.sinks.compare import BEYOND as BEYOND_DAMAGE
from sinkscope.sinks.compare import LESS
from sinkscope.sinks.kinds import KINDS, MOVERS
from sinkscope.statistics import difference
from sinkscope.verdicts.measures import Measure, Measures
from sinkscope.verdicts.verdict import UNKNOWN, Reason, Side, Status, Verdict, certain, decide, point, weighed

PRESENT_SHARE = 0.01
"""Sinks are present when at least this share of heads and steps has one."""
MAJORITY = 2 / 3
"""One kind of head, or drains or hubs, is the answer when it holds at least this share."""
LEAST_DRIFT = 0.1
"""A direction needs a drift of at least this share of the length over the whole generation."""
MOST_TIES = 0.2
"""Above this share of tied selections there is none: the order of decoding is an accident."""
LEAST_P = 0.05
LEAST_BEYOND = 0.1
"""Sinks move when at least this share of the heads and steps belongs to moving heads beyond those of noise that lasts as long."""
BEYOND = {Measure.MOVING: Measure.MOVING_BEYOND}
"""Measure → how far it exceeds its chance level."""
LEAST_UNIQUE = 0.05
"""Under this share of the whole gain, category and position explain too little uniquely to be told apart."""

SUPPORTED, CONTRADICTED = Status.SUPPORTED, Status.CONTRADICTED


def against(
    measures: Measures, measure: str, limit: float, side: str = "above", of: str = "", describes: bool = True
) -> Verdict:
    """A measure against a limit. describes: it is about sinks, and open for a model that has none."""
    named = Measure[measure]
    verdict = weighed(named, measures.get(named, of), limit, Side(side), of)
    return _if_sinks(measures, verdict) if describes else verdict


def either(
    measures: Measures, wanted: str, opposite: str, limit: float, of: str = "", opposite_of: str = ""
) -> Verdict:
    """Supported when a measure lies above a limit, contradicted when the opposite one does, each beyond its chance level."""
    verdict = against(measures, wanted, limit, of=of)
    other = against(measures, opposite, limit, of=opposite_of)
    if verdict.reason == Reason.NOT_MEASURED and verdict.measure in LEADS.values():
        return verdict.undecided(Reason.NOT_IDENTIFIABLE)
    # Noise that lasts as long may do as much.
    beyond = {each.measure: measures.get(BEYOND[each.measure]) for each in (verdict, other) if each.measure in BEYOND}
    if verdict.reason in (None, Reason.INTERVAL):
        lead = verdict if verdict.status == SUPPORTED else other
        chance = lead.measure in beyond and not certain(beyond[lead.measure], LEAST_BEYOND)
        if lead.status == SUPPORTED:
            status = SUPPORTED if lead is verdict else CONTRADICTED
            verdict = verdict.settled(status).unless(Reason.CHANCE if chance else None)
        else:
            verdict = verdict.undecided(Reason.NO_MAJORITY)
    numbers = ((BEYOND[measure], estimate) for measure, estimate in beyond.items())
    return verdict.beside_it((other.measure, other.estimate, opposite_of), *numbers)


def drifts(measures: Measures, sign: int, event: str = "") -> Verdict:
    """Sinks drift to the right (+1) or left (−1) by at least `LEAST_DRIFT` of the length.

    event: its moves must coincide with this event more often than at shifted times.
    """
    verdict = _drift(measures, Side.ABOVE if sign > 0 else Side.BELOW)
    if verdict.status != SUPPORTED or not event:
        return verdict
    p = (measures.get(Measure[event]) or UNKNOWN).value
    verdict = verdict.beside_it((Measure[event], point(p)))
    unrelated = Reason.NO_EVENTS if math.isnan(p) else Reason.EVENTS_UNRELATED
    return verdict.unless(None if p <= LEAST_P else unrelated)


def _drift(measures: Measures, side: Side) -> Verdict:
    """The drift against position beyond `LEAST_DRIFT` to one side, if ties leave it a direction."""
    limit = LEAST_DRIFT if side == Side.ABOVE else -LEAST_DRIFT
    verdict = against(measures, Measure.DRIFT.name, limit, side, "position")
    ties = measures.get(Measure.TIES) or UNKNOWN
    if verdict.reason in (Reason.NOT_MEASURED, Reason.NO_SINKS) or not math.isfinite(ties.value):
        return verdict
    verdict = verdict.beside_it((Measure.TIES, ties))
    return verdict.undecided(Reason.TIES) if ties.value > MOST_TIES else verdict


def fewer_than(measures: Measures, family: str) -> Verdict:
    """Fewer sinks per head than the study's model of another family."""
    other = measures.other(family)
    own, theirs = (None if one is None else one.get(Measure.SINKS) for one in (measures, other))
    if other is None or own is None or theirs is None:
        return Verdict(reason=Reason.NO_RIVAL, measure=Measure.SINKS_FEWER)
    verdict = replace(weighed(Measure.SINKS_FEWER, difference(theirs, own), 0.0), beside=other.subject)
    return verdict.beside_it((Measure.SINKS, own, measures.subject), (Measure.SINKS, theirs, other.subject))


def later_and_less_sure(measures: Measures) -> Verdict:
    """Tokens that looked at the masked sinks lose more confidence than the others, and are decided later.

    Any mask hurts fragile tokens most, the more damage the more, in a way that nobody knows. So each must hold beyond a control
    that did more damage as well as beyond one that did less; contradicted is what is certainly the other way beside both.
    """
    told = [
        [measures.get(measure, of) for of in (LESS, *BEYOND_DAMAGE)]
        for measure in (Measure.CONFIDENCE_OF, Measure.DELAY_OF)
    ]
    verdict = weighed(Measure.CONFIDENCE_OF, told[0][0], 0.0, Side.BELOW, LESS)
    damages = [(Measure.DAMAGE, measures.get(Measure.DAMAGE, of), of) for of in BEYOND_DAMAGE]
    verdict = verdict.beside_it((Measure.DELAY_OF, told[1][0], LESS), *damages)
    if verdict.reason != Reason.NOT_MEASURED and None in told[0]:
        return verdict.undecided(Reason.UNDAMAGED)
    sides = [
        {decide(estimate, 0.0, side).status for estimate in estimates}
        for estimates, side in zip(told, (Side.BELOW, Side.ABOVE), strict=True)
    ]
    if {CONTRADICTED} in sides:
        return verdict.settled(CONTRADICTED)
    if all(side == {SUPPORTED} for side in sides):
        return verdict.settled(SUPPORTED)
    reasons = verdict.reason, decide(told[1][0], 0.0).reason
    return verdict.undecided(next(filter(None, reasons), Reason.DAMAGE_MAY))


# ---- questions with several answers ----------------------------------------------------------------


def answered(leads: Mapping[str, Verdict], neither: str) -> Verdict:
    """The answer whose lead is certain; `neither` where it is certain that none is."""
    for answer, verdict in leads.items():
        if verdict.status == SUPPORTED:
            return verdict.settled(SUPPORTED, answer)
    first = next(iter(leads.values()))
    if all(verdict.status == CONTRADICTED for verdict in leads.values()):
        return first.settled(SUPPORTED, neither)
    return first.undecided(next(verdict.reason for verdict in leads.values() if verdict.reason))


def present(measures: Measures) -> Verdict:
    """Whether there are sinks at all: for certain, or of one prompt, which has no interval, as it is. "none" also where not one
    was seen."""
    verdict = against(measures, Measure.WITH.name, PRESENT_SHARE, describes=False)
    share = verdict.estimate
    if not math.isfinite(share.value):
        return verdict.undecided(Reason.NOT_JUDGED if measures.prompts else Reason.NOT_MEASURED)
    if share.value == 0 or not share.known:
        verdict = verdict.settled(SUPPORTED if share.value >= PRESENT_SHARE else CONTRADICTED)
    return verdict.beside_it((Measure.UNKNOWN, measures.get(Measure.UNKNOWN)))


def drains_or_hubs(measures: Measures) -> Verdict:
    """Drains, hubs, or certainly both."""
    drains = against(measures, Measure.DRAINS.name, MAJORITY)
    hubs = against(measures, Measure.DRAINS.name, 1 - MAJORITY, Side.BELOW)
    return answered({"drains": drains, "hubs": hubs}, "both")


def kind_of_heads(measures: Measures) -> Verdict:
    """The kind of head that most sinks belong to; "mixed": none can have two thirds."""
    shares = {kind: measures.get(Measure.KIND, kind) or UNKNOWN for kind in KINDS if kind != "none"}
    shares = {kind: share for kind, share in shares.items() if math.isfinite(share.value)}
    if not shares:
        return Verdict(reason=Reason.NOT_MEASURED, measure=Measure.KIND)
    best = max(shares, key=lambda kind: float(shares[kind].value))
    others = [(Measure.KIND, share, kind) for kind, share in shares.items() if kind != best and share.value > 0.005]
    verdict = against(measures, Measure.KIND.name, MAJORITY, of=best).beside_it(*others)
    short = shares.get("too short")
    if short is not None and short.value > 1 - MAJORITY:
        return verdict.undecided(Reason.TOO_FEW)
    if verdict.status == SUPPORTED:
        noise = best in MOVERS and not certain(measures.get(Measure.KIND_BEYOND, best), LEAST_BEYOND)
        return verdict.settled(SUPPORTED, best).unless(Reason.CHANCE if noise else None)
    # One kind that certainly has over a third leaves no other the two thirds.
    none = verdict.status == CONTRADICTED and (
        certain(shares[best], 1 - MAJORITY) or all(certain(share, MAJORITY, Side.BELOW) for share in shares.values())
    )
    if none:
        return verdict.settled(SUPPORTED, "mixed")
    return verdict.undecided(verdict.reason or Reason.INTERVAL)


def direction(measures: Measures) -> Verdict:
    """Right, left, or no direction."""
    right, left = (_drift(measures, side) for side in Side)
    return answered({"right": right, "left": left}, "no direction")


def semantic_or_positional(measures: Measures) -> Verdict:
    """What category and position explain on held-out prompts: one of them holds two thirds of it, or certainly neither."""
    total = measures.get(Measure.GAIN, "total")
    parts = [(measures.get(Measure.GAIN, name) or UNKNOWN).value for name in ("category", "position")]
    leads = {answer: weighed(lead, measures.get(lead), 0.0) for answer, lead in LEADS.items()}
    verdict = weighed(Measure.GAIN, total, 0.0, of="total")
    verdict = verdict.beside_it(*((lead.measure, lead.estimate) for lead in leads.values()))
    if total is None or verdict.status != SUPPORTED:
        return _if_sinks(measures, verdict.undecided(Reason.NOT_IDENTIFIABLE))
    mixed = sum(max(0.0, part) for part in parts) < LEAST_UNIQUE * total.value
    answer = "mixed" if mixed else answered(leads, "mixed").answer
    return verdict.settled(SUPPORTED, answer) if answer else verdict.undecided(Reason.NO_MAJORITY)


def _if_sinks(measures: Measures, verdict: Verdict) -> Verdict:
    """A description of sinks is open for a model that has none."""
    none = measures.get(Measure.WITH) is not None and present(measures).status == CONTRADICTED
    return verdict.undecided(Reason.NO_SINKS) if none else verdict
