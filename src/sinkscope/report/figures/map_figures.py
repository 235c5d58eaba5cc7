"""Figures 4, 6 and 8: attention maps of one head around a step in which a sink moves, is split, vanishes or stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.base.errors import InputError
from sinkscope.report.figures import look
from sinkscope.report.figures.sources import attention_map, head_text, map_pair, only_trace
from sinkscope.sinks import moves, residences
from sinkscope.sinks.dataset import indices_of, sample_state, scores_name
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
        (t,) = indices_of(data, "step", [move["step"]])
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
    first, second = (part["step"].iloc[0] for part in maps)
    words = {"head": head_text(maps[0]), "first": first, "second": second, "start": marks[0], "goal": marks[1]}
    return _finished("figure_4", maps, **words)


def plot_split_sinks(trace: Any, *, sample: int = 0) -> look.PaperFigure:
    """Figure 6. (a) The clearest split between masked and decided queries; (b) the strongest sink that is gone a step later.

    Returns:
        Table: as of `plot_moving_sink`.
    """
    need = "a split sink or one that vanishes, and this trace has neither"
    return _both("figure_6", trace, sample, (_split, _vanishing), need)


def plot_fixed_sink(trace: Any, *, sample: int = 0) -> look.PaperFigure:
    """Figure 8. (a) The longest residence at its two ends; (b) the move to the left that starts furthest to the right.

    Returns:
        Table: as of `plot_moving_sink`.
    """
    return _both("figure_8", trace, sample, (_fixed, _leftward), "a sink, and this trace has none")


Half = tuple[list[pd.DataFrame], str]
"""Maps, none where the trace has no such sink; and what is seen in them."""


def _both(
    name: str, trace: Any, sample: int, halves: Sequence[Callable[[xr.Dataset, int], Half]], need: str
) -> look.PaperFigure:
    data = only_trace(trace, name, maps=True)
    shown = [half(data, sample) for half in halves]
    maps = [one for part, _ in shown for one in part]
    if not maps:
        raise InputError(f"{name} needs {need}")
    return _finished(name, maps, seen=" ".join(filter(None, (seen for _, seen in shown))))


def _finished(name: str, maps: list[pd.DataFrame], **words: Any) -> look.PaperFigure:
    """A panel for each map, query × key, colours in multiples of uniform attention."""
    table = pd.concat(maps, ignore_index=True)
    scaled = table.assign(attention=table["attention"] * (int(table["key"].max()) + 1))
    figure = look.heat_panels(
        scaled, "panel", "query", "key", "attention", label="attention × keys (uniform = 1)",
        across=3 if len(maps) == 3 else 2, width=look.PAGE * 0.86, height=2.9,
    )  # fmt: skip
    return look.finished(name, figure, table, **words)


def _split(data: xr.Dataset, sample: int) -> Half:
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
        return [], "No head of this trace has split sinks, so (a) is missing."
    t, layer, head, keys = choice
    part = attention_map(data, sample, t, layer, head, panel="(a) step", mark=-1)
    masked, decided = (int(position) for position in run.position[keys])
    seen = (
        f"(a) {head_text(part)}: queries that are still masked have their sink at position {masked}, queries "
        f"already written at {decided} (arrows)."
    )
    return [part.assign(mark=np.where(np.arange(len(part)) < len(part) // 2, masked, decided))], seen


def _vanishing(data: xr.Dataset, sample: int) -> Half:
    ended = residences(data.isel(sample=[sample]))
    ended = ended[ended["fate"].isin(["vanished", "moved on"])]
    if ended.empty:
        return [], ""
    row = ended.iloc[int(ended["strength"].argmax())]
    (t,), position = indices_of(data, "step", [row["stop"]]), row["position"]
    maps = map_pair(data, sample, row, ((t, "(b) step", position), (t + 1, "and step", position)))
    return maps, f"(b) {head_text(maps[0])}: the sink at position {position} is no sink in the step after."


def _fixed(data: xr.Dataset, sample: int) -> Half:
    stays = residences(data.isel(sample=[sample]))
    if stays.empty:
        return [], ""
    row = stays.sort_values(["length", "strength"], ascending=False).iloc[0]
    position = row["position"]
    first, last = indices_of(data, "step", row[["start", "stop"]])
    maps = map_pair(data, sample, row, ((first, "(a) step", position), (last, "and step", position)))
    return maps, f"(a) {head_text(maps[0])}: the sink at position {position} at the two ends of its stay."


def _leftward(data: xr.Dataset, sample: int) -> Half:
    leftward = moves(data.isel(sample=[sample]))
    leftward = leftward[leftward["distance"] < 0]
    if leftward.empty:
        return [], "No sink of this trace moves to the left, so (b) is missing."
    row = leftward.sort_values(["from_position", "distance"], ascending=[False, True]).iloc[0]
    (t,) = indices_of(data, "step", [row["step"]])
    start, goal = row["from_position"], row["to_position"]
    maps = map_pair(data, sample, row, ((t, "(b) step", start), (t + 1, "next, step", goal)))
    return maps, f"(b) {head_text(maps[0])}: a sink moves left from position {start} to {goal}."
