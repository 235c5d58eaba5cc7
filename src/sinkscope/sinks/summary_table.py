"""What a person wants to read first about a trace: one table, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.sink_rule import EPSILON
from sinkscope.sinks.attribution import Attribution, attribute
from sinkscope.sinks.categories import CATEGORIES
from sinkscope.sinks.composition import Composition, composition_table
from sinkscope.sinks.dataset import Array
from sinkscope.sinks.drift import drift_table
from sinkscope.sinks.events import alignment_table
from sinkscope.sinks.intervals import Interval, mean_interval, ratio_interval
from sinkscope.sinks.residence import KINDS
from sinkscope.sinks.sink_statistics import PARTS, is_partial, merge, observations, partial


class Summary(pd.DataFrame):
    """The table of `summary`; printed, it shows every row and value."""

    @property
    def _constructor(self) -> type[Summary]:
        return Summary

    def __str__(self) -> str:
        return self.to_string(index=False, na_rep="", float_format=lambda value: f"{value:.3g}")

    __repr__ = __str__


def as_partial(
    trace: Any,
    epsilon: float = EPSILON,
    rule: str = "sum",
    *,
    scores: str = "auto",
    tokenizer: Any = None,
    categories: Mapping[int, str] | None = None,
) -> xr.Dataset:
    """A trace, a partial result, or a list of either, as one partial result with every part."""
    many = list(trace) if isinstance(trace, (list, tuple)) else [trace]
    if not many:
        raise InputError("expected at least one trace, got an empty list")
    found = [
        one
        if is_partial(one)
        else partial(one, epsilon, rule, scores=scores, tokenizer=tokenizer, categories=categories)
        for one in many
    ]
    for one in found:
        missing = set(PARTS) - set(str(one.attrs.get("parts", "")).split(","))
        if missing:
            raise InputError(f"this partial result lacks {sorted(missing)[0]!r}; make it with all parts")
    names = np.concatenate([np.asarray(one["sample"].values) for one in found])
    return found[0] if len(found) == 1 else merge(found, relabel=len(np.unique(names)) < len(names))


def kind_weights(part: xr.Dataset) -> Array:
    """float [N, kinds]: head-steps with a sink that belong to heads of each kind (residence.KINDS)."""
    kinds, weight = part["kind"].values, part["sink_steps"].values
    return np.stack([np.where(kinds == i, weight, 0).sum(axis=(1, 2)) for i in range(len(KINDS))], axis=1)


def summary(
    trace: Any,
    *,
    epsilon: float = EPSILON,
    rule: str = "sum",
    scores: str = "auto",
    tokenizer: Any = None,
    categories: Mapping[int, str] | None = None,
) -> pd.DataFrame:
    """The first table to read: where sinks are, how strong, moving or not, made of what.

    trace: a trace, a partial result (`sinkscope.sinks.sink_statistics`), or a list of them. Returns a DataFrame
    with one row per measure: section, measure, value, low, high (95 % interval over prompts, NaN for one
    prompt), unit, note. Settings are in `attrs`. A trace of 256 steps × 32 layers × 32 heads × 512 keys
    takes under 30 s on two cores and under 1 GB.
    """
    part = as_partial(trace, epsilon, rule, scores=scores, tokenizer=tokenizer, categories=categories)
    prompts = part["prompt"].values
    rows: list[dict[str, Any]] = []

    def add(section: str, measure: str, found: Any, unit: str, note: str = "") -> None:
        value, low, high = found if isinstance(found, Interval) else (found, float("nan"), float("nan"))
        rows.append(
            {
                "section": section,
                "measure": measure,
                "value": value,
                "low": low,
                "high": high,
                "unit": unit,
                "note": note,
            }
        )

    add("data", "samples", part.sizes["sample"], "samples")
    add("data", "prompts", len(np.unique(prompts)), "prompts", "intervals are over these")
    add("data", "steps", float(part["steps"].mean()), "recorded steps per sample")
    add("data", "heads", part.sizes["layer"] * part.sizes["head"], "heads", str(part.attrs["note"]))

    head_steps = part["head_steps"].values.sum(axis=1)
    detections = part["detections"].values.sum(axis=1)
    drains = part["drains"].values.sum(axis=1)
    add("where", "sinks per head", ratio_interval(detections, head_steps, prompts), "sinks per head and step")
    without = ratio_interval(part["without"].values.sum(axis=1), head_steps, prompts)
    add("where", "heads without", without, "share of head-steps")
    distinct = ratio_interval(part["distinct"].values.sum(1), part["layer_steps"].values.sum(1), prompts)
    add("where", "distinct positions", distinct, "positions per layer and step")
    start = ratio_interval(part["start_mass"].values, part["sink_mass"].values, prompts)
    add("where", "on the first 4 positions", start, "share of sink attention")
    at = int(np.flatnonzero(np.isclose(part["epsilon"].values, EPSILON))[0])
    filtered = ratio_interval(
        part["cells"].values - part["above"].values[:, at], part["cells"].values, prompts
    )
    add("where", "tokens filtered at ε = 3", filtered, "share of tokens")

    add(
        "strength",
        "absorbed",
        ratio_interval(part["absorbed"].values.sum(1), head_steps, prompts),
        "share of attention",
    )
    main = part["main_sink"].values.reshape(part.sizes["sample"], -1).mean(axis=1)
    add("strength", "main sink of a head", mean_interval(main, prompts), "received attention, uniform = 1")
    if "gu" in part:
        gu = mean_interval(part["gu"].values[:, 0], prompts)
        add("strength", "heads with mean attention > 0.3 on the first token", gu, "share of heads")
    known = np.isfinite(drains).all()
    note = "" if known else "unknown without anatomy: ss.Capture(anatomy=True)"
    add("anatomy", "drains", ratio_interval(drains, detections, prompts), "share of detections", note)
    hubs = ratio_interval(detections - drains, detections, prompts)
    add("anatomy", "hubs", hubs, "share of detections", note)

    _dynamics(part, prompts, add)
    table = category_table(part)
    for row in table.to_dict("records"):
        if row["detections"] > 0 or row["base_rate"] >= 0.01:
            found = Interval(row["frequency"], row["frequency_low"], row["frequency_high"])
            add("composition", f"{row['category']}: frequency", found, "share of detections")
            found = Interval(row["enrichment"], row["enrichment_low"], row["enrichment_high"])
            add(
                "composition",
                f"{row['category']}: enrichment",
                found,
                "× base rate of the same steps and regions",
            )
    why = attribution_of(part)
    for line in why.table.to_dict("records"):
        value = Interval(line["gain"], line["low"], line["high"])
        add(
            "semantic or positional",
            f"gain: {line['part']}",
            value,
            "nats per key-step, held out",
            why.reason if line["part"] == "total" else "",
        )
    frame = Summary(rows)
    frame.attrs = {
        **part.attrs,
        "attribution": why.verdict,
        "interval": "95 %, bootstrap over prompts",
    }
    return frame


def _dynamics(part: xr.Dataset, prompts: Array, add: Any) -> None:
    weights = kind_weights(part)
    for i, kind in enumerate(KINDS):
        if kind != "none" and (kind != "too short" or weights[:, i].any()):
            found = ratio_interval(weights[:, i], weights.sum(axis=1), prompts)
            add("dynamics", f"{kind} heads", found, "share of head-steps with a sink")
    moves = ratio_interval(part["moves"].values, part["path_pairs"].values, prompts)
    add("dynamics", "strongest sink moves", moves, "moves per head and step")
    lifetimes = part["lifetimes"].values.sum(axis=2)
    flickers = part["lifetimes"].values[:, 0, 0]
    add(
        "dynamics",
        "residences of one step",
        ratio_interval(flickers, lifetimes.sum(1), prompts),
        "share of residences",
    )
    overlap = mean_interval(part["step_overlap"].values, prompts)
    add("dynamics", "overlap with the step before", overlap, "Jaccard index")
    layers = part["layer_overlap"].values
    if np.isfinite(layers).any():
        each = np.nanmean(np.where(np.isfinite(layers).any(1, keepdims=True), layers, 0.0), axis=1)
        each = np.where(np.isfinite(layers).any(1), each, np.nan)
        add("dynamics", "overlap with the next layer", mean_interval(each, prompts), "Jaccard index")
    add(
        "dynamics",
        "spatial variance",
        mean_interval(part["spatial_variance"].values, prompts),
        "(received attention)²",
    )
    add(
        "dynamics",
        "temporal variance",
        mean_interval(part["temporal_variance"].values, prompts),
        "positions²",
    )
    for row in drifts(part).to_dict("records"):
        found = Interval(row["drift"], row["low"], row["high"])
        note = (
            f"{row['direction']}; ties {row['ties']:.0%}"
            if np.isfinite(row["ties"])
            else str(row["direction"])
        )
        add(
            "dynamics",
            f"drift against {row['relative_to']}",
            found,
            "share of the length per generation",
            note,
        )
    for row in events(part).to_dict("records"):
        note = (
            f"expected {row['expected']:.3f}, p {row['p']:.3f}"
            if np.isfinite(row["p"])
            else "no such events or moves"
        )
        title = {"left": "moves as its token is decided", "reached": "moves to a token just decided"}
        add(
            "dynamics", title.get(row["event"], "moves as a block ends"), row["share"], "share of moves", note
        )


def category_table(part: xr.Dataset) -> pd.DataFrame:
    """Composition by category from a partial result, as `composition` gives it."""
    values = [part[f"composition_{name}"].values for name in ("detections", "drains", "expected", "cells")]
    table = composition_table(Composition(*values), list(CATEGORIES), part["prompt"].values)
    attrs = table.attrs
    table = table.rename(columns={"label": "category"})
    table = table[table["base_rate"] > 0].sort_values("frequency", ascending=False, kind="stable")
    table = table.reset_index(drop=True)
    table.attrs = attrs
    return table


def attribution_of(part: xr.Dataset) -> Attribution:
    """Semantic or positional, from a partial result."""
    return attribute(observations(part), part["prompt"].values)


def drifts(part: xr.Dataset) -> pd.DataFrame:
    """The table of `drift` from a partial result."""
    return drift_table(part["drift"].values, part["prompt"].values)


def events(part: xr.Dataset) -> pd.DataFrame:
    """The table of `event_alignment` from a partial result."""
    names = ("moves", "events_observed", "events_null", "events_apply")
    return alignment_table(*(part[name].values for name in names))
