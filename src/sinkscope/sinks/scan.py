"""The single pass over a trace: everything that needs all scores, reduced to small arrays, one sample at a
time.

A trace of 256 steps × 32 layers × 32 heads × 512 keys holds 134 million scores. They are read once, in
blocks, and each sample becomes a `Scan` of some tens of megabytes; all other analyses are pure functions of
scans.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from sinkscope.sink_rule import EPSILON
from sinkscope.sinks.dataset import (
    BLOCK_BYTES,
    Array,
    Run,
    blocks,
    dataset_of,
    head_count,
    head_means,
    labels,
    mass_weight,
    run_of,
    scores_name,
)
from sinkscope.sinks.detection import HISTOGRAM_EDGES, SWEEP, check_rule, threshold_line
from sinkscope.sinks.paths import Path, moves_of
from sinkscope.sinks.residence import Residences, Runs, classify

DRAIN_RATIO = 0.5
"""A sink is a drain when its value norm is under this share of the median over its head's keys."""

STATE_BYTES = 256 * 2**20
"""How much the samples of one block may hold between steps, in bytes."""

FIRST_POSITIONS = 4
"""How many real positions count as the start of the sequence."""


@dataclass
class Scan:
    """What one pass leaves of one sample. T steps, L layers, H heads (1 for head means), K keys.

    sinks int [T, L, H]: detected sinks; drains likewise, or None without anatomy; counts int [T, L, K]:
    heads that call the key a sink, drain_counts likewise; observed bool [T, L, H]: at least two keys could
    be scored; strongest float [T, L, H]: the largest score; path int [T, L, H]; absorbed float [T, L, H]:
    share of attention that sinks get; shared float [T, L, H]: Jaccard overlap with the step before;
    mean_map float [T, K]: mean over layers and heads; scored bool [T, K]: the key
    has a score in some head (keys of a causal model that few queries have seen have none); longest,
    flickers int [L, H] (see `classify`); lifetimes int [R, 2]: length, censored; filtered int [E]: cells
    above each ε of SWEEP; cells: how many there were; histogram int [bins]; sink_mass, start_mass: Σ share
    of attention on sinks, and on sinks among the first 4 positions.
    """

    sample: Any
    layers: Array
    heads: Array
    run: Run
    scores: str
    means: bool
    all_heads: int | None
    sinks: Array
    drains: Array | None
    counts: Array
    drain_counts: Array | None
    observed: Array
    strongest: Array
    path: Array
    absorbed: Array
    shared: Array
    mean_map: Array
    scored: Array
    longest: Array
    flickers: Array
    filtered: Array
    histogram: Array
    cells: int = 0
    sink_mass: float = 0.0
    start_mass: float = 0.0
    lifetimes: Array = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int32))
    residences: Residences = field(default_factory=lambda: Residences(*([np.zeros(0, dtype=np.int64)] * 10)))

    @property
    def kinds(self) -> Array:
        """int [L, H], index into residence.KINDS."""
        moves, net = np.zeros((2, *self.longest.shape), dtype=np.int64)
        step, layer, head = moves_of(self.path)
        place = self.run.position
        way = np.sign(place[self.path[step + 1, layer, head]] - place[self.path[step, layer, head]])
        np.add.at(moves, (layer, head), 1)
        np.add.at(net, (layer, head), way)
        steps = self.observed.sum(axis=0)
        last = np.where(steps > 0, len(self.observed) - 1 - self.observed[::-1].argmax(axis=0), 0)
        at_end = np.take_along_axis(self.sinks, last[None], axis=0)[0] > 0
        held = (self.path >= 0).sum(axis=0)
        return classify(self.longest, steps, held, self.flickers, moves, net, at_end)


def scans(
    trace: Any,
    epsilon: float = EPSILON,
    rule: str = "sum",
    *,
    scores: str = "auto",
    keep_residences: bool = False,
    sweep: bool = False,
    budget: int = BLOCK_BYTES,
) -> Iterator[Scan]:
    """One `Scan` per sample, in order, reading the scores once. sweep: also the ε sweep and the histogram."""
    data = dataset_of(trace)
    name = scores_name(data, scores)
    check_rule(rule, epsilon)
    names = [name] + (["value_norm"] if "value_norm" in data else [])
    working: dict[int, Scan] = {}
    passes: dict[int, _Pass] = {}
    for block in blocks(data, names, budget, max(1, STATE_BYTES // _state_bytes(data, name))):
        for i, sample in enumerate(block.samples):
            if sample not in working:
                working[sample] = _empty(data, name, sample)
            if block.steps.start == 0:
                passes[sample] = _Pass(working[sample], block.layers, epsilon, rule, keep_residences, sweep)
            norms = block.values["value_norm"][i] if "value_norm" in block.values else None
            for j, step in enumerate(block.steps):
                drains = None if norms is None else drain_keys(norms[j].astype(np.float32, copy=False))
                passes[sample].step(step, block.values[name][i, j].astype(np.float32, copy=False), drains)
            if block.steps.stop == data.sizes["step"]:
                passes.pop(sample).finish()
                if block.layers.stop == data.sizes["layer"]:
                    yield working.pop(sample)


def drain_keys(value_norm: Array) -> Array:
    """bool [..., K]: the value norm is under half the median over the head's keys. value_norm float [...,
    K], NaN = no key.

    Source: Gu et al. (ICLR 2025) and Guo et al. (arXiv 2410.13835) for the observation; the half is ours
    (design). One Token Is Enough (arXiv 2601.19657) shows about a third for LLaDA and Dream.
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


def kv_heads(heads: Array, n_kv: int, total: int | None = None) -> Array:
    """The key-value head of each query head label: h // (n_heads // n_kv_heads). total: all heads of the
    model."""
    count = int(total or (int(np.max(heads)) + 1))
    return np.asarray(np.minimum(np.asarray(heads) // max(1, count // n_kv), n_kv - 1))


class _Pass:
    """Feeds the steps of one sample and one range of layers into a scan."""

    def __init__(self, scan: Scan, layers: range, epsilon: float, rule: str, keep: bool, sweep: bool) -> None:
        self.scan, self.cut, self.epsilon, self.rule, self.sweep = (
            scan,
            slice(layers.start, layers.stop),
            epsilon,
            rule,
            sweep,
        )
        heads, keys = scan.sinks.shape[2], scan.counts.shape[2]
        self.runs = Runs(len(layers), heads, keys, keep=keep, first_layer=layers.start)
        self.path = Path(len(layers), heads)
        self.weight = len(layers) / scan.sinks.shape[1]

    def step(self, t: int, received: Array, drains: Array | None) -> None:
        """received float [l, H, K]; drains bool [l, KV, K] or None."""
        scan, cut, keys = self.scan, self.cut, received.shape[-1]
        shape = received.shape[:2]
        missing = np.isnan(received)
        base, slope = threshold_line(received, self.rule)
        filled = np.where(missing, np.float32(0), received) if missing.any() else received
        real = ~missing
        count = np.count_nonzero(real, axis=-1)
        scan.observed[t, cut] = count >= 2
        scan.cells += int(count.sum())
        sinks = filled > base + self.epsilon * slope
        top = filled.argmax(axis=-1)
        scan.strongest[t, cut] = np.where(
            count > 0, np.take_along_axis(filled, top[..., None], axis=-1)[..., 0], np.nan
        )
        flat = np.flatnonzero(sinks)
        row, key = np.divmod(flat, keys)
        number = np.bincount(row, minlength=shape[0] * shape[1]).reshape(shape)
        scan.sinks[t, cut] = number
        cell = row // shape[1] * keys + key
        scan.counts[t, cut] = np.bincount(cell, minlength=shape[0] * keys).reshape(shape[0], keys)
        share = filled.reshape(-1)[flat] * mass_weight(scan.run, t, scan.scores)[key]
        scan.absorbed[t, cut] = np.bincount(row, weights=share, minlength=shape[0] * shape[1]).reshape(shape)
        scan.sink_mass += float(share.sum())
        place = scan.run.position[key]
        scan.start_mass += float(share[(place >= 0) & (place < FIRST_POSITIONS)].sum())
        total = np.sum(filled, axis=(0, 1), dtype=np.float64) / np.maximum(1, real.sum(axis=(0, 1)))
        some = real.any(axis=(0, 1))
        scan.scored[t] |= some
        scan.mean_map[t] += np.where(some, total, np.nan) * self.weight
        drained = None
        if drains is not None and scan.drains is not None and scan.drain_counts is not None:
            # On head means there is no head to look up: the majority of the key-value heads decides.
            majority = drains.mean(axis=1, keepdims=True) > 0.5
            source = (
                majority if scan.means else drains[:, kv_heads(scan.heads, drains.shape[1], scan.all_heads)]
            )
            drained = sinks & source
            scan.drains[t, cut] = np.count_nonzero(drained, axis=-1)
            scan.drain_counts[t, cut] = np.count_nonzero(drained, axis=1)
        scan.shared[t, cut] = self.runs.update(sinks, real, filled, drained)
        over, which, at = self.runs.flickered.T
        led = over[scan.path[t - 1, cut][over, which] == at], which[scan.path[t - 1, cut][over, which] == at]
        np.add.at(scan.flickers[cut], led, 1)
        scan.path[t, cut] = self.path.update(filled, top, number > 0)
        if self.sweep:
            for i, epsilon in enumerate(SWEEP):
                above = sinks if epsilon == self.epsilon else filled > base + epsilon * slope
                scan.filtered[i] += np.count_nonzero(above)
            scale = np.float32(1.0 / (HISTOGRAM_EDGES[1] - HISTOGRAM_EDGES[0]))
            bins = np.minimum(filled * scale, len(HISTOGRAM_EDGES) - 2).astype(np.intp)
            binned = np.bincount(bins.reshape(-1), minlength=len(HISTOGRAM_EDGES) - 1)
            binned[0] -= int(missing.sum())
            scan.histogram += binned

    def finish(self) -> None:
        scan, runs = self.scan, self.runs
        found = runs.finish()
        scan.longest[self.cut] = runs.longest
        scan.lifetimes = np.concatenate([scan.lifetimes, *runs.lifetimes])
        if runs.keep:
            pairs = zip(scan.residences, found, strict=True)
            scan.residences = Residences(*(np.concatenate([old, new]) for old, new in pairs))


def _state_bytes(data: xr.Dataset, name: str) -> int:
    """About what a sample holds while it is scanned."""
    T, L, K = (int(data.sizes[dim]) for dim in ("step", "layer", "key"))
    heads = L * head_count(data, name)
    return 4 * T * L * K + 25 * T * heads + 16 * heads * K


def _empty(data: xr.Dataset, name: str, sample: int) -> Scan:
    T, L, K = (int(data.sizes[dim]) for dim in ("step", "layer", "key"))
    means = head_means(data, name)
    H = head_count(data, name)
    anatomy = "value_norm" in data
    return Scan(
        sample=labels(data, "sample")[sample],
        layers=labels(data, "layer"),
        heads=np.arange(1) if means else labels(data, "head"),
        run=run_of(data, sample),
        scores=name,
        means=means,
        all_heads=int(data.attrs["n_heads"]) if "n_heads" in data.attrs else None,
        sinks=np.zeros((T, L, H), dtype=np.uint32),
        drains=np.zeros((T, L, H), dtype=np.uint32) if anatomy else None,
        counts=np.zeros((T, L, K), dtype=np.uint16),
        drain_counts=np.zeros((T, L, K), dtype=np.uint16) if anatomy else None,
        observed=np.zeros((T, L, H), dtype=bool),
        strongest=np.full((T, L, H), np.nan, dtype=np.float32),
        path=np.full((T, L, H), -1, dtype=np.int32),
        absorbed=np.zeros((T, L, H), dtype=np.float32),
        shared=np.full((T, L, H), np.nan, dtype=np.float32),
        mean_map=np.zeros((T, K), dtype=np.float64),
        scored=np.zeros((T, K), dtype=bool),
        longest=np.zeros((L, H), dtype=np.int64),
        flickers=np.zeros((L, H), dtype=np.int64),
        filtered=np.zeros(len(SWEEP), dtype=np.int64),
        histogram=np.zeros(len(HISTOGRAM_EDGES) - 1, dtype=np.int64),
    )
