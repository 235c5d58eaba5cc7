"""Figure 5: how strong each head's main sink is, averaged over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from sinkscope.report.figures import look
from sinkscope.report.figures.sources import caption as words
from sinkscope.report.figures.sources import long_table, one, scores_text
from sinkscope.sinks import layer_head_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "figure_5"
TITLE = "Strength of each head's main sink"


def table(traces: Any) -> pd.DataFrame:
    """layer, head, main_sink: mean over samples."""
    _, data = one(traces, NAME)
    found = layer_head_map(data).mean("sample")
    columns = {"layer": found["layer"].values, "head": found["head"].values}
    return long_table(found.transpose("layer", "head").values, columns, "main_sink")


def draw(data: pd.DataFrame) -> Figure:
    """Layers downwards, heads to the right."""
    top = float(data["main_sink"].max())
    with look.style():
        figure, axes = look.sheet(1, 1, look.COLUMN, 2.8)
        rows, columns, values = look.grid_of(data, "layer", "head", "main_sink")
        picture = look.show(
            axes[0][0], rows, columns, values, look.received_norm(top), cmap=look.received_colours()
        )
        axes[0][0].set(xlabel="head", ylabel="layer")
        axes[0][0].locator_params(integer=True)
        bar = figure.colorbar(picture, ax=axes, label="main sink (uniform = 1)")
        bar.set_ticks(look.received_ticks(top))
        bar.minorticks_off()
    return figure


def caption(traces: Any, data: pd.DataFrame) -> str:
    """What is seen, how it was computed, what it does not show."""
    _, source = one(traces, NAME)
    strongest = data.iloc[int(data["main_sink"].argmax())]
    return words(
        f"How strong the main sink of each head is; the strongest is layer {int(strongest['layer'])}, head "
        f"{int(strongest['head'])} with {strongest['main_sink']:.1f} times uniform attention.",
        f"{scores_text(source)}: the maximum over keys in each step, averaged over steps and over "
        f"{source.sizes['sample']} generation(s).",
        "whether it is the same key in every step. A maximum over many keys is above 1 even without sinks "
        "(about 2 for mild noise over 100 keys).",
    )
