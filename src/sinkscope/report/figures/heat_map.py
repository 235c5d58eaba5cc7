"""Figure 1: received attention by step and position, traces side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sinkscope.report.figures import look
from sinkscope.report.figures.sources import caption as words
from sinkscope.report.figures.sources import long_table, named, scores_text
from sinkscope.sinks import step_position_map
from sinkscope.sinks.dataset import labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "figure_1"
TITLE = "Received attention by step and position"


def table(
    traces: Any, *, sample: int = 0, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> pd.DataFrame:
    """trace, step, position, received; layers, heads: labels to average over, default all."""
    parts = []
    for name, data in named(traces).items():
        values = step_position_map(data, layers, heads).values[sample]
        position = data["position"].isel(sample=sample).values
        real = position >= 0
        part = long_table(
            values[:, real], {"step": labels(data, "step"), "position": position[real]}, "received"
        )
        part.insert(0, "trace", name)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def draw(data: pd.DataFrame, *, width: float | None = None, height: float = 2.5) -> Figure:
    """One panel for each trace, one colour scale for all."""
    names = list(dict.fromkeys(data["trace"]))
    top = float(np.nanquantile(data["received"], 0.9995))
    with look.style():
        wide = width or (look.COLUMN if len(names) == 1 else look.PAGE)
        figure, axes = look.sheet(1, len(names), wide, height)
        picture: Any = None
        for place, name in zip(axes[0], names, strict=True):
            rows, columns, values = look.grid_of(data[data["trace"] == name], "step", "position", "received")
            picture = look.show(
                place, rows, columns, values, look.received_norm(top), cmap=look.received_colours()
            )
            place.set(title=name, xlabel="position", ylabel="step" if place is axes[0][0] else "")
        bar = figure.colorbar(picture, ax=axes, label="received (uniform = 1)", pad=0.02)
        bar.set_ticks(look.received_ticks(top))
        bar.minorticks_off()
    return figure


def caption(traces: Any, data: pd.DataFrame) -> str:
    """What is seen, how it was computed, what it does not show."""
    found = named(traces)
    kinds = sorted({scores_text(one) for one in found.values()})
    return words(
        "Where attention goes as a generation unfolds: dark columns are keys that many queries look at; a column that begins, "
        "ends or shifts is a sink that moves.",
        f"{' and '.join(kinds)}, mean over the layers and heads that were chosen (all by default), one generation; "
        "the colour scale ends at the 99.95th percentile, is linear below uniform attention and logarithmic above.",
        "single heads, whose sinks can vanish in the mean, and whether the model needs these keys.",
    )
