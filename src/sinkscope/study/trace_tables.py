"""The tables of what was recorded: traces and pairs of them, replays and inspections; and the verdicts on each model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import xarray as xr

from sinkscope.generation.run import ACCOUNT
from sinkscope.inspection.holdings import holdings
from sinkscope.inspection.survey import survey_table
from sinkscope.policies import Window
from sinkscope.sinks import compare_traces, diagnose, mechanisms, merge, summary
from sinkscope.sinks.depth import depth_table
from sinkscope.study.cells import Cell
from sinkscope.study.store import Store, load_part, load_statistics
from sinkscope.tasks.evaluation import Evaluation
from sinkscope.trace.trace import Trace

if TYPE_CHECKING:
    from sinkscope.study.evidence_check import Known


def trace_statistics(store: Store, cell: Cell, known: Known | None = None) -> xr.Dataset:
    """The statistics of all traces of a cell, and of those of earlier studies of other documents."""
    rows = [row for row, _ in store.answers(cell.id).values()]
    parts = [load_statistics(store.statistics_file(cell.id, row.index, row.seed)) for row in rows]
    earlier = None if known is None else known.traces(cell)
    if earlier is not None:
        here = {row.document for row in rows}
        others = [place for place, document in enumerate(earlier.documents) if document not in here]
        name = parts[0].attrs["model"]  # the weights are the same, wherever they lie
        parts += [earlier.statistics.isel(sample=others).assign_attrs(model=name)] if others else []
    return merge(parts, relabel=True).assign_attrs(here=len(rows))


def sinks(cells: Sequence[Cell], statistics: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """`ss.summary` of the traces of each cell."""
    return _stacked(cells, statistics, summary)


def depth(cells: Sequence[Cell], statistics: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """Sinks by layer, over the traces of each cell."""
    return _stacked(cells, statistics, depth_table)


def _stacked(
    cells: Sequence[Cell], statistics: Mapping[str, xr.Dataset], table: Callable[[xr.Dataset], pd.DataFrame]
) -> pd.DataFrame:
    frames = []
    for cell in cells:
        samples = int(statistics[cell.id].sizes["sample"])
        here = statistics[cell.id].attrs.get("here", samples)
        about = {"traces": cell.group, "samples": samples, "here": here, **cell.columns()}
        frames.append(with_columns(table(statistics[cell.id]), about))
    return pd.concat(frames, ignore_index=True)


def diagnosis(
    cells: Sequence[Cell], evaluations: Mapping[str, Evaluation], statistics: Mapping[str, xr.Dataset]
) -> pd.DataFrame:
    """The verdicts on each model, from its unmasked traces and its accuracies on the first task of the study."""
    frames = []
    for model in dict.fromkeys(cell.model.name for cell in cells):
        mine = [cell for cell in cells if cell.model.name == model]
        traced = [statistics[cell.id] for cell in mine if cell.id in statistics and cell.policy == "none"]
        graded = [cell for cell in mine if cell.id in evaluations]
        scores = {
            cell.policy: evaluations[cell.id]
            for cell in graded
            if (cell.task, cell.decoding) == (graded[0].task, graded[0].decoding)
        }
        policies = [cell.parsed_policy() for cell in graded if cell.policy in scores]
        windows = [
            policy for policy in policies if isinstance(policy, Window) and policy == Window(policy.width)
        ]
        verdict = diagnose(
            traced[:1] or None,
            unmasked=scores.get("none"),
            top1=scores.get("top:1"),
            random1=scores.get("random(top:1)"),
            window=scores.get(str(windows[0])) if windows else None,
            window_first=scores.get(str(replace(windows[0], first=4))) if windows else None,
        )
        frames.append(with_columns(verdict.table, {"model": model}))
    return pd.concat(frames, ignore_index=True)


def replay(store: Store, cells: Sequence[Cell]) -> pd.DataFrame:
    """Means over documents of the changes by a policy, step by step."""
    rows = []
    for cell in cells:
        answers = [row for row, _ in store.answers(cell.id).values()]
        means: dict[str, Any] = {**cell.columns(), "n": len(answers)}
        for name in ("kl", "confidence_change", "flipped", "changed", *ACCOUNT):
            values = [row.more[name] for row in answers if row.more.get(name) is not None]
            means[name] = sum(values) / len(values) if values else None
        rows.append(means)
    return pd.DataFrame(rows)


def inspection(store: Store, cells: Sequence[Cell]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The measures of each inspected cell, and the answers of the rules over them."""
    measures, answers = [], []
    for cell in cells:
        rows = [row for row, _ in store.answers(cell.id).values()]
        table = survey_table([load_part(store.statistics_file(cell.id, row.index, row.seed)) for row in rows])
        flags = [dict(row.more.get("void") or {}) for row in rows]
        void = {name: why for name, why in flags[0].items() if all(name in flag for flag in flags)}
        measures.append(with_columns(table, cell.columns()))
        answers.append(with_columns(pd.DataFrame(holdings(table, void)), cell.columns()))
    return pd.concat(measures, ignore_index=True), pd.concat(answers, ignore_index=True)


def pairs(store: Store, cells: Sequence[Cell]) -> pd.DataFrame | None:
    """The changes between the traces without and with a policy of the same documents."""

    def block(cell: Cell) -> tuple[Any, ...]:
        return (cell.model, cell.task, cell.decoding, cell.group)

    plain = {block(cell): cell for cell in cells if cell.policy == "none" and cell.keep}
    frames = []
    for cell in cells:
        base = plain.get(block(cell))
        if cell.policy == "none" or base is None or not cell.keep:
            continue
        for row, _ in store.answers(cell.id).values():
            without, under = (
                Trace.open(store.trace_file(recorded.id, row.index, row.seed)) for recorded in (base, cell)
            )
            changes = mechanisms(compare_traces(without, under, **json.loads(cell.sinks or "{}")))
            frames.append(with_columns(changes, {**cell.columns(), "document": row.document}))
    return pd.concat(frames, ignore_index=True) if frames else None


def with_columns(frame: pd.DataFrame, columns: Mapping[str, Any]) -> pd.DataFrame:
    """A copy of the table with these columns in front, those that it has already left as they are."""
    frame = frame.copy()
    frame.attrs = {}
    for place, (name, value) in enumerate(columns.items()):
        if name not in frame:
            frame.insert(place, name, value)
    return frame
