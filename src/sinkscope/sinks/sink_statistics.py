"""Many samples: one pass, bounded memory, and results of shards that can be put together.

A *partial result* is an `xarray.Dataset` with one entry per sample along `sample`, some hundred kilobytes
each, that holds sums and counts and no scores. `merge` puts partial results side by side, so merged shards
are exactly what one pass gives, and intervals over prompts can still be drawn. It is saved like any
dataset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from sinkscope.errors import InputError, nearest
from sinkscope.sink_rule import EPSILON
from sinkscope.sinks.attribution import DISTANCES, ROWS_PER_SAMPLE, Observations, observe
from sinkscope.sinks.categories import CATEGORIES, category_codes
from sinkscope.sinks.composition import REGIONS, compose
from sinkscope.sinks.dataset import HEAD_MEANS_NOTE, PROMPT, Array, Run, dataset_of, decoding_options
from sinkscope.sinks.detection import HISTOGRAM_EDGES, SWEEP, check_rule
from sinkscope.sinks.drift import Drift, drift_of
from sinkscope.sinks.dynamics import centroid_variance, layer_overlap_of
from sinkscope.sinks.events import EVENTS, align
from sinkscope.sinks.paths import moves_of
from sinkscope.sinks.scan import Scan, scans
from sinkscope.sinks.strength import sink_heads_share

FORMAT = "sinkscope-partial-1"
LIFETIMES = 2 ** np.arange(17)
"""Lower edges of the lifetime bins: 1, 2, 4, 8, … steps."""

PARTS = ("depth", "strength", "dynamics", "composition", "attribution")
_SAME = ("family", "model", "decoding", "policy", "epsilon", "rule", "scores", "scope", "parts")


def prompt_digest(run: Run) -> str:
    """The prompt's identity: a digest of its tokens. Samples of one prompt are drawn together in every
    interval."""
    tokens = np.ascontiguousarray(run.tokens[0, run.region == PROMPT])
    return hashlib.sha256(tokens.tobytes()).hexdigest()[:16]


def partial(
    trace: Any,
    epsilon: float = EPSILON,
    rule: str = "sum",
    *,
    scores: str = "auto",
    tokenizer: Any = None,
    categories: Mapping[int, str] | None = None,
    parts: Sequence[str] = PARTS,
) -> xr.Dataset:
    """Everything that summary, diagnosis and the tables by depth need, per sample, in one pass over the
    scores.

    parts: which of depth, strength, dynamics, composition, attribution; fewer are faster. Put shards
    together with `merge`.
    """
    for name in parts:
        if name not in PARTS:
            raise InputError(f"unknown part {name!r}: {nearest(name, PARTS)}")
    data = dataset_of(trace)
    note = check_rule(rule, epsilon)
    block = decoding_options(data).get("block")
    samples, records, last = [], [], None
    for scan in scans(trace, epsilon, rule, scores=scores, sweep="strength" in parts):
        record = _depth(scan)
        if "strength" in parts:
            record |= _strength(scan)
        if "dynamics" in parts:
            record |= _dynamics(scan, block)
        if "composition" in parts or "attribution" in parts:
            # A key that could not be scored could not be a sink, so it is no part of any base rate either.
            codes = np.where(scan.scored, category_codes(data, scan.run, tokenizer, categories), -1)
            counts = scan.counts.sum(axis=1, dtype=np.int64)
            if "composition" in parts:
                record |= _composition(scan, counts, codes)
            if "attribution" in parts:
                record |= _attribution(scan, counts, codes)
        samples.append(scan.sample)
        records.append(record)
        last = scan
    if last is None:
        raise InputError("the trace has no samples; nothing to analyse")
    variables = {
        name: (("sample", *dims), np.stack([record[name][1] for record in records]))
        for name, (dims, _) in records[0].items()
    }
    if "strength" in parts and ("prefill_received" in data or last.scores == "received"):
        gu = sink_heads_share(data)
        variables["gu"] = (("sample", "start_position"), gu.values)
    return xr.Dataset(
        variables,
        coords={
            "sample": np.asarray(samples),
            "layer": last.layers,
            "head": last.heads,
            "category": list(CATEGORIES),
            "region": list(REGIONS),
            "event": list(EVENTS),
            "epsilon": list(SWEEP),
            "bin": HISTOGRAM_EDGES[:-1],
            "lifetime": LIFETIMES,
            "drift_field": list(Drift._fields),
            "distance": list(DISTANCES),
        },
        attrs={
            "format": FORMAT,
            "family": str(data.attrs.get("family", "")),
            "model": str(data.attrs.get("model", "")),
            "decoding": str(data.attrs.get("decoding", "")),
            "policy": str(data.attrs.get("policy", "")),
            "rule": rule,
            "epsilon": float(epsilon),
            "scores": last.scores,
            "scope": "head means" if last.means else "head",
            "parts": ",".join(parts),
            "note": "; ".join(text for text in (note, HEAD_MEANS_NOTE if last.means else "") if text),
        },
    )


def is_partial(data: Any) -> bool:
    return isinstance(data, xr.Dataset) and data.attrs.get("format") == FORMAT


def merge(partials: Sequence[xr.Dataset], *, relabel: bool = False) -> xr.Dataset:
    """Partial results of several shards as one, samples in the order of their labels; equal to one pass
    over all.

    relabel: number the samples anew, for shards that each count from 0. Without it equal labels are
    refused, because one sample must not count twice. Results of different models, decodings, policies or
    rules are refused.
    """
    parts = list(partials)
    if not parts or not all(is_partial(part) for part in parts):
        raise InputError(
            "merge needs at least one result of sinkscope.sinks.sink_statistics, and nothing else"
        )
    first = parts[0]
    for other in parts[1:]:
        for name in _SAME:
            if first.attrs.get(name) != other.attrs.get(name):
                raise InputError(
                    f"shards differ in {name}: {first.attrs.get(name)!r} and {other.attrs.get(name)!r}; "
                    "merge only what was recorded and analysed alike"
                )
        for dim in ("layer", "head"):
            if not np.array_equal(first[dim].values, other[dim].values):
                raise InputError(
                    f"these shards hold different {dim}s; merge only traces of one model and capture"
                )
    joined = xr.concat(
        parts, dim="sample", data_vars="all", coords="minimal", join="exact", combine_attrs="override"
    )
    if relabel:
        return joined.assign_coords(sample=np.arange(joined.sizes["sample"]))
    names, counts = np.unique(joined["sample"].values, return_counts=True)
    if (counts > 1).any():
        raise InputError(
            f"sample {names[counts > 1][0]} is in more than one shard; a sample must not count twice. "
            "Shards that each count from 0 need relabel=True"
        )
    return joined.sortby("sample")


def observations(part: xr.Dataset) -> list[Observations]:
    """The rows for `attribute`, one entry per sample."""
    out = []
    for i in range(part.sizes["sample"]):
        one = part.isel(sample=i)
        use = one["row_state"].values >= 0
        out.append(
            Observations(
                share=one["row_share"].values[use],
                state=one["row_state"].values[use],
                category=one["row_category"].values[use],
                distances=one["row_distances"].values[use],
                prompt_length=int(one["prompt_length"]),
                length=int(one["length"]),
            )
        )
    return out


Record = dict[str, tuple[tuple[str, ...], Array]]


def _depth(scan: Scan) -> Record:
    layers = len(scan.layers)
    drains = (
        np.full(layers, np.nan) if scan.drains is None else scan.drains.sum(axis=(0, 2), dtype=np.float64)
    )
    return {
        "prompt": ((), np.asarray(prompt_digest(scan.run))),
        "prompt_length": ((), np.asarray(scan.run.prompt_length)),
        "length": ((), np.asarray(scan.run.length)),
        "steps": ((), np.asarray(len(scan.run.steps))),
        "head_steps": (("layer",), scan.observed.sum(axis=(0, 2)).astype(np.float64)),
        "layer_steps": (("layer",), scan.observed.any(axis=2).sum(axis=0).astype(np.float64)),
        "detections": (("layer",), scan.sinks.sum(axis=(0, 2), dtype=np.float64)),
        "drains": (("layer",), drains),
        "distinct": (("layer",), (scan.counts > 0).sum(axis=(0, 2)).astype(np.float64)),
        "without": (("layer",), (scan.observed & (scan.sinks == 0)).sum(axis=(0, 2)).astype(np.float64)),
        "absorbed": (("layer",), scan.absorbed.sum(axis=(0, 2), dtype=np.float64)),
    }


def _strength(scan: Scan) -> Record:
    seen = np.maximum(1, scan.observed.sum(axis=0))
    return {
        "main_sink": (("layer", "head"), np.nansum(scan.strongest, axis=0, dtype=np.float64) / seen),
        "above": (("epsilon",), scan.filtered),
        "cells": ((), np.asarray(scan.cells)),
        "histogram": (("bin",), scan.histogram),
        "sink_mass": ((), np.asarray(scan.sink_mass)),
        "start_mass": ((), np.asarray(scan.start_mass)),
    }


def _dynamics(scan: Scan, block: int | None) -> Record:
    pairs = (scan.path[:-1] >= 0) & (scan.path[1:] >= 0)
    overlap = np.isfinite(scan.shared)
    layers = layer_overlap_of(scan.counts > 0)
    next_layer = np.append(np.diagonal(layers, offset=1), np.nan)
    spread = centroid_variance(scan.mean_map, scan.run.position)
    aligned = align(scan.run, scan.path, block)
    lifetimes = np.zeros((len(LIFETIMES), 2), dtype=np.int64)
    if len(scan.lifetimes):
        bins = np.searchsorted(LIFETIMES, scan.lifetimes[:, 0], side="right") - 1
        np.add.at(lifetimes, (bins, scan.lifetimes[:, 1]), 1)
    return {
        "kind": (("layer", "head"), scan.kinds),
        "sink_steps": (("layer", "head"), (scan.sinks > 0).sum(axis=0)),
        "moves": ((), np.asarray(len(moves_of(scan.path)[0]))),
        "path_pairs": ((), np.asarray(int(pairs.sum()))),
        "step_overlap": ((), np.asarray(float(scan.shared[overlap].mean()) if overlap.any() else np.nan)),
        "layer_overlap": (("layer",), next_layer),
        "spatial_variance": ((), np.asarray(spread.spatial)),
        "temporal_variance": ((), np.asarray(spread.temporal)),
        "temporal_relative": ((), np.asarray(spread.temporal_relative)),
        "lifetimes": (("lifetime", "censored"), lifetimes),
        "events_observed": (("event",), aligned.observed),
        "events_null": (("event", "permutation"), aligned.null),
        "events_apply": (("event",), aligned.applies),
        "drift": (("drift_field",), np.asarray(drift_of(scan.run, scan.path), dtype=np.float64)),
    }


def _composition(scan: Scan, counts: Array, codes: Array) -> Record:
    drains = None if scan.drain_counts is None else scan.drain_counts.sum(axis=1, dtype=np.int64)
    found = compose(scan.run, counts, codes, len(CATEGORIES), drains)
    dims = ("region", "category")
    return {f"composition_{name}": (dims, values) for name, values in found._asdict().items()}


def _attribution(scan: Scan, counts: Array, codes: Array) -> Record:
    heads = scan.sinks.shape[1] * scan.sinks.shape[2]
    rows = observe(scan.run, counts, heads, codes)
    n = len(rows.share)

    def padded(values: Array, fill: int) -> Array:
        out = np.full((ROWS_PER_SAMPLE, *values.shape[1:]), fill, dtype=values.dtype)
        out[:n] = values
        return out

    return {
        "row_share": (("row",), padded(rows.share, 0)),
        "row_state": (("row",), padded(rows.state, -1)),
        "row_category": (("row",), padded(rows.category, -1)),
        "row_distances": (("row", "distance"), padded(rows.distances, 0)),
    }
