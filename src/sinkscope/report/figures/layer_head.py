"""Figure 5: how strong each head's main sink is, averaged over time, traces side by side."""

from __future__ import annotations

from typing import Any

import pandas as pd
import xarray as xr

from sinkscope.report.figures import look
from sinkscope.report.figures.paper_figure import PaperFigure
from sinkscope.report.figures.sources import by_trace, caption, head_text, long_table, named, scores_text
from sinkscope.sinks import layer_head_map


def plot_layer_head(traces: Any) -> PaperFigure:
    """Layers downwards, heads to the right, one panel for each trace, one colour scale for all.

    Returns:
        Table: trace, layer, head, main_sink (mean over samples).
    """

    def rows(data: xr.Dataset) -> pd.DataFrame:
        strength = layer_head_map(data).mean("sample").transpose("layer", "head")
        columns = {"layer": strength["layer"].values, "head": strength["head"].values}
        return long_table(strength.values, columns, "main_sink")

    table = by_trace(traces, rows)
    parts = {str(name): part for name, part in table.groupby("trace", sort=False)}
    top = float(table["main_sink"].max())
    with look.style():
        wide = look.COLUMN if len(parts) == 1 else look.PAGE
        figure, axes = look.sheet(1, len(parts), wide, 2.8)
        picture: Any = None
        for place, (name, part) in zip(axes[0], parts.items(), strict=True):
            picture = look.heat(place, part, "layer", "head", "main_sink", top)
            place.set(title=name, xlabel="head", ylabel="layer" if place is axes[0][0] else "")
            place.locator_params(integer=True)
        look.colour_bar(figure, picture, axes, top, "main sink (uniform = 1)")
    strongest = {name: part.nlargest(1, "main_sink") for name, part in parts.items()}
    seen = "; ".join(
        f"{name}: {head_text(row)} with {row['main_sink'].iloc[0]:.1f} times uniform attention"
        for name, row in strongest.items()
    )
    scores = " and ".join(sorted({scores_text(data) for data in named(traces).values()}))
    many = ", ".join(str(data.sizes["sample"]) for data in named(traces).values())
    text = caption(
        f"How strong the main sink of each head is. Strongest: {seen}.",
        f"{scores}: the maximum over keys in each step, averaged over steps and over generations (of these {many}).",
        "whether it is the same key in every step. A maximum over many keys is above 1 even without sinks "
        "(about 2 for mild noise over 100 keys).",
    )
    return PaperFigure("figure_5", "Strength of each head's main sink", figure, table, text)
