"""The first table to read about a trace, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks.attribution import LEADS, attribute
from sinkscope.sinks.composition import Composition, category_table
from sinkscope.sinks.dataset import Array
from sinkscope.sinks.depth import change_with_depth, deepest
from sinkscope.sinks.drift import drift_table
from sinkscope.sinks.events import alignment_table
from sinkscope.sinks.judging import MULTIPLES
from sinkscope.sinks.kinds import KINDS, MOVERS
from sinkscope.sinks.measures import Measure
from sinkscope.sinks.sink_statistics import SinkStatistics, as_statistics, by_setting, observations, parts_of
from sinkscope.statistics import Estimate, Scale, mean_interval, ratio_interval

EVENTS = {
    "left": (Measure.LEFT, Measure.LEFT_P),
    "reached": (Measure.REACHED, Measure.REACHED_P),
    "block": (Measure.BLOCK, Measure.BLOCK_P),
}
"""Event → how often moves coincide with it, and p of that."""


SHORT = ("where", "strength")
"""Sections that are shown where not all is wanted."""


class Summary(pd.DataFrame):
    """The table of `summary`; printed, it shows its first sections, so that it fits a screen, and says how to see the rest."""

    @property
    def _constructor(self) -> type[Summary]:
        return Summary

    def __str__(self) -> str:
        told = self.columns.intersection(["section", "measure", "value", "low", "high", "unit"])
        short = pd.DataFrame(self[told])
        if "section" in told:
            short = short[short["section"].isin(SHORT)]
        text = short.to_string(index=False, na_rep="", float_format=lambda value: f"{value:.3g}")
        return f"{text}\n{len(self) - len(short)} more rows: .to_string()"

    __repr__ = __str__


class _Rows:
    """Rows of the summary: section, measure, value, low, high, unit, note."""

    def __init__(self, statistics: SinkStatistics) -> None:
        self.statistics = statistics
        self.prompts = statistics["prompt"].values
        self.rows: list[tuple[Any, ...]] = []

    def add(self, section: str, measure: Measure, value: Any, note: str = "", of: str = "", unit: str = "") -> None:
        estimate = value if isinstance(value, Estimate) else Estimate(value, np.nan, np.nan)
        self.rows.append((section, measure.named(of), *estimate, unit or measure.unit, note))

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
    return table_of(statistics)


def table_of(statistics: SinkStatistics) -> pd.DataFrame:
    """The sections of `summary` that these statistics have the parts for."""
    rows, parts = _Rows(statistics), parts_of(statistics)
    for part, sections in SECTIONS.items():
        if part in parts:
            for section in sections:
                section(rows)
    table = Summary(rows.rows, columns=["section", "measure", "value", "low", "high", "unit", "note"])
    table.attrs.update(statistics.attrs)
    table.attrs.update(interval="95 %, over prompts")
    return table


def settings_table(statistics: SinkStatistics) -> pd.DataFrame:
    """`summary` by other thresholds and rules, and by its own, with columns epsilon and rule; empty without "settings"."""
    others = by_setting(statistics)
    own = {(statistics.attrs["epsilon"], statistics.attrs["rule"]): statistics}
    made = [
        table_of(each).assign(epsilon=epsilon, rule=rule)
        for (epsilon, rule), each in (own | others if others else {}).items()
    ]
    return pd.concat(made, ignore_index=True) if made else pd.DataFrame()


def _data(rows: _Rows) -> None:
    statistics = rows.statistics
    empty = int((rows.sums("head_steps") == 0).sum())
    note = f"{empty} could not be scored and count for nothing" if empty else ""
    rows.add("data", Measure.SAMPLES, statistics.sizes["sample"], note)
    rows.add("data", Measure.PROMPTS, len(np.unique(rows.prompts)), "intervals are over these")
    rows.add("data", Measure.STEPS, float(statistics["steps"].mean()))
    heads = statistics.sizes["layer"] * statistics.sizes["head"]
    rows.add("data", Measure.HEADS, heads, str(statistics.attrs["note"]))
    if "unknown" in statistics:
        share = rows.ratio("unknown", rows.sums("unknown") + rows.sums("cells"))
        rows.add("data", Measure.UNKNOWN, share, "too recent to be judged, or the text too short")


def _where(rows: _Rows) -> None:
    rows.add("where", Measure.SINKS, rows.ratio("detections", "head_steps", "positive"))
    rows.add("where", Measure.WITHOUT, rows.ratio("without", "head_steps"))
    rows.add("where", Measure.DISTINCT, rows.ratio("distinct", "layer_steps", "positive"))
    rows.add("where", Measure.ON_FIRST, rows.ratio("start_mass", "sink_mass"))
    at = int(np.flatnonzero(np.isclose(rows.statistics["epsilon"].values, EPSILON))[0])
    cells = rows.sums("cells")
    rows.add("where", Measure.FILTERED, rows.ratio(cells - rows.statistics["above"].values[:, at], cells))


def _strength(rows: _Rows) -> None:
    statistics = rows.statistics
    rows.add("strength", Measure.ABSORBED, rows.ratio("absorbed", "head_steps"))
    if "learned" in statistics:
        rows.add("strength", Measure.LEARNED, rows.ratio("learned", "learned_steps"))
    main = statistics["main_sink"].values.reshape(statistics.sizes["sample"], -1).mean(axis=1)
    main = np.where(rows.sums("head_steps") > 0, main, np.nan)
    multiples = statistics.attrs.get("unit", MULTIPLES) == MULTIPLES
    if multiples:
        rows.add("strength", Measure.MAIN, rows.mean(main))
    share = main / (statistics["length"].values if multiples else 100)
    rows.add("strength", Measure.MAIN_SHARE, rows.mean(share))
    if "gu" in statistics:
        rows.add("strength", Measure.GU, rows.mean(statistics["gu"].values[:, 0], scale="share"))
    drains, detections = rows.sums("drains"), rows.sums("detections")
    note = "" if np.isfinite(drains).all() else "unknown without anatomy: ss.Capture(anatomy=True)"
    rows.add("anatomy", Measure.DRAINS, rows.ratio(drains, detections), note)
    rows.add("anatomy", Measure.HUBS, rows.ratio(detections - drains, detections), note)


def _causal_forwards(rows: _Rows) -> None:
    """Of a model with two modes: the forwards that only store a finished block, which no other row counts."""
    scales: dict[Measure, tuple[str, Scale]] = {
        Measure.SINKS: ("detections", "positive"), Measure.WITHOUT: ("without", "share"), Measure.ABSORBED: ("absorbed", "share")
    }  # fmt: skip
    if "store_head_steps" in rows.statistics:
        for measure, (name, scale) in scales.items():
            share = rows.ratio(f"store_{name}", "store_head_steps", scale)
            rows.add("causal forwards", Measure.STORES, share, "in no other row", measure.title, measure.unit)


def _depth(rows: _Rows) -> None:
    statistics = rows.statistics
    unit = f"{statistics.attrs.get('unit', MULTIPLES)}, first layer to last"
    rows.add("depth", Measure.SINKS_DEPTH, change_with_depth(statistics, "sinks_per_head"))
    rows.add("depth", Measure.ABSORBED_DEPTH, change_with_depth(statistics, "absorbed"))
    rows.add("depth", Measure.MAIN_DEPTH, change_with_depth(statistics, "main_sink"), unit=unit)
    last = deepest(statistics.sizes["layer"])
    few, steps = (statistics[name].values[:, last].sum(axis=1) for name in ("one_or_two", "layer_steps"))
    rows.add("depth", Measure.ONE_OR_TWO, rows.ratio(few, steps))
    if "split" in statistics:
        # How often masked and decided queries have sinks of their own there, and random classes of the same sizes.
        counts = ("split", "both"), ("control_split", "control_both")
        with np.errstate(invalid="ignore", divide="ignore"):
            share, chance = (
                np.divide(*(statistics[name].values[:, last].sum(axis=1) for name in pair)) for pair in counts
            )
        for measure, estimate in (
            (Measure.SPLIT, rows.mean(share, "share")),
            (Measure.SPLIT_RANDOM, rows.mean(chance, "share")),
            (Measure.SPLIT_BEYOND, rows.mean(share - chance, "plain")),
        ):
            note = "" if np.isfinite(estimate.value) else "needs a trace with by_query and its random classes"
            rows.add("depth", measure, estimate, note)


def kind_weights(statistics: SinkStatistics, prefix: str = "") -> Array:
    """float [N, kinds]: heads and steps with a sink, by kind of head (kinds.KINDS). prefix: "chance_" for noise."""
    kinds, weight = statistics[f"{prefix}kind"].values, statistics[f"{prefix}sink_steps"].values
    return np.stack([np.where(kinds == i, weight, 0).sum(axis=(1, 2)) for i in range(len(KINDS))], axis=1)


def _kinds(rows: _Rows) -> None:
    weights, chance = (kind_weights(rows.statistics, prefix) for prefix in ("", "chance_"))
    total, drawn = (each.sum(axis=1) for each in (weights, chance))
    # A head without a sink under noise is one that does not move.
    shares = weights / np.where(total > 0, total, np.nan)[:, None] - chance / np.maximum(drawn, 1)[:, None]
    for i, kind in enumerate(KINDS):
        if kind != "none" and (kind != "too short" or weights[:, i].any()):
            rows.add("dynamics", Measure.KIND, rows.ratio(weights[:, i], total), of=kind)
        if kind in MOVERS:
            rows.add("dynamics", Measure.KIND_BEYOND, rows.mean(shares[:, i], "plain"), of=kind)
    both = [KINDS.index(kind) for kind in ("moving", "vanishing")]
    rows.add("dynamics", Measure.MOVING, rows.ratio(weights[:, both].sum(axis=1), total))
    rows.add("dynamics", Measure.MOVING_CHANCE, rows.ratio(chance[:, both].sum(axis=1), drawn))
    rows.add("dynamics", Measure.MOVING_BEYOND, rows.mean(shares[:, both].sum(axis=1), "plain"))


def _dynamics(rows: _Rows) -> None:
    statistics = rows.statistics
    _kinds(rows)
    rows.add("dynamics", Measure.STRONGEST_MOVES, rows.ratio("moves", "path_pairs"))
    rows.add("dynamics", Measure.ONE_STEP, rows.ratio(statistics["lifetimes"].values[:, 0, 0], "lifetimes"))
    overlap = rows.mean(statistics["step_overlap"].values, scale="share")
    rows.add("dynamics", Measure.STEP_OVERLAP, overlap)
    layers = statistics["layer_overlap"].values
    known = np.isfinite(layers)
    if known.any():
        number = np.where(known.any(axis=1), known.sum(axis=1), np.nan)
        each = np.where(known, layers, 0.0).sum(axis=1) / number
        rows.add("dynamics", Measure.LAYER_OVERLAP, rows.mean(each, scale="share"))
    squared = f"({statistics.attrs.get('unit', MULTIPLES)})²"
    rows.add("dynamics", Measure.SPATIAL, rows.mean(statistics["spatial_variance"].values), unit=squared)
    rows.add("dynamics", Measure.TEMPORAL, rows.mean(statistics["temporal_variance"].values))
    drift = drifts(statistics)
    rows.add("dynamics", Measure.TIES, float(drift["ties"][0]))
    for row in drift.to_dict("records"):
        note = f"ties {row['ties']:.0%}" if np.isfinite(row["ties"]) else ""
        value = Estimate(row["drift"], row["low"], row["high"])
        rows.add("dynamics", Measure.DRIFT, value, note, row["relative_to"])
    for row in events(statistics).to_dict("records"):
        known_p = np.isfinite(row["p"])
        note = f"expected {row['expected']:.3f}, p {row['p']:.3f}" if known_p else "no such events or moves"
        share, p = EVENTS[row["event"]]
        rows.add("dynamics", share, row["share"], note)
        rows.add("dynamics", p, row["p"])
    rows.add("dynamics", Measure.FIRST_ON_MASK, rows.ratio("first_on_last_mask", "first_sinks"))


def _composition(rows: _Rows) -> None:
    counts = Composition(*(rows.statistics[f"composition_{name}"].values for name in Composition._fields))
    for row in category_table(counts, rows.prompts).to_dict("records"):
        if row["detections"] > 0 or row["base_rate"] >= 0.01:
            for name, measure in (("frequency", Measure.FREQUENCY), ("enrichment", Measure.ENRICHMENT)):
                found = Estimate(row[name], row[f"{name}_low"], row[f"{name}_high"])
                rows.add("composition", measure, found, of=row["category"])


def _attribution(rows: _Rows) -> None:
    why = attribute(observations(rows.statistics), rows.prompts)
    for line in why.table.to_dict("records"):
        measure = LEADS.get(line["part"], Measure.GAIN)
        note = why.note if line["part"] == "total" else ""
        gain = Estimate(line["gain"], line["low"], line["high"])
        rows.add("semantic or positional", measure, gain, note, line["part"])


def drifts(statistics: SinkStatistics) -> pd.DataFrame:
    """The table of `drift_table`."""
    return drift_table(statistics["drift"].values, statistics["prompt"].values)


def events(statistics: SinkStatistics) -> pd.DataFrame:
    """The table of `alignment_table`."""
    names = ("moves", "events_observed", "events_null", "events_apply")
    return alignment_table(*(statistics[name].values for name in names))


SECTIONS = {
    "depth": (_data,), "strength": (_where, _strength, _causal_forwards, _depth), "dynamics": (_dynamics,),
    "composition": (_composition,), "attribution": (_attribution,),
}  # fmt: skip
"""Part of sink statistics → what it gives, in the order of the table."""
