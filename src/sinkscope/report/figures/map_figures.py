"""Figures 4, 6 and 8: attention maps of one head around a step in which a sink moves, is split, vanishes or stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.base.errors import InputError
from sinkscope.report.figures import look
from sinkscope.report.figures.sources import attention_map, head_text, index_of, map_pair, only_trace
from sinkscope.sinks import moves, residences
from sinkscope.sinks.dataset import sample_state, scores_name
from sinkscope.sinks.split import split_of

FEWEST = 3
"""Queries that a class needs: nearly any key can be the sink of one or two."""


def plot_moving_sink(trace: Any, *, sample: int = 0) -> look.PaperFigure:
    """Figure 4. Of all moves of a head's strongest sink, the one whose weaker end is strongest: both places are real sinks.

    Returns:
        Table: panel, step, layer, head, query, key, attention, mark.
    """
    data = only_trace(trace, "figure_4", maps=True)
    position = data["position"].isel(sample=sample).values
    best, choice = -1.0, None
    for move in moves(data.isel(sample=[sample])).to_dict("records"):
        t = index_of(data, "step", move["step"])
        head = data[scores_name(data)].sel(layer=move["layer"], head=move["head"])
        scores = head.isel(sample=sample, step=[t, t + 1]).values
        ends = [np.flatnonzero(position == move[end])[0] for end in ("from_position", "to_position")]
        weaker = float(min(scores[0, ends[0]], scores[1, ends[1]]))
        if weaker > best:
            best, choice = weaker, (t, move)
    if choice is None:
        raise InputError("figure_4 needs a sink that moves, and none does in this trace")
    t, move = choice
    marks = int(move["from_position"]), int(move["to_position"])
    maps = map_pair(data, sample, move, ((t, "step", marks[0]), (t + 1, "step", marks[1])))
    table = pd.concat(maps, ignore_index=True)
    first, second = table["step"].unique()
    words = {"head": head_text(table), "first": first, "second": second, "start": marks[0], "goal": marks[1]}
    return look.finished("figure_4", look.attention_maps(table), table, **words)


def plot_split_sinks(trace: Any, *, sample: int = 0) -> look.PaperFigure:
    """Figure 6. (a) The clearest split between masked and decided queries; (b) the strongest sink that is gone a step later.

    Returns:
        Table: as of `plot_moving_sink`.
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
        position = int(gone[0]["mark"].iloc[0])
        seen.append(f"(b) {head_text(gone[0])}: the sink at position {position} is no sink in the step after.")
    return _both("figure_6", [*split, *gone], seen)


def plot_fixed_sink(trace: Any, *, sample: int = 0) -> look.PaperFigure:
    """Figure 8. (a) The longest residence at its two ends; (b) the move to the left that starts furthest to the right.

    Returns:
        Table: as of `plot_moving_sink`.
    """
    data = only_trace(trace, "figure_8", maps=True)
    fixed, left = _fixed(data, sample), _leftward(data, sample)
    if not fixed and not left:
        raise InputError("figure_8 needs a sink, and this trace has none")
    seen = []
    if fixed:
        position = int(fixed[0]["mark"].iloc[0])
        seen.append(f"(a) {head_text(fixed[0])}: the sink at position {position} at the two ends of its stay.")
    if left:
        start, goal = (int(part["mark"].iloc[0]) for part in left)
        seen.append(f"(b) {head_text(left[0])}: a sink moves left from position {start} to {goal}.")
    else:
        seen.append("No sink of this trace moves to the left, so (b) is missing.")
    return _both("figure_8", [*fixed, *left], seen)


def _both(name: str, maps: list[pd.DataFrame], seen: list[str]) -> look.PaperFigure:
    table = pd.concat(maps, ignore_index=True)
    return look.finished(name, look.attention_maps(table), table, seen=" ".join(seen))


# ---- which maps: two each, or none where the trace has no such sink


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
    t, position = index_of(data, "step", row["stop"]), row["position"]
    return map_pair(data, sample, row, ((t, "(b) step", position), (t + 1, "and step", position)))


def _fixed(data: xr.Dataset, sample: int) -> list[pd.DataFrame]:
    stays = residences(data.isel(sample=[sample]))
    if stays.empty:
        return []
    row = stays.sort_values(["length", "strength"], ascending=False).iloc[0]
    first, last = (index_of(data, "step", row[end]) for end in ("start", "stop"))
    return map_pair(data, sample, row, ((first, "(a) step", row["position"]), (last, "and step", row["position"])))


def _leftward(data: xr.Dataset, sample: int) -> list[pd.DataFrame]:
    leftward = moves(data.isel(sample=[sample]))
    leftward = leftward[leftward["distance"] < 0]
    if leftward.empty:
        return []
    row = leftward.sort_values(["from_position", "distance"], ascending=[False, True]).iloc[0]
    t = index_of(data, "step", row["step"])
    ends = ((t, "(b) step", row["from_position"]), (t + 1, "next, step", row["to_position"]))
    return map_pair(data, sample, row, ends)
