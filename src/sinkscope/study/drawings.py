"""The figures of a study, drawn by `sinkscope.report.figures` from one trace for each model.

The trace is that of the exemplar (see `exemplars`): its full maps for the figures that need maps, else its recording of every
step. Drawing takes seconds of one core for each figure, so that a study of several models draws in processes of its own
(`pens`), and begins while the tables are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from sinkscope.study.cell import Cell
from sinkscope.study.executors import cores
from sinkscope.study.pens import Pen, Pens
from sinkscope.study.store import Store

NEEDS_TABLES = "table_1"
"""The one that shows accuracies."""

MOST_PENS = 4
FIGURES_FOR_A_PEN = 10
"""Fewer pictures than this are drawn before a process of their own is ready to."""


@dataclass(frozen=True)
class Drawn:
    """Figures as (path from the study's folder, caption), and why others could not be drawn."""

    figures: tuple[tuple[str, str], ...]
    left_out: Mapping[str, str]


class Drawing:
    """`with Drawing(store, cells) as drawing: …; drawing.finish()`; what needs no table begins at once."""

    def __init__(self, store: Store, cells: Sequence[Cell], pens: int | None = None) -> None:
        self.store = store
        self.wanted = wanted(store, cells)
        pictures = sum(max(1, len(traces)) for traces in self.wanted.values())
        many = min(cores(), MOST_PENS, pictures // FIGURES_FOR_A_PEN) if pens is None else pens
        self._pens = Pens(store.root, many) if many > 1 else None
        self._pool = ThreadPoolExecutor(max(1, many))
        self._begun: dict[str, Future[dict[str, Any]]] = {}
        if self._pens is not None:
            self._begin([name for name in self.wanted if name != NEEDS_TABLES])

    def __enter__(self) -> Drawing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._pens is not None:
            self._pens.close()
        self._pool.shutdown()

    def finish(self) -> Drawn:
        """Every figure that the study allows, as SVG and PDF with data and caption beside, in figures/.

        tables/ must be there.
        """
        from sinkscope.report.figures import FIGURES

        if self._pens is None:
            pen = Pen(self.store.root)
            answers = {name: pen.draw(name, traces) for name, traces in self.wanted.items()}
        else:
            self._begin([name for name in self.wanted if name not in self._begun])
            answers = {name: future.result() for name, future in self._begun.items()}
        left_out = {name: why for answer in answers.values() for name, why in answer["left_out"].items()}
        figures = [
            (file, (self.store.root / file).with_suffix(".txt").read_text(encoding="utf-8").strip())
            for name in FIGURES
            if name in answers
            for file in answers[name]["files"]
            if Path(file).suffix == ".svg"
        ]
        return Drawn(tuple(figures), left_out)

    def _begin(self, names: Sequence[str]) -> None:
        if self._pens is not None:
            for name in names:
                self._begun[name] = self._pool.submit(self._pens.draw, name, self.wanted[name])


def wanted(store: Store, cells: Sequence[Cell]) -> dict[str, dict[str, str]]:
    """Figure → label → the trace's file; figures of many pictures first, so that no process ends long after the others."""
    from sinkscope.report.figures import FIGURES, MAPS, TOGETHER

    steps, maps = chosen(store, cells)
    found: dict[str, dict[str, str]] = {}
    for name in sorted(
        FIGURES, key=lambda name: (name in TOGETHER or name == NEEDS_TABLES, name not in MAPS)
    ):
        traces = {} if name == NEEDS_TABLES else maps if name in MAPS else steps
        if traces or name == NEEDS_TABLES:
            found[name] = {label: str(path) for label, path in traces.items()}
    return found


def chosen(store: Store, cells: Sequence[Cell]) -> tuple[dict[str, Path], dict[str, Path]]:
    """Model → the recording of its exemplar, and model → its maps; of the first block of traces that has them."""
    steps: dict[str, Path] = {}
    maps: dict[str, Path] = {}
    for cell in cells:
        name = cell.model.name.removeprefix("organism/")
        if (
            cell.policy != "none"
            or cell.kind not in ("trace", "maps")
            or name in (steps if cell.kind == "trace" else maps)
        ):
            continue
        if cell.kind == "maps":
            maps[name] = store.trace_file(cell.id, cell.documents[0], cell.seeds[0])
            continue
        key = (cell.model, cell.group)
        twin = next((one for one in cells if one.kind == "maps" and (one.model, one.group) == key), None)
        place = twin.documents[0] if twin is not None else cell.documents[0]
        steps[name] = store.trace_file(cell.id, place, cell.seeds[0])
    return steps, maps
