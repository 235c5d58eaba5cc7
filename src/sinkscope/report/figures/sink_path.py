"""Figure 7: where the strongest sink of one head is in each step, traces in one picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.report.figures import look
from sinkscope.report.figures.sources import caption as words
from sinkscope.report.figures.sources import named
from sinkscope.sinks import layer_head_map, paths
from sinkscope.sinks.dataset import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "figure_7"
TITLE = "Position of the strongest sink by step"
SINK_SHARE = 0.5


def table(
    traces: Any, *, sample: int = 0, heads: Mapping[str, tuple[int, int]] | None = None
) -> pd.DataFrame:
    """trace, layer, head, step, position (−1: no sink). heads: trace → (layer, head) labels; default the strongest head."""
    parts = []
    for name, data in named(traces).items():
        part = data.isel(sample=[sample])
        found = paths(part)
        layer, head = (heads or {}).get(name) or _strongest(part, found)
        line = found["position"].isel(sample=0).sel(layer=layer, head=head)
        parts.append(
            pd.DataFrame(
                {
                    "trace": name,
                    "layer": layer,
                    "head": head,
                    "step": found["step"].values,
                    "position": line.values,
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _strongest(data: xr.Dataset, found: xr.Dataset) -> tuple[int, int]:
    """The head with the strongest main sink among those that have one in at least half of the steps."""
    strength: Array = layer_head_map(data).isel(sample=0).values
    held = (found["key"].isel(sample=0) >= 0).mean("step").values
    scored = np.where(held >= min(SINK_SHARE, float(held.max())), strength, -1.0)
    layer, head = np.unravel_index(int(np.nanargmax(scored)), scored.shape)
    return int(found["layer"].values[layer]), int(found["head"].values[head])


def draw(data: pd.DataFrame) -> Figure:
    """One line for each trace, broken where the head has no sink."""
    with look.style():
        figure, axes = look.sheet(1, 1, look.COLUMN, 2.2 + 0.14 * data["trace"].nunique())
        for style, (name, part) in zip(
            ("-", "--", "-.", ":", "-", "--", "-."), data.groupby("trace", sort=False), strict=False
        ):
            first = part.iloc[0]
            label = f"{name}, layer {int(first['layer'])}, head {int(first['head'])}"
            axes[0][0].step(
                part["step"],
                part["position"].where(part["position"] >= 0),
                where="mid",
                label=label,
                linestyle=style,
            )
        axes[0][0].set(xlabel="step", ylabel="position of the strongest sink")
        axes[0][0].set_ylim(bottom=-2)
        figure.legend(loc="outside upper left")
    return figure


def caption(traces: Any, data: pd.DataFrame) -> str:
    """What is seen, how it was computed, what it does not show."""
    counts = []
    for name, part in data.groupby("trace", sort=False):
        place = part["position"].to_numpy()
        moved = int(((place[1:] != place[:-1]) & (place[1:] >= 0) & (place[:-1] >= 0)).sum())
        counts.append(f"{name} moves {moved} times in {len(place)} steps")
    return words(
        f"Where the strongest sink of one head is as generation goes on: {'; '.join(counts)}. A flat line is a fixed sink.",
        "the key with the highest received attention among the head's sinks (ε = 3); it gives way only to one at least "
        "1.2 times as strong. By default the head with the strongest main sink of those that have a sink in at least half "
        "of the steps.",
        "the other heads: one chosen head says nothing about how common its behaviour is.",
    )
