"""How strong sinks are: per head, per layer, per step; the sweep over ε, and histograms of scores."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from sinkscope.base.errors import InputError
from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks.dataset import (
    HEAD_MEANS_NOTE,
    PROMPT,
    Array,
    SampleState,
    blocks,
    dataset_of,
    head_means,
    indices_of,
    is_causal,
    labelled,
    labels,
    sample_state,
)
from sinkscope.sinks.detection import HISTOGRAM_EDGES, SWEEP
from sinkscope.sinks.judging import Judge
from sinkscope.sinks.scan import scans

GU_EPSILON = 0.3
"""Threshold of Gu et al. on mean attention; Barbero et al. (2025) use 0.8."""


def gu_alpha(received: Array, *, causal: bool) -> Array:
    """Mean attention that each key gets from the queries that see it, α_k in [0, 1], from received attention.

    received: float [..., n] of the n real keys in order, over n queries. Causal: key k (from 0) is seen by n−k queries and
    `received_k = Σ_i A_ik / Σ_{i≥k} 1/(i+1)`, so `α_k = received_k · (H(n) − H(k)) / (n − k)` with harmonic numbers.
    Bidirectional: every query sees every key, and α_k = received_k / n.
    """
    n = received.shape[-1]
    if not causal:
        return np.asarray(received / n)
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n + 1))])
    k = np.arange(n)
    return np.asarray(received * (harmonic[n] - harmonic[k]) / (n - k))


def sink_heads_share(trace: Any, epsilon: float = GU_EPSILON, positions: int = 4) -> xr.DataArray:
    """The fraction of heads whose mean attention on the k-th real token exceeds ε: the sink metric of Gu et al.

    `Sink_k^ε = (1/L) Σ_l (1/H) Σ_h 1(α_k^{l,h} > ε)`, [sample, position], in [0, 1] (Gu prints it × 100). Causal traces: α
    over the prompt's queries, from `prefill_received`. Bidirectional: α_k = received_k / n in every step, averaged over
    steps. Source: Gu et al., "When Attention Sink Emerges in Language Models" (ICLR 2025), ε = 0.3 and T = 64 tokens.

    Limits: it counts heads, not attention, and only the first positions; a moving sink scores zero. Their T is 64; here it is the
    prompt's length, and α falls as that grows. On head means it is a fraction of layers.
    """
    data = dataset_of(trace)
    causal = is_causal(data)
    name = "prefill_received" if causal else "received"
    if name not in data:
        raise InputError("a causal trace without 'prefill_received' cannot give this metric; trace it again")
    first = [_first_keys(sample_state(data, i), causal, positions) for i in range(data.sizes["sample"])]
    over = np.zeros((data.sizes["sample"], positions))
    rows = np.zeros_like(over)
    if causal:
        for sample, (keys, n) in enumerate(first):
            alpha = gu_alpha(np.asarray(data[name].isel(sample=sample).values)[..., keys], causal=True)
            alpha = alpha[..., :positions].reshape(-1, min(positions, n))
            over[sample, : alpha.shape[1]] = (alpha > epsilon).sum(axis=0)
            rows[sample, : alpha.shape[1]] = len(alpha)
    else:
        for block in blocks(data, [name]):
            for i, sample in enumerate(block.samples):
                keys, n = first[sample]
                # From a multiple of uniform attention to the mean attention of a query.
                alpha = block.values[name][i][..., keys].astype(np.float64) / n
                over[sample, : len(keys)] += (alpha > epsilon).sum(axis=(0, 1, 2))
                rows[sample, : len(keys)] += alpha[..., 0].size
    with np.errstate(invalid="ignore", divide="ignore"):
        share = over / np.where(rows > 0, rows, np.nan)
    return labelled(
        share,
        "sink_heads_share",
        {"sample": labels(data, "sample"), "position": np.arange(positions)},
        units="share of heads",
        epsilon=epsilon,
        form="causal prefill" if causal else "bidirectional, mean over steps",
        note=HEAD_MEANS_NOTE if head_means(data, name) else "",
    )


def layer_head_map(trace: Any, *, scores: str = "auto", percent: bool = False) -> xr.DataArray:
    """Strength of each head's strongest key (figure 5), [sample, layer, head], uniform = 1; attrs["units"] says so.

    The maximum over keys in each step, averaged over steps. Causal and block diffusion traces: in percent of a (distant)
    query's attention, and percent=True gives that unit for the others too, to compare. Limits: a maximum over many keys is
    above 1 even for a head without sinks (about 2 × uniform for mild noise over 100 keys).
    """
    found = list(scans(trace, scores=scores, percent=percent))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a head without a single score has no mean
        strength = np.stack([np.nanmean(scan.strongest, axis=0, dtype=np.float64) for scan in found])
    coords = {"sample": [scan.sample for scan in found], "layer": found[0].layers, "head": found[0].heads}
    judge = found[0].judge
    return labelled(strength, "main_sink", coords, units=judge.unit, note=judge.note)


def step_position_map(
    trace: Any,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    *,
    scores: str = "auto",
    percent: bool = False,
) -> xr.DataArray:
    """Received attention by step and key (figure 1), [sample, step, key], uniform = 1, mean over layers and heads.

    layers, heads: labels to average over (default all). The paper does not say which it shows. percent: as in `layer_head_map`.
    """
    judge = Judge.of(trace, scores=scores, percent=percent)
    data, name = judge.data, judge.name
    wanted = {"layer": layers, "head": None if head_means(data, name) else heads}
    picked = {dim: indices_of(data, dim, chosen) for dim, chosen in wanted.items() if chosen is not None}
    part = data.isel(picked) if picked else data
    part[name].encoding = data[name].encoding
    coords = {dim: labels(data, dim) for dim in ("sample", "step", "key")}
    scanned = scans(part, scores=name, percent=percent)
    mean = np.stack([scan.on(coords["step"], scan.mean_map, np.nan) for scan in scanned])
    return labelled(mean, "received", coords, units=judge.unit, scores=name, note=judge.note)


def filtered_share(trace: Any, rule: str = "auto", *, scores: str = "auto") -> xr.DataArray:
    """The share of tokens that are *not* sinks as ε sweeps (figure 10), [sample, epsilon], in [0, 1].

    Counted over every (step, layer, head, key) that can be judged. The paper shows it for sequences of 64 tokens and chose
    ε = 3 because at least 96 % are filtered there; the attribute `keys` says how long these sequences are.
    """
    found = list(scans(trace, EPSILON, rule, scores=scores, sweep=True))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.stack([1.0 - scan.filtered / np.float64(scan.cells) for scan in found])
    coords = {"sample": [scan.sample for scan in found], "epsilon": list(SWEEP)}
    longest = max(int(scan.state.real.sum(axis=1).max()) for scan in found)
    return labelled(share, "filtered", coords, units="share of tokens", rule=found[0].judge.rule, keys=longest)


def score_histogram(trace: Any, *, scores: str = "auto") -> xr.DataArray:
    """How often each score occurs (figures 3 and 9), [sample, bin]: counts over steps, layers, heads and keys.

    Bins are halves of a multiple of uniform attention (causal and block diffusion: of a percent of a query's attention); scores
    beyond the last edge count in the last bin.
    """
    found = list(scans(trace, scores=scores, sweep=True))
    judge = found[0].judge
    coords = {"sample": [scan.sample for scan in found], "bin": HISTOGRAM_EDGES[:-1]}
    counts = np.stack([scan.histogram for scan in found])
    labels_of = {"units": "(step, layer, head, key) cells", "scores": judge.name, "bin": f"lower edge, {judge.unit}"}
    return labelled(counts, "count", coords, **labels_of).assign_coords(upper=("bin", HISTOGRAM_EDGES[1:]))


def _first_keys(state: SampleState, causal: bool, positions: int) -> tuple[Array, int]:
    """Columns of the keys to look at, in order, and n: all prompt keys (causal) or the first of all real ones."""
    keys = np.flatnonzero((state.region == PROMPT) if causal else (state.position >= 0))
    keys = keys[np.argsort(state.position[keys])]
    return (keys if causal else keys[:positions]), len(keys)
