"""Movement of sinks as a whole, on arrays: variance of the attention profile and of the sink centroid, overlap of sink sets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sinkscope.sinks.dataset import Array
from sinkscope.sinks.detection import sinks_of

CENTROID_SIGMA = 2.0
"""Sinks of the pooled map are the keys above mean + 2 standard deviations, as in the source's code."""


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
