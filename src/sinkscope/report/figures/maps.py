"""Attention maps side by side: what figures 4, 6 and 8 have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from sinkscope.report.figures import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_maps(table: pd.DataFrame) -> Figure:
    """One panel for each value of `panel`, in order: query × key, colours in multiples of uniform attention.

    table: panel, step, layer, head, query, key, attention, and mark (the key to point at, −1 for none).
    """
    panels = list(dict.fromkeys(table["panel"]))
    per_row = 2 if len(panels) != 3 else 3
    lines = -(-len(panels) // per_row)
    keys = int(table["key"].max()) + 1
    top = float(table["attention"].max()) * keys
    with look.style():
        figure, axes = look.sheet(lines, per_row, look.PAGE * 0.86, 2.9 * lines)
        for spare in axes.flat[len(panels) :]:
            spare.set_visible(False)
        picture: Any = None
        for place, name in zip(axes.flat, panels, strict=False):
            part = table[table["panel"] == name]
            rows, columns, values = look.grid_of(part, "query", "key", "attention")
            norm = look.received_norm(top)
            picture = look.show(place, rows, columns, values * keys, norm, cmap=look.received_colours())
            place.set(title=name, xlabel="key", ylabel="query")
            for mark in part["mark"].unique():
                if mark >= 0:
                    place.annotate(
                        "", (mark, rows[0] - 0.5), (mark, rows[0] - 0.06 * len(rows) - 0.5),
                        annotation_clip=False, arrowprops={"arrowstyle": "-|>", "color": "#0072B2", "lw": 1},
                    )  # fmt: skip
        bar = figure.colorbar(picture, ax=axes, shrink=0.8, label="attention × keys (uniform = 1)")
        bar.set_ticks(look.received_ticks(top))
        bar.minorticks_off()
    return figure


def where(part: pd.DataFrame) -> str:
    """`layer 3, head 1` of a panel's rows."""
    first = part.iloc[0]
    return f"layer {int(first['layer'])}, head {int(first['head'])}"
