"""Figure 4: a sink moves from one step to the next; two attention maps of one head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sinkscope.base.errors import InputError
from sinkscope.report.figures import look
from sinkscope.report.figures.sources import head_text, index_of, map_pair, only_trace
from sinkscope.sinks import moves
from sinkscope.sinks.dataset import scores_name


def plot_moving_sink(trace: Any, *, sample: int = 0) -> look.PaperFigure:
    """Of all moves of a head's strongest sink, the one whose weaker end is strongest: both places are real sinks.

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
