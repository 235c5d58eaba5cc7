"""What sinks hold: rules over the table of an inspection. Fewer than 20 prompts decide nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sinkscope.verdicts.measures import Kind, Measure, Measures, estimates_of
from sinkscope.verdicts.verdict import Reason, Status, Verdict, certain, weighed

if TYPE_CHECKING:
    import pandas as pd

LEAST = 20
SKILL = 0.02
"""A probe tells something when it saves so much of the squared error."""
VOID = {
    "sinks": Reason.NO_SINKS,
    "masks": Reason.NO_MASKS,
    "movement": Reason.CANNOT_MOVE,
    "foresight over time": Reason.NO_BLOCKS,
}
"""What a model does not have → why a question about it is meaningless."""
KIND = "What kind of sinks are they?"
KINDS = {
    "content": "they hold content: what is read there is not the same everywhere",
    "constant": "they hold the same in every run: a constant that the network reads, and nothing about the text",
    "drains": "they are drains: a place for attention, from which nothing is read",
    "nothing": "they can be changed without effect",
}
"""Answers to that question, in words."""


def measures_of(table: pd.DataFrame, void: Mapping[str, str], subject: str = "") -> Measures:
    """The measures of a survey's table, over layers; void: flag → why it means nothing here."""
    whole = table[table["layer"] == -1]
    names = whole["section"] + "/" + whole["measure"] + "/" + whole["place"]
    counts = dict(zip(names, whole["n"].astype(int), strict=True))
    return Measures(
        subject, kind=Kind.INSIDE, prompts=max(counts.values(), default=0), counts=counts, void=frozenset(void),
        estimates=estimates_of(whole.assign(measure=names)),
    )  # fmt: skip


def holds(measures: Measures, measure: str, limit: float, of: str = "", void: str = "sinks") -> Verdict:
    """A measure against a limit; void: the flag that makes it meaningless."""
    named = Measure[measure]
    verdict = _counted(measures, weighed(named, measures.get(named, of), limit, of=of))
    flag = next((flag for flag in (void, "sinks") if flag in measures.void), None)
    return verdict if flag is None else verdict.undecided(VOID[flag])


def probed(measures: Measures, of: Sequence[str]) -> Verdict:
    """Of these vectors the one at sinks that tells most of a label: it tells something, and more than at random places of their
    kind and than at one fixed place.

    Random places differ from run to run in token and position, which a probe has to see through; a sink may be always the same.
    """
    known = {name: skill for name in of if (skill := measures.get(Measure.PROBE, name)) is not None}
    if not known:
        return Verdict(measure=Measure.PROBE, reason=Reason.NOT_MEASURED)
    best = max(known, key=lambda name: known[name].value)
    others = (Measure.PROBE_OTHERS, Measure.PROBE_FIXED, Measure.PROBE_SHUFFLED)
    more = (Measure.PROBE_MORE, Measure.PROBE_MORE_FIXED)
    verdict = weighed(Measure.PROBE, known[best], SKILL, of=best).beside_it(
        *((measure, measures.get(measure, best)) for measure in (*others, *more))
    )
    beyond = all(certain(measures.get(measure, best), 0.0) for measure in more)
    elsewhere = verdict.status == Status.SUPPORTED and not beyond
    return _counted(measures, verdict.unless(Reason.ELSEWHERE_TOO if elsewhere else None))


def _counted(measures: Measures, verdict: Verdict) -> Verdict:
    name = "" if verdict.measure is None else verdict.measure.named(verdict.of)
    n = measures.counts.get(name, 0)
    few = verdict.reason != Reason.NOT_MEASURED and n < LEAST
    return replace(verdict.unless(Reason.TOO_FEW if few else None), n=n)


def kind_of_sinks(content: Verdict, value: Verdict, key: Verdict) -> Verdict:
    """Content, the same in every run, or a drain: from what three patches change.

    The first patch puts one vector, another run's strongest sink, at all sinks. That predictions change says that what is read
    there differs; whether from run to run or from sink to sink, it does not say.
    """
    verdict = Verdict(KIND, content.subject, content.about, rule="kind_of_sinks", n=content.n)
    yes, no = Status.SUPPORTED, Status.CONTRADICTED
    found = content.status, value.status, key.status
    answer = "content" if content.status == yes else "constant" if found[:2] == (no, yes) else ""
    answer = answer or {(no, no, yes): "drains", (no, no, no): "nothing"}.get(found, "")
    if answer:
        return verdict.settled(yes, answer)
    return verdict.undecided(Reason.NO_SINKS if content.reason == Reason.NO_SINKS else Reason.INTERVAL)
