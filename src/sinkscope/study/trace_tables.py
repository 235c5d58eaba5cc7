"""The tables of what was recorded: traces and pairs of them, replays and inspections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import xarray as xr

from sinkscope.base.masked import MASK
from sinkscope.inspection.survey import probe_names, survey_table
from sinkscope.sinks import calibration, compare_traces, mechanisms, merge, summary
from sinkscope.sinks.calibration import COUNTS
from sinkscope.sinks.depth import depth_table
from sinkscope.sinks.summary_table import settings_table
from sinkscope.study.cells import Cell
from sinkscope.study.store import Store, load_part, load_statistics
from sinkscope.tasks.records import Generation
from sinkscope.trace.trace import Trace
from sinkscope.verdicts import wording
from sinkscope.verdicts.holdings import measures_of
from sinkscope.verdicts.questions import held

Frames = dict[str, pd.DataFrame]


def traced(store: Store, cells: Sequence[Cell]) -> Frames:
    """`sinks`: `ss.summary` of the traces of each cell; `depth`: sinks by layer; `thresholds`: by several ε and rules."""
    statistics = {
        cell.id: merge(
            [load_statistics(store.statistics_file(cell.id, row.index, row.seed)) for row in _rows(store, cell)],
            relabel=True,
        )
        for cell in cells
    }
    made = (("sinks", summary), ("depth", depth_table), ("thresholds", settings_table))
    return {name: stacked(cells, statistics, make) for name, make in made}


def stacked(
    cells: Sequence[Cell], statistics: Mapping[str, xr.Dataset], table: Callable[[xr.Dataset], pd.DataFrame]
) -> pd.DataFrame:
    """A table of the statistics of each cell (by its id), one under the other."""
    frames = []
    for cell in cells:
        samples = int(statistics[cell.id].sizes["sample"])
        about = {"traces": cell.group, "samples": samples, **cell.columns()}
        frames.append(with_columns(table(statistics[cell.id]), about))
    return pd.concat(frames, ignore_index=True)


def replay(store: Store, cells: Sequence[Cell]) -> Frames:
    """`replay`: means over documents of the changes by a policy, step by step."""
    names = ("kl", "confidence_change", "flipped", "changed", *MASK)
    rows = []
    for cell in cells:
        told = pd.DataFrame([row.more for row in _rows(store, cell)]).reindex(columns=list(names))
        means = told.astype(float).mean()
        rows.append(cell.columns() | {"n": len(told)} | means.astype(object).where(means.notna(), None).to_dict())
    return {"replay": pd.DataFrame(rows)}


def inspection(store: Store, cells: Sequence[Cell]) -> Frames:
    """`inspection`: the measures of each inspected cell; `holdings`: the verdicts on them."""
    measures, answers = [], []
    for cell in cells:
        rows = _rows(store, cell)
        table = survey_table([load_part(store.statistics_file(cell.id, row.index, row.seed)) for row in rows])
        flags = [dict(row.more.get("void") or {}) for row in rows]
        void = {name: why for name, why in flags[0].items() if all(name in flag for flag in flags)}
        measures.append(with_columns(table, cell.columns()))
        verdicts = held(measures_of(table, void, cell.model.name), probe_names())
        told = [wording.stored(verdict) | {"evidence": wording.held(verdict)} for verdict in verdicts]
        answers.append(with_columns(pd.DataFrame(told), cell.columns()))
    tables = {"inspection": measures, "holdings": answers}
    return {name: pd.concat(frames, ignore_index=True) for name, frames in tables.items()}


def pairs(store: Store, cells: Sequence[Cell]) -> Frames:
    """`pairs`: the changes between the traces without and with a policy of the same documents; `calibration`."""

    def section(cell: Cell) -> tuple[Any, ...]:
        return (cell.model, cell.task, cell.experiment.decoding, cell.group)

    plain = {section(cell): cell for cell in cells if cell.experiment.policy is None and cell.keep}
    frames: dict[str, list[pd.DataFrame]] = {"pairs": [], "calibration": []}
    for cell in cells:
        base = plain.get(section(cell))
        if cell.experiment.policy is None or base is None or not cell.keep:
            continue
        counts = []
        for row in _rows(store, cell):
            without, under = (
                Trace.open(store.trace_file(recorded.id, row.index, row.seed)) for recorded in (base, cell)
            )
            compared = compare_traces(without, under, **cell.sinks)
            about = {**cell.columns(), "document": row.document}
            frames["pairs"].append(with_columns(mechanisms(compared), about))
            counts.append(compared[list(COUNTS)].sum("step"))
        whole = calibration(xr.concat(counts, dim="sample"))
        frames["calibration"].append(with_columns(whole, cell.columns()))
    return {name: pd.concat(made, ignore_index=True) for name, made in frames.items() if made}


def with_columns(frame: pd.DataFrame, columns: Mapping[str, Any]) -> pd.DataFrame:
    """A copy of the table with these columns in front, those that it has already left as they are."""
    frame = frame.copy()
    frame.attrs = {}
    for column, (name, value) in enumerate(columns.items()):
        if name not in frame:
            frame.insert(column, name, value)
    return frame


def _rows(store: Store, cell: Cell) -> list[Generation]:
    return [row for row, _ in store.answers(cell.id).values()]
