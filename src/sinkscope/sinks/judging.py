"""How the scores of a trace are judged: which queries they count, by which rule, in which unit.

`base.sink_rule` states the rules. Where every query sees every key, the paper's ("sum") is the default: one threshold for
a row. In causal and block-causal attention it is "distance": a threshold for each key, on the mean attention that distant
queries give it, and keys that cannot be judged: they are *unknown*, which is not "no sink".
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from sinkscope.base import checks
from sinkscope.base.errors import InputError
from sinkscope.base.sink_rule import EPSILON, PAPER_LENGTH, Distant, around, distant
from sinkscope.base.sink_rule import threshold_line as sum_line
from sinkscope.sinks.dataset import (
    HEAD_MEANS_NOTE,
    Array,
    SampleState,
    dataset_of,
    head_means,
    is_causal,
    note_of,
    sample_state,
    scores_name,
)

RULES = {
    "sum": "received_j > mean of the other keys' received + ε",
    "mean": "received_j / n > mean of the others' received / n + ε, the paper's equation 3 as printed",
    "percent": "100 · received_j / n > mean of the others' 100 · received / n + ε",
    "zscore": "received_j > mean + ε · standard deviation over all real keys",
    "distance": "mean attention of distant queries to j > the most that distance alone explains + ε / 64 + 1 / (2 n)",
}
AUTO, DISTANCE = "auto", "distance"
ROW_RULES = tuple(rule for rule in RULES if rule != DISTANCE)
"""Rules with one threshold for a whole row, that need nothing but its scores."""

MULTIPLES = "received attention, uniform = 1"
PERCENT = "% of a query's attention"

ALL, BLOCK, FAR, SEEN, NEWEST = "all", "block", "far", "seen", "newest"
"""Whose attention a score counts: of all queries, each of which sees every key; of the active block; of the distant queries so
far; of all queries so far; of the newest query alone."""

NOTES = {
    SEEN: "judged over all queries so far, near ones too (the trace has no received_far): weak sinks are missed",
    NEWEST: "one query cannot tell a sink, so every key is unknown; rule='sum' marks the newest query's strongest keys",
    BLOCK: "the trace does not say which queries are the active block's, so near keys may pass for sinks",
}


def check_rule(rule: str, epsilon: float) -> str:
    """Validate, and return the remark that this rule needs at this ε ("" for none)."""
    checks.one_of("rule", rule, (AUTO, *RULES))
    if not np.isfinite(epsilon) or epsilon < 0:
        raise InputError(f"epsilon must be a finite number ≥ 0, got {epsilon!r}; the paper uses 3")
    if rule == "mean" and epsilon >= 1:
        return (
            f"rule 'mean' can never fire at ε = {epsilon:g}: mean attention lies between 0 and 1. "
            "It is the paper's equation as printed; use rule='sum' for what its figures show"
        )
    return ""


def threshold_line(received: Array, rule: str = "sum") -> tuple[Array, Array]:
    """(base, slope), each [..., 1]: the threshold of every rule of a whole row is base + ε · slope."""
    base, slope, keys = sum_line(received)
    if rule == "zscore":
        with np.errstate(invalid="ignore"):
            square = np.nansum(np.square(received - base), axis=-1, keepdims=True)
        slope = np.sqrt(square / np.maximum(keys, 1.0))
    elif rule != "sum":
        slope = slope * (keys if rule == "mean" else keys / 100.0)
    return base, slope


class Judged(NamedTuple):
    """The scores of one step, of some layers, ready to be compared. All but `score` are broadcast over layers, heads, keys.

    Attributes:
        score: float [layer, head, key]: what ranks keys; NaN: no key, or one that cannot be judged.
        base, slope: a key is a sink when its score exceeds base + ε · slope; base is +inf where nothing can be.
        share: score · share = mean attention of a query to the key, in [0, 1].
        mass: score · mass = share of all attention of the step.
    """

    score: Array
    base: Array
    slope: Array
    share: Array
    mass: Array

    def sinks(self, epsilon: float) -> Array:
        """bool [layer, head, key]."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.score > self.base + epsilon * self.slope)

    @property
    def known(self) -> Array:
        """bool [layer, head, key]: the key can be judged."""
        return np.asarray(np.isfinite(self.score) & np.isfinite(self.base))


@dataclass(frozen=True)
class Judge:
    """Variable, queries and rule, chosen once for a trace; `step` judges a step.

    Attributes:
        data: the trace.
        name: the variable with the scores. rule: never "auto". queries: whose attention they count.
        percent: scores are in percent of a query's attention, else in multiples of uniform attention.
        note: what a reader should know.
    """

    data: xr.Dataset
    name: str
    rule: str
    queries: str
    percent: bool
    note: str

    @classmethod
    def of(
        cls, trace: Any, epsilon: float = EPSILON, rule: str = AUTO, scores: str = "auto", percent: bool = False
    ) -> Judge:
        """Choose. percent: in that unit also where multiples of uniform attention are usual, to compare the two."""
        note = check_rule(rule, epsilon)
        data = dataset_of(trace)
        name = scores_name(data, scores)
        queries = _queries(data, name)
        if rule == AUTO:
            rule = "sum" if queries == ALL else DISTANCE
            if queries == BLOCK and (name == "received_all" or not sample_state(data, 0).active.any()):
                rule, note = "sum", NOTES[BLOCK]
        if rule == DISTANCE:
            note = NOTES.get(queries, "") if queries != BLOCK else ""
        percent = percent if rule != DISTANCE or queries == NEWEST else True
        means = HEAD_MEANS_NOTE if head_means(data, name) else ""
        return cls(data, name, rule, queries, percent, note_of(note, means))

    @property
    def unit(self) -> str:
        """Of the scores."""
        return PERCENT if self.percent else MULTIPLES

    def attrs(self, epsilon: float) -> dict[str, Any]:
        """How it was decided, for the attributes of a result."""
        means = head_means(self.data, self.name)
        about = {"rule": self.rule, "epsilon": float(epsilon), "formula": RULES[self.rule], "scores": self.name}
        return {**about, "scope": "head means" if means else "head", "note": self.note}

    def step(self, state: SampleState, step: int, received: Array, layers: slice = slice(None)) -> Judged:
        """Judge received float [layer, head, key] of these layers."""
        seen, total = self._distant(state, step, layers)
        if self.queries == BLOCK and self.rule == DISTANCE:
            # A sliding layer's queries share their attention among the keys that it sees.
            share = np.isfinite(received).any(1).sum(-1)[:, None, None].clip(1) / state.real[step].sum()
            seen = dataclasses.replace(seen, uniform=seen.uniform / share, noise=seen.noise / share)
        count = np.maximum(seen.count, 1)
        share = seen.uniform / count
        mass = share if total is None else seen.uniform / max(1, total)
        base: Array = np.full(1, np.inf)
        slope: Array = np.zeros(1)
        if self.rule == DISTANCE and self.queries != NEWEST:
            received = np.where(seen.known, received, np.float32(np.nan))
            base, slope = 100 * (seen.local / count + seen.noise), np.full(1, 100 / PAPER_LENGTH)
        elif self.rule != DISTANCE:
            base, slope = threshold_line(received, self.rule)
        if not self.percent:
            return Judged(received, base, slope, share, mass)
        scale = 100 * share
        if self.rule != DISTANCE:
            base, slope = np.where(scale > 0, base, 1.0) * scale, slope * scale
        return Judged(received * scale, base, slope, np.full(1, 0.01), _ratio(mass, scale))

    def _distant(self, state: SampleState, step: int, layers: slice) -> tuple[Distant, int | None]:
        """What the queries could give each key, arrays [layer|1, 1, key]; and how many there are, None: all see every key."""
        real = state.real[step]
        length = np.array([real.sum()])
        position = np.where(real, state.position, -1)
        if self.queries not in (FAR, SEEN):
            active = state.active[step] if self.queries == BLOCK and self.rule == DISTANCE else length
            return around(length, position, np.maximum(length - active, 0), length), None
        gap = None if self.queries == FAR else 0
        windows = window_of(self.data)[layers]
        each = {wide: distant(length, position, wide or None, gap) for wide in dict.fromkeys(windows.tolist())}
        if len(each) == 1:
            return next(iter(each.values())), int(length[0])
        fields = [field.name for field in dataclasses.fields(Distant)]
        rows = {f: np.stack([np.asarray(getattr(each[w], f)) for w in windows.tolist()])[:, None] for f in fields}
        return Distant(**rows), int(length[0])


def window_of(data: xr.Dataset) -> Array:
    """int [layer]: how many keys a query of the layer sees at most; 0: all."""
    alike = np.full(int(data.sizes["layer"]), data.attrs.get("window", 0))
    return np.asarray(data["window"].values if "window" in data else alike, dtype=np.int64)


def _queries(data: xr.Dataset, name: str) -> str:
    if is_causal(data):
        return {"received_far": FAR, "received_all": SEEN}.get(name, NEWEST)
    if data.attrs.get("future") == 0:  # a diffusion model without attention ahead
        return SEEN
    return BLOCK if "forward_kind" in data else ALL


def _ratio(top: Array, bottom: Array) -> Array:
    return np.divide(top, bottom, out=np.zeros(np.broadcast(top, bottom).shape), where=bottom > 0)
