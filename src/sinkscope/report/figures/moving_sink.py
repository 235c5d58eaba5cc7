"""Figure 4: a sink moves from one step to the next; two attention maps of one head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sinkscope.errors import InputError
from sinkscope.report.figures.maps import draw_maps, where
from sinkscope.report.figures.sources import attention_map, index_of, need_maps, one
from sinkscope.report.figures.sources import caption as words
from sinkscope.sinks import moves
from sinkscope.sinks.dataset import scores_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "figure_4"
TITLE = "A sink moves from one step to the next"


def table(traces: Any, *, sample: int = 0) -> pd.DataFrame:
    """panel, step, layer, head, query, key, attention, mark: the strongest of all moves.

    Of all moves of a head's strongest sink, the one whose weaker end is strongest: both places are real sinks.
    """
    _, data = one(traces, NAME)
    need_maps(data, NAME)
    found = moves(data.isel(sample=[sample]))
    if found.empty:
        raise InputError(f"{NAME} needs a sink that moves, and none does in this trace")
    position = data["position"].isel(sample=sample).values
    best, choice = -1.0, None
    for move in found.to_dict("records"):
        t = index_of(data, "step", move["step"])
        at = index_of(data, "layer", move["layer"]), index_of(data, "head", move["head"])
        scores = data[scores_name(data)].isel(sample=sample, layer=at[0], head=at[1], step=[t, t + 1]).values
        ends = [np.flatnonzero(position == move[end])[0] for end in ("from_position", "to_position")]
        weaker = float(min(scores[0, ends[0]], scores[1, ends[1]]))
        if weaker > best:
            best, choice = weaker, (t, at, move)
    if choice is None:
        raise InputError(f"{NAME} needs a sink that moves, and none does in this trace")
    t, at, move = choice
    parts = []
    for step, mark in ((t, move["from_position"]), (t + 1, move["to_position"])):
        part = attention_map(data, sample, step, *at)
        parts.append(part.assign(panel=f"step {part['step'].iloc[0]}", mark=int(mark)))
    return pd.concat(parts, ignore_index=True)


def draw(data: pd.DataFrame) -> Figure:
    """The two maps side by side."""
    return draw_maps(data)


def caption(traces: Any, data: pd.DataFrame) -> str:
    """What is seen, how it was computed, what it does not show."""
    steps, marks = data["step"].unique(), data["mark"].unique()
    return words(
        f"Attention of {where(data)} at steps {steps[0]} and {steps[1]}: the strongest sink moves from position {marks[0]} to "
        f"{marks[-1]} (arrows).",
        "the whole attention map of one head; of all moves in the trace, the one whose weaker end receives most.",
        "how common such moves are (figure 7 and the table of moves), and why it moved.",
    )
