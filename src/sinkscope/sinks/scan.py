"""The single pass over a trace: everything that needs all scores, reduced to small arrays, one sample at a time.

A trace of 256 steps × 32 layers × 32 heads × 512 keys holds 134 million scores. They are read once, in blocks, and each
sample becomes a `Scan` of some tens of megabytes (one bit for each score among them: is it a sink?); all other analyses are
pure functions of scans.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr

from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks.dataset import (
    BLOCK_BYTES,
    Array,
    all_heads,
    as_slice,
    blocks,
    causal_steps,
    head_count,
    head_labels,
    head_means,
    labels,
    one_by_one,
    sample_state,
)
from sinkscope.sinks.detection import HISTOGRAM_EDGES, SWEEP
from sinkscope.sinks.drift import decoding_rank, set_overlap
from sinkscope.sinks.judging import Judge
from sinkscope.sinks.kinds import PathTracker, kinds_of
from sinkscope.sinks.residence import Residences, residences_of

DRAIN_RATIO = 0.5
"""A sink is a drain when its value norm is under this share of the median over its head's keys."""

STATE_BYTES = 256 * 2**20
"""How much the samples of one block may hold between steps, in bytes."""

FIRST_POSITIONS = 4
"""How many real positions count as the start of the sequence."""


class Scan:
    """One sample after the pass. T steps, L layers, H heads (1 for head means), K keys.

    place: which sample of the trace it is, sample: its label;
    bits uint8 [T, L, H, ⌈K/8⌉]: the sinks, packed; sinks int [T, L, H]: how many; drains likewise, or None without anatomy;
    counts int [T, L, K]: heads that call the key a sink, drain_counts likewise; observed bool [T, L, H]: some key could be
    judged; strongest float [T, L, H]: the largest score; path int [T, L, H]; absorbed float [T, L, H]: share of
    attention that sinks get; mean_map float [T, K]: mean over layers and heads; scored bool [T, K]: the key could be judged in
    some head; filtered int [E]: cells above each ε of SWEEP; cells: how many could be judged, unknown: how many could not;
    histogram int [bins]; sink_mass, start_mass: Σ share of attention on sinks, and on sinks among the first 4 positions;
    at_sinks: layer → (step, flat cells [H·K], scores, drains) of its detections, where residences were asked for.
    Scores are in the unit of `judge`.
    """

    def __init__(self, judge: Judge, place: int) -> None:
        data, name = judge.data, judge.name
        T, L, K = (int(data.sizes[dim]) for dim in ("step", "layer", "key"))
        shape = T, L, head_count(data, name)
        anatomy = "value_norm" in data
        self.judge, self.place, self.state = judge, place, sample_state(data, place)
        self.sample, self.layers, self.heads = (
            labels(data, "sample")[place],
            labels(data, "layer"),
            head_labels(data, name),
        )
        self.bits = np.zeros((*shape, -(-K // 8)), dtype=np.uint8)
        self.sinks = np.zeros(shape, dtype=np.uint32)
        self.drains = np.zeros(shape, dtype=np.uint32) if anatomy else None
        self.counts = np.zeros((T, L, K), dtype=np.uint16)
        self.drain_counts = np.zeros((T, L, K), dtype=np.uint16) if anatomy else None
        self.observed = np.zeros(shape, dtype=bool)
        self.strongest = np.full(shape, np.nan, dtype=np.float32)
        self.path = np.full(shape, -1, dtype=np.int32)
        self.absorbed = np.zeros(shape, dtype=np.float32)
        self.mean_map = np.zeros((T, K), dtype=np.float64)
        self.scored = np.zeros((T, K), dtype=bool)
        self.filtered = np.zeros(len(SWEEP), dtype=np.int64)
        self.histogram = np.zeros(len(HISTOGRAM_EDGES) - 1, dtype=np.int64)
        self.cells = self.unknown = 0
        self.sink_mass = self.start_mass = 0.0
        self.at_sinks: dict[int, list[tuple[int, Array, Array, Array]]] = {}

    def sets(self, layer: int) -> Array:
        """bool [T, H, K]: the sinks of one layer, by index."""
        keys = self.counts.shape[2]
        return np.unpackbits(self.bits[:, layer], axis=-1, count=keys).astype(bool)

    def on(self, steps: Array, values: Array, fill: Any = 0) -> Array:
        """values [T, …] of the scanned steps among these [every step of the trace, …]; fill: at steps that were not scanned."""
        every = np.full((len(steps), *values.shape[1:]), fill, dtype=values.dtype)
        every[np.searchsorted(steps, self.state.steps)] = values
        return every

    @cached_property
    def kinds(self) -> Array:
        """int8 [L, H], index into kinds.KINDS."""
        place, order = self.state.position, decoding_rank(self.state)
        parts = ((self.path[:, i], self.sets(i), self.observed[:, i]) for i in range(len(self.layers)))
        return np.stack([kinds_of(*part, place, order) for part in parts])

    @cached_property
    def residences(self) -> Residences:
        """All residences; their strength and drains are 0 unless they were asked for (`keep_residences`)."""
        T, _, H = self.sinks.shape
        shape = (T, H, self.counts.shape[2])
        parts = []
        for i in range(len(self.layers)):
            received, drains = (None, None)
            if self.at_sinks:
                received, drains = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=bool)
                for step, cells, score, drain in self.at_sinks[i]:
                    received[step].reshape(-1)[cells] = score
                    drains[step].reshape(-1)[cells] = drain
            parts.append(residences_of(self.sets(i), self.scored, received, drains, i))
        return Residences(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    @cached_property
    def shared(self) -> Array:
        """float [T, L, H]: Jaccard overlap with the sinks of the previous step; NaN in the first step and if both are empty."""
        out = np.full(self.sinks.shape, np.nan, dtype=np.float32)
        for i in range(len(self.layers)):
            sets = self.sets(i)
            out[1:, i] = set_overlap(sets[1:], sets[:-1])
        return out


def scans(
    trace: Any,
    epsilon: float = EPSILON,
    rule: str = "auto",
    *,
    scores: str = "auto",
    percent: bool = False,
    keep_residences: bool = False,
    sweep: bool = False,
    budget: int = BLOCK_BYTES,
) -> Iterator[Scan]:
    """One `Scan` per sample, in order, reading the scores once. percent: see `Judge`. sweep: also ε's sweep and the histogram.

    Of a model with two modes (`causal_steps`) only denoising steps are scanned; of a trace without them its causal ones.
    """
    judge = Judge.of(trace, epsilon, rule, scores, percent)
    data, name = judge.data, judge.name
    causal = causal_steps(data)
    if causal is not None and not causal.all():
        options: dict[str, Any] = {"keep_residences": keep_residences, "sweep": sweep, "budget": budget}
        for sample, one in enumerate(one_by_one(data, ~causal)):
            for scan in scans(one, epsilon, rule, scores=scores, percent=percent, **options):
                scan.place = sample
                yield scan
        return
    names = [name] + (["value_norm"] if "value_norm" in data else [])
    working: dict[int, Scan] = {}
    passes: dict[int, _Pass] = {}
    for block in blocks(data, names, budget, max(1, STATE_BYTES // _state_bytes(data, name))):
        for sample, step, values in block.each_step():
            if sample not in working:
                working[sample] = Scan(judge, sample)
            if step == 0:
                passes[sample] = _Pass(working[sample], block.layers, epsilon, keep_residences, sweep)
            norms = values.get("value_norm")
            passes[sample].step(step, values[name], None if norms is None else drain_keys(norms))
        if block.steps.stop == data.sizes["step"] and block.layers.stop == data.sizes["layer"]:
            for sample in block.samples:
                yield working.pop(sample)


def drain_keys(value_norm: Array) -> Array:
    """bool [..., K]: the value norm is under half the median over the head's keys. value_norm float [..., K], NaN = no key.

    Source: Gu et al. (ICLR 2025) and Guo et al. (arXiv 2410.13835) for the observation; the half is our convention. One Token Is
    Enough (arXiv 2601.19657) shows about a third for LLaDA and Dream.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(value_norm < DRAIN_RATIO * key_median(value_norm))


def key_median(values: Array) -> Array:
    """Median over the keys that exist, [..., 1]; NaN when there is none."""
    # Sorting puts NaN last; numpy's own nanmedian is many times slower on short rows.
    ordered = np.sort(values, axis=-1)
    n = np.count_nonzero(~np.isnan(values), axis=-1, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum(n - 1, 0) // 2, axis=-1)
    high = np.take_along_axis(ordered, np.minimum(n // 2, values.shape[-1] - 1), axis=-1)
    return np.asarray(np.where(n > 0, (low + high) / 2, np.nan))


def per_query_head(values: Array, heads: Array, total: int | None, means: bool) -> Array:
    """Values [l, KV, K] of key-value heads for the query heads: [l, H, K]; for head means their mean, [l, 1, K].

    The key-value head of query head h is h // (heads / key-value heads). total: all heads of the model.
    """
    if means:
        return np.asarray(values.mean(axis=1, keepdims=True))
    count = int(total or (int(np.max(heads)) + 1))
    group = max(1, count // values.shape[1])
    return np.asarray(values[:, np.minimum(np.asarray(heads) // group, values.shape[1] - 1)])


class _Pass:
    """Feeds the steps of one sample and one range of layers into a scan."""

    def __init__(self, scan: Scan, layers: range, epsilon: float, keep: bool, sweep: bool) -> None:
        self.scan, self.epsilon, self.keep, self.sweep = scan, epsilon, keep, sweep
        self.cut, self.first = as_slice(layers), layers.start
        self.path = PathTracker(len(layers), scan.sinks.shape[2])
        self.weight = len(layers) / scan.sinks.shape[1]
        self.of_all = all_heads(scan.judge.data), head_means(scan.judge.data, scan.judge.name)

    def step(self, t: int, received: Array, drains: Array | None) -> None:
        """received float [l, H, K]; drains bool [l, KV, K] or None."""
        scan, cut, keys = self.scan, self.cut, received.shape[-1]
        shape = received.shape[:2]
        judged = scan.judge.step(scan.state, t, received, cut)
        missing, judgeable = np.isnan(judged.score), judged.known
        filled, real = np.where(missing, np.float32(0), judged.score) if missing.any() else judged.score, ~missing
        scan.observed[t, cut] = judgeable.any(axis=-1)
        scan.cells += int(judgeable.sum())
        scan.unknown += int((scan.state.real[t] & ~judgeable).sum())
        sinks = judged.sinks(self.epsilon)
        scan.bits[t, cut] = np.packbits(sinks, axis=-1)
        scan.strongest[t, cut] = np.where(real.any(axis=-1), filled.max(axis=-1), np.nan)
        flat = np.flatnonzero(sinks)
        row, key = np.divmod(flat, keys)
        number = np.bincount(row, minlength=shape[0] * shape[1]).reshape(shape)
        scan.sinks[t, cut] = number
        cell = row // shape[1] * keys + key
        scan.counts[t, cut] = np.bincount(cell, minlength=shape[0] * keys).reshape(shape[0], keys)
        mass = np.broadcast_to(judged.mass, filled.shape)[row // shape[1], row % shape[1], key]
        share = filled.reshape(-1)[flat] * mass
        scan.absorbed[t, cut] = np.bincount(row, weights=share, minlength=shape[0] * shape[1]).reshape(shape)
        scan.sink_mass += float(share.sum())
        place = scan.state.position[key]
        scan.start_mass += float(share[(place >= 0) & (place < FIRST_POSITIONS)].sum())
        total = np.sum(filled, axis=(0, 1), dtype=np.float64) / np.maximum(1, real.sum(axis=(0, 1)))
        scan.scored[t] |= judgeable.any(axis=(0, 1))
        scan.mean_map[t] += np.where(real.any(axis=(0, 1)), total, np.nan) * self.weight
        drained = np.zeros_like(sinks)
        if drains is not None and scan.drains is not None and scan.drain_counts is not None:
            # On head means there is no head to look up: the majority of the key-value heads decides.
            drained = sinks & (per_query_head(drains, scan.heads, *self.of_all) > 0.5)
            scan.drains[t, cut] = np.count_nonzero(drained, axis=-1)
            scan.drain_counts[t, cut] = np.count_nonzero(drained, axis=1)
        # With a threshold for each key the largest score need not be a sink's.
        scan.path[t, cut] = self.path.update(filled, (filled * sinks).argmax(axis=-1), number > 0)
        if self.keep:
            for i in range(shape[0]):
                at = np.flatnonzero(sinks[i])
                scores, drain = filled[i].reshape(-1)[at], drained[i].reshape(-1)[at]
                scan.at_sinks.setdefault(self.first + i, []).append((t, at, scores, drain))
        if self.sweep:
            for i, epsilon in enumerate(SWEEP):
                above = sinks if epsilon == self.epsilon else judged.sinks(epsilon)
                scan.filtered[i] += np.count_nonzero(above)
            scale = np.float32(1.0 / (HISTOGRAM_EDGES[1] - HISTOGRAM_EDGES[0]))
            bins = np.minimum(filled * scale, len(HISTOGRAM_EDGES) - 2).astype(np.intp)
            binned = np.bincount(bins.reshape(-1), minlength=len(HISTOGRAM_EDGES) - 1)
            binned[0] -= int(missing.sum())
            scan.histogram += binned


def _state_bytes(data: xr.Dataset, name: str) -> int:
    """About what a sample holds while it is scanned."""
    T, L, K = (int(data.sizes[dim]) for dim in ("step", "layer", "key"))
    heads = L * head_count(data, name)
    return 4 * T * L * K + T * heads * (25 + K // 8)
