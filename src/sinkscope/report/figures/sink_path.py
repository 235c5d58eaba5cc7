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
LINES = ("-", "--", "-.", ":", "-", "--", "-.")


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
    parts = {str(name): part for name, part in table.groupby("trace", sort=False)}
    with look.style():
        figure, axes = look.sheet(1, 1, look.COLUMN, 2.4 + 0.14 * len(parts))
        for line, (name, part) in zip(LINES, parts.items(), strict=False):
            # Each step is a stroke of its own height, so that a sink of a single step can be seen.
            x = np.repeat(part["position"].where(part["position"] >= 0).to_numpy(dtype=float), 2)
            y = np.repeat(part["step"].to_numpy(dtype=float), 2) + np.tile([-0.5, 0.5], len(part))
            axes[0][0].plot(x, y, linestyle=line, label=f"{name}, {head_text(part)}")
        axes[0][0].set(xlabel="position of the strongest sink", ylabel="step")
        axes[0][0].set_xlim(left=-2)
        axes[0][0].invert_yaxis()
        figure.legend(loc="outside upper left")
    moved = "; ".join(_moves(name, part) for name, part in parts.items())
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
    return f"{name} moves {moved} times in {len(place)} steps"
