"""What sinks look like inside: value, key and hidden norms, massive activations, secondary sinks.

Needs a capture with `anatomy=True`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.base.errors import InputError
from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks.dataset import (
    Array,
    all_heads,
    blocks,
    dataset_of,
    frame,
    head_labels,
    head_means,
    labelled,
    labels,
    sample_state,
)
from sinkscope.sinks.judging import Judge
from sinkscope.sinks.residence import runs_of
from sinkscope.sinks.scan import DRAIN_RATIO, drain_keys, key_median, per_query_head, scans
from sinkscope.statistics import Estimate, bounded, mean_interval

MASSIVE_VALUE = 100.0
MASSIVE_RATIO = 1000.0
SECONDARY_COSINE = 0.9
SECONDARY_LEAST_LAYERS = 4
SECONDARY_MARGIN_LAYERS = 15

NORMS = {"value_norm": "value_ratio", "key_norm": "key_ratio", "hidden_norm": "hidden_ratio"}
"""Variable of the trace → column of `anatomy`."""


def massive_keys(largest: Array, median: Array) -> Array:
    """bool [..., K]: |x| > 100 and at least 1000 times the median |x| of that hidden state (Sun et al. 2024, sec. 2.2).

    largest float [..., K]: the largest |x| of each token's hidden state; median float [...]: median |x| over all tokens.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray((largest > MASSIVE_VALUE) & (largest >= MASSIVE_RATIO * np.asarray(median)[..., None]))


def massive_activations(trace: Any) -> xr.DataArray:
    """Which tokens carry a massive activation, bool [sample, step, layer, key].

    Rule: |x| > 100 and ≥ 1000× the median of that hidden state. Source: Sun et al., "Massive Activations in Large Language
    Models" (2024). attrs["share_of_tokens"]: in causal models a few tokens carry them; in LLaDA one dimension is an outlier
    at nearly all positions (arXiv 2605.06366), and then they say nothing about sinks.
    """
    data = _with_anatomy(trace, ["largest_activation", "median_activation"])
    dims = ("sample", "step", "layer", "key")
    massive = np.zeros([data.sizes[d] for d in dims], dtype=bool)
    real = 0
    for sample in range(data.sizes["sample"]):
        one = data.isel(sample=sample)
        largest = one["largest_activation"].transpose("step", "layer", "key").values
        median = one["median_activation"].transpose("step", "layer").values
        here = sample_state(data, sample).real[:, None, :]
        massive[sample] = massive_keys(largest, median) & here
        real += int(here.sum()) * data.sizes["layer"]
    return labelled(
        massive,
        "massive",
        {d: labels(data, d) for d in dims},
        units="1",
        share_of_tokens=float(massive.sum() / max(1, real)),
        value=MASSIVE_VALUE,
        ratio=MASSIVE_RATIO,
    )


def anatomy(trace: Any, epsilon: float = EPSILON, rule: str = "auto", *, scores: str = "auto") -> pd.DataFrame:
    """Norms at sinks against the rest, one row per layer, with intervals over prompts.

    Columns: layer; value_ratio, key_ratio, hidden_ratio: mean over detected sinks of the norm divided by the median of the
    keys that are not sinks (value and key norms: of the same key-value head), with _low and _high; drains, hubs: shares of
    the detections; massive: share of detections on a token with a massive activation (NaN without those variables); sinks:
    how many. Sources: Gu et al. (ICLR 2025), Guo et al. (arXiv 2410.13835): sinks have small values and large residual norms.
    Limits: a ratio of norms is not a contribution; the output also depends on the attention weight.
    """
    judge = Judge.of(_with_anatomy(trace, ["value_norm"]), epsilon, rule, scores)
    data, name = judge.data, judge.name
    means, heads, total = head_means(data, name), head_labels(data, name), all_heads(data)
    norms = [n for n in NORMS if n in data]
    massive = "largest_activation" in data and "median_activation" in data
    shape = (data.sizes["sample"], data.sizes["layer"])
    sums = {n: np.zeros(shape) for n in (*norms, "drain", "massive", "count")}
    states = [sample_state(data, sample) for sample in range(data.sizes["sample"])]
    for block in blocks(data, [name, *norms, *(["largest_activation"] if massive else [])]):
        for sample, step, values in block.each_step():
            sinks = judge.step(states[sample], step, values[name], block.cut[2]).sinks(epsilon)
            cut = (sample, block.cut[2])
            sums["count"][cut] += sinks.sum(axis=(1, 2))
            for n in norms:
                # Hidden norms have one row for all heads.
                hidden = n == "hidden_norm"
                norm = values[n][:, :1] if hidden else per_query_head(values[n], heads, total, means)
                rest = key_median(np.where(sinks, np.nan, np.broadcast_to(norm, sinks.shape)))
                with np.errstate(invalid="ignore", divide="ignore"):
                    sums[n][cut] += np.where(sinks, norm / rest, 0.0).sum(axis=(1, 2))
                if n == "value_norm":
                    sums["drain"][cut] += (drain_keys(norm) & sinks).sum(axis=(1, 2))
            if massive:
                median = data["median_activation"].isel(sample=sample, step=step, layer=block.cut[2])
                big = massive_keys(values["largest_activation"][:, 0], median.values)
                sums["massive"][cut] += (sinks & big[:, None, :]).sum(axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        each = {n: v / np.where(sums["count"] > 0, sums["count"], np.nan) for n, v in sums.items()}
    prompts = np.array([state.prompt_digest for state in states])
    columns: dict[str, Any] = {"layer": labels(data, "layer")}
    for n, short in NORMS.items():
        ratio = mean_interval(each[n], prompts) if n in norms else Estimate(np.nan, np.nan, np.nan)
        columns |= bounded(short, *ratio)
    drain = mean_interval(each["drain"], prompts).value
    columns |= {"drains": drain, "hubs": 1 - drain}
    columns["massive"] = mean_interval(each["massive"], prompts).value if massive else np.nan
    columns["sinks"] = sums["count"].sum(axis=0).astype(np.int64)
    units = {"value_ratio": "norm at sinks / median of the rest", "drains": "share of detections"}
    return frame(columns, units=units, drain_ratio=DRAIN_RATIO)


def secondary_sinks(trace: Any, epsilon: float = EPSILON, rule: str = "auto", *, scores: str = "auto") -> pd.DataFrame:
    """Sinks other than the first token that live for a middle stretch of layers, one row per (sample, step, position).

    Source: Secondary sinks (arXiv 2512.22213): |cos(h_j, h_first)| > 0.9 over more than 4 and fewer than L − 15 layers. The
    cosine needs `hidden_cosine` [sample, step, layer, key] in the trace. Without it the rows are runs of layers in which any
    head calls the position a sink, and attrs["criterion"] says so: a proxy, not the published rule. Columns: sample, step,
    position, key, first_layer, last_layer, layers.
    """
    data = dataset_of(trace)
    published = "hidden_cosine" in data
    rows = []
    for i, scan in enumerate(scans(trace, epsilon, rule, scores=scores)):
        called = scan.counts > 0
        alive = called
        if published:
            cosine = np.asarray(data["hidden_cosine"].isel(sample=i).transpose("step", "layer", "key").values)
            with np.errstate(invalid="ignore"):
                alive = np.abs(cosine) > SECONDARY_COSINE
        alive = alive & (scan.state.position > 0)
        steps, depth, keys = alive.shape
        # The margin is made for deep models; in shallow ones it would leave no layer.
        most = depth - SECONDARY_MARGIN_LAYERS if depth > 2 * SECONDARY_MARGIN_LAYERS else depth
        # Runs are found along the first axis: layers here, not steps.
        cell, first, last = runs_of(alive.transpose(1, 0, 2).reshape(depth, steps * keys))
        layers = last - first + 1
        for c, a, b, n in zip(cell, first, last, layers, strict=True):
            step, key = divmod(int(c), keys)
            if SECONDARY_LEAST_LAYERS < n < most and called[step, a : b + 1, key].any():
                place = scan.state.steps[step], scan.state.position[key], key, scan.layers[a], scan.layers[b]
                rows.append((scan.sample, *place, n))
    names = ["sample", "step", "position", "key", "first_layer", "last_layer", "layers"]
    criterion = "cosine with the first token (published rule)" if published else "runs of layers with a sink (proxy)"
    return frame(pd.DataFrame(rows, columns=names), criterion=criterion, units={"layers": "layers"})


def _with_anatomy(trace: Any, names: list[str]) -> xr.Dataset:
    data = dataset_of(trace)
    missing = [name for name in names if name not in data]
    if missing:
        raise InputError(f"this trace has no {missing[0]!r}; capture with ss.Capture(anatomy=True)")
    return data
