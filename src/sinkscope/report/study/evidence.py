"""What a study measured about one model, as plain numbers: the only thing that decides on claims.

Traces have few prompts, and a percentile bootstrap over few is too narrow; so their intervals are widened as Hesterberg
(2015, "What teachers should know about the bootstrap") advises: by t/z · √(n/(n−1)). One prompt has no interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sinkscope.report.study.source import Source
from sinkscope.sinks.dataset import Array
from sinkscope.sinks.intervals import Z, paired_interval
from sinkscope.study.comparison import control

T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
    2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
)  # fmt: skip
"""97.5 % quantiles of Student's t with 1, 2, … 29 degrees of freedom."""

Scores = Mapping[str, float]
"""Document → share of its answers that were right."""


class Span(NamedTuple):
    """A value with its 95 % interval; NaN bounds: there is none."""

    value: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether there is an interval at all."""
        return math.isfinite(self.low) and math.isfinite(self.high)


@dataclass(frozen=True)
class Evidence:
    """One model.

    Attributes:
        prompts: over how many prompts the intervals of traces are.
        measures: measure of the table `sinks` → value with widened interval; notes: what stands beside it.
        layers: column of the table `depth` → values from the first layer to the last, intervals widened.
        verdicts: question of `diagnose` → verdict.
        scores: policy → scores on the first task; controls are averaged over their draws, "random(top:1)" and
            "random(top:1),match=mass".
        hits: policy → share of the step's own sinks that it hid.
        rival: scores of the study's first causal model on the same documents; None: there is none, or this is it.
    """

    model: str
    family: str
    prompts: int = 0
    measures: Mapping[str, Span] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    layers: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)
    verdicts: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, Scores] = field(default_factory=dict)
    hits: Mapping[str, float] = field(default_factory=dict)
    rival: Mapping[str, Scores] | None = None

    @property
    def n(self) -> int:
        """Documents of the first task."""
        return max(map(len, self.scores.values()), default=0)

    def lost(self, policy: str, base: str = "none") -> Span | None:
        """Share of the documents lost between two policies, paired (Agresti and Min 2005); None: not both were run."""
        before, after = self.scores.get(base), self.scores.get(policy)
        if before is None or after is None or set(before) != set(after):
            return None
        order = sorted(before)
        return paired(np.array([before[name] for name in order]), np.array([after[name] for name in order]))


def paired(before: Array, after: Array) -> Span:
    """Points lost, mean(before) − mean(after), of the same documents; never an interval of width zero.

    Outcomes of 0 and 1: Agresti and Min (2005). Shares, where a control has several draws: the normal interval after two
    documents more, one for either side, which is the same idea.
    """
    if np.isin(before, (0, 1)).all() and np.isin(after, (0, 1)).all():
        return Span(*paired_interval(before, after))
    return padded(before - after)


def padded(change: Array) -> Span:
    """Mean of changes with a normal interval after two documents more, +1 and −1."""
    more = np.append(change, [1.0, -1.0])
    spread = Z * float(more.std(ddof=1)) / math.sqrt(len(more))
    return Span(float(change.mean()), float(more.mean()) - spread, float(more.mean()) + spread)


def more_lost(rival: Mapping[str, Scores], own: Mapping[str, Scores], policy: str) -> Span | None:
    """How much more the rival loses under a policy than the model itself, paired by document; None: not comparable."""
    runs = [rival.get("none"), rival.get(policy), own.get("none"), own.get(policy)]
    found = [run for run in runs if run is not None]
    if len(found) < 4 or len({frozenset(run) for run in found}) > 1:
        return None
    a, b, c, d = (np.array([run[name] for name in sorted(found[0])]) for run in found)
    span, shift = padded((a - b) - (c - d)), float((a - c).mean())
    # (a − b) − (c − d) = (a − c) + (d − b): beyond these bounds no accuracies could lie.
    return Span(span.value, max(span.low, shift - 1), min(span.high, shift + 1))


def widened(value: float, low: float, high: float, prompts: int) -> Span:
    """The interval of a bootstrap over few prompts, made as wide as it should be.

    >>> widened(0.5, 0.4, 0.6, 4).low < 0.4
    True
    """
    if prompts < 2:
        return Span(value, math.nan, math.nan)
    quantile = T_975[prompts - 2] if prompts - 2 < len(T_975) else Z
    factor = quantile / Z * math.sqrt(prompts / (prompts - 1))
    return Span(value, value - factor * (value - low), value + factor * (high - value))


def collect(source: Source) -> list[Evidence]:
    """The evidence on every model of a study."""
    scores = {model: _scores(source, model) for model in source.models}
    causal = next((model for model in source.models if source.families.get(model) == "causal"), None)
    return [
        _of_model(source, model, scores[model], None if causal in (None, model) else scores[str(causal)])
        for model in source.models
    ]


def _of_model(
    source: Source, model: str, scores: Mapping[str, Scores], rival: Mapping[str, Scores] | None
) -> Evidence:
    traced, layers = source.traced(model), source.layers(model)
    prompts = int(next((row["value"] for _, row in traced if row["measure"] == "prompts"), 0))
    columns = [name for name in (layers[0][1] if layers else {}) if f"{name}_low" in layers[0][1]]
    task = _first_task(source, model)
    return Evidence(
        model=model,
        family=source.families.get(model, ""),
        prompts=prompts,
        measures={row["measure"]: _measure(row, prompts) for _, row in traced},
        notes={row["measure"]: str(row["note"] or "") for _, row in traced},
        layers={
            name: tuple(
                widened(row[name], row[f"{name}_low"], row[f"{name}_high"], prompts) for _, row in layers
            )
            for name in columns
        },
        verdicts={row["question"]: row["verdict"] for _, row in source.rows("diagnosis", model=model)},
        scores=scores,
        hits={
            row["policy"]: float(row["sinks_hit"])
            for _, row in source.rows("results", model=model, **task)
            if row.get("sinks_hit") is not None
        },
        rival=rival,
    )


def _measure(row: Mapping[str, Any], prompts: int) -> Span:
    """A row of the table `sinks`; shares stay between 0 and 1, and what cannot be negative is not."""
    span = widened(row["value"], row["low"], row["high"], prompts)
    if str(row["measure"]).startswith(("drift", "gain")) or not span.known:
        return span
    top = 1.0 if str(row["unit"]).startswith("share of") else math.inf
    return Span(span.value, max(0.0, span.low), min(top, span.high))


def _first_task(source: Source, model: str) -> dict[str, str]:
    """Task and decoding of a model's first evaluation, as columns of the tables."""
    for _, row in source.rows("records", model=model):
        return {"task": row["task"], "decoding_name": row["decoding_name"]}
    return {"task": "", "decoding_name": ""}


def _scores(source: Source, model: str) -> dict[str, Scores]:
    """Policy → scores on the first task, seeds and draws of a control averaged."""
    frame = source.frames.get("records")
    if frame is None:
        return {}
    own = frame[frame["model"] == model]
    for column, value in _first_task(source, model).items():
        own = own[own[column] == value]
    policies = own["policy"].map(_pooled)
    found: dict[str, Scores] = {}
    for policy, part in own.groupby(policies, sort=False):
        mean = part["passed"].astype(float).groupby(part["document"]).mean()
        found[str(policy)] = {str(name): float(score) for name, score in mean.items()}
    return found


def _pooled(policy: str) -> str:
    """The name of a control without its seed."""
    kind = control(policy)
    if kind is None:
        return policy
    return f"random({kind[0]})" + ("" if kind[1] == "count" else f",match={kind[1]}")
