"""Figure 7: the position of one head's strongest sink in each step, traces in one picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.report.figures import look
from sinkscope.report.figures.sources import head_text, named
from sinkscope.sinks import layer_head_map, paths
from sinkscope.sinks.dataset import Array

SINK_SHARE = 0.5
LINES = ("-", "--", "-.", ":")
"""Of the lines in a panel; more traces have more panels."""


def plot_sink_path(
    traces: Any, *, sample: int = 0, heads: Mapping[str, tuple[int, int]] | None = None
) -> look.PaperFigure:
    """One line for each trace, broken where the head has no sink; steps downwards, as in figure 1.

    Args:
        heads: trace → (layer, head) labels; default the strongest head.

    Returns:
        Table: trace, layer, head, step, position (−1: no sink).
    """
    tables = []
    for name, data in named(traces).items():
        chosen = data.isel(sample=[sample])
        path = paths(chosen)
        layer, head = (heads or {}).get(name) or _strongest(chosen, path)
        places = path["position"].isel(sample=0).sel(layer=layer, head=head).values
        columns = {"layer": layer, "head": head, "step": path["step"].values, "position": places}
        tables.append(pd.DataFrame({"trace": name, **columns}))
    table = pd.concat(tables, ignore_index=True)
    parts = {str(name): of_trace for name, of_trace in table.groupby("trace", sort=False)}
    with look.style():
        panels = -(-len(parts) // len(LINES))
        beside = min(2, panels)
        high = 2.4 + 0.14 * min(len(parts), len(LINES))
        figure, axes = look.sheet(-(-panels // 2), beside, beside * look.COLUMN, -(-panels // 2) * high)
        for number, (name, of_trace) in enumerate(parts.items()):
            axis = axes.flat[number // len(LINES)]
            # Each step is a stroke of its own height, so that a sink of a single step can be seen.
            x = np.repeat(of_trace["position"].where(of_trace["position"] >= 0).to_numpy(dtype=float), 2)
            y = np.repeat(of_trace["step"].to_numpy(dtype=float), 2) + np.tile([-0.5, 0.5], len(of_trace))
            axis.plot(x, y, linestyle=LINES[number % len(LINES)], label=f"{look.cut(name)}, {head_text(of_trace)}")
        for number, axis in enumerate(axes.flat):
            if number >= panels:
                axis.set_axis_off()
                continue
            axis.set(xlabel="position of the strongest sink", ylabel="step")
            axis.set_xlim(left=-2)
            axis.invert_yaxis()
            axis.legend(loc="lower left", bbox_to_anchor=(0, 1))
    moved = look.several(_moves(name, of_trace) for name, of_trace in parts.items())
    return look.finished("figure_7", figure, table, moves=moved)


def _strongest(data: xr.Dataset, path: xr.Dataset) -> tuple[int, int]:
    """The head with the strongest main sink among those that have one in at least half of the steps."""
    strength: Array = layer_head_map(data).isel(sample=0).values
    held = (path["key"].isel(sample=0) >= 0).mean("step").values
    scored = np.where(held >= min(SINK_SHARE, float(held.max())), strength, -1.0)
    layer, head = np.unravel_index(int(np.nanargmax(scored)), scored.shape)
    return int(path["layer"].values[layer]), int(path["head"].values[head])


def _moves(name: str, part: pd.DataFrame) -> str:
    place = part["position"].to_numpy()
    moved = int(((place[1:] != place[:-1]) & (place[1:] >= 0) & (place[:-1] >= 0)).sum())
    many = {0: "no move", 1: "1 move"}.get(moved, f"{moved} moves")
    return f"{name}: {many} in {len(place)} steps"
