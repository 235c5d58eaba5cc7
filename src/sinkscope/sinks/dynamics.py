"""Movement of sinks as a whole: variance of the attention profile, of the sink centroid, overlap of sink
sets.

Array layer: `centroid_variance`, `set_overlap`. Labelled layer: `variances`, `step_overlap`, `layer_overlap`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from sinkscope.sink_rule import EPSILON
from sinkscope.sinks.dataset import Array, dataset_of, labels
from sinkscope.sinks.detection import sinks_of

CENTROID_SIGMA = 2.0
"""Sinks of the pooled map are the keys above mean + 2 standard deviations, as in the source's code."""


class Variances(NamedTuple):
    """spatial: (received attention)²; temporal: positions²; temporal_relative: (share of the sequence
    length)²."""

    spatial: float
    temporal: float
    temporal_relative: float


def centroid_variance(pooled: Array, position: Array, sigma: float = CENTROID_SIGMA) -> Variances:
    """Spatial and temporal variance of pooled attention m_t(i).

    `spatial = Var_i( mean_t m_t(i) )`: high when the same positions are strong in all steps. `temporal =
    Var_t(c_t)` with the sink centroid `c_t = Σ_{i∈S_t} i·m_t(i) / Σ_{i∈S_t} m_t(i)`, S_t = keys above mean
    + 2 std of that step: high when sinks wander. Source: Sink-Aware Pruning (arXiv 2602.17664):
    autoregressive models have high spatial and almost no temporal variance, diffusion models the reverse.
    pooled: float [T, K], NaN = no key; position int [K].

    Limits: pooling over layers and heads hides a sink that one head moves; steps without a sink have no
    centroid.
    """
    pooled = np.asarray(pooled, dtype=np.float64)
    seen = ~np.isnan(pooled)
    filled = np.where(seen, pooled, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        profile = filled.sum(axis=0) / seen.sum(axis=0)
        chosen = sinks_of(pooled, sigma, "zscore")
        weight = np.where(chosen, filled, 0.0)
        centroid = (weight * position).sum(axis=1) / weight.sum(axis=1)
    centroid = centroid[np.isfinite(centroid)]
    spatial = float(np.var(profile[np.isfinite(profile)])) if np.isfinite(profile).any() else float("nan")
    if len(centroid) < 2:
        return Variances(spatial, float("nan"), float("nan"))
    length = max(1, int(position.max()) + 1)
    return Variances(spatial, float(np.var(centroid)), float(np.var(centroid / length)))


def variances(trace: Any, *, scores: str = "auto", sigma: float = CENTROID_SIGMA) -> xr.Dataset:
    """`centroid_variance` of each sample, from the mean over layers and heads: spatial, temporal,
    temporal_relative."""
    from sinkscope.sinks.dataset import run_of
    from sinkscope.sinks.strength import step_position_map

    data = dataset_of(trace)
    pooled = step_position_map(trace, scores=scores).values
    found = [centroid_variance(pooled[i], run_of(data, i).position, sigma) for i in range(len(pooled))]
    units = {
        "spatial": "(received attention)²",
        "temporal": "positions²",
        "temporal_relative": "(share of length)²",
    }
    return xr.Dataset(
        {
            name: ("sample", [getattr(v, name) for v in found], {"units": unit})
            for name, unit in units.items()
        },
        coords={"sample": labels(data, "sample")},
        attrs={"sigma": sigma},
    )


def set_overlap(a: Array, b: Array) -> Array:
    """Jaccard overlap |A∩B| / |A∪B| of bool [..., K] sets, in [0, 1]; NaN where both are empty."""
    both = np.count_nonzero(a & b, axis=-1)
    union = np.count_nonzero(a | b, axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(union > 0, both / np.maximum(union, 1), np.nan))


def step_overlap(
    trace: Any, epsilon: float = EPSILON, rule: str = "sum", *, scores: str = "auto"
) -> xr.DataArray:
    """Overlap of each head's sink set with its own of the step before, [sample, step, layer, head], in [0,
    1].

    NaN in the first step and where both sets are empty. 1 = nothing changed; a moving sink reads 0 in the
    step it moves.
    """
    from sinkscope.sinks.scan import scans

    found = list(scans(trace, epsilon, rule, scores=scores))
    return xr.DataArray(
        np.stack([scan.shared for scan in found]),
        dims=("sample", "step", "layer", "head"),
        coords={
            "sample": [scan.sample for scan in found],
            "step": found[0].run.steps,
            "layer": found[0].layers,
            "head": found[0].heads,
        },
        name="overlap",
        attrs={"units": "Jaccard index"},
    )


def layer_overlap(
    trace: Any, epsilon: float = EPSILON, rule: str = "sum", *, scores: str = "auto"
) -> xr.DataArray:
    """Overlap of the sink positions of two layers (all heads together) in the same step, [sample, layer,
    other_layer].

    Mean over steps of the Jaccard index, in [0, 1]; NaN where both are always empty. Focus-dLLM (arXiv
    2602.02159) relies on it being high across layers.
    """
    from sinkscope.sinks.scan import scans

    maps, names, layers = [], [], np.zeros(0)
    for scan in scans(trace, epsilon, rule, scores=scores):
        maps.append(layer_overlap_of(scan.counts > 0))
        names.append(scan.sample)
        layers = scan.layers
    return xr.DataArray(
        np.stack(maps),
        dims=("sample", "layer", "other_layer"),
        coords={"sample": names, "layer": layers, "other_layer": layers},
        name="overlap",
        attrs={"units": "Jaccard index, mean over steps"},
    )


def layer_overlap_of(sets: Array) -> Array:
    """float [L, L] from bool [T, L, K]."""
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
