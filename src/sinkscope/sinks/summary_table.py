"""The first table to read about a trace, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from sinkscope.sink_rule import EPSILON
from sinkscope.sinks.attribution import Attribution, attribute
from sinkscope.sinks.composition import Composition, category_table
from sinkscope.sinks.dataset import Array
from sinkscope.sinks.depth import change_with_depth, deepest
from sinkscope.sinks.drift import drift_table
from sinkscope.sinks.events import alignment_table
from sinkscope.sinks.judging import MULTIPLES
from sinkscope.sinks.kinds import KINDS
from sinkscope.sinks.sink_statistics import SinkStatistics, as_statistics, observations
from sinkscope.statistics import Estimate, Scale, mean_interval, ratio_interval

EVENT_TITLES = {
    "left": "moves as its token is decided",
    "reached": "moves to a token just decided",
    "block": "moves as a block ends",
}
SHARES = {"moving or vanishing heads": ("moving", "vanishing")}
"""Kinds that are also counted together."""


class Summary(pd.DataFrame):
    """The table of `summary`; printed, it shows every row and value."""

    @property
    def _constructor(self) -> type[Summary]:
        return Summary

    def __str__(self) -> str:
        return self.to_string(index=False, na_rep="", float_format=lambda value: f"{value:.3g}")

    __repr__ = __str__


class _Rows:
    """Rows of the summary: section, measure, value, low, high, unit, note."""

    def __init__(self, statistics: SinkStatistics) -> None:
        self.statistics = statistics
        self.prompts = statistics["prompt"].values
        self.rows: list[tuple[Any, ...]] = []

    def add(self, section: str, measure: str, value: Any, unit: str, note: str = "") -> None:
        estimate = value if isinstance(value, Estimate) else Estimate(value, np.nan, np.nan)
        self.rows.append((section, measure, *estimate, unit, note))

    def sums(self, name: str) -> Array:
        """A variable, summed over everything but the sample: float [N]."""
        values = np.asarray(self.statistics[name].values, dtype=np.float64)
        return np.asarray(values.reshape(len(values), -1).sum(axis=1))

    def ratio(self, top: Array | str, bottom: Array | str, scale: Scale = "share") -> Estimate:
        """Σ top / Σ bottom over prompts; each float [N], or the name of a variable."""
        above, below = (self.sums(part) if isinstance(part, str) else part for part in (top, bottom))
        return ratio_interval(above, below, self.prompts, scale)

    def mean(self, values: Array, scale: Scale = "positive") -> Estimate:
        """Mean over prompts."""
        return mean_interval(values, self.prompts, scale)


def summary(
    trace: Any,
    *,
    epsilon: float = EPSILON,
    rule: str = "auto",
    scores: str = "auto",
    tokenizer: Any = None,
    categories: Mapping[int, str] | None = None,
) -> pd.DataFrame:
    """The first table to read: where the sinks are, how strong, whether they move, which tokens they are.

    trace: a trace, sink statistics (`sinkscope.sinks.sink_statistics`), or a list of them. Returns a DataFrame with one row
    per measure: section, measure, value, low, high (95 % interval over prompts, NaN for one prompt), unit, note. Settings are
    in `attrs`. Keys that cannot be judged ("unknown keys") are in no other row. A trace of 256 steps × 32 layers × 32 heads ×
    512 keys takes under 30 s on two cores and under 1 GB.

    >>> table = ss.summary(trace)
    >>> rows = table.set_index("measure")["value"]
    >>> int(rows["steps"]), int(rows["heads"])
    (16, 64)
    """
    statistics = as_statistics(
        trace, epsilon=epsilon, rule=rule, scores=scores, tokenizer=tokenizer, categories=categories
    )
    rows = _Rows(statistics)
    for section in (_data, _where, _strength, _depth, _dynamics):
        section(rows)
    _composition(rows)
    why = attribution_of(statistics)
    for line in why.table.to_dict("records"):
        gain = Estimate(line["gain"], line["low"], line["high"])
        note = why.reason if line["part"] == "total" else ""
        rows.add("semantic or positional", f"gain: {line['part']}", gain, "nats per key-step, held out", note)
    columns = ["section", "measure", "value", "low", "high", "unit", "note"]
    table = Summary(rows.rows, columns=columns)
    table.attrs.update(statistics.attrs)
    table.attrs.update(attribution=why.verdict, interval="95 %, over prompts")
    return table


def _data(rows: _Rows) -> None:
    statistics = rows.statistics
    empty = int((rows.sums("head_steps") == 0).sum())
    note = f"{empty} could not be scored and count for nothing" if empty else ""
    rows.add("data", "samples", statistics.sizes["sample"], "samples", note)
    rows.add("data", "prompts", len(np.unique(rows.prompts)), "prompts", "intervals are over these")
    rows.add("data", "steps", float(statistics["steps"].mean()), "recorded steps per sample")
    heads = statistics.sizes["layer"] * statistics.sizes["head"]
    rows.add("data", "heads", heads, "heads", str(statistics.attrs["note"]))
    if "unknown" in statistics:
        share = rows.ratio("unknown", rows.sums("unknown") + rows.sums("cells"))
        rows.add(
            "data", "unknown keys", share, "share of tokens", "too recent to be judged, or the text too short"
        )


def _where(rows: _Rows) -> None:
    sinks = rows.ratio("detections", "head_steps", "positive")
    rows.add("where", "sinks per head", sinks, "sinks per head and step")
    rows.add("where", "heads without", rows.ratio("without", "head_steps"), "share of head-steps")
    distinct = rows.ratio("distinct", "layer_steps", "positive")
    rows.add("where", "distinct positions", distinct, "positions per layer and step")
    rows.add(
        "where", "on the first 4 positions", rows.ratio("start_mass", "sink_mass"), "share of sink attention"
    )
    at = int(np.flatnonzero(np.isclose(rows.statistics["epsilon"].values, EPSILON))[0])
    cells = rows.sums("cells")
    kept = rows.ratio(cells - rows.statistics["above"].values[:, at], cells)
    rows.add("where", "tokens filtered at ε = 3", kept, "share of tokens")


def _strength(rows: _Rows) -> None:
    statistics = rows.statistics
    rows.add("strength", "absorbed", rows.ratio("absorbed", "head_steps"), "share of attention")
    main = statistics["main_sink"].values.reshape(statistics.sizes["sample"], -1).mean(axis=1)
    main = np.where(rows.sums("head_steps") > 0, main, np.nan)
    multiples = statistics.attrs.get("unit", MULTIPLES) == MULTIPLES
    if multiples:
        rows.add("strength", "main sink of a head", rows.mean(main), MULTIPLES)
    share = main / (statistics["length"].values if multiples else 100)
    rows.add("strength", "main sink of a head: share", rows.mean(share), "share of a query's attention")
    if "gu" in statistics:
        gu = rows.mean(statistics["gu"].values[:, 0], scale="share")
        rows.add("strength", "heads with mean attention > 0.3 on the first token", gu, "share of heads")
    drains, detections = rows.sums("drains"), rows.sums("detections")
    note = "" if np.isfinite(drains).all() else "unknown without anatomy: ss.Capture(anatomy=True)"
    rows.add("anatomy", "drains", rows.ratio(drains, detections), "share of detections", note)
    rows.add("anatomy", "hubs", rows.ratio(detections - drains, detections), "share of detections", note)


def _depth(rows: _Rows) -> None:
    statistics = rows.statistics
    for measure, column, unit in (
        ("sinks per head: change with depth", "sinks_per_head", "sinks per head, first layer to last"),
        ("absorbed: change with depth", "absorbed", "of all attention, first layer to last"),
        (
            "main sink: change with depth",
            "main_sink",
            f"{statistics.attrs.get('unit', MULTIPLES)}, first layer to last",
        ),
    ):
        rows.add("depth", measure, change_with_depth(statistics, column), unit)
    last = deepest(statistics.sizes["layer"])
    few, steps = (statistics[name].values[:, last].sum(axis=1) for name in ("one_or_two", "layer_steps"))
    measure = "one or two positions in the deepest layers"
    rows.add("depth", measure, rows.ratio(few, steps), "share of layer-steps")
    if "split" in statistics:
        for measure, share in split_beyond_chance(statistics).items():
            note = "" if np.isfinite(share.value) else "needs a trace with by_query and its random classes"
            rows.add("depth", measure, share, "share of head-steps where both have a sink", note)


def split_beyond_chance(statistics: SinkStatistics) -> dict[str, Estimate]:
    """How often masked and decided queries have sinks of their own in the deepest layers, and random classes of the same
    sizes."""
    last = deepest(statistics.sizes["layer"])
    prompts = statistics["prompt"].values
    names = ("split", "both", "control_split", "control_both")
    split, both, by_chance, both_by_chance = (statistics[n].values[:, last].sum(axis=1) for n in names)
    with np.errstate(invalid="ignore", divide="ignore"):
        share, chance = np.asarray(split / both), np.asarray(by_chance / both_by_chance)
    return {
        "split by query in the deepest layers": mean_interval(share, prompts, scale="share"),
        "split by random classes": mean_interval(chance, prompts, scale="share"),
        "split beyond random classes": mean_interval(share - chance, prompts),
    }


def kind_weights(statistics: SinkStatistics) -> Array:
    """float [N, kinds]: head-steps with a sink that belong to heads of each kind (kinds.KINDS)."""
    kinds, weight = statistics["kind"].values, statistics["sink_steps"].values
    return np.stack([np.where(kinds == i, weight, 0).sum(axis=(1, 2)) for i in range(len(KINDS))], axis=1)


def _kinds(rows: _Rows) -> None:
    weights = kind_weights(rows.statistics)
    total, unit = weights.sum(axis=1), "share of head-steps with a sink"
    for i, kind in enumerate(KINDS):
        if kind != "none" and (kind != "too short" or weights[:, i].any()):
            rows.add("dynamics", f"{kind} heads", rows.ratio(weights[:, i], total), unit)
    for name, kinds in SHARES.items():
        share = rows.ratio(weights[:, [KINDS.index(kind) for kind in kinds]].sum(axis=1), total)
        rows.add("dynamics", name, share, unit)


def _dynamics(rows: _Rows) -> None:
    statistics = rows.statistics
    _kinds(rows)
    moves = rows.ratio("moves", "path_pairs")
    rows.add("dynamics", "strongest sink moves", moves, "moves per head and step")
    share = rows.ratio(statistics["lifetimes"].values[:, 0, 0], "lifetimes")
    rows.add("dynamics", "residences of one step", share, "share of residences")
    overlap = rows.mean(statistics["step_overlap"].values, scale="share")
    rows.add("dynamics", "overlap with the step before", overlap, "Jaccard index")
    layers = statistics["layer_overlap"].values
    known = np.isfinite(layers)
    if known.any():
        number = np.where(known.any(axis=1), known.sum(axis=1), np.nan)
        each = np.where(known, layers, 0.0).sum(axis=1) / number
        rows.add("dynamics", "overlap with the next layer", rows.mean(each, scale="share"), "Jaccard index")
    squared = f"({statistics.attrs.get('unit', MULTIPLES)})²"
    for name, unit in (("spatial", squared), ("temporal", "positions²")):
        spread = rows.mean(statistics[f"{name}_variance"].values)
        rows.add("dynamics", f"{name} variance", spread, unit)
    drift = drifts(statistics)
    rows.add("dynamics", "tied selections", float(drift["ties"][0]), "share of selections")
    for row in drift.to_dict("records"):
        note = str(row["direction"]) + (f"; ties {row['ties']:.0%}" if np.isfinite(row["ties"]) else "")
        value = Estimate(row["drift"], row["low"], row["high"])
        unit = "share of the length per generation"
        rows.add("dynamics", f"drift against {row['relative_to']}", value, unit, note)
    for row in events(statistics).to_dict("records"):
        known_p = np.isfinite(row["p"])
        note = f"expected {row['expected']:.3f}, p {row['p']:.3f}" if known_p else "no such events or moves"
        rows.add("dynamics", EVENT_TITLES[row["event"]], row["share"], "share of moves", note)
        rows.add("dynamics", f"{EVENT_TITLES[row['event']]}: p", row["p"], "p, permuted event times")
    share, unit = (
        rows.ratio("first_on_last_mask", "first_sinks"),
        "share of heads with a sink in the first step",
    )
    rows.add("dynamics", "first on the right-most mask", share, unit)


def _composition(rows: _Rows) -> None:
    units = {"frequency": "share of detections", "enrichment": "× base rate of the same steps and regions"}
    for row in categories_of(rows.statistics).to_dict("records"):
        if row["detections"] > 0 or row["base_rate"] >= 0.01:
            for name, unit in units.items():
                found = Estimate(row[name], row[f"{name}_low"], row[f"{name}_high"])
                rows.add("composition", f"{row['category']}: {name}", found, unit)


def categories_of(statistics: SinkStatistics) -> pd.DataFrame:
    """Composition by category, as `composition` gives it."""
    counts = Composition(*(statistics[f"composition_{name}"].values for name in Composition._fields))
    return category_table(counts, statistics["prompt"].values)


def attribution_of(statistics: SinkStatistics) -> Attribution:
    """Semantic or positional."""
    return attribute(observations(statistics), statistics["prompt"].values)


def drifts(statistics: SinkStatistics) -> pd.DataFrame:
    """The table of `drift`."""
    return drift_table(statistics["drift"].values, statistics["prompt"].values)


def events(statistics: SinkStatistics) -> pd.DataFrame:
    """The table of `event_alignment`."""
    names = ("moves", "events_observed", "events_null", "events_apply")
    return alignment_table(*(statistics[name].values for name in names))
