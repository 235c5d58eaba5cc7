"""Where attention goes as a generation unfolds: step × position heat maps with the path of a sink."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from sinkscope.report.study.markup import Safe, figure, join, link, section, tag
from sinkscope.report.study.source import Source
from sinkscope.report.study.svg import Plot, cells
from sinkscope.report.study.words import short

LEVELS = (1.0, 1.4, 2.0, 2.8, 4.0, 5.7, 8.0, 16.0)
"""Limits between the colours of single heads, in multiples of uniform attention. 4 is about where a sink begins."""

MOST_ROWS = 64
"""Steps that a picture shows; of longer generations every second, third, …"""


def maps(source: Source) -> Safe | None:
    """The section."""
    scores, paths = source.data("figure_1"), source.data("figure_7")
    if scores is None or not len(scores):
        return None
    panels, said = [], []
    levels = limits(scores["received"].tolist())
    for model in source.models:
        own = scores[scores["trace"] == short(model)]
        if own.empty:
            continue
        line = None if paths is None else paths[paths["trace"] == short(model)]
        panels.append(tag("div", tag("p", model, class_="panel-title"), heat_map(model, own, line, levels)))
        if line is not None and len(line):
            said.append(f"{model}: layer {line['layer'].iloc[0]}, head {line['head'].iloc[0]}")
    if not panels:
        return None
    every = _every(scores)
    thinned = f" Of long generations every {every}th step is drawn." if every > 1 else ""
    picture = figure(
        tag("div", tag("div", *panels, class_="panels-row"), legend(levels)),
        "Received attention of every key (to the right) in every step (downwards), mean over layers and heads; 1 is uniform. A "
        "strongly coloured column is a key that many queries look at; one that begins, ends or shifts is a sink that comes, goes "
        f"or moves. The line is the path of the strongest sink of one head ({'; '.join(said)}).",
        "from the recording of the exemplar, which is chosen by rule (see Settings). The colours are the same for all models. "
        "The path follows the strongest sink and changes only to one at least 1.2 times as strong; its head is the one with the "
        f"strongest main sink of those that have one in half of the steps.{thinned}",
        "Single heads, whose sinks can vanish in the mean; how common the behaviour of the chosen head is; and whether the model "
        "needs these keys. The traces below show every layer and head.",
        join([link("figures/figure_1.csv"), link("figures/figure_7.csv")], ", "),
    )
    return section("maps", "Where attention goes", picture)


def limits(values: Sequence[float]) -> tuple[float, ...]:
    """Limits between the colours of means over heads: from uniform attention evenly on a log scale to nearly the largest."""
    top = max(4.0, float(np.nanquantile(np.asarray(values, dtype=float), 0.999)))
    return tuple(float(f"{top ** (i / 7):.2g}") for i in range(8))


def _every(scores: pd.DataFrame) -> int:
    return math.ceil(scores["step"].nunique() / MOST_ROWS)


def heat_map(model: str, scores: pd.DataFrame, path: pd.DataFrame | None, levels: Sequence[float]) -> Safe:
    """One model. scores: step, position, received; path: step, position (−1: no sink)."""
    wide = scores.pivot_table(index="step", columns="position", values="received").sort_index()
    wide = wide.reindex(columns=range(int(wide.columns.max()) + 1)).iloc[:: _every(scores)]
    rows, columns = wide.shape
    plot = Plot(
        f"{model}: received attention by step and position", 460, 250, (-0.5, columns - 0.5),
        (rows - 0.5, -0.5), margin=(40, 6, 8, 34),
    )  # fmt: skip
    left, right = plot.across.start, plot.across.stop
    top, bottom = plot.down.stop, plot.down.start
    size = ((right - left) / columns, (bottom - top) / rows)
    plot.parts.append(cells(wide.to_numpy(dtype=float).tolist(), levels, size, left, top))
    plot.add("rect", x=left, y=top, width=right - left, height=bottom - top, class_="frame-line")
    steps = list(wide.index)
    plot.x_axis([(value, str(value)) for value in _ticks(columns)], "position")
    for place in _ticks(rows):
        plot.text(left - 6, plot.down(place) + 3.5, str(steps[place]), "tick end")
    plot.text(0, 0, "step", "label middle", transform=f"translate(10 {(top + bottom) / 2:g}) rotate(-90)")
    if path is not None and len(path):
        where = dict(zip(path["step"], path["position"], strict=True))
        points = [
            (float(where[step]) if where.get(step, -1) >= 0 else math.nan, float(place))
            for place, step in enumerate(steps)
        ]
        for kind in ("sink-ground", "sink-path"):
            _path(plot, points, kind)
    return plot.svg()


def _path(plot: Plot, points: list[tuple[float, float]], kind: str) -> None:
    """A line through (position, row), broken where there is no sink."""
    text, pen = "", "M"
    for x, y in points:
        if math.isnan(x):
            pen = "M"
            continue
        # A vertical stroke of one row for each step, so that a sink of a single step can be seen.
        text += f"{pen}{plot.across(x):g} {plot.down(y - 0.5):g}L{plot.across(x):g} {plot.down(y + 0.5):g}"
        pen = "L"
    if text:
        plot.add("path", d=Safe(text), class_=kind)


def _ticks(many: int) -> list[int]:
    step = next(size for size in (1, 2, 4, 8, 10, 20, 25, 50, 100, 200, 500, 1000, 10**9) if many / size <= 7)
    return list(range(0, many, step))


def legend(levels: Sequence[float] = LEVELS) -> Safe:
    """The colours and what they mean."""
    plot = Plot("colours of received attention", 460, 34, (0, len(levels) + 1), (0, 1), margin=(4, 2, 4, 18))
    wide = (plot.across.stop - plot.across.start) / (len(levels) + 1)
    for i in range(len(levels) + 1):
        plot.add("rect", x=round(4 + i * wide, 2), y=2, width=round(wide, 2), height=12, class_=f"h{i}")
    plot.add("rect", x=4, y=2, width=round(wide * (len(levels) + 1), 2), height=12, class_="frame-line")
    for i, value in enumerate(levels):
        plot.text(4 + (i + 1) * wide, 28, f"{value:g}", "tick middle")
    return tag("div", plot.svg("plot legend"), class_="legend")
