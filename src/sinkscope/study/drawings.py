"""The figures of a study, drawn by `sinkscope.report.figures` from one trace for each model.

The trace is that of the exemplar (see `exemplars`): its full maps for the figures that need maps, else its recording of every
step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.study.cell import Cell
from sinkscope.study.store import Store


@dataclass(frozen=True)
class Drawn:
    """Figures as (path from the study's folder, caption), and why others could not be drawn."""

    figures: tuple[tuple[str, str], ...]
    left_out: Mapping[str, str]


def draw(store: Store, cells: Sequence[Cell], frames: Mapping[str, Any]) -> Drawn:
    """Every figure that the study allows, as SVG and PDF with data and caption beside, into figures/."""
    from sinkscope.report.figures import FIGURES, MAPS, save_all

    steps, maps = chosen(store, cells)
    folder = store.root / "figures"
    files: dict[str, list[Path]] = {}
    left_out: dict[str, str] = {}
    plain = [name for name in FIGURES if name not in MAPS]
    for traces, only in ((steps, plain), (maps, list(MAPS))):
        if traces:
            made = save_all(traces, folder, only=only, accuracies=_accuracies(frames))
            files |= made.files
            left_out |= made.left_out
    figures = [
        (
            path.relative_to(store.root).as_posix(),
            path.with_suffix(".txt").read_text(encoding="utf-8").strip(),
        )
        for name in FIGURES
        for path in files.get(name, [])
        if path.suffix == ".svg"
    ]
    return Drawn(tuple(figures), left_out)


def chosen(store: Store, cells: Sequence[Cell]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Model → the recording of its exemplar, and model → its maps; of the first block of traces that has them."""
    from sinkscope.trace.trace import Trace

    steps: dict[str, Any] = {}
    maps: dict[str, Any] = {}
    for cell in cells:
        name = cell.model.name.removeprefix("organism/")
        if (
            cell.policy != "none"
            or cell.kind not in ("trace", "maps")
            or name in (steps if cell.kind == "trace" else maps)
        ):
            continue
        if cell.kind == "maps":
            maps[name] = Trace.open(store.trace_file(cell.id, cell.documents[0], cell.seeds[0]))
            continue
        key = (cell.model, cell.group)
        twin = next((one for one in cells if one.kind == "maps" and (one.model, one.group) == key), None)
        place = twin.documents[0] if twin is not None else cell.documents[0]
        steps[name] = Trace.open(store.trace_file(cell.id, place, cell.seeds[0]))
    return steps, maps


def _accuracies(frames: Mapping[str, Any]) -> Any:
    """The rows of the result table for the first decoding; None without accuracies."""
    table = frames.get("results")
    if table is None:
        return None
    first = table["decoding_name"].iloc[0]
    return table[table["decoding_name"] == first][["task", "policy", "model", "accuracy", "stderr"]]
