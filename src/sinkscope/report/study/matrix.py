"""Verdicts as a matrix, questions × models: an answer, the estimate, and where its interval lies against the limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sinkscope.report.figures.look import short
from sinkscope.report.study.source import StudySource
from sinkscope.study.paper import is_published
from sinkscope.verdicts import Reason, Verdict, wording
from sinkscope.verdicts.diagnosis import NEEDS_SINKS, QUESTIONS
from sinkscope.verdicts.questions import CLAIMS, THEMES, Claim, overall
from sinkscope.verdicts.verdict import point

UNMEASURED = Reason.NOT_MEASURED, Reason.NO_RIVAL, Reason.NOT_JUDGED
"""Reasons for which there is nothing to see."""
MARGIN = 6.0
"""Percent of a line that are left free at both ends of its scale."""


@dataclass(frozen=True)
class Line:
    """A question or claim, and model → its verdicts; none where it is not about this kind of model."""

    question: Claim
    verdicts: Mapping[str, Sequence[Verdict]]

    def drawn(self, model: str) -> Verdict:
        """The verdict of a model that is drawn: the first that says what all of them together say."""
        together = overall(self.verdicts[model])
        return next((one for one in self.verdicts[model] if one.status == together), self.verdicts[model][0])

    @property
    def about(self) -> str:
        """What the estimates are, for a question whose text does not say it."""
        measures = (self.drawn(model).measure for model in self.verdicts if self.verdicts[model])
        return next(
            (f"… {one.label.format('such')}" for one in measures if one is not None and not self.question.text), ""
        )

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Why there is nothing to see in any column, in words; none where a model was measured."""
        told = [verdict for verdicts in self.verdicts.values() for verdict in verdicts]
        blank = all(one.reason in UNMEASURED and not math.isfinite(one.estimate.value) for one in told)
        return tuple(dict.fromkeys(map(wording.because, told))) if blank else ()

    def places(self, verdict: Verdict) -> tuple[float | None, ...]:
        """Estimate, its bounds and limit in percent of a scale that all models of the line share; None where there is none."""
        every = [x for row in self.verdicts.values() for one in row for x in _numbers(one) if math.isfinite(x)]
        low, wide = min(every, default=0.0), (max(every, default=0.0) - min(every, default=0.0)) or math.nan
        shares = [(x - low) / wide for x in _numbers(verdict)]
        return tuple(round(MARGIN + (100 - 2 * MARGIN) * share, 1) if share == share else None for share in shares)


def _numbers(verdict: Verdict) -> tuple[float, ...]:
    estimate = verdict.estimate if verdict.estimate.known else point(verdict.estimate.value)
    return (*estimate, math.nan if verdict.limit is None else verdict.limit)


def bare(verdict: Verdict) -> str:
    """The estimate without its interval; "" where there is none."""
    value = point(verdict.estimate.value)
    known = verdict.measure is not None and math.isfinite(value.value)
    return wording.shown(value, verdict.measure.form) if known and verdict.measure is not None else ""


def findings(source: StudySource) -> dict[str, Any] | None:
    """The instrument's own questions; None where nothing was diagnosed."""
    models = list(source.diagnoses)
    lines = [
        Line(one, {model: [found for name, found in source.diagnoses[model].items() if name == one.name] for model in models})
        for one in (NEEDS_SINKS, *QUESTIONS)
    ]  # fmt: skip
    lines = [line for line in lines if any(line.verdicts.values())]
    return {"models": models, "themes": {"": lines}} if models else None


def claims(source: StudySource, near: bool = True) -> dict[str, Any] | None:
    """The paper's claims for its own checkpoints (near), or for other models; None where there are no such models."""
    published = {model.name for model in source.study.models if is_published(model.source)}
    judged = {
        name: {model: verdicts for model, verdicts in row.items() if (model in published) == near}
        for name, row in source.judged.items()
    }
    models = list(judged[CLAIMS[0].name])
    lines = [Line(claim, judged[claim.name]) for claim in CLAIMS if any(judged[claim.name].values())]
    shown = {theme: [x for x in lines if x.question.theme == theme and not x.unmeasured] for theme in THEMES}
    bears = any(verdict.bears for row in judged.values() for verdicts in row.values() for verdict in verdicts)
    made = {
        "models": models, "themes": {theme: rows for theme, rows in shown.items() if rows}, "bears": bears,
        "unmeasured": [line for line in lines if line.unmeasured], "decided": wording.tallied(judged),
    }  # fmt: skip
    return made if models else None


def by_answer(verdicts: Mapping[str, Verdict]) -> dict[str | None, list[str]]:
    """Answer → the models, by their short names, that have it; those for which it is undecided, under None, last."""
    groups: dict[str | None, list[str]] = {}
    for model, verdict in verdicts.items():
        groups.setdefault(wording.answer(verdict) if verdict.decided else None, []).append(short(model))
    return dict(sorted(groups.items(), key=lambda group: group[0] is None))
