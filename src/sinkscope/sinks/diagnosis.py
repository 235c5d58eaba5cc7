"""A verdict with its evidence: what kind of sinks this model has, and whether it depends on them.

Every verdict stands beside the numbers that it rests on and the thresholds that decided it. Where an input
is missing, or the model cannot do the task in the first place, the verdict is "not enough evidence", never
a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.sink_rule import EPSILON
from sinkscope.sinks.attribution import DOMINANT, LEAST_UNIQUE
from sinkscope.sinks.dataset import Array
from sinkscope.sinks.drift import LEAST_DRIFT, MOST_TIES
from sinkscope.sinks.intervals import Interval, paired_interval, ratio_interval
from sinkscope.sinks.residence import KINDS, STATIC_SHARE
from sinkscope.sinks.scan import DRAIN_RATIO, FIRST_POSITIONS
from sinkscope.sinks.summary_table import as_partial, attribution_of, drifts, kind_weights
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

NO_EVIDENCE = "not enough evidence"


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
    rule: str = "sum",
    scores: str = "auto",
    tokenizer: Any = None,
    categories: Mapping[int, str] | None = None,
) -> Diagnosis:
    """A verdict with its evidence, from traces and, when given, accuracies under policies.

    traces: a trace, a partial result, or a list of them, recorded without a policy. Accuracies are the
    outcomes of the same documents under: no policy (unmasked), `MaskTop(1)` at head scope (top1), its
    random control (random1), `Window(w)` (window) and `Window(w, first=4)` (window_first). Each is
    {document: correct}, a sequence of 0/1 in one common order, or an evaluation with `.records`.

    Findings: "sinks" (present or not), "drains or hubs", "moving" (static, moving, flickering, vanishing,
    emerging, mixed), "drift", "semantic or positional", "only at the start", "ARM-like dependency" (at
    top-1, head scope, more than 5 points lost, the paired 95 % interval wholly beyond that, and the random
    control's not), "fixed-anchor reliance" (the window with the first 4 keys beats the one without by more
    than 5 points). Limits: an accuracy lost under a mask does not show that the *sink* mattered unless the
    control keeps its accuracy; the thresholds are conventions, and printed.
    """
    part = None
    if traces is not None:
        part = as_partial(traces, epsilon, rule, scores=scores, tokenizer=tokenizer, categories=categories)
    findings = [
        *_from_traces(part),
        _dependency(unmasked, top1, random1),
        _anchor(unmasked, window, window_first),
    ]
    title = "" if part is None else " ".join(str(part.attrs.get(k, "")) for k in ("model", "policy")).strip()
    return Diagnosis(tuple(findings), title)


def _from_traces(part: xr.Dataset | None) -> list[Finding]:
    questions = ("sinks", "drains or hubs", "moving", "drift", "semantic or positional", "only at the start")
    if part is None:
        return [Finding(q, NO_EVIDENCE, "no trace was given", "needs traces") for q in questions]
    present = _present(part)
    if present.verdict != "present":
        rest = [
            Finding(q, NO_EVIDENCE, "without sinks there is nothing to describe", present.thresholds)
            for q in questions[1:]
        ]
        return [present, *rest]
    return [present, _drains(part), _moving(part), _drift(part), _semantic(part), _start(part)]


def _present(part: xr.Dataset) -> Finding:
    steps = part["head_steps"].values.sum(axis=1)
    share = ratio_interval(steps - part["without"].values.sum(axis=1), steps, part["prompt"].values)
    setting = f"ε = {part.attrs['epsilon']:g}, rule {part.attrs['rule']}"
    rules = f"present: ≥ {PRESENT_SHARE:.0%} of head-steps with a sink at {setting}"
    evidence = f"{_percent(share)} of head-steps have a sink"
    if steps.sum() == 0:
        return Finding("sinks", NO_EVIDENCE, "no step could be scored", rules)
    if str(part.attrs.get("note")):
        evidence += f"; {part.attrs['note']}"
    return Finding("sinks", "present" if share.value >= PRESENT_SHARE else "none", evidence, rules)


def _drains(part: xr.Dataset) -> Finding:
    rules = f"drain: value norm < {DRAIN_RATIO:g} × median of the head; {MAJORITY:.0%} decide"
    drains = part["drains"].values.sum(axis=1)
    if not np.isfinite(drains).all():
        return Finding("drains or hubs", NO_EVIDENCE, "the capture has no value norms (anatomy=True)", rules)
    share = ratio_interval(drains, part["detections"].values.sum(axis=1), part["prompt"].values)
    verdict = "drains" if share.value >= MAJORITY else "hubs" if share.value <= 1 - MAJORITY else "both"
    return Finding("drains or hubs", verdict, f"{_percent(share)} of the detections are drains", rules)


def _moving(part: xr.Dataset) -> Finding:
    rules = (
        f"static: one residence ≥ {STATIC_SHARE:.0%} of the steps; "
        f"a kind decides with {MAJORITY:.0%} of the head-steps that have a sink"
    )
    weights = kind_weights(part)
    total = weights.sum(axis=1)
    shares = {
        kind: ratio_interval(weights[:, i], total, part["prompt"].values) for i, kind in enumerate(KINDS)
    }
    evidence = ", ".join(f"{kind} {_percent(found)}" for kind, found in shares.items() if found.value > 0.005)
    if shares["too short"].value > 1 - MAJORITY:
        return Finding("moving", NO_EVIDENCE, "too few steps", rules)
    best = max(shares, key=lambda kind: float(np.nan_to_num(shares[kind].value)))
    return Finding("moving", best if shares[best].value >= MAJORITY else "mixed", evidence, rules)


def _drift(part: xr.Dataset) -> Finding:
    table = drifts(part).set_index("relative_to")
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


def _semantic(part: xr.Dataset) -> Finding:
    rules = (
        f"{DOMINANT:.0%} of what category and position explain uniquely decide; "
        f"under {LEAST_UNIQUE:.0%} of the whole: mixed"
    )
    found = attribution_of(part)
    shares = ", ".join(
        f"{row['part']} {row['share']:.0%}"
        for row in found.table.to_dict("records")
        if np.isfinite(row["share"])
    )
    verdict = NO_EVIDENCE if found.verdict == "not identifiable" else found.verdict
    evidence = (
        f"not identifiable: {found.reason}"
        if verdict == NO_EVIDENCE
        else f"held-out gain: {shares}; {found.reason}"
    )
    return Finding("semantic or positional", verdict, evidence, rules)


def _start(part: xr.Dataset) -> Finding:
    rules = f"≥ {START_SHARE:.0%} of sink attention on the first {FIRST_POSITIONS} real positions"
    share = ratio_interval(part["start_mass"].values, part["sink_mass"].values, part["prompt"].values)
    verdict = "yes" if share.value >= START_SHARE else "no"
    return Finding("only at the start", verdict, f"{_percent(share)} of sink attention is there", rules)


def _dependency(unmasked: Any, top1: Any, random1: Any) -> Finding:
    question = "ARM-like dependency"
    rules = (
        f"top-1 at head scope: > {POINTS_LOST:.0%} lost with the paired 95 % interval wholly beyond, "
        "the random control not; "
        f"base accuracy ≥ {BASE_ACCURACY:g}"
    )
    missing = [n for n, v in (("unmasked", unmasked), ("top1", top1), ("random1", random1)) if v is None]
    if missing:
        return Finding(question, NO_EVIDENCE, f"no accuracies for {', '.join(missing)}", rules)
    base, masked, control = outcomes(unmasked, top1, random1)
    if base.mean() < BASE_ACCURACY:
        return Finding(
            question, NO_EVIDENCE, f"base accuracy {base.mean():.2f} leaves nothing to lose", rules
        )
    lost, other = paired_interval(base, masked), paired_interval(base, control)
    evidence = (
        f"top-1 loses {_points(lost)}, its random control {_points(other)}; "
        f"base {base.mean():.2f}, n = {len(base)}"
    )
    if lost.low > POINTS_LOST:
        verdict = "no: the random control loses it too" if other.low > POINTS_LOST else "yes"
    elif lost.high <= POINTS_LOST:
        verdict = "no"
    else:
        verdict = NO_EVIDENCE
    return Finding(question, verdict, evidence, rules)


def _anchor(unmasked: Any, window: Any, window_first: Any) -> Finding:
    question = "fixed-anchor reliance"
    rules = (
        f"Window(w, first={FIRST_POSITIONS}) beats Window(w, first=0) by > {POINTS_LOST:.0%}, "
        "the interval above 0; "
        f"base accuracy ≥ {BASE_ACCURACY:g}"
    )
    given = (("unmasked", unmasked), ("window", window), ("window_first", window_first))
    missing = [n for n, v in given if v is None]
    if missing:
        return Finding(question, NO_EVIDENCE, f"no accuracies for {', '.join(missing)}", rules)
    base, without, with_first = outcomes(unmasked, window, window_first)
    if base.mean() < BASE_ACCURACY:
        return Finding(
            question, NO_EVIDENCE, f"base accuracy {base.mean():.2f} leaves nothing to lose", rules
        )
    gain = paired_interval(with_first, without)
    evidence = (
        f"the first {FIRST_POSITIONS} keys bring {_points(gain)}; base {base.mean():.2f}, n = {len(base)}"
    )
    if gain.value <= POINTS_LOST:
        return Finding(question, "no", evidence, rules)
    return Finding(question, "yes" if gain.low > 0 else NO_EVIDENCE, evidence, rules)


def outcomes(*results: Any) -> list[Array]:
    """Paired scores, float [N] each, from mappings {document: correct}, sequences, or evaluations with
    `.records`.

    Records name their document and whether it was right (`passed` or `correct`); several seeds of a
    document are averaged, so that documents stay the unit.
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
    if (
        not isinstance(records, (Sequence, np.ndarray))
        or isinstance(records, (str, bytes))
        or len(records) == 0
    ):
        raise InputError(
            f"got {type(result).__name__} as accuracies, expected {{document: correct}}, a sequence of 0/1, "
            "or an evaluation with .records"
        )
    found: dict[Any, list[float]] = {}
    for i, record in enumerate(records):
        document, score = _read(record, i)
        found.setdefault(document, []).append(score)
    return {document: float(np.mean(scores)) for document, scores in found.items()}


def _read(record: Any, index: int) -> tuple[Any, float]:
    """The document and the score of a record: a number, a mapping, or an object."""
    if isinstance(record, (bool, int, float, np.bool_, np.number)):
        return index, float(record)
    fields = record if isinstance(record, Mapping) else vars(record)
    score = next((fields[name] for name in ("passed", "correct") if name in fields), None)
    if score is None:
        raise InputError(f"a record of {', '.join(map(str, fields))} has no field 'passed' or 'correct'")
    return next((fields[name] for name in ("document", "id", "doc_id") if name in fields), index), float(
        score
    )


def _percent(found: Interval) -> str:
    text = f"{found.value:.0%}"
    return text if not np.isfinite(found.low) else f"{text} ({found.low:.0%} to {found.high:.0%})"


def _points(found: Interval) -> str:
    return f"{100 * found.value:.1f} points ({100 * found.low:.1f} to {100 * found.high:.1f})"
