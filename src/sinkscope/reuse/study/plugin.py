"""Approximate steps in studies: tables, the frontier, a section of the report, and the built-in study of every rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sinkscope.study.plugged import PLUGINS, Column, ShownTable, StudyPlugin

if TYPE_CHECKING:
    import pandas as pd

    from sinkscope.models.model import Model
    from sinkscope.report.figures.look import PaperFigure
    from sinkscope.study.cells import Cell
    from sinkscope.tasks.answer import BatchSize, Items
    from sinkscope.tasks.records import Generation

    Frames = Mapping[str, pd.DataFrame]


def _build(models: Mapping[str, Path], frames: Frames, stored: Path) -> Mapping[str, pd.DataFrame]:
    from sinkscope.reuse.study.table import build

    return build(frames)


def _figures(frames: Frames) -> list[PaperFigure]:
    from sinkscope.reuse.study.frontier import plot_frontier

    return [plot_frontier(frames["reuse"])] if len(frames.get("reuse", ())) else []


def _compared(cell: Cell, model: Model, items: Items, batch_size: BatchSize) -> Iterator[list[Generation]]:
    from sinkscope.reuse.study.agreements import compared

    return compared(cell, model, items, batch_size)


SHOWN = ShownTable(
    "reuse",
    "{model}, {task}, decoding {decoding_name}: approximate steps",
    (
        Column("reuse", "reuse"), Column("accuracy", "accuracy", ".3f"), Column("− exact", "difference", "+.3f"),
        Column("− random", "over_random", "+.3f"), Column("− nearest", "over_recent", "+.3f"),
        Column("work saved", "work_saved", ".1%"), Column("time saved", "time_saved", ".1%"),
        Column("tokens equal", "tokens_equal", ".3f"), Column("− random", "tokens_equal_over_random", "+.3f"),
        Column("first step that differs", "first_step", ".0f"), Column("KL, nats", "kl", ".3g"),
    ),
    by=("model", "task", "decoding_name"),
    figure="frontier",
)  # fmt: skip
PLUGINS.add(
    StudyPlugin(
        name="reuse",
        title="Approximate steps",
        about="What each rule of approximate steps keeps of the exact run, against the work that it saves. In an approximate "
        "step only some columns go through the layers; keys and values of the others are those of an earlier step, and "
        "under a sparse rule only some of them are looked at. A sparse rule is compared with keeping the same number of "
        "random keys, and of the nearest keys, at the same cost: only a difference from these says something about the "
        "keys that it keeps. Work: multiply-adds through the layers; first step: median over the runs that differ from "
        "the exact one.",
        build=_build,
        figures=_figures,
        terminal=(SHOWN,),
        report=(SHOWN,),
        studies=Path(__file__).parent / "studies",
        compared=_compared,
    )
)
