"""Figure 8: (a) a sink that stays at its place from the first step to the last; (b) one that moves to the left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.report.figures.maps import draw_maps, where
from sinkscope.report.figures.sources import attention_map, index_of, need_maps, one
from sinkscope.report.figures.sources import caption as words
from sinkscope.sinks import moves, residences

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "figure_8"
TITLE = "A fixed sink, and one that moves to the left"


def table(traces: Any, *, sample: int = 0) -> pd.DataFrame:
    """panel, step, layer, head, query, key, attention, mark."""
    _, data = one(traces, NAME)
    need_maps(data, NAME)
    parts = [*_fixed(data, sample), *_leftward(data, sample)]
    if not parts:
        raise InputError(f"{NAME} needs a sink, and this trace has none")
    return pd.concat(parts, ignore_index=True)


def _fixed(data: xr.Dataset, sample: int) -> list[pd.DataFrame]:
    """The longest residence; of several the strongest."""
    found = residences(data.isel(sample=[sample]))
    if found.empty:
        return []
    row = found.sort_values(["length", "strength"], ascending=False).iloc[0]
    at = index_of(data, "layer", row["layer"]), index_of(data, "head", row["head"])
    parts = []
    for step, letter in ((row["start"], "(a) step"), (row["stop"], "and step")):
        part = attention_map(data, sample, index_of(data, "step", step), *at)
        parts.append(part.assign(panel=f"{letter} {step}", mark=int(row["position"])))
    return parts


def _leftward(data: xr.Dataset, sample: int) -> list[pd.DataFrame]:
    """The move to the left that starts furthest to the right."""
    found = moves(data.isel(sample=[sample]))
    found = found[found["distance"] < 0]
    if found.empty:
        return []
    row = found.sort_values(["from_position", "distance"], ascending=[False, True]).iloc[0]
    t = index_of(data, "step", row["step"])
    at = index_of(data, "layer", row["layer"]), index_of(data, "head", row["head"])
    parts = []
    for step, letter, mark in ((t, "(b) step", "from_position"), (t + 1, "next, step", "to_position")):
        part = attention_map(data, sample, step, *at)
        parts.append(part.assign(panel=f"{letter} {part['step'].iloc[0]}", mark=int(row[mark])))
    return parts


def draw(data: pd.DataFrame) -> Figure:
    """The maps, two in a row."""
    return draw_maps(data)


def caption(traces: Any, data: pd.DataFrame) -> str:
    """What is seen, how it was computed, what it does not show."""
    fixed = data[data["panel"].str.startswith("(a)")]
    left = data[data["panel"].str.startswith("(b)")]
    seen = (
        f"(a) {where(fixed)}: the sink at position {int(fixed['mark'].iloc[0])} at the two ends of its stay."
        if len(fixed)
        else ""
    )
    if len(left):
        goal = data[data["panel"].str.startswith("next")]["mark"].iloc[0]
        seen += (
            f" (b) {where(left)}: a sink moves left from position {int(left['mark'].iloc[0])} to {int(goal)}."
        )
    else:
        seen += " No sink of this trace moves to the left, so (b) is missing."
    return words(
        seen.strip(),
        "whole attention maps; (a) the longest residence of the trace, of several the strongest; (b) of all moves to the left "
        "the one that starts furthest to the right.",
        "how common either is: see the summary's shares of static and moving heads.",
    )
