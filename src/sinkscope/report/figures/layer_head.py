"""Figure 5: how strong each head's main sink is, averaged over time, traces side by side."""

from __future__ import annotations

from typing import Any

import pandas as pd
import xarray as xr

from sinkscope.report.figures import look
from sinkscope.report.figures.sources import by_trace, common_unit, head_text, long_table, named, scores_text
from sinkscope.sinks import layer_head_map


def plot_layer_head(traces: Any) -> look.PaperFigure:
    """Layers downwards, heads to the right, one panel for each trace, one colour scale for all.

    Returns:
        Table: trace, layer, head, main_sink (mean over samples).
    """

    def rows(data: xr.Dataset) -> pd.DataFrame:
        strength = layer_head_map(data, percent=percent).mean("sample").transpose("layer", "head")
        columns = {"layer": strength["layer"].values, "head": strength["head"].values}
        return long_table(strength.values, columns, "main_sink")

    percent, unit = common_unit(traces)
    table = by_trace(traces, rows)
    figure = look.heat_panels(table, "trace", "layer", "head", "main_sink", label=unit, height=2.8)
    strongest = [part.nlargest(1, "main_sink") for _, part in table.groupby("trace", sort=False)]
    seen = look.several(
        f"{row['trace'].iloc[0]}: {head_text(row)} with {row['main_sink'].iloc[0]:.1f} {unit}" for row in strongest
    )
    many = " or ".join(map(str, sorted({data.sizes["sample"] for data in named(traces).values()})))
    return look.finished("figure_5", figure, table, strongest=seen, scores=scores_text(traces), many=many)
