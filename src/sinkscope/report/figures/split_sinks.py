"""Figure 6: (a) masked and decided queries look at different sinks; (b) a sink that is gone in the next step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.report.figures.maps import draw_maps, where
from sinkscope.report.figures.sources import attention_map, index_of, need_maps, one
from sinkscope.report.figures.sources import caption as words
from sinkscope.sinks import residences
from sinkscope.sinks.dataset import sample_state
from sinkscope.sinks.split import split_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "figure_6"
TITLE = "Split sinks, and a sink that vanishes"
FEWEST = 3
"""Queries that a class needs: nearly any key can be the sink of one or two."""


def table(traces: Any, *, sample: int = 0) -> pd.DataFrame:
    """panel, step, layer, head, query, key, attention, mark: the clearest split, and the strongest sink that vanished."""
    _, data = one(traces, NAME)
    need_maps(data, NAME)
    parts = [*_split(data, sample), *_vanishing(data, sample)]
    if not parts:
        raise InputError(f"{NAME} needs a split sink or one that vanishes, and this trace has neither")
    return pd.concat(parts, ignore_index=True)


def _split(data: xr.Dataset, sample: int) -> list[pd.DataFrame]:
    run = sample_state(data, sample)
    best, choice = 0.0, None
    for t in range(data.sizes["step"]):
        classes = run.masked[t], ~run.masked[t] & (run.region == "answer") & run.real[t]
        if min(int(one.sum()) for one in classes) < FEWEST:
            continue
        maps = data["attention"].isel(sample=sample, step=t).transpose("layer", "head", "query", "key").values
        scores = [
            np.where(run.real[t], maps[:, :, rows].mean(axis=2) * run.real[t].sum(), np.nan)
            for rows in classes
        ]
        split, _ = split_of(scores[0], scores[1])
        weaker = np.where(split, np.minimum(*(np.nanmax(one, axis=-1) for one in scores)), 0.0)
        if weaker.max() > best:
            at = tuple(int(i) for i in np.unravel_index(int(weaker.argmax()), weaker.shape))
            keys = [int(np.nanargmax(one[at])) for one in scores]
            best, choice = float(weaker.max()), (t, at[0], at[1], keys)
    if choice is None:
        return []
    t, layer, head, keys = choice
    part = attention_map(data, sample, t, layer, head)
    name = f"(a) step {part['step'].iloc[0]}"
    half = len(part) // 2
    marks = np.where(np.arange(len(part)) < half, run.position[keys[0]], run.position[keys[1]])
    return [part.assign(panel=name, mark=marks)]


def _vanishing(data: xr.Dataset, sample: int) -> list[pd.DataFrame]:
    found = residences(data.isel(sample=[sample]))
    found = found[found["fate"].isin(["vanished", "moved on"])]
    if found.empty:
        return []
    row = found.iloc[int(found["strength"].argmax())]
    t = index_of(data, "step", row["stop"])
    at = index_of(data, "layer", row["layer"]), index_of(data, "head", row["head"])
    parts = []
    for step, letter in ((t, "(b) step"), (t + 1, "and step")):
        part = attention_map(data, sample, step, *at)
        parts.append(part.assign(panel=f"{letter} {part['step'].iloc[0]}", mark=int(row["position"])))
    return parts


def draw(data: pd.DataFrame) -> Figure:
    """The maps side by side, (a) first where there is one."""
    return draw_maps(data)


def caption(traces: Any, data: pd.DataFrame) -> str:
    """What is seen, how it was computed, what it does not show."""
    panels = list(dict.fromkeys(data["panel"]))
    split = [name for name in panels if name.startswith("(a)")]
    gone = data[data["panel"].str.startswith("(b)")]
    seen = []
    if split:
        part = data[data["panel"] == split[0]]
        masked, decided = (int(part["mark"].iloc[i]) for i in (0, -1))
        seen.append(
            f"(a) {where(part)}: queries that are still masked have their sink at position {masked}, queries already "
            f"written at {decided} (arrows)."
        )
    else:
        seen.append("No head of this trace has split sinks, so (a) is missing.")
    if len(gone):
        seen.append(
            f"(b) {where(gone)}: the sink at position {int(gone['mark'].iloc[0])} is no sink in the step after."
        )
    return words(
        " ".join(seen),
        "whole attention maps; (a) of all head-steps where both classes have at least 3 queries and a sink of their own, the one "
        "whose weaker sink is strongest; (b) the residence with the highest mean score that ended while its key stayed.",
        "how often this happens: `split_by_layer` and the table of residences count it.",
    )
