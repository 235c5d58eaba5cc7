"""What sinks look like inside: value, key and hidden norms, massive activations, secondary sinks.

Needs a capture with `anatomy=True`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.sink_rule import EPSILON
from sinkscope.sinks.dataset import (
    Array,
    blocks,
    dataset_of,
    head_means,
    labels,
    run_of,
    scores_name,
)
from sinkscope.sinks.detection import sinks_of
from sinkscope.sinks.intervals import mean_interval
from sinkscope.sinks.scan import DRAIN_RATIO, drain_keys, key_median, kv_heads

MASSIVE_VALUE = 100.0
MASSIVE_RATIO = 1000.0
SECONDARY_COSINE = 0.9
SECONDARY_LEAST_LAYERS = 4
SECONDARY_MARGIN_LAYERS = 15

__all__ = ["DRAIN_RATIO", "anatomy", "drain_keys", "massive_activations", "massive_keys", "secondary_sinks"]


def massive_keys(largest: Array, median: Array) -> Array:
    """bool [..., K]: |x| > 100 and at least 1000 times the median |x| of that hidden state (Sun et al.
    2024, sec. 2.2).

    largest float [..., K]: the largest |x| of each token's hidden state; median float [...]: median |x|
    over all tokens.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(
            (largest > MASSIVE_VALUE) & (largest >= MASSIVE_RATIO * np.asarray(median)[..., None])
        )


def massive_activations(trace: Any) -> xr.DataArray:
    """Which tokens carry a massive activation, bool [sample, step, layer, key].

    Rule: |x| > 100 and ≥ 1000× the median of that hidden state. Source: Sun et al., "Massive Activations in
    Large Language Models" (2024). attrs["share_of_tokens"]: in causal models a few tokens carry them; in
    LLaDA one dimension is an outlier at nearly all positions (arXiv 2605.06366), and then they say nothing
    about sinks.
    """
    data = _with_anatomy(trace, ["largest_activation", "median_activation"])
    dims = ("sample", "step", "layer", "key")
    found = np.zeros([data.sizes[d] for d in dims], dtype=bool)
    real = 0
    for sample in range(data.sizes["sample"]):
        one = data.isel(sample=sample)
        largest = one["largest_activation"].transpose("step", "layer", "key").values
        median = one["median_activation"].transpose("step", "layer").values
        here = run_of(data, sample).real[:, None, :]
        found[sample] = massive_keys(largest, median) & here
        real += int(here.sum()) * data.sizes["layer"]
    return xr.DataArray(
        found,
        dims=dims,
        coords={d: labels(data, d) for d in dims},
        name="massive",
        attrs={
            "units": "1",
            "share_of_tokens": float(found.sum() / max(1, real)),
            "value": MASSIVE_VALUE,
            "ratio": MASSIVE_RATIO,
        },
    )


def anatomy(trace: Any, epsilon: float = EPSILON, rule: str = "sum", *, scores: str = "auto") -> pd.DataFrame:
    """Norms at sinks against the rest, one row per layer, with intervals over prompts.

    Columns: layer; value_ratio, key_ratio, hidden_ratio: mean over detected sinks of the norm divided by
    the median of the keys that are not sinks (value and key norms: of the same key-value head), with _low
    and _high; drains, hubs: shares of the detections; massive: share of detections on a token with a
    massive activation (NaN without those variables); sinks: how many. Sources: Gu et al. (ICLR 2025), Guo
    et al. (arXiv 2410.13835): sinks have small values and large residual norms. Limits: a ratio of norms is
    not a contribution; the output also depends on the attention weight.
    """
    data = _with_anatomy(trace, ["value_norm"])
    name = scores_name(data, scores)
    means = head_means(data, name)
    norms = [n for n in ("value_norm", "key_norm", "hidden_norm") if n in data]
    massive = "largest_activation" in data and "median_activation" in data
    extra = ["largest_activation"] if massive else []
    heads = np.zeros(1, dtype=int) if means else labels(data, "head")
    total = int(data.attrs["n_heads"]) if "n_heads" in data.attrs else None
    shape = (data.sizes["sample"], data.sizes["layer"])
    sums = {n: np.zeros(shape) for n in (*norms, "drain", "massive", "count")}
    for block in blocks(data, [name, *norms, *extra]):
        for i, sample in enumerate(block.samples):
            for j, step in enumerate(block.steps):
                sinks = sinks_of(block.values[name][i, j].astype(np.float32), epsilon, rule)
                cut = (sample, slice(block.layers.start, block.layers.stop))
                sums["count"][cut] += sinks.sum(axis=(1, 2))
                for n in norms:
                    values = block.values[n][i, j].astype(np.float32)
                    values = _per_head(values, heads, total, means, n)
                    rest = key_median(np.where(sinks, np.nan, np.broadcast_to(values, sinks.shape)))
                    with np.errstate(invalid="ignore", divide="ignore"):
                        sums[n][cut] += np.where(sinks, values / rest, 0.0).sum(axis=(1, 2))
                    if n == "value_norm":
                        drains = drain_keys(values) & sinks
                        sums["drain"][cut] += drains.sum(axis=(1, 2))
                if massive:
                    median = data["median_activation"].isel(
                        sample=sample, step=step, layer=slice(block.layers.start, block.layers.stop)
                    )
                    big = massive_keys(block.values["largest_activation"][i, j, :, 0], median.values)
                    sums["massive"][cut] += (sinks & big[:, None, :]).sum(axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        means_of = {
            n: v / np.where(sums["count"] > 0, sums["count"], np.nan) for n, v in sums.items() if n != "count"
        }
    columns: dict[str, Any] = {"layer": labels(data, "layer")}
    for n, short in (
        ("value_norm", "value_ratio"),
        ("key_norm", "key_ratio"),
        ("hidden_norm", "hidden_ratio"),
    ):
        found = mean_interval(means_of[n]) if n in norms else None
        for suffix, value in zip(("", "_low", "_high"), found or (np.nan,) * 3, strict=True):
            columns[short + suffix] = value
    drain = mean_interval(means_of["drain"]).value
    columns |= {"drains": drain, "hubs": 1 - drain}
    columns["massive"] = mean_interval(means_of["massive"]).value if massive else np.nan
    columns["sinks"] = sums["count"].sum(axis=0).astype(np.int64)
    table = pd.DataFrame(columns)
    table.attrs = {
        "units": {"value_ratio": "norm at sinks / median of the rest", "drains": "share of detections"},
        "drain_ratio": DRAIN_RATIO,
    }
    return table


def secondary_sinks(
    trace: Any, epsilon: float = EPSILON, rule: str = "sum", *, scores: str = "auto"
) -> pd.DataFrame:
    """Sinks other than the first token that live for a middle stretch of layers, one row per (sample, step,
    position).

    Source: Secondary sinks (arXiv 2512.22213): |cos(h_j, h_first)| > 0.9 over more than 4 and fewer than L
    − 15 layers. The cosine needs `hidden_cosine` [sample, step, layer, key] in the trace. Without it the
    rows are runs of layers in which any head calls the position a sink, and attrs["criterion"] says so: a
    proxy, not the published rule. Columns: sample, step, position, key, first_layer, last_layer, layers.
    """
    from sinkscope.sinks.scan import scans

    data = dataset_of(trace)
    published = "hidden_cosine" in data
    rows = []
    for i, scan in enumerate(scans(trace, epsilon, rule, scores=scores)):
        called = scan.counts > 0
        if published:
            cosine = np.asarray(data["hidden_cosine"].isel(sample=i).transpose("step", "layer", "key").values)
            with np.errstate(invalid="ignore"):
                alive = np.abs(cosine) > SECONDARY_COSINE
        else:
            alive = called
        alive = alive & (scan.run.position > 0)
        depth = alive.shape[1]
        most = depth - SECONDARY_MARGIN_LAYERS if depth > 2 * SECONDARY_MARGIN_LAYERS else depth
        edges = np.diff(np.pad(alive.astype(np.int8), ((0, 0), (1, 1), (0, 0))), axis=1)
        begin = np.argwhere((edges == 1).transpose(0, 2, 1))
        end = np.argwhere((edges == -1).transpose(0, 2, 1))
        length = end[:, 2] - begin[:, 2]
        for (step, key, first), last, layers in zip(begin, end[:, 2] - 1, length, strict=True):
            if SECONDARY_LEAST_LAYERS < layers < most and called[step, first : last + 1, key].any():
                rows.append(
                    (
                        scan.sample,
                        scan.run.steps[step],
                        scan.run.position[key],
                        key,
                        scan.layers[first],
                        scan.layers[last],
                        layers,
                    )
                )
    names = ["sample", "step", "position", "key", "first_layer", "last_layer", "layers"]
    table = pd.DataFrame(rows, columns=names)
    table.attrs = {
        "criterion": "cosine with the first token (published rule)"
        if published
        else "runs of layers with a sink (proxy)",
        "units": {"layers": "layers"},
    }
    return table


def _with_anatomy(trace: Any, names: list[str]) -> xr.Dataset:
    data = dataset_of(trace)
    missing = [name for name in names if name not in data]
    if missing:
        raise InputError(f"this trace has no {missing[0]!r}; capture with ss.Capture(anatomy=True)")
    return data


def _per_head(values: Array, heads: Array, total: int | None, means: bool, name: str) -> Array:
    """[l, KV, K] → [l, H, K] (hidden norms have one row for all heads; head means use the mean over
    key-value heads)."""
    if name == "hidden_norm":
        return values[:, :1]
    if means:
        return np.asarray(values.mean(axis=1, keepdims=True))
    return np.asarray(values[:, kv_heads(heads, values.shape[1], total)])
