"""Figure 6: (a) masked and decided queries look at different sinks; (b) a sink that is gone in the next step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.base.errors import InputError
from sinkscope.report.figures import look
from sinkscope.report.figures.sources import attention_map, head_text, index_of, map_pair, only_trace
from sinkscope.sinks import residences
from sinkscope.sinks.dataset import sample_state
from sinkscope.sinks.split import split_of

FEWEST = 3
"""Queries that a class needs: nearly any key can be the sink of one or two."""


def plot_split_sinks(trace: Any, *, sample: int = 0) -> look.PaperFigure:
    """The clearest split between masked and decided queries, and the strongest sink that vanished.

    Returns:
        Table: panel, step, layer, head, query, key, attention, mark.
    """
    data = only_trace(trace, "figure_6", maps=True)
    split, gone = _split(data, sample), _vanishing(data, sample)
    if not split and not gone:
        raise InputError("figure_6 needs a split sink or one that vanishes, and this trace has neither")
    seen = ["No head of this trace has split sinks, so (a) is missing."]
    if split:
        masked, decided = (int(split[0]["mark"].iloc[i]) for i in (0, -1))
        seen = [
            f"(a) {head_text(split[0])}: queries that are still masked have their sink at position {masked}, queries "
            f"already written at {decided} (arrows)."
        ]
    if gone:
        place = int(gone[0]["mark"].iloc[0])
        seen.append(f"(b) {head_text(gone[0])}: the sink at position {place} is no sink in the step after.")
    table = pd.concat([*split, *gone], ignore_index=True)
    return look.finished("figure_6", look.attention_maps(table), table, seen=" ".join(seen))


def _split(data: xr.Dataset, sample: int) -> list[pd.DataFrame]:
    run = sample_state(data, sample)
    best, choice = 0.0, None
    for t in range(data.sizes["step"]):
        classes = run.masked[t], ~run.masked[t] & (run.region == "answer") & run.real[t]
        if min(int(queries.sum()) for queries in classes) < FEWEST:
            continue
        maps = data["attention"].isel(sample=sample, step=t).transpose("layer", "head", "query", "key").values
        scores = [
            np.where(run.real[t], maps[:, :, queries].mean(axis=2) * run.real[t].sum(), np.nan) for queries in classes
        ]
        split, _ = split_of(scores[0], scores[1])
        weaker = np.where(split, np.minimum(*(np.nanmax(score, axis=-1) for score in scores)), 0.0)
        if weaker.max() > best:
            layer, head = (int(i) for i in np.unravel_index(int(weaker.argmax()), weaker.shape))
            keys = [int(np.nanargmax(score[layer, head])) for score in scores]
            best, choice = float(weaker.max()), (t, layer, head, keys)
    if choice is None:
        return []
    t, layer, head, keys = choice
    part = attention_map(data, sample, t, layer, head, panel="(a) step", mark=-1)
    first = np.arange(len(part)) < len(part) // 2
    return [part.assign(mark=np.where(first, run.position[keys[0]], run.position[keys[1]]))]


def _vanishing(data: xr.Dataset, sample: int) -> list[pd.DataFrame]:
    ended = residences(data.isel(sample=[sample]))
    ended = ended[ended["fate"].isin(["vanished", "moved on"])]
    if ended.empty:
        return []
    row = ended.iloc[int(ended["strength"].argmax())]
    t, place = index_of(data, "step", row["stop"]), row["position"]
    return map_pair(data, sample, row, ((t, "(b) step", place), (t + 1, "and step", place)))
