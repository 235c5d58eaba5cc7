"""A verdict with its evidence: what kind of sinks this model has, and whether it depends on them.

Every verdict stands beside the numbers that it rests on and the thresholds that decided it. Where an input is missing, or the
model cannot do the task in the first place, the verdict is "not enough evidence", never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from sinkscope.errors import InputError
from sinkscope.sink_rule import EPSILON
from sinkscope.sinks.attribution import LEADS, LEAST_UNIQUE
from sinkscope.sinks.dataset import Array
from sinkscope.sinks.drift import LEAST_DRIFT, MOST_TIES
from sinkscope.sinks.kinds import KINDS, STATIC_SHARE
from sinkscope.sinks.scan import DRAIN_RATIO, FIRST_POSITIONS
from sinkscope.sinks.sink_statistics import SinkStatistics, as_statistics
from sinkscope.sinks.summary_table import attribution_of, drifts, kind_weights
from sinkscope.statistics import Estimate, paired_interval, ratio_interval
from sinkscope.text import html_table

PRESENT_SHARE = 0.01
"""Sinks are present when at least this share of head-steps has one."""

MAJORITY = 2 / 3
"""One kind of head, or drains or hubs, decides the verdict when it holds at least this share."""

START_SHARE = 0.95
"""Only at the start: at least this share of sink attention on the first 4 real positions."""

POINTS_LOST = 0.05
"""Dependency, and reliance on anchors: more than this much accuracy."""

BASE_ACCURACY = 0.2
"""Under this accuracy without a policy there is nothing to lose, and no verdict."""

LEAST_HIT = 0.5
"""A mask that hid fewer of the step's own sinks than this does not test what happens without them."""

NO_EVIDENCE = "not enough evidence"
WHOLE = "in the whole interval over prompts"
CONTROL_TOO = "no: the random control loses it too"


@dataclass(frozen=True)
class Finding:
    """One question, its verdict, the evidence as numbers in words, and the thresholds that decided."""

    question: str
    verdict: str
    evidence: str
    thresholds: str


@dataclass(frozen=True)
class Diagnosis:
    """The findings in their order; `diagnosis["moving"].verdict`, `diagnosis.table`, `print(diagnosis)`."""

    findings: tuple[Finding, ...]
    title: str = ""

    def __getitem__(self, question: str) -> Finding:
        for finding in self.findings:
            if finding.question == question:
                return finding
        raise InputError(f"no finding {question!r}; there are {', '.join(f.question for f in self.findings)}")

    @property
    def table(self) -> pd.DataFrame:
        """One row per finding: question, verdict, evidence, thresholds."""
        return pd.DataFrame([vars(finding) for finding in self.findings])

    def __str__(self) -> str:
        width = max(len(f.question) for f in self.findings)
        lines = [f"Diagnosis of {self.title}" if self.title else "Diagnosis"]
        for f in self.findings:
            lines.append(f"  {f.question:<{width}}  {f.verdict}")
            lines.append(f"  {'':<{width}}    {f.evidence} [{f.thresholds}]")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The findings as a table, for a notebook."""
        rows = [(f.question, f.verdict, f.evidence, f.thresholds) for f in self.findings]
        title = f"Diagnosis of {self.title}" if self.title else "Diagnosis"
        return html_table(title, ("question", "verdict", "evidence", "rule"), rows)


def diagnose(
    traces: Any = None,
    *,
    unmasked: Any = None,
    top1: Any = None,
    random1: Any = None,
    window: Any = None,
    window_first: Any = None,
    epsilon: float = EPSILON,
    rule: str = "auto",
    scores: str = "auto",
    tokenizer: Any = None,
    categories: Mapping[int, str] | None = None,
) -> Diagnosis:
    """A verdict with its evidence, from traces and, when given, accuracies under policies.

    traces: a trace, sink statistics, or a list of them, recorded without a policy. Accuracies are the outcomes of the same
    documents under: no policy (unmasked), `MaskTop(1)` at head scope (top1), its random control (random1), `Window(w)`
    (window) and `Window(w, first=4)` (window_first). Each is {document: correct}, a sequence of 0/1 in one common order, or
    an evaluation with `.records`.

    Findings: "sinks" (present or not), "drains or hubs", "moving" (static, moving, flickering, vanishing, emerging,
    intermittent, mixed), "drift", "semantic or positional", "only at the start", "ARM-like dependency" and "fixed-anchor
    reliance". Shares are decided by whole 95 % intervals over prompts, so one prompt decides nothing on them; the last two by
    those of paired losses, against the random control and against 5 points. Limits: the thresholds are conventions, and printed.

    >>> found = {finding.question: finding.verdict for finding in ss.diagnose(trace).findings}
    >>> found["sinks"], found["moving"]  # of one prompt
    ('present', 'not enough evidence')
    """
    statistics = None
    if traces is not None:
        statistics = as_statistics(
            traces, epsilon=epsilon, rule=rule, scores=scores, tokenizer=tokenizer, categories=categories
        )
    findings = [
        *_from_traces(statistics),
        _dependency(unmasked, top1, random1),
        _anchor(unmasked, window, window_first),
    ]
    attrs = {} if statistics is None else statistics.attrs
    return Diagnosis(tuple(findings), " ".join(str(attrs.get(k, "")) for k in ("model", "policy")).strip())


def _from_traces(statistics: SinkStatistics | None) -> list[Finding]:
    questions = ("sinks", "drains or hubs", "moving", "drift", "semantic or positional", "only at the start")
    if statistics is None:
        return [Finding(q, NO_EVIDENCE, "no trace was given", "needs traces") for q in questions]
    present = _present(statistics)
    if present.verdict != "present":
        reason = "without sinks there is nothing to describe"
        return [present, *(Finding(q, NO_EVIDENCE, reason, present.thresholds) for q in questions[1:])]
    describe = (_drains, _moving, _drift, _semantic, _start)
    return [present, *(finding(statistics) for finding in describe)]


def _share(statistics: SinkStatistics, top: Array, bottom: Array) -> Estimate:
    return ratio_interval(top, bottom, statistics["prompt"].values, "share")


def _present(statistics: SinkStatistics) -> Finding:
    steps = statistics["head_steps"].values.sum(axis=1)
    share = _share(statistics, steps - statistics["without"].values.sum(axis=1), steps)
    setting = f"ε = {statistics.attrs['epsilon']:g}, rule {statistics.attrs['rule']}"
    rules = f"present: ≥ {PRESENT_SHARE:.0%} of head-steps with a sink at {setting}"
    if steps.sum() == 0:
        why = statistics.attrs.get("note") or "the texts are too short"
        return Finding("sinks", NO_EVIDENCE, f"no key could be judged: {why}", rules)
    evidence = f"{_percent(share)} of head-steps have a sink"
    if "unknown" in statistics:
        unknown, cells = (statistics[name].values for name in ("unknown", "cells"))
        evidence += (
            f"; {_share(statistics, unknown, unknown + cells).value:.0%} of the keys could not be judged"
        )
    if str(statistics.attrs.get("note")):
        evidence += f"; {statistics.attrs['note']}"
    return Finding("sinks", "present" if share.value >= PRESENT_SHARE else "none", evidence, rules)


def _drains(statistics: SinkStatistics) -> Finding:
    rules = f"drain: value norm < {DRAIN_RATIO:g} × median of the head; {MAJORITY:.0%} decide, {WHOLE}"
    drains = statistics["drains"].values.sum(axis=1)
    if not np.isfinite(drains).all():
        return Finding("drains or hubs", NO_EVIDENCE, "the capture has no value norms (anatomy=True)", rules)
    share = _share(statistics, drains, statistics["detections"].values.sum(axis=1))
    verdict = NO_EVIDENCE
    if share.above(MAJORITY):
        verdict = "drains"
    elif share.below(1 - MAJORITY):
        verdict = "hubs"
    elif share.above(1 - MAJORITY) and share.below(MAJORITY):
        verdict = "both"
    evidence = f"{_percent(share)} of the detections are drains"
    return Finding("drains or hubs", verdict, _undecided(verdict, evidence, share), rules)


def _moving(statistics: SinkStatistics) -> Finding:
    rules = (
        f"static: fixed keys hold the path for ≥ {STATIC_SHARE:.0%} of the steps (the page “Sink analysis” has all kinds); "
        f"a kind decides with {MAJORITY:.0%} of the head-steps that have a sink, {WHOLE}; mixed: none of them can have it"
    )
    return Finding("moving", *_kind(statistics), rules)


def _kind(statistics: SinkStatistics) -> tuple[str, str]:
    weights = kind_weights(statistics)
    total = weights.sum(axis=1)
    shares = {kind: _share(statistics, weights[:, i], total) for i, kind in enumerate(KINDS)}
    if shares["too short"].value > 1 - MAJORITY:
        return NO_EVIDENCE, "too few steps"
    best = max(shares, key=lambda kind: float(np.nan_to_num(shares[kind].value)))
    evidence = ", ".join(f"{kind} {_percent(share)}" for kind, share in shares.items() if share.value > 0.005)
    most = shares[best]
    # One kind that certainly has over a third leaves no other the two thirds.
    none = most.below(MAJORITY) and (
        most.above(1 - MAJORITY) or all(share.below(MAJORITY) for share in shares.values())
    )
    verdict = best if most.above(MAJORITY) else "mixed" if none else NO_EVIDENCE
    return verdict, _undecided(verdict, evidence, most)


def _drift(statistics: SinkStatistics) -> Finding:
    table = drifts(statistics).set_index("relative_to")
    rules = (
        f"a direction needs ≥ {LEAST_DRIFT:g} of the length and an interval beyond 0; "
        f"none above {MOST_TIES:.0%} ties"
    )
    place, order = table.loc["position"], table.loc["decoding order"]
    along = f", {order['drift']:+.2f} of the decoding order" if np.isfinite(order["drift"]) else ""
    evidence = (
        f"{place['drift']:+.2f} of the length per generation{along} ({order['direction']}), "
        f"ties {np.nan_to_num(place['ties']):.0%}, decoding itself {np.nan_to_num(place['decoding']):+.2f}"
    )
    return Finding("drift", str(place["direction"]), evidence, rules)


def _semantic(statistics: SinkStatistics) -> Finding:
    rules = (
        "two thirds of what category and position explain uniquely decide, in the whole interval over prompts; "
        f"under {LEAST_UNIQUE:.0%} of the whole: mixed"
    )
    found = attribution_of(statistics)
    shares = ", ".join(
        f"{row['part']} {row['share']:.0%}"
        for row in found.table.to_dict("records")
        if np.isfinite(row["share"]) and row["part"] not in LEADS.values()
    )
    if found.verdict == "not identifiable":
        return Finding("semantic or positional", NO_EVIDENCE, f"not identifiable: {found.reason}", rules)
    return Finding("semantic or positional", found.verdict, f"held-out gain: {shares}; {found.reason}", rules)


def _start(statistics: SinkStatistics) -> Finding:
    rules = f"≥ {START_SHARE:.0%} of sink attention on the first {FIRST_POSITIONS} real positions, {WHOLE}"
    share = _share(statistics, statistics["start_mass"].values, statistics["sink_mass"].values)
    evidence = f"{_percent(share)} of sink attention is there"
    verdict = "yes" if share.above(START_SHARE) else "no" if share.below(START_SHARE) else NO_EVIDENCE
    return Finding("only at the start", verdict, _undecided(verdict, evidence, share), rules)


def _undecided(verdict: str, evidence: str, share: Estimate) -> str:
    """The evidence, and why it decides nothing where it does not."""
    if verdict != NO_EVIDENCE:
        return evidence
    return f"{evidence}: {'the interval does not decide' if share.known else 'one prompt has no interval'}"


def depends(lost: Estimate, over: Estimate | None) -> str:
    """The verdict on a loss: "yes", "no", CONTROL_TOO or NO_EVIDENCE, by whole intervals. The claims are decided by it too.

    lost: accuracy lost under the mask; over: how much more than under its random control, None without one. "no": at most 5
    points are lost. "yes": more than 5 points, and more than the control. CONTROL_TOO: more than 5 points, but at most 5 more
    than the control.
    """
    if lost.below(POINTS_LOST):
        return "no"
    if not lost.above(POINTS_LOST) or over is None:
        return NO_EVIDENCE
    if over.above(0.0):
        return "yes"
    return CONTROL_TOO if over.below(POINTS_LOST) else NO_EVIDENCE


def _dependency(unmasked: Any, top1: Any, random1: Any) -> Finding:
    question = "ARM-like dependency"
    rules = (
        f"top-1 at head scope: > {POINTS_LOST:.0%} lost and more lost than under the random control, in whole paired 95 % "
        f"intervals; no: ≤ {POINTS_LOST:.0%} lost and ≥ {LEAST_HIT:.0%} of the sinks masked; base accuracy ≥ {BASE_ACCURACY:g}"
    )
    reason = _nothing(unmasked=unmasked, top1=top1, random1=random1)
    if reason:
        return Finding(question, NO_EVIDENCE, reason, rules)
    base, masked, control = outcomes(unmasked, top1, random1)
    lost, over, other = (
        paired_interval(a, b) for a, b in ((base, masked), (control, masked), (base, control))
    )
    evidence = (
        f"top-1 loses {_points(lost)}, its random control {_points(other)}, {_points(over)} less; "
        f"base {base.mean():.2f}, n = {len(base)}"
    )
    verdict = depends(lost, over)
    hit = _hit(top1)
    if verdict == "no" and hit < LEAST_HIT:
        return Finding(question, NO_EVIDENCE, f"{evidence}; only {hit:.0%} of the sinks were masked", rules)
    strongest = _hit(top1, "strongest_hit")
    if verdict == "yes" and strongest < LEAST_HIT:
        # What breaks the model need not be a sink.
        missed = f"the strongest sink was masked in only {strongest:.0%} of heads"
        return Finding(question, NO_EVIDENCE, f"{evidence}; {missed}", rules)
    return Finding(question, verdict, evidence, rules)


def _anchor(unmasked: Any, window: Any, window_first: Any) -> Finding:
    question = "fixed-anchor reliance"
    rules = (
        f"Window(w, first={FIRST_POSITIONS}) beats Window(w, first=0) by > {POINTS_LOST:.0%} (no: by at most that), in the whole "
        f"paired 95 % interval; base accuracy ≥ {BASE_ACCURACY:g}"
    )
    reason = _nothing(unmasked=unmasked, window=window, window_first=window_first)
    if reason:
        return Finding(question, NO_EVIDENCE, reason, rules)
    base, without, with_first = outcomes(unmasked, window, window_first)
    gain = paired_interval(with_first, without)
    evidence = (
        f"the first {FIRST_POSITIONS} keys bring {_points(gain)}; base {base.mean():.2f}, n = {len(base)}"
    )
    verdict = "yes" if gain.above(POINTS_LOST) else "no" if gain.below(POINTS_LOST) else NO_EVIDENCE
    return Finding(question, verdict, evidence, rules)


def _nothing(unmasked: Any, **others: Any) -> str:
    """Why accuracies cannot be judged; "" when they can."""
    missing = [name for name, value in {"unmasked": unmasked, **others}.items() if value is None]
    if missing:
        return f"no accuracies for {', '.join(missing)}"
    base = outcomes(unmasked)[0].mean()
    return f"base accuracy {base:.2f} leaves nothing to lose" if base < BASE_ACCURACY else ""


def _hit(result: Any, name: str = "sinks_hit") -> float:
    """Mean share of the sinks that a policy masked, or of another number of the records; NaN where they do not have it."""
    records = getattr(result, "records", ())
    values = [getattr(record, name, None) for record in records]
    known = [float(value) for value in values if value is not None]
    return float(np.mean(known)) if known else float("nan")


def outcomes(*results: Any) -> list[Array]:
    """Paired scores, float [N] each, from mappings {document: correct}, sequences, or evaluations with `.records`.

    Records name their document and whether it was right (`passed` or `correct`); several seeds of a document are averaged, so
    that documents stay the unit.
    """
    mapped = [_mapping(result) for result in results]
    first = mapped[0]
    for other in mapped[1:]:
        if set(other) != set(first):
            raise InputError(
                f"the accuracies are not of the same documents: {len(first)} and {len(other)}, "
                f"{len(set(first) & set(other))} in common; evaluate the same documents under each policy"
            )
    order = sorted(first, key=str)
    return [np.array([m[k] for k in order]) for m in mapped]


def _mapping(result: Any) -> dict[Any, float]:
    records = getattr(result, "records", result)
    if isinstance(records, pd.DataFrame):
        records = records.to_dict("records")
    if isinstance(records, Mapping):
        return {key: float(value) for key, value in records.items()}
    several = isinstance(records, (Sequence, np.ndarray)) and not isinstance(records, (str, bytes))
    if not several or len(records) == 0:
        raise InputError(
            f"got {type(result).__name__} as accuracies, expected {{document: correct}}, a sequence of 0/1, "
            "or an evaluation with .records"
        )
    by_document: dict[Any, list[float]] = {}
    for i, record in enumerate(records):
        document, score = _read(record, i)
        by_document.setdefault(document, []).append(score)
    return {document: float(np.mean(scores)) for document, scores in by_document.items()}


def _read(record: Any, index: int) -> tuple[Any, float]:
    """The document and the score of a record: a number, a mapping, or an object."""
    if isinstance(record, (bool, int, float, np.bool_, np.number)):
        return index, float(record)
    fields = record if isinstance(record, Mapping) else vars(record)
    score = next((fields[name] for name in ("passed", "correct") if name in fields), None)
    if score is None:
        raise InputError(f"a record of {', '.join(map(str, fields))} has no field 'passed' or 'correct'")
    document = next((fields[name] for name in ("document", "id", "doc_id") if name in fields), index)
    return document, float(score)


def _percent(share: Estimate) -> str:
    text = f"{share.value:.0%}"
    return f"{text} ({share.low:.0%} to {share.high:.0%})" if share.known else text


def _points(lost: Estimate) -> str:
    return f"{100 * lost.value:.1f} points ({100 * lost.low:.1f} to {100 * lost.high:.1f})"
