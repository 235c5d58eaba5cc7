"""What kind of sinks a model has, and whether it depends on them: one verdict for each question of diagnosis.toml.

Where an input is missing, or the model cannot do the task in the first place, nothing is decided, and the reason is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from sinkscope.base.errors import InputError
from sinkscope.base.masked import MASK
from sinkscope.base.sink_rule import EPSILON
from sinkscope.base.text import html_table
from sinkscope.sinks.sink_statistics import (
    OTHER_SETTINGS,
    PARTS,
    SETTINGS,
    SinkStatistics,
    as_statistics,
    by_setting,
    is_statistics,
)
from sinkscope.sinks.summary_table import summary, table_of
from sinkscope.statistics import align
from sinkscope.verdicts import wording
from sinkscope.verdicts.measures import Kind, Measures, PolicyRun, control, estimates_of
from sinkscope.verdicts.questions import Claim, nearby, read
from sinkscope.verdicts.verdict import Question, Reason, Verdict

QUESTIONS = read("diagnosis.toml", coded=True, yes="yes", no="no")
NEEDS_SINKS = replace(
    next(question for question in QUESTIONS if question.name == Question.NEEDS_KEYS), name=Question.NEEDS_SINKS.value
)
"""What a study asks beside those of `ss.diagnose`: the same of each head's strongest sink."""
WINDOW, WINDOW_FIRST = "window", "window, first in sight"
"""Runs under `Window(w)` and `Window(w, first=4)`, whatever the width."""


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The verdicts in their order; `diagnosis["moving"].answer`, `diagnosis.table`, `print(diagnosis)`.

    setting: how sinks were told from other keys, and what a reader should know about that.
    """

    verdicts: tuple[Verdict, ...]
    title: str = ""
    setting: str = ""

    def __getitem__(self, question: str) -> Verdict:
        for verdict in self.verdicts:
            if verdict.question == question:
                return verdict
        raise InputError(f"no question {question!r}; there are {', '.join(v.question for v in self.verdicts)}")

    @property
    def table(self) -> pd.DataFrame:
        """One row per question."""
        return pd.DataFrame([wording.row(verdict) for verdict in self.verdicts])

    def __repr__(self) -> str:
        width = max(len(verdict.question) for verdict in self.verdicts)
        lines = [
            f"  {verdict.question:<{width}}  {wording.answer(verdict)}: {wording.short(verdict)}"
            for verdict in self.verdicts
        ]
        return "\n".join([self._heading, *lines])

    @property
    def _heading(self) -> str:
        title = f"Diagnosis of {self.title}" if self.title else "Diagnosis"
        return f"{title} ({self.setting})" if self.setting else title

    def _repr_html_(self) -> str:
        """The verdicts as a table, for a notebook."""
        rules = {question.name: question.rule for question in QUESTIONS}
        rows = [
            (verdict.question, wording.answer(verdict), wording.evidence(verdict), rules[verdict.question])
            for verdict in self.verdicts
        ]
        return html_table(self._heading, ("question", "answer", "evidence", "rule"), rows)


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
    guess: float = 0.0,
) -> Diagnosis:
    """Verdicts with their evidence, from traces and, when given, accuracies under policies.

    traces: a trace, sink statistics, or a list of them, recorded without a policy. Accuracies are the outcomes of the same
    documents under: no policy (unmasked), `MaskTop(1)` at head scope (top1), its random control (random1), `Window(w)`
    (window) and `Window(w, first=4)` (window_first). Each is {document: correct}, a sequence of 0/1 in one common order, or
    an evaluation (`ss.evaluate`). guess: the accuracy of guessing; only what lies above it counts.

    A verdict on traces that is another one at an ε from 2 to 6 is undecided; statistics are asked at the settings they have.

    Questions: "sinks" (present or not), "drains or hubs", "moving" (static, moving, flickering, vanishing, emerging,
    intermittent, mixed), "drift", "semantic or positional", "only at the start", of models with learned sinks "sinks without a
    token", "needs its strongest keys" and "needs its first tokens" (the paper's ARM-like dependency and fixed-anchor
    reliance). Shares are decided by whole 95 % intervals over prompts, so one prompt decides nothing on them;
    the last two by those of paired losses, against the random control and against 5 points.
    Limits: the thresholds are conventions.

    >>> found = ss.diagnose(trace)
    >>> found["sinks"].answer, found["moving"].reason.value  # of one prompt
    ('present', 'one prompt has no interval')
    """
    measured: list[Measures] = []
    title = setting = ""
    if traces is not None:
        statistics = statistics_of(
            traces, epsilon=epsilon, rule=rule, scores=scores, tokenizer=tokenizer, categories=categories
        )
        title = " ".join(str(statistics.attrs.get(name, "")) for name in ("model", "policy")).strip()
        # The same statistics at other thresholds: a verdict that another ε turns round is undecided.
        elsewhere = {at: estimates_of(table_of(each)) for at, each in by_setting(statistics).items()}
        told = f"ε = {statistics.attrs['epsilon']:g}, rule {statistics.attrs['rule']}"
        if not elsewhere:
            told += "; not asked at another ε, which may say something else"
        setting = "; ".join(filter(None, (told, str(statistics.attrs.get("note", "")))))
        table = summary(statistics)
        prompts = len(np.unique(statistics["prompt"].values))
        found = Measures(title, kind=Kind.TRACES, prompts=prompts, estimates=estimates_of(table))
        measured.append(replace(found, elsewhere=elsewhere))
    given = {"none": unmasked, "top:1": top1, control("top:1"): random1, WINDOW: window, WINDOW_FIRST: window_first}
    known = {name: result for name, result in given.items() if result is not None}
    if known:
        graded = {name: by_document(result) for name, result in known.items()}
        first = next(iter(graded))
        for name in graded:
            align(graded[first], graded[name], (first, name))  # refuses other documents
        runs = {name: _run(result, graded[name]) for name, result in known.items()}
        measured.append(Measures(title, runs=runs, guess=guess))
    return Diagnosis(tuple(diagnosis(measured)), title, setting)


def statistics_of(traces: Any, **options: Any) -> SinkStatistics:
    """A trace, sink statistics, or a list of them, as statistics; of traces also by the thresholds at which verdicts are asked
    again. options: of `sink_statistics`."""
    given = traces if isinstance(traces, (list, tuple)) else [traces]
    if not any(map(is_statistics, given)):
        options |= {"parts": (*PARTS, SETTINGS), "settings": nearby(OTHER_SETTINGS)}
    return as_statistics(traces, **options)


def diagnosis(measured: Iterable[Measures]) -> list[Verdict]:
    """The verdicts on one model, each on the first measures that it takes."""
    known = list(measured)

    def verdict(question: Claim) -> Verdict:
        subject = known[0].subject if known else ""
        nothing = Verdict(question.name, subject, rule=question.decide, reason=Reason.NOT_MEASURED)
        return next((question.verdict(measures) for measures in known if question.takes(measures)), nothing)

    asked = [(question, verdict(question)) for question in QUESTIONS]
    return [told for question, told in asked if not (question.optional and told.reason == Reason.NOT_MEASURED)]


def _run(result: Any, scores: dict[str, float]) -> PolicyRun:
    """The scores, and what the records say about the mask."""
    told = {}
    for name in MASK:
        values = [getattr(record, name, None) for record in getattr(result, "records", ())]
        known = [float(value) for value in values if value is not None]
        told[name] = float(np.mean(known)) if known else None
    run = PolicyRun.of(scores, told)
    return replace(run, told=any(value is not None for value in told.values()))


def by_document(result: Any) -> dict[str, float]:
    """Document → its score; several seeds averaged. result: an evaluation, {document: correct} or a Series of that, or a sequence
    of 0/1."""
    if callable(getattr(result, "scores", None)):
        return dict(result.scores())
    try:
        sequence = not isinstance(result, (Mapping, pd.Series))
        scores = dict(enumerate(result) if np.ndim(result) == 1 else ()) if sequence else result
        known = {str(document): float(score) for document, score in scores.items()}
    except (TypeError, ValueError):
        known = {}
    if not known:
        raise InputError(
            f"got {type(result).__name__} as accuracies, expected {{document: correct}}, a sequence of 0/1, or an evaluation"
        )
    return known
