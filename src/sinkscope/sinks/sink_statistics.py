"""Mergeable statistics of many samples: one pass, bounded memory, and shards that can be put together.

*Sink statistics* are an `xarray.Dataset` with one entry per sample along `sample`, some hundred kilobytes each, that holds
sums and counts and no scores. `merge` puts them side by side, so merged shards are exactly what one pass gives, and intervals
over prompts can still be drawn. They are saved like any dataset. `summary` and `diagnose` read nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import xarray as xr

from sinkscope.base import checks
from sinkscope.base.errors import InputError
from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks.attribution import COLUMNS, DISTANCES, ROWS_PER_SAMPLE, Observations, observe
from sinkscope.sinks.categories import CATEGORIES, category_codes
from sinkscope.sinks.composition import REGIONS, compose
from sinkscope.sinks.dataset import Array, causal_steps, dataset_of, decoding_options, is_causal, one_by_one
from sinkscope.sinks.detection import HISTOGRAM_EDGES, SWEEP
from sinkscope.sinks.drift import Drift, centroid_variance, drift_of, layer_overlap_of
from sinkscope.sinks.events import EVENTS, align
from sinkscope.sinks.judging import AUTO, DISTANCE
from sinkscope.sinks.scan import Scan, scans
from sinkscope.sinks.split import split_counts
from sinkscope.sinks.strength import sink_heads_share
from sinkscope.sinks.surrogates import surrogate_kinds

SinkStatistics: TypeAlias = xr.Dataset

FORMAT = "sinkscope-sink-statistics-2"
LIFETIMES = 2 ** np.arange(17)
"""Lower edges of the lifetime bins: 1, 2, 4, 8, … steps."""

PARTS = ("depth", "strength", "dynamics", "composition", "attribution")
SETTINGS = "settings"
"""The part that has the same statistics by other thresholds and rules, but for attribution, which is slow."""
OTHER_SETTINGS = (*product((1.0, 2.0, EPSILON, 4.0, 6.0, 10.0), (AUTO,)), (EPSILON, "zscore"), (EPSILON, "percent"))
"""(ε, rule) by which verdicts on traces are asked again, but for the statistics' own: none should depend on a convention."""

_SAME = ("family", "model", "decoding", "policy", "epsilon", "rule", "scores", "scope", "parts", "settings")

Record: TypeAlias = dict[str, tuple[tuple[str, ...], Array]]


def sink_statistics(
    trace: Any,
    epsilon: float = EPSILON,
    rule: str = "auto",
    *,
    scores: str = "auto",
    tokenizer: Any = None,
    categories: Mapping[int, str] | None = None,
    parts: Sequence[str] = PARTS,
    settings: Sequence[tuple[float, str]] = OTHER_SETTINGS,
) -> SinkStatistics:
    """Everything that summary, diagnosis and the tables by depth need, per sample, in one pass over the scores.

    parts: which of depth, strength, dynamics, composition, attribution; fewer are faster; "settings" adds those by other
    thresholds and rules (`by_setting`; settings: which), at the cost of as many passes. Put shards together with `merge`.
    """
    for name in parts:
        checks.one_of("part", name, (*PARTS, SETTINGS))
    data = dataset_of(trace)
    causal = causal_steps(data)
    options: dict[str, Any] = {"scores": scores, "tokenizer": tokenizer, "categories": categories}
    if causal is not None and not causal.all():
        options |= {"parts": parts, "settings": settings}
        shards = [sink_statistics(one, epsilon, rule, **options) for one in one_by_one(data, ~causal)]
        return merge(shards).assign(_stores(data, causal, epsilon, rule, scores) if "strength" in parts else {})
    block = decoding_options(data).get("block")
    samples, records, last = [], [], None
    for i, scan in enumerate(scans(trace, epsilon, rule, scores=scores, sweep="strength" in parts)):
        record = _depth(scan)
        if "strength" in parts:
            record |= _strength(scan)
            if "learned_sink" in data:
                record |= _learned(data["learned_sink"].isel(sample=i))
        if "dynamics" in parts:
            record |= _kinds(scan, epsilon) | _dynamics(scan, block)
            if "received_by" in data:
                counts = split_counts(data, i, epsilon, "sum" if rule in (AUTO, DISTANCE) else rule)
                record |= {name: (("layer",), values) for name, values in counts.items()}
        if "composition" in parts or "attribution" in parts:
            # A key that could not be scored could not be a sink, so it is no part of any base rate either.
            codes = np.where(scan.scored, category_codes(data, scan.state, tokenizer, categories), -1)
            if "composition" in parts:
                record |= _composition(scan, codes)
            if "attribution" in parts:
                record |= _attribution(scan, codes)
        samples.append(scan.sample)
        records.append(record)
        last = scan
    if last is None:
        raise InputError("the trace has no samples; nothing to analyse")
    judge = last.judge
    variables: dict[str, tuple[tuple[Any, ...], Array]] = {
        name: (("sample", *dims), np.stack([record[name][1] for record in records]))
        for name, (dims, _) in records[0].items()
    }
    if "strength" in parts and ("prefill_received" in data or (judge.name == "received" and not is_causal(data))):
        variables["gu"] = (("sample", "start_position"), sink_heads_share(data).values)
    others = [setting for setting in settings if setting != (epsilon, rule)] if SETTINGS in parts else []
    for number, (other, by) in enumerate(others):
        each = sink_statistics(data, other, by, parts=_quick(parts), **options)
        variables |= {f"{name} {number}": (each[name].dims, each[name].values) for name in each.data_vars}
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
            **{name: str(data.attrs.get(name, "")) for name in ("family", "model", "decoding", "policy")},
            **judge.attrs(epsilon),
            "unit": judge.unit,
            "parts": json.dumps(list(parts)),
            SETTINGS: json.dumps(others),
        },
    )


def _quick(parts: Sequence[str]) -> tuple[str, ...]:
    """The parts that there are by other settings too."""
    return tuple(name for name in parts if name not in (SETTINGS, "attribution"))


def by_setting(statistics: SinkStatistics) -> dict[tuple[float, str], SinkStatistics]:
    """(ε, rule) → the statistics by it, of statistics with the part "settings"."""
    made, parts = {}, json.dumps(_quick(parts_of(statistics)))
    for number, (epsilon, rule) in enumerate(json.loads(statistics.attrs.get("settings", "[]"))):
        every = {f"{name} {number}": name for name in map(str, statistics.data_vars)}
        names = {stored: name for stored, name in every.items() if stored in statistics}
        own = statistics[list(names)].rename(names)
        made[epsilon, rule] = own.assign_attrs(epsilon=epsilon, rule=rule, parts=parts)
    return made


def parts_of(statistics: SinkStatistics) -> list[str]:
    """The parts that were computed."""
    parts: list[str] = json.loads(statistics.attrs["parts"])
    return parts


def is_statistics(data: Any) -> bool:
    """Whether this is a result of `sink_statistics`."""
    return isinstance(data, xr.Dataset) and data.attrs.get("format") == FORMAT


def merge(shards: Sequence[SinkStatistics], *, relabel: bool = False) -> SinkStatistics:
    """Statistics of several shards as one, samples in the order of their labels; equal to one pass over all.

    relabel: number the samples anew, for shards that each count from 0. Without it equal labels are refused, because one
    sample must not count twice. Results of different models, decodings, policies or rules are refused.
    """
    shards = list(shards)
    if not shards or not all(is_statistics(shard) for shard in shards):
        raise InputError("merge needs at least one result of sinkscope.sinks.sink_statistics, and nothing else")
    first = shards[0]
    for other in shards[1:]:
        for name in _SAME:
            if first.attrs.get(name) != other.attrs.get(name):
                raise InputError(
                    f"shards differ in {name}: {first.attrs.get(name)!r} and {other.attrs.get(name)!r}; "
                    "merge only what was recorded and analysed alike"
                )
        for dim in ("layer", "head"):
            if not np.array_equal(first[dim].values, other[dim].values):
                raise InputError(f"these shards hold different {dim}s; merge only traces of one model and capture")
    # Exact: another join would fill what a shard lacks, and nobody would see it.
    joined = xr.concat(shards, dim="sample", data_vars="all", coords="minimal", join="exact", combine_attrs="override")
    if relabel:
        return joined.assign_coords(sample=np.arange(joined.sizes["sample"]))
    names, counts = np.unique(joined["sample"].values, return_counts=True)
    if (counts > 1).any():
        raise InputError(
            f"sample {names[counts > 1][0]} is in more than one shard; a sample must not count twice. "
            "Shards that each count from 0 need relabel=True"
        )
    return joined.sortby("sample")


def as_statistics(trace: Any, **options: Any) -> SinkStatistics:
    """A trace, sink statistics, or a list of either, as statistics with every part. options: those of `sink_statistics`."""
    every = list(trace) if isinstance(trace, (list, tuple)) else [trace]
    if not every:
        raise InputError("expected at least one trace, got an empty list")
    shards = [item if is_statistics(item) else sink_statistics(item, **options) for item in every]
    for shard in shards:
        missing = set(PARTS) - set(parts_of(shard))
        if missing:
            raise InputError(f"these sink statistics lack {sorted(missing)[0]!r}; make them with all parts")
    names = np.concatenate([np.asarray(shard["sample"].values) for shard in shards])
    return shards[0] if len(shards) == 1 else merge(shards, relabel=len(np.unique(names)) < len(names))


def observations(statistics: SinkStatistics) -> list[Observations]:
    """The rows for `attribute`, one entry per sample."""
    out = []
    for i in range(statistics.sizes["sample"]):
        one = statistics.isel(sample=i)
        use = one["row_state"].values >= 0
        share, state, category, distances = (one[f"row_{name}"].values[use] for name in COLUMNS)
        lengths = int(one["prompt_length"]), int(one["length"])
        out.append(Observations(share, state, category, distances, *lengths))
    return out


def _depth(scan: Scan) -> Record:
    drains = (
        np.full(len(scan.layers), np.nan) if scan.drains is None else scan.drains.sum(axis=(0, 2), dtype=np.float64)
    )
    positions = (scan.counts > 0).sum(axis=2)
    scored = scan.observed.any(axis=2)
    layers = {
        "head_steps": scan.observed.sum(axis=(0, 2)),
        "layer_steps": scored.sum(axis=0),
        "detections": scan.sinks.sum(axis=(0, 2), dtype=np.float64),
        "drains": drains,
        "distinct": positions.sum(axis=0),
        "one_or_two": (scored & (positions >= 1) & (positions <= 2)).sum(axis=0),
        "without": (scan.observed & (scan.sinks == 0)).sum(axis=(0, 2)),
        "absorbed": scan.absorbed.sum(axis=(0, 2), dtype=np.float64),
        "strongest": np.nansum(np.where(scan.observed, scan.strongest, 0.0), axis=(0, 2), dtype=np.float64),
    }
    state = scan.state
    about = _scalars(
        prompt=state.prompt_digest, prompt_length=state.prompt_length, length=state.length, steps=len(state.steps)
    )
    return about | {name: (("layer",), values.astype(np.float64)) for name, values in layers.items()}


def _scalars(**values: Any) -> Record:
    return {name: ((), np.asarray(value)) for name, value in values.items()}


def _strength(scan: Scan) -> Record:
    seen = np.maximum(1, scan.observed.sum(axis=0))
    unknown = _scalars(unknown=scan.unknown) if scan.judge.rule == DISTANCE else {}
    sums = _scalars(cells=scan.cells, sink_mass=scan.sink_mass, start_mass=scan.start_mass)
    main = np.nansum(scan.strongest, axis=0, dtype=np.float64) / seen
    swept = {"above": (("epsilon",), scan.filtered), "histogram": (("bin",), scan.histogram)}
    return unknown | sums | swept | {"main_sink": (("layer", "head"), main)}


def _stores(data: xr.Dataset, causal: Array, epsilon: float, rule: str, scores: str) -> Record:
    """Sinks of the forwards that store a finished block causally, summed over them, by sample."""
    names = "head_steps", "detections", "without", "absorbed"
    sums = np.zeros((len(names), len(causal), data.sizes["layer"]))
    for sample, one in enumerate(one_by_one(data, causal)):
        if one.sizes["step"]:
            (scan,) = scans(one, epsilon, rule, scores=scores)
            record = _depth(scan)
            sums[:, sample] = [record[name][1] for name in names]
    return {f"store_{name}": (("sample", "layer"), values) for name, values in zip(names, sums, strict=True)}


def _learned(share: xr.DataArray) -> Record:
    """Attention that went to learned sinks, summed over steps and heads, and of how many heads and steps."""
    values = share.transpose("layer", ...).values.reshape(share.sizes["layer"], -1)
    return {
        "learned": (("layer",), np.asarray(np.nansum(values, axis=1, dtype=np.float64))),
        "learned_steps": (("layer",), np.isfinite(values).sum(axis=1).astype(np.float64)),
    }


def _kinds(scan: Scan, epsilon: float) -> Record:
    chance, steps = surrogate_kinds(scan, epsilon)
    own = {"kind": scan.kinds, "sink_steps": (scan.sinks > 0).sum(axis=0)}
    each = own | {"chance_kind": chance, "chance_sink_steps": steps}
    return {name: (("layer", "head"), values) for name, values in each.items()}


def _dynamics(scan: Scan, block: int | None) -> Record:
    pairs = (scan.path[:-1] >= 0) & (scan.path[1:] >= 0)
    overlap = np.isfinite(scan.shared)
    aligned = align(scan.state, scan.path, block)
    rows = scan.residences
    lifetimes = np.zeros((len(LIFETIMES), 2), dtype=np.int64)
    bins = np.searchsorted(LIFETIMES, rows.length, side="right") - 1
    np.add.at(lifetimes, (bins, (rows.left | rows.right).astype(int)), 1)
    first, on_mask = _first_sinks(scan)
    neighbours = np.diagonal(layer_overlap_of(scan.counts > 0), offset=1)
    shared = float(scan.shared[overlap].mean()) if overlap.any() else np.nan
    counts = _scalars(moves=aligned.moves, path_pairs=int(pairs.sum()), first_sinks=first, first_on_last_mask=on_mask)
    spatial, temporal, relative = centroid_variance(scan.mean_map, scan.state.position)
    spreads = _scalars(spatial_variance=spatial, temporal_variance=temporal, temporal_relative=relative)
    record = counts | spreads | _scalars(step_overlap=shared)
    return record | {
        "layer_overlap": (("layer",), np.append(neighbours, np.nan)),
        "lifetimes": (("lifetime", "censored"), lifetimes),
        "events_observed": (("event",), aligned.observed),
        "events_null": (("event", "permutation"), aligned.null),
        "events_apply": (("event",), aligned.applies),
        "drift": (("drift_field",), np.asarray(drift_of(scan.state, scan.path), dtype=np.float64)),
    }


def _first_sinks(scan: Scan) -> tuple[int, int]:
    """Heads whose strongest sink is known in the first step that can be scored, and those where it is the right-most mask."""
    steps = np.flatnonzero(scan.observed.any(axis=(1, 2)))
    if not len(steps):
        return 0, 0
    path = scan.path[steps[0]]
    masked = np.flatnonzero(scan.state.masked[steps[0]] & scan.state.real[steps[0]])
    return int((path >= 0).sum()), int((path == masked[-1]).sum()) if len(masked) else 0


def _composition(scan: Scan, codes: Array) -> Record:
    drains = None if scan.drain_counts is None else scan.drain_counts.sum(axis=1, dtype=np.int64)
    counts = compose(scan.state, scan.counts.sum(axis=1, dtype=np.int64), codes, len(CATEGORIES), drains)
    return {f"composition_{name}": (("region", "category"), v) for name, v in counts._asdict().items()}


def _attribution(scan: Scan, codes: Array) -> Record:
    rows = observe(scan, codes)

    def padded(values: Array, fill: int) -> Array:
        out = np.full((ROWS_PER_SAMPLE, *values.shape[1:]), fill, dtype=values.dtype)
        out[: len(values)] = values
        return out

    return {
        "row_share": (("row",), padded(rows.share, 0)),
        "row_state": (("row",), padded(rows.state, -1)),
        "row_category": (("row",), padded(rows.category, -1)),
        "row_distances": (("row", "distance"), padded(rows.distances, 0)),
    }
