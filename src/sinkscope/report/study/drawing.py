"""Pictures of a finished study: those of its tables, one recorded generation of each model in the viewer, and all as files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.base.text import visible
from sinkscope.report.figures import Saved, file_name, look, make, save_all
from sinkscope.report.figures.calibration import plot_calibration
from sinkscope.report.figures.holdings import plot_holdings
from sinkscope.report.figures.look import short
from sinkscope.report.figures.sensitivity import plot_sensitivity
from sinkscope.report.html import viewer_parts
from sinkscope.report.study.source import StudySource, read
from sinkscope.study.plugged import PLUGINS

if TYPE_CHECKING:
    import pandas as pd

PLOTS: dict[str, Callable[[pd.DataFrame], look.PaperFigure]] = {
    "sensitivity": plot_sensitivity,
    "calibration": plot_calibration,
}
"""Table of the study → its figure."""
BUDGET = 4_000_000
"""Characters of traces that a report embeds; the whole file stays under 5 MB."""


def study_figures(source: StudySource) -> Iterator[look.PaperFigure]:
    """Figures of the study's tables, its plug-ins' among them; what sinks hold is one for each model, named after it."""
    for name, plot in PLOTS.items():
        if len(source.frames.get(name, ())):
            yield plot(source.frames[name])
    for name, rows in source.inspected.items():
        figure = plot_holdings(rows, f"What the sinks of {name} hold")
        yield replace(figure, name=holdings_name(name))
    for plugin in PLUGINS.values():
        yield from plugin.figures(source.frames)


def holdings_name(inspected: str) -> str:
    """The name of the figure of what the sinks of a model hold."""
    return f"holdings_{file_name(short(inspected))}"


def save_study(folder: Path, out: Path, only: Sequence[str] = (), *, force: bool = True) -> Saved:
    """Saves every figure that a finished study allows.

    Args:
        only: names of figures; default all.
        force: replace files that exist already; False raises InputError before anything is drawn.
    """
    source = read(folder)
    exemplars, maps = (
        {short(model): trace for model, trace in recorded.items()} for recorded in (source.exemplars, source.maps)
    )
    saved = save_all(exemplars, out, maps=maps, only=only, force=force)
    for figure in () if only else study_figures(source):
        saved.files[figure.name] = figure.save(out)
    return saved


def paper(source: StudySource, name: str) -> dict[str, str] | None:
    """A figure of the paper, of the study's exemplars, for the page; None without any."""
    traces = {short(model): trace for model, trace in source.exemplars.items()}
    return shown(make(name, traces)) if traces else None


def shown(figure: look.PaperFigure) -> dict[str, str]:
    """A figure for the page: its address, title and caption."""
    address = figure.address("svg", metadata={"Date": None})
    return {"name": figure.name, "address": address, "title": figure.title, "caption": figure.caption}


def traces(source: StudySource, budget: int = BUDGET) -> dict[str, Any] | None:
    """The parts of the viewer; None without traces, or when not even one fits."""
    from sinkscope.report.payload import mixed, views

    embedded: list[dict[str, Any]] = []
    left_out: list[str] = []
    percent = mixed(list(source.exemplars.values()))
    for model, trace in source.exemplars.items():
        made = views(trace, name=visible(model), samples=[0], percent=percent)
        size = len(json.dumps(made))
        if size > budget:
            left_out.append(model)
            continue
        budget -= size
        embedded += made
    if not embedded:
        return None
    # A diffusion model beside a causal one: the paper in one look.
    other = next((view for view in embedded if view["causal"] != embedded[0]["causal"]), None)
    if other is not None:
        other["other"] = True
    parts = viewer_parts(embedded, name="exemplars", compare=other is not None, address=False, inside=True)
    return {"parts": parts, "left_out": left_out}
