"""Sinks by layer, and how they change from the first layer to the last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks.dataset import Array, frame
from sinkscope.sinks.sink_statistics import SinkStatistics, sink_statistics
from sinkscope.statistics import Estimate, Scale, bounded, mean_interval, ratio_interval

DEEPEST = 0.25
"""The deepest layers are this share of all, the last one at least."""

COLUMNS = {
    "sinks_per_head": ("detections", "head_steps", "sinks per head and step"),
    "drains_per_head": ("drains", "head_steps", "drains per head and step"),
    "hubs_per_head": ("hubs", "head_steps", "hubs per head and step"),
    "distinct_positions": ("distinct", "layer_steps", "positions per layer and step"),
    "one_or_two": ("one_or_two", "layer_steps", "share of the layer's steps"),
    "heads_without": ("without", "head_steps", "share of heads and steps"),
    "absorbed": ("absorbed", "head_steps", "share of attention"),
    "main_sink": ("strongest", "head_steps", "received attention, uniform = 1"),
}
"""Column of the table by depth → its numerator, its denominator, its unit."""
SHARES = ("one_or_two", "heads_without", "absorbed")


def depth_profile(trace: Any, epsilon: float = EPSILON, rule: str = "auto", *, scores: str = "auto") -> pd.DataFrame:
    """Sinks by depth, one row per layer, means over heads, steps and prompts, each with _low and _high (95 %, over prompts).

    sinks_per_head; drains_per_head, hubs_per_head (NaN without anatomy); distinct_positions (per step, over all heads of the
    layer); one_or_two (share of the steps in which the layer has one or two such positions); heads_without (share of
    heads and steps with no sink); absorbed (share of attention); main_sink (the largest score of a head). Source: the paper's
    statement that LLaDA's sinks become fewer with depth, "converging to one or two sinks per layer".
    """
    return depth_table(sink_statistics(trace, epsilon, rule, scores=scores, parts=("depth",)))


def depth_table(statistics: SinkStatistics) -> pd.DataFrame:
    """`depth_profile` of sink statistics."""
    columns: dict[str, Any] = {"layer": statistics["layer"].values}
    units = {}
    for name, (top, bottom, unit) in COLUMNS.items():
        scale: Scale = "share" if name in SHARES else "positive"
        parts = _values(statistics, top), statistics[bottom].values
        columns |= bounded(name, *ratio_interval(*parts, statistics["prompt"].values, scale))
        units[name] = unit
    return frame(columns, units=units, note=str(statistics.attrs.get("note", "")))


def change_with_depth(statistics: SinkStatistics, column: str) -> Estimate:
    """How much a column of the table by depth changes from the first layer to the last, along a straight line through all layers.

    The line is fitted to each prompt; the interval is over prompts. NaN for a single layer.
    """
    top, bottom, _ = COLUMNS[column]
    with np.errstate(invalid="ignore", divide="ignore"):
        values = _values(statistics, top) / statistics[bottom].values
    layers = values.shape[1]
    if layers < 2:
        return Estimate(np.nan, np.nan, np.nan)
    depth = np.linspace(0.0, 1.0, layers) - 0.5
    return mean_interval(values @ depth / (depth @ depth), statistics["prompt"].values)


def deepest(layers: int) -> slice:
    """The deepest layers."""
    return slice(layers - max(1, round(DEEPEST * layers)), layers)


def _values(statistics: SinkStatistics, name: str) -> Array:
    if name == "hubs":
        return np.asarray(statistics["detections"].values - statistics["drains"].values)
    return np.asarray(statistics[name].values, dtype=np.float64)
