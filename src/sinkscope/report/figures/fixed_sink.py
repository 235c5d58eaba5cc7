"""Figure 8: (a) a sink that stays at its place from the first step to the last; (b) one that moves to the left."""

from __future__ import annotations

from typing import Any

import pandas as pd
import xarray as xr

from sinkscope.base.errors import InputError
from sinkscope.report.figures import look
from sinkscope.report.figures.sources import head_text, index_of, map_pair, only_trace
from sinkscope.sinks import moves, residences


def plot_fixed_sink(trace: Any, *, sample: int = 0) -> look.PaperFigure:
    """The longest residence at its two ends, and the move to the left that starts furthest to the right.

    Returns:
        Table: panel, step, layer, head, query, key, attention, mark.
    """
    data = only_trace(trace, "figure_8", maps=True)
    fixed, left = _fixed(data, sample), _leftward(data, sample)
    if not fixed and not left:
        raise InputError("figure_8 needs a sink, and this trace has none")
    seen = []
    if fixed:
        place = int(fixed[0]["mark"].iloc[0])
        seen.append(f"(a) {head_text(fixed[0])}: the sink at position {place} at the two ends of its stay.")
    if left:
        start, goal = (int(part["mark"].iloc[0]) for part in left)
        seen.append(f"(b) {head_text(left[0])}: a sink moves left from position {start} to {goal}.")
    else:
        seen.append("No sink of this trace moves to the left, so (b) is missing.")
    table = pd.concat([*fixed, *left], ignore_index=True)
    return look.finished("figure_8", look.attention_maps(table), table, seen=" ".join(seen))


def _fixed(data: xr.Dataset, sample: int) -> list[pd.DataFrame]:
    stays = residences(data.isel(sample=[sample]))
    if stays.empty:
        return []
    row = stays.sort_values(["length", "strength"], ascending=False).iloc[0]
    first, last = (index_of(data, "step", row[end]) for end in ("start", "stop"))
    place = row["position"]
    return map_pair(data, sample, row, ((first, "(a) step", place), (last, "and step", place)))


def _leftward(data: xr.Dataset, sample: int) -> list[pd.DataFrame]:
    leftward = moves(data.isel(sample=[sample]))
    leftward = leftward[leftward["distance"] < 0]
    if leftward.empty:
        return []
    row = leftward.sort_values(["from_position", "distance"], ascending=[False, True]).iloc[0]
    t = index_of(data, "step", row["step"])
    ends = ((t, "(b) step", row["from_position"]), (t + 1, "next, step", row["to_position"]))
    return map_pair(data, sample, row, ends)
