"""Figure 1: received attention by step and position, traces side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.report.figures import look
from sinkscope.report.figures.sources import by_trace, long_table, named, scores_text
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
        Table: trace, step, position, received.
    """

    def rows(data: xr.Dataset) -> pd.DataFrame:
        values = step_position_map(data, layers, heads).values[sample]
        position = data["position"].isel(sample=sample).values
        real = position >= 0
        columns = {"step": labels(data, "step"), "position": position[real]}
        return long_table(values[:, real], columns, "received")

    table = by_trace(traces, rows)
    top = float(np.nanquantile(table["received"], 0.9995))
    label = "received (uniform = 1)"
    figure = look.heat_panels(
        table, "step", "position", "received", top=top, label=label, width=width, height=height
    )
    scores = " and ".join(sorted({scores_text(data) for data in named(traces).values()}))
    return look.finished("figure_1", figure, table, scores=scores)
