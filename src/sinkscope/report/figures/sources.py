"""Reading traces for figures: by name, one sample or one attention map at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.base.errors import InputError
from sinkscope.report.payload import mixed, model_name
from sinkscope.sinks.dataset import Array, dataset_of, indices_of, labels
from sinkscope.sinks.judging import FAR, SEEN, Judge


def named(traces: Any) -> dict[str, xr.Dataset]:
    """{name: trace} as {name: dataset}; a single trace gets the name of its model."""
    if isinstance(traces, Mapping) and not isinstance(traces, xr.Dataset):
        if not traces:
            raise InputError("there is no trace to draw")
        return {str(name): dataset_of(trace) for name, trace in traces.items()}
    data = dataset_of(traces)
    return {model_name(data): data}


def only_trace(traces: Any, figure: str, *, maps: bool = False) -> xr.Dataset:
    """The trace of a figure that shows one. maps: it must hold whole attention maps."""
    several = list(named(traces).values())
    if len(several) != 1:
        raise InputError(f"{figure} shows one trace, got {len(several)}; draw it for each")
    if maps and "attention" not in several[0]:
        raise InputError(
            f"{figure} shows whole attention maps, and this trace has none; "
            "trace a short generation with --level maps (ss.Capture(level='maps'))"
        )
    return several[0]


def by_trace(traces: Any, table: Callable[[xr.Dataset], pd.DataFrame]) -> pd.DataFrame:
    """The tables of several traces, one below the other, with the trace's name in the column `trace`."""
    parts = []
    for name, data in named(traces).items():
        part = table(data)
        part.insert(0, "trace", name)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def long_table(values: Array, columns: dict[str, Array], value: str) -> pd.DataFrame:
    """An array as one row per cell, cells without a value left out. columns: the labels of each axis, in order."""
    grids = np.meshgrid(*columns.values(), indexing="ij")
    table = pd.DataFrame({name: grid.reshape(-1) for name, grid in zip(columns, grids, strict=True)})
    table[value] = np.asarray(values, dtype=float).reshape(-1)
    return table[table[value].notna()].reset_index(drop=True)


def attention_map(
    data: xr.Dataset, sample: int, step: int, layer: int, head: int, *, panel: str, mark: int
) -> pd.DataFrame:
    """One S × S map (indices in): panel, step, layer, head, query, key (positions), attention, mark.

    panel: begins the panel's title, which the step's label ends. mark: the position that an arrow points at.
    """
    cell = data["attention"].isel(sample=sample, step=step, layer=layer, head=head).transpose("query", "key")
    position = data["position"].isel(sample=sample).values
    real = position >= 0
    table = long_table(cell.values[np.ix_(real, real)], {"query": position[real], "key": position[real]}, "attention")
    for i, (dim, index) in enumerate((("step", step), ("layer", layer), ("head", head))):
        table.insert(i, dim, int(labels(data, dim)[index]))
    table.insert(0, "panel", f"{panel} {int(labels(data, 'step')[step])}")
    return table.assign(mark=mark)


def map_pair(data: xr.Dataset, sample: int, row: Any, ends: Sequence[tuple[int, str, int]]) -> list[pd.DataFrame]:
    """Two maps of the head of a row of `residences` or `moves`; ends: (step's index, panel, mark) of each."""
    layer, head = (indices_of(data, dim, [row[dim]])[0] for dim in ("layer", "head"))
    return [attention_map(data, sample, step, layer, head, panel=panel, mark=int(mark)) for step, panel, mark in ends]


def head_text(part: pd.DataFrame) -> str:
    """`layer 3, head 1` of a panel's rows."""
    first = part.iloc[0]
    return f"layer {int(first['layer'])}, head {int(first['head'])}"


def common_unit(traces: Any) -> tuple[bool, str]:
    """(percent, unit): how scores of these traces can stand on one scale: as multiples of uniform attention, or in percent."""
    every = list(named(traces).values())
    percent = mixed(every)
    return percent, "% of a query's attention" if Judge.of(every[0], percent=percent).percent else "× uniform"


def scores_text(traces: Any) -> str:
    """The queries that the scores count, as words for a caption."""
    words = {
        FAR: " from distant queries so far, where enough can tell",
        SEEN: " over all queries so far, where enough can tell",
    }
    judges = [Judge.of(data) for data in named(traces).values()]
    parts = sorted({"received attention" + words.get(judge.queries, "") for judge in judges})
    return f"{' and '.join(parts)} ({common_unit(traces)[1]})"
