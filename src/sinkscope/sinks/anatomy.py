"""What sinks look like inside: value, key and hidden norms, and massive activations.

Needs a capture with `anatomy=True`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sinkscope.base.errors import InputError
from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks.dataset import Array, all_heads, frame, head_labels, head_means, labels, sample_state
from sinkscope.sinks.detection import judged_steps
from sinkscope.sinks.judging import Judge
from sinkscope.sinks.scan import DRAIN_RATIO, drain_keys, key_median, per_query_head
from sinkscope.statistics import Estimate, bounded, mean_interval

MASSIVE_VALUE = 100.0
MASSIVE_RATIO = 1000.0

NORMS = {"value_norm": "value_ratio", "key_norm": "key_ratio", "hidden_norm": "hidden_ratio"}
"""Variable of the trace → column of `anatomy`."""


def massive_keys(largest: Array, median: Array) -> Array:
    """bool [..., K]: |x| > 100 and at least 1000 times the median |x| of that hidden state (Sun et al. 2024, sec. 2.2).

    largest float [..., K]: the largest |x| of each token's hidden state; median float [...]: median |x| over all tokens.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray((largest > MASSIVE_VALUE) & (largest >= MASSIVE_RATIO * np.asarray(median)[..., None]))


def anatomy(trace: Any, epsilon: float = EPSILON, rule: str = "auto", *, scores: str = "auto") -> pd.DataFrame:
    """Norms at sinks against the rest, one row per layer, with intervals over prompts.

    Columns: layer; value_ratio, key_ratio, hidden_ratio: mean over detected sinks of the norm divided by the median of the
    keys that are not sinks (value and key norms: of the same key-value head), with _low and _high; drains, hubs: shares of
    the detections; massive: share of detections on a token with a massive activation (NaN without those variables); sinks:
    how many. Sources: Gu et al. (ICLR 2025), Guo et al. (arXiv 2410.13835): sinks have small values and large residual norms.
    Limits: a ratio of norms is not a contribution; the output also depends on the attention weight.
    """
    judge = Judge.of(trace, epsilon, rule, scores)
    data, name = judge.data, judge.name
    if "value_norm" not in data:
        raise InputError("this trace has no 'value_norm'; capture with ss.Capture(anatomy=True)")
    means, heads, total = head_means(data, name), head_labels(data, name), all_heads(data)
    norms = [n for n in NORMS if n in data]
    massive = "largest_activation" in data and "median_activation" in data
    shape = (data.sizes["sample"], data.sizes["layer"])
    sums = {n: np.zeros(shape) for n in (*norms, "drain", "massive", "count")}
    for at in judged_steps(judge, *norms, *(["largest_activation"] if massive else [])):
        sinks, cut = at.judged.sinks(epsilon), (at.sample, at.layers)
        sums["count"][cut] += sinks.sum(axis=(1, 2))
        for n in norms:
            # Hidden norms have one row for all heads.
            hidden = n == "hidden_norm"
            norm = at.values[n][:, :1] if hidden else per_query_head(at.values[n], heads, total, means)
            rest = key_median(np.where(sinks, np.nan, np.broadcast_to(norm, sinks.shape)))
            with np.errstate(invalid="ignore", divide="ignore"):
                sums[n][cut] += np.where(sinks, norm / rest, 0.0).sum(axis=(1, 2))
            if n == "value_norm":
                sums["drain"][cut] += (drain_keys(norm) & sinks).sum(axis=(1, 2))
        if massive:
            median = data["median_activation"].isel(sample=at.sample, step=at.step, layer=at.layers)
            big = massive_keys(at.values["largest_activation"][:, 0], median.values)
            sums["massive"][cut] += (sinks & big[:, None, :]).sum(axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        each = {n: v / np.where(sums["count"] > 0, sums["count"], np.nan) for n, v in sums.items()}
    prompts = np.array([sample_state(data, sample).prompt_digest for sample in range(data.sizes["sample"])])
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
