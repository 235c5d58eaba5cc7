"""Movement as a whole, on arrays: drift along positions and along the order of decoding, variance and overlap of sink sets.

A sink that follows the decoding frontier drifts to the right only because the model decodes from left to right. So the drift
is measured twice: against position, and against the order in which positions were decided. Where many selections were ties,
that order is an accident of `topk`: `ties` says how many.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from sinkscope.sinks.dataset import Array, SampleState, frame
from sinkscope.sinks.detection import sinks_of
from sinkscope.statistics import ratio_interval

CENTROID_SIGMA = 2.0
"""Sinks of the pooled map are the keys above mean + 2 standard deviations, as in the source's code."""


class Drift(NamedTuple):
    """Sums over the heads of a sample, so that samples can be pooled.

    position, order: drift × weight; position_weight, order_weight: path steps; ties, selections: tied ones and all; decoding: the
    direction of decoding itself (rank correlation of position and time, in [−1, 1]).
    """

    position: float
    position_weight: float
    order: float
    order_weight: float
    ties: int
    selections: int
    decoding: float


def slopes(values: Array, time: Array, use: Array) -> tuple[Array, Array]:
    """Least-squares slope of values against time for every column, and its points. values, use [T, …], time [T]."""
    n = use.sum(axis=0)
    t = np.broadcast_to(time.reshape((len(time),) + (1,) * (values.ndim - 1)), values.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        t_mean = np.where(use, t, 0.0).sum(axis=0) / n
        v_mean = np.where(use, values, 0.0).sum(axis=0) / n
        dt = np.where(use, t - t_mean, 0.0)
        slope = (dt * np.where(use, values - v_mean, 0.0)).sum(axis=0) / (dt**2).sum(axis=0)
    return slope, n


def decoding_rank(state: SampleState) -> Array:
    """When each answer key was decided, as a share in [0, 1] of all decisions (ties share their mean); NaN if never."""
    return rank(state.decided_at())


def rank(values: Array) -> Array:
    """Ranks scaled to [0, 1], equal values share their mean rank, NaN stays; all NaN with fewer than two values."""
    known = int(np.isfinite(values).sum())
    ranks = pd.Series(np.where(np.isfinite(values), values, np.nan)).rank().to_numpy()
    return np.asarray((ranks - 1) / (known - 1)) if known >= 2 else np.full(values.shape, np.nan)


def drift_of(state: SampleState, path: Array) -> Drift:
    """Drift of the strongest sinks of one sample. path int [T, L, H], −1 = no sink.

    Position drift of a head: slope of (position / length) against (step / steps), so 1 = from the first to the last token
    over the whole generation. Order drift: slope of the decoding rank of the key that holds the sink, over the steps where
    that is an answer token; a sink that sits on what is being decided just now has 1. Heads weigh by their path's steps.
    """
    time = np.linspace(0.0, 1.0, len(path))
    use = path >= 0
    place = np.where(use, state.position[path] / max(1, state.length), 0.0)
    order_of = decoding_rank(state)
    ranked = np.where(use, order_of[path], np.nan)
    sums = []
    for values, points in ((place, use), (np.nan_to_num(ranked), np.isfinite(ranked))):
        slope, n = slopes(values, time, points)
        fine = (n >= 3) & np.isfinite(slope)
        sums += [float((slope[fine] * n[fine]).sum()), float(n[fine].sum())]
    decided = np.isfinite(order_of)
    order = float("nan")
    if decided.sum() >= 3 and np.ptp(order_of[decided]) > 0:
        where = rank(np.where(decided, state.position.astype(np.float64), np.nan))
        order = float(np.corrcoef(where[decided], order_of[decided])[0, 1])
    return Drift(sums[0], sums[1], sums[2], sums[3], int(state.ties.sum()), int(state.decided.sum()), order)


def drift_table(values: Array, prompts: Array) -> pd.DataFrame:
    """Drift of the strongest sinks against position and against decoding order, with intervals over prompts.

    values float [N, 7]: the fields of `Drift` of each sample; prompts [N]. Two rows ("position", "decoding order"): drift (share
    of the length, or of the decoding order, over the whole generation), low, high, ties (share of tied selections), decoding
    (direction of decoding itself: 1 = left to right). Limits: a slope cannot see a sink that goes out and comes back.
    """
    selections = values[:, 5].sum()
    ties = float(values[:, 4].sum() / selections) if selections > 0 else float("nan")
    order = values[:, 6]
    decoding = float(np.mean(order[np.isfinite(order)])) if np.isfinite(order).any() else float("nan")
    rows = [
        (name, *ratio_interval(values[:, column], values[:, column + 1], prompts), ties, decoding)
        for name, column in (("position", 0), ("decoding order", 2))
    ]
    columns = ["relative_to", "drift", "low", "high", "ties", "decoding"]
    units = {"drift": "share of the length per generation"}
    return frame(pd.DataFrame(rows, columns=columns), units=units)


class Variances(NamedTuple):
    """spatial: (received attention)²; temporal: positions²; temporal_relative: (share of the sequence length)²."""

    spatial: float
    temporal: float
    temporal_relative: float


def centroid_variance(pooled: Array, position: Array, sigma: float = CENTROID_SIGMA) -> Variances:
    """Spatial and temporal variance of pooled attention m_t(i), float [T, K], NaN = no key; position int [K].

    `spatial = Var_i( mean_t m_t(i) )`: high when the same positions are strong in all steps. `temporal = Var_t(c_t)` with the
    sink centroid `c_t = Σ_{i∈S_t} i·m_t(i) / Σ_{i∈S_t} m_t(i)`, S_t = keys above mean + 2 std of that step: high when sinks
    wander. Source: Sink-Aware Pruning (arXiv 2602.17664): autoregressive models have high spatial and almost no temporal
    variance, diffusion models the reverse.

    Limits: pooling over layers and heads hides a sink that one head moves; steps without a sink have no centroid.
    """
    pooled = np.asarray(pooled, dtype=np.float64)
    seen = ~np.isnan(pooled)
    filled = np.where(seen, pooled, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        profile = filled.sum(axis=0) / seen.sum(axis=0)
        weight = np.where(sinks_of(pooled, sigma, "zscore"), filled, 0.0)
        centroid = (weight * position).sum(axis=1) / weight.sum(axis=1)
    centroid = centroid[np.isfinite(centroid)]
    spatial = float(np.var(profile[np.isfinite(profile)])) if np.isfinite(profile).any() else float("nan")
    if len(centroid) < 2:
        return Variances(spatial, float("nan"), float("nan"))
    length = max(1, int(position.max()) + 1)
    return Variances(spatial, float(np.var(centroid)), float(np.var(centroid / length)))


def set_overlap(a: Array, b: Array) -> Array:
    """Jaccard overlap |A∩B| / |A∪B| of bool [..., K] sets, in [0, 1]; NaN where both are empty."""
    both = np.count_nonzero(a & b, axis=-1)
    union = np.count_nonzero(a | b, axis=-1)
    return np.asarray(np.where(union > 0, both / np.maximum(union, 1), np.nan))


def layer_overlap_of(sets: Array) -> Array:
    """Overlap of every two layers' sets, mean over steps: float [L, L] from bool [T, L, K]; NaN where both are always empty."""
    sums = np.zeros((sets.shape[1], sets.shape[1]))
    seen = np.zeros_like(sums)
    for step in sets.astype(np.float32):
        both = step @ step.T
        size = step.sum(axis=1)
        union = size[:, None] + size[None, :] - both
        sums += np.where(union > 0, both / np.maximum(union, 1), 0.0)
        seen += union > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(sums / np.where(seen > 0, seen, np.nan))
