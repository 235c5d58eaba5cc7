"""Figure 1: received attention by step and position, traces side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.report.figures import look
from sinkscope.report.figures.sources import by_trace, common_unit, long_table, scores_text
from sinkscope.sinks import step_position_map
from sinkscope.sinks.dataset import labels


def plot_heat_map(
    traces: Any,
    *,
    sample: int = 0,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    width: float | None = None,
    height: float = 2.5,
) -> look.PaperFigure:
    """Steps downwards, positions to the right, one panel for each trace, one colour scale for all.

    Args:
        traces: a trace, or {name: trace}.
        layers, heads: labels to average over; default all.
        width, height: of the figure, in inches.

    Returns:
        Table: trace, step, position, received (multiples of uniform attention; of causal models, and beside them, percent of a
        query's attention).
    """
    unit = common_unit(traces)[1]
    table = heat_table(traces, sample, layers, heads)
    top = float(np.nanquantile(table["received"], 0.9995))
    figure = look.heat_panels(
        table, "trace", "step", "position", "received", top=top, label=unit, width=width, height=height
    )
    return look.finished("figure_1", figure, table, scores=scores_text(traces))


def heat_table(
    traces: Any, sample: int = 0, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> pd.DataFrame:
    """The table of `plot_heat_map`."""
    percent = common_unit(traces)[0]

    def rows(data: xr.Dataset) -> pd.DataFrame:
        values = step_position_map(data, layers, heads, percent=percent).values[sample]
        position = data["position"].isel(sample=sample).values
        real = position >= 0
        columns = {"step": labels(data, "step"), "position": position[real]}
        return long_table(values[:, real], columns, "received")

    return by_trace(traces, rows)
