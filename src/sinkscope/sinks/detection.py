"""Which keys are sinks: rules, the sweep over ε, histograms of scores.

Array layer: `thresholds`, `sinks_of`. Labelled layer: `detect`, `filtered_share`, `score_histogram`.

Source: "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731), equation 3, figures 3, 9, 10. As printed the
equation compares mean attention, which lies in [0, 1], with ε = 3, and can never hold. The column sum (received attention,
uniform = 1) makes ε = 3 mean "about four times uniform" and agrees with the axes of the paper's histograms.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from sinkscope import checks
from sinkscope.errors import InputError
from sinkscope.sink_rule import EPSILON
from sinkscope.sink_rule import threshold_line as sum_line
from sinkscope.sinks.dataset import (
    HEAD_MEANS_NOTE,
    Array,
    blocks,
    head_means,
    labelled,
    labels,
    note_of,
    scored,
)

RULES = {
    "sum": "received_j > mean of the other keys' received + ε",
    "mean": "received_j / n > mean of the others' received / n + ε, the paper's equation 3 as printed",
    "percent": "100 · received_j / n > mean of the others' 100 · received / n + ε",
    "zscore": "received_j > mean + ε · standard deviation over all real keys",
}
SWEEP = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
"""The ε of figure 10, 0 to 10."""

HISTOGRAM_EDGES = np.arange(0.0, 50.5, 0.5)
"""Bins of figures 3 and 9: 0 to 50 in halves; higher scores count in the last bin."""

FIGURE_10_KEYS = 64


def check_rule(rule: str, epsilon: float) -> str:
    """Validate, and return the remark that this rule needs at this ε ("" for none)."""
    checks.known("rule", rule, RULES)
    if not np.isfinite(epsilon) or epsilon < 0:
        raise InputError(f"epsilon must be a finite number ≥ 0, got {epsilon!r}; the paper uses 3")
    if rule == "mean" and epsilon >= 1:
        return (
            f"rule 'mean' can never fire at ε = {epsilon:g}: mean attention lies between 0 and 1. "
            "It is the paper's equation as printed; use rule='sum' for what its figures show"
        )
    return ""


def thresholds(received: Array, epsilon: float = EPSILON, rule: str = "sum") -> Array:
    """The score above which a key is a sink, [..., 1], in units of received attention.

    received: float [..., K], uniform = 1, NaN where there is no key. A row with fewer than two keys has no others to compare
    with: its threshold is +inf.
    """
    base, slope = threshold_line(received, rule)
    return np.asarray(base + epsilon * slope)


def threshold_line(received: Array, rule: str = "sum") -> tuple[Array, Array]:
    """(base, slope), each [..., 1]: the threshold of every rule is base + ε · slope."""
    base, slope, keys = sum_line(received)
    if rule == "zscore":
        with np.errstate(invalid="ignore"):
            square = np.nansum(np.square(received - base), axis=-1, keepdims=True)
        slope = np.sqrt(square / np.maximum(keys, 1.0))
    elif rule != "sum":
        slope = slope * (keys if rule == "mean" else keys / 100.0)
    return base, slope


def sinks_of(received: Array, epsilon: float = EPSILON, rule: str = "sum") -> Array:
    """bool [..., K]: the keys that are sinks by `rule`. received: float [..., K], uniform = 1, NaN = no key."""
    check_rule(rule, epsilon)
    with np.errstate(invalid="ignore"):
        return np.asarray(received > thresholds(received, epsilon, rule))


def detect(trace: Any, epsilon: float = EPSILON, rule: str = "sum", *, scores: str = "auto") -> xr.DataArray:
    """Which (sample, step, layer, head, key) are sinks.

    Rules (source: arXiv 2510.15731, eq. 3):

    - "sum", the default: `received_j > mean_{k≠j} received_k + ε` over the real keys of one head in one step. ε = 3 is about
      four times uniform attention at any length, and at most a quarter of the keys can be sinks.
    - "mean": the equation as printed; no key can exceed it at ε ≥ 1, and a warning says so.
    - "percent": in multiples of uniform, the threshold grows with sequence length.
    - "zscore": depends on the spread of the row; used by the code of "Attention Floating".

    Parameters
    ----------
    trace
        A trace or its dataset: `received` [sample, step, layer, head, key], uniform = 1, NaN = no key.
    scores
        "auto" (causal traces: all queries so far, `received_all`; else `received`), or a variable's name, such as "received"
        (for causal traces the last token's row) or "received_raw" (under a policy).

    Returns
    -------
    bool DataArray with the dims of the scores. Its attributes hold rule, epsilon, scores, scope and a note.

    Limits: on a trace of head means a sink of one head can vanish in the mean, and the note says so. For causal models "mean" and
    "percent" divide by the keys so far.

    >>> sinks = ss.detect(trace)
    >>> sinks.dims, str(sinks.dtype)
    (('sample', 'step', 'layer', 'head', 'key'), 'bool')
    >>> 0 < float(sinks.any("key").mean()) < 1    # the share of head-steps that have a sink
    True
    """
    data, name = scored(trace, scores)
    note = check_rule(rule, epsilon)
    if note:
        warnings.warn(note, UserWarning, stacklevel=2)
    means = head_means(data, name)
    dims = ("sample", "step", "layer", "key") if means else ("sample", "step", "layer", "head", "key")
    out = np.zeros([data.sizes[dim] for dim in dims], dtype=bool)
    for block in blocks(data, [name]):
        sinks = sinks_of(block.values[name].astype(np.float32, copy=False), epsilon, rule)
        out[block.cut] = sinks[:, :, :, 0] if means else sinks
    return labelled(
        out,
        "sink",
        {dim: labels(data, dim) for dim in dims},
        rule=rule,
        epsilon=float(epsilon),
        formula=RULES[rule],
        scores=name,
        scope="head means" if means else "head",
        units="1",
        note=note_of(note, HEAD_MEANS_NOTE if means else ""),
    )


def filtered_share(
    trace: Any, epsilons: Sequence[float] = SWEEP, rule: str = "sum", *, scores: str = "auto"
) -> xr.DataArray:
    """The share of tokens that are *not* sinks as ε sweeps (figure 10), [sample, epsilon], in [0, 1].

    Counted over every (step, layer, head, key). The paper shows it for sequences of 64 tokens and chose ε = 3 because at
    least 96 % are filtered there; the attribute `keys` says how long these sequences are.
    """
    data, name = scored(trace, scores)
    levels = [float(e) for e in epsilons]
    for level in levels:
        check_rule(rule, level)
    above = np.zeros((data.sizes["sample"], len(levels)))
    cells = np.zeros(data.sizes["sample"])
    longest = 0
    for block in blocks(data, [name]):
        values = block.values[name].astype(np.float32, copy=False)
        real = ~np.isnan(values)
        longest = max(longest, int(real.sum(axis=-1).max(initial=0)))
        cells[block.cut[0]] += real.sum(axis=(1, 2, 3, 4))
        for i, level in enumerate(levels):
            above[block.cut[0], i] += sinks_of(values, level, rule).sum(axis=(1, 2, 3, 4))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = 1.0 - above / cells[:, None]
    other = longest != FIGURE_10_KEYS
    note = f"sequences of up to {longest} keys; the paper's figure 10 has 64" if other else ""
    coords = {"sample": labels(data, "sample"), "epsilon": levels}
    return labelled(
        share, "filtered", coords, units="share of tokens", rule=rule, scores=name, keys=longest, note=note
    )


def score_histogram(trace: Any, edges: Array = HISTOGRAM_EDGES, *, scores: str = "auto") -> xr.DataArray:
    """How often each score occurs (figures 3 and 9), [sample, layer, bin]: counts over steps, heads and keys.

    edges: uniform-attention units, rising; scores beyond the last edge count in the last bin.
    """
    data, name = scored(trace, scores)
    edges = np.asarray(edges, dtype=np.float64)
    if edges.ndim != 1 or len(edges) < 2 or not (np.diff(edges) > 0).all():
        raise InputError(f"edges must be rising numbers, at least two, got {edges.tolist()!r}")
    out = np.zeros((data.sizes["sample"], data.sizes["layer"], len(edges) - 1), dtype=np.int64)
    for block in blocks(data, [name]):
        values = block.values[name].astype(np.float32, copy=False)
        for i, sample in enumerate(block.samples):
            for j, layer in enumerate(block.layers):
                out[sample, layer] += histogram(values[i, :, j], edges)
    counts = labelled(
        out,
        "count",
        {"sample": labels(data, "sample"), "layer": labels(data, "layer"), "bin": edges[:-1]},
        units="(step, head, key) cells",
        scores=name,
        bin="lower edge, uniform = 1",
    )
    return counts.assign_coords(upper=("bin", edges[1:]))


def histogram(values: Array, edges: Array) -> Array:
    """Counts int [len(edges) − 1] of the finite values; those beyond the last edge count in the last bin."""
    inside = np.clip(values[np.isfinite(values)], None, np.nextafter(np.float32(edges[-1]), np.float32(0)))
    return np.asarray(np.histogram(inside, bins=edges)[0])
