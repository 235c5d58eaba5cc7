"""What a study measured, and earlier ones that it checked, as plain numbers: the only thing that decides on claims.

One `ModelEvidence` for each model and task (accuracies), each model and set of traces, and each model and set of trace pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from sinkscope.report.study.numbers import missing
from sinkscope.report.study.source import StudySource
from sinkscope.sinks.diagnosis import BASE_ACCURACY
from sinkscope.statistics import Estimate, kept_share, mean_difference, mean_interval, paired_interval
from sinkscope.study.evidence_check import ANSWERS
from sinkscope.study.names import pooled
from sinkscope.text import listed

Scores = Mapping[str, float]
"""Document → share of its answers that were right."""

ACCURACIES, TRACES, PAIRS = "accuracies", "traces", "pairs of traces"
LEAST_TEXTS = 16
"""Fewer texts may all miss the long tail of their distribution: no verdict."""

MOST_NATS = 6.5
"""Nats per token above which a text is hardly predicted better than from the frequencies of its tokens."""


@dataclass(frozen=True)
class ModelEvidence:
    """One model in one setting.

    Attributes:
        kind: ACCURACIES, TRACES or PAIRS.
        about: the task, or the set of traces.
        prompts: over how many prompts the intervals of traces are.
        here: how many of the documents or prompts this study ran itself, under every policy that it ran; the others are of
            earlier studies, which it checked. None: all.
        ran: policy → the documents that this study ran itself; None: all. aside: how the others were checked, where none of
            them ran here.
        measures: measure of the table `sinks` (or `pairs`) → value with its interval.
        scores: policy → scores; controls are averaged over their draws, "random(top:1)" and "random(top:1),match=mass".
        hits: policy → share of the sinks that it masked. strongest: policy → share of heads whose strongest sink it masked.
        removed: policy → share of attention that it removed, controls as in `scores`.
        others: the study's other models in the same setting.
    """

    model: str
    family: str
    kind: str = ACCURACIES
    about: str = ""
    prompts: int = 0
    here: int | None = None
    ran: Mapping[str, frozenset[str]] | None = None
    aside: str = ""
    measures: Mapping[str, Estimate] = field(default_factory=dict)
    scores: Mapping[str, Scores] = field(default_factory=dict)
    hits: Mapping[str, float] = field(default_factory=dict)
    strongest: Mapping[str, float] = field(default_factory=dict)
    removed: Mapping[str, float] = field(default_factory=dict)
    others: tuple[ModelEvidence, ...] = ()

    word: ClassVar[str] = "an accuracy"
    unit: ClassVar[str] = "document"
    least: ClassVar[int] = 1
    """Fewest documents that decide anything."""
    counted: ClassVar[bool] = True
    """Answers are right or wrong, so that few of them say little even when all agree."""

    @property
    def n(self) -> int:
        """Documents."""
        return max(map(len, self.scores.values()), default=0)

    @property
    def rests(self) -> str:
        """How much evidence there is, and how much of it is of this study."""
        count, word = (self.n, self.unit) if self.kind == ACCURACIES else (self.prompts, "prompt")
        if not count:
            return ""
        said = f"{count} {word}{'' if count == 1 else 's'}"
        if self.here is None or self.here >= count:
            return said
        if not self.here:
            return f"{said}, none of them run here{self.aside}"
        lacking = [policy for policy in self.scores if self.ran is not None and policy not in self.ran]
        return (
            f"{said}, {self.here} of them run here{f', but not under {listed(lacking)}' if lacking else ''}"
        )

    def on(self, policies: Iterable[str]) -> ModelEvidence:
        """The same on the documents that all of these policies have in common, because losses are paired by document."""
        own = [policy for policy in policies if policy in self.scores]
        if self.ran is None or not own:
            return self
        common = set.intersection(*(set(self.scores[policy]) for policy in own))
        scores = {
            policy: {name: score for name, score in self.scores[policy].items() if name in common}
            for policy in own
        }
        ran = [self.ran[policy] for policy in own if policy in self.ran]
        here = common.intersection(*ran) if ran else ()
        return replace(
            self, scores=scores, here=len(here), others=tuple(other.on(policies) for other in self.others)
        )

    def accuracy(self, policy: str) -> float:
        """The mean score under a policy, NaN when it was not run."""
        scores = self.scores.get(policy, {})
        return sum(scores.values()) / len(scores) if scores else math.nan

    @property
    def weak(self) -> str:
        """Why nothing can be lost, empty where something can."""
        base = self.accuracy("none")
        return f"an accuracy of {base:.2f}" if base < BASE_ACCURACY else ""

    @property
    def whole(self) -> str:
        """What a share that is left is a share of."""
        return f"{self.accuracy('none'):.2f}"

    def lost(self, policy: str, base: str = "none") -> Estimate | None:
        """Accuracy lost between two policies, paired by document; None: not both were run."""
        pair = self._pair(policy, base)
        return None if pair is None else paired_interval(*pair)

    def kept(self, policy: str) -> Estimate | None:
        """The share of the accuracy without a policy that is left under one."""
        pair = self._pair(policy, "none")
        return None if pair is None else kept_share(*pair)

    def other(self, family: str) -> ModelEvidence | None:
        """The study's first model of a family, when it is another."""
        return next((one for one in self.others if one.family == family), None)

    def _pair(self, policy: str, base: str) -> tuple[list[float], list[float]] | None:
        before, after = self.scores.get(base), self.scores.get(policy)
        if not before or not after or set(before) != set(after):
            return None
        order = sorted(before)
        return [before[name] for name in order], [after[name] for name in order]


class TextEvidence(ModelEvidence):
    """The same for texts that were read, whose scores are nats per token.

    In place of the accuracy stands the probability of a token (the geometric mean over a text), relative to that without a
    policy: exp(−Δ nats). A loss of 5 points is a perplexity that is 5 % higher; where half is left, it has doubled.
    """

    word: ClassVar[str] = "a share"
    unit: ClassVar[str] = "text"
    least: ClassVar[int] = LEAST_TEXTS
    counted: ClassVar[bool] = False

    def accuracy(self, policy: str) -> float:
        """The share of a token's probability that is left, at most 1."""
        return math.exp(min(0.0, self._nats("none") - self._nats(policy)))

    @property
    def weak(self) -> str:
        """Why nothing can be lost, empty where something can."""
        nats = self._nats("none")
        return f"a likelihood of {nats:.2f} nats per token" if nats > MOST_NATS else ""

    @property
    def whole(self) -> str:
        """What a share that is left is a share of."""
        return f"a token's probability ({self._nats('none'):.2f} nats)"

    def lost(self, policy: str, base: str = "none") -> Estimate | None:
        """The share of a token's probability that is lost between two policies, paired by text."""
        pair = self._pair(policy, base)
        if pair is None:
            return None
        return Estimate(*(1.0 - math.exp(-nats) for nats in mean_difference(pair[1], pair[0])))

    def kept(self, policy: str) -> Estimate | None:
        """The share of a token's probability that is left."""
        lost = self.lost(policy)
        return None if lost is None else Estimate(1.0 - lost.value, 1.0 - lost.high, 1.0 - lost.low)

    def _nats(self, policy: str) -> float:
        return super().accuracy(policy)


def collect(source: StudySource) -> list[ModelEvidence]:
    """The evidence on every model of a study, in the study's order."""
    evidence = [*_accuracies(source), *_texts(source), *_traces(source), *_pairs(source)]
    settings: dict[tuple[str, str], list[ModelEvidence]] = {}
    for one in evidence:
        settings.setdefault((one.kind, one.about), []).append(one)
    twins = {model.name: model.twin for model in source.study.models}

    def beside(one: ModelEvidence, other: ModelEvidence) -> bool:
        """Another model, and of the causal ones its twin alone where it has one."""
        twin = twins.get(one.model)
        return other.model != one.model and (not twin or other.family != "causal" or other.model == twin)

    return [
        replace(one, others=tuple(x for x in settings[one.kind, one.about] if beside(one, x)))
        for one in evidence
    ]


def _accuracies(source: StudySource) -> Iterable[ModelEvidence]:
    frame = source.frames.get("records")
    if frame is None:
        return
    columns = ["model", "task", "decoding_name", "policy", "document", "passed"]
    earlier = source.frames.get("earlier_records")
    frame = frame[columns].assign(here=True)
    if earlier is not None:
        frame = pd.concat([frame, earlier[[*columns, "sinks_hit"]].assign(here=False)], ignore_index=True)
    decodings = frame.groupby("task")["decoding_name"].nunique()
    for model, task, decoding, part in _settings(source, frame):
        hits = _hits(source, "results", model, task, decoding)
        if earlier is not None:
            first = part.dropna(subset="sinks_hit").groupby("policy")["sinks_hit"].first()
            hits = {**{str(name): float(hit) for name, hit in first.items()}, **hits}
        ran = part[part["here"]].groupby(part["policy"].map(pooled))["document"]
        yield ModelEvidence(
            model=model,
            family=source.families.get(model, ""),
            about=f"{task}, {decoding}" if decodings[task] > 1 else task,
            scores=_scores(part),
            hits=hits,
            strongest=_hits(source, "results", model, task, decoding, "strongest_hit"),
            removed=_hits(source, "results", model, task, decoding, "hidden_share"),
            ran=None
            if part["here"].all()
            else {str(name): frozenset(map(str, group)) for name, group in ran},
            aside=_aside(source, model, task),
        )


def _aside(source: StudySource, model: str, task: str) -> str:
    """How earlier answers were checked of which none ran here; empty where some did."""
    rows = [row for _, row in source.rows("evidence", model=model, task=task, kind=ANSWERS) if row["used"]]
    return "; checked on other models and tasks" if rows and not any(row["checked"] for row in rows) else ""


def _texts(source: StudySource) -> Iterable[ModelEvidence]:
    frame = source.frames.get("passages")
    if frame is None:
        return
    for model, task, decoding, part in _settings(source, frame.assign(here=True, passed=frame["nll"])):
        yield TextEvidence(
            model=model,
            family=source.families.get(model, ""),
            about=f"{task}, {decoding} (points: per cent of a token's probability)",
            scores=_scores(part),
            hits=_hits(source, "likelihood", model, task, decoding),
            strongest=_hits(source, "likelihood", model, task, decoding, "strongest_hit"),
            removed=_hits(source, "likelihood", model, task, decoding, "hidden_share"),
        )


def _settings(source: StudySource, frame: pd.DataFrame) -> Iterable[tuple[str, str, str, pd.DataFrame]]:
    """(model, task, decoding, its rows), in the study's order."""
    for model in source.models:
        own = frame[frame["model"] == model]
        for (task, decoding), part in own.groupby(["task", "decoding_name"], sort=False):
            yield model, str(task), str(decoding), part


def _hits(
    source: StudySource, table: str, model: str, task: str, decoding: str, column: str = "sinks_hit"
) -> dict[str, float]:
    """Policy → share of the sinks that it hid, or what another column of the table says."""
    rows = source.rows(table, model=model, task=task, decoding_name=decoding)
    return {pooled(str(row["policy"])): float(row[column]) for _, row in rows if not missing(row.get(column))}


def _scores(frame: Any) -> dict[str, Scores]:
    """Policy → scores, seeds and draws of a control averaged; an answer that was given here counts before an earlier one."""
    answers = pd.MultiIndex.from_frame(frame[["policy", "document"]])
    new = frame["here"].to_numpy() | ~answers.isin(answers[frame["here"].to_numpy()])
    scores: dict[str, Scores] = {}
    for policy, part in frame[new].groupby(frame["policy"].map(pooled), sort=False):
        mean = part["passed"].astype(float).groupby(part["document"]).mean()
        scores[str(policy)] = {str(name): float(score) for name, score in mean.items()}
    return scores


def _traces(source: StudySource) -> Iterable[ModelEvidence]:
    for model in source.models:
        sets: dict[str, list[dict[str, Any]]] = {}
        for _, row in source.rows("sinks", model=model, policy="none"):
            if not missing(row.get("reuse")):  # approximate steps are no evidence on the model
                continue
            sets.setdefault(str(row["cell"]), []).append(row)
        for rows in sets.values():
            measures = {row["measure"]: Estimate(row["value"], row["low"], row["high"]) for row in rows}
            yield ModelEvidence(
                model=model,
                family=source.families.get(model, ""),
                kind=TRACES,
                about=f"{rows[0]['traces']}, {rows[0]['task']}",
                prompts=(prompts := int(measures["prompts"].value) if "prompts" in measures else 0),
                here=int(rows[0].get("here", prompts)),
                measures=measures,
            )


def _pairs(source: StudySource) -> Iterable[ModelEvidence]:
    """Changes under top:1 by document, less those under its control where that was traced too."""
    frame = source.frames.get("pairs", source.frames.get("earlier_pairs"))
    if frame is None or "measure" not in frame:
        return
    here = "pairs" in source.frames
    for model in source.models:
        own = frame[frame["model"] == model]
        for decoding, part in own.groupby("decoding_name", sort=False):
            tables = {
                str(policy): rows.pivot_table(index="document", columns="measure", values="value")
                for policy, rows in part.groupby("policy", sort=False)
            }
            masked, other = tables.get("top:1"), tables.get("random(top:1)")
            if masked is None or masked.empty:
                continue
            change = masked if other is None else (masked - other).dropna(how="all")
            yield ModelEvidence(
                model=model,
                family=source.families.get(model, ""),
                kind=PAIRS,
                about=f"top:1 {'beside none' if other is None else 'beside its control'}, {decoding}",
                prompts=len(change),
                here=len(change) if here else 0,
                aside="; checked by traces of the same run",
                measures={
                    str(name): mean_interval(np.asarray(change[name], dtype=np.float64)) for name in change
                },
            )
