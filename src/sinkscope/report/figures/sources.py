"""What the figures read from traces: one sample each, by name; and how a figure is described."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.sinks.dataset import Array, dataset_of, labels, scores_name

Traces = Mapping[str, Any]
"""Name in the figure → trace or its dataset."""


def named(traces: Any) -> dict[str, xr.Dataset]:
    """Traces by name; a single one gets the name of its model."""
    if isinstance(traces, Mapping) and not isinstance(traces, xr.Dataset):
        if not traces:
            raise InputError("there is no trace to draw")
        return {str(name): dataset_of(trace) for name, trace in traces.items()}
    from sinkscope.report.payload import model_name

    data = dataset_of(traces)
    return {model_name(data): data}


def one(traces: Any, figure: str) -> tuple[str, xr.Dataset]:
    """The only trace of a figure that shows one."""
    found = named(traces)
    if len(found) != 1:
        raise InputError(f"{figure} shows one trace, got {len(found)}; draw it for each")
    return next(iter(found.items()))


def need_maps(data: xr.Dataset, figure: str) -> None:
    if "attention" not in data:
        raise InputError(
            f"{figure} shows whole attention maps, and this trace has none; "
            "trace a short generation with --level maps (ss.Capture(level='maps'))"
        )


def long_table(values: Array, columns: dict[str, Array], value: str) -> pd.DataFrame:
    """An array as one row per cell, cells without a value left out. columns: the labels of each axis, in order."""
    grids = np.meshgrid(*columns.values(), indexing="ij")
    table = pd.DataFrame({name: grid.reshape(-1) for name, grid in zip(columns, grids, strict=True)})
    table[value] = np.asarray(values, dtype=float).reshape(-1)
    return table[table[value].notna()].reset_index(drop=True)


def scores_text(data: xr.Dataset) -> str:
    """Which queries the scores count, as words for a caption."""
    if scores_name(data) == "received_all":
        return "received attention over all queries so far (keys seen by at least 16 queries)"
    return "received attention (uniform = 1)"


def caption(seen: str, computed: str, not_shown: str) -> str:
    """The three things a caption says."""
    return f"{seen} Computed: {computed} Not shown: {not_shown}"


def attention_map(data: xr.Dataset, sample: int, step: int, layer: int, head: int) -> pd.DataFrame:
    """One S × S map (indices in) with positions as labels: step, layer, head, query, key, attention."""
    cell = data["attention"].isel(sample=sample, step=step, layer=layer, head=head).transpose("query", "key")
    position = data["position"].isel(sample=sample).values
    real = position >= 0
    table = long_table(
        cell.values[np.ix_(real, real)], {"query": position[real], "key": position[real]}, "attention"
    )
    for i, (dim, index) in enumerate((("step", step), ("layer", layer), ("head", head))):
        table.insert(i, dim, int(labels(data, dim)[index]))
    return table


def index_of(data: xr.Dataset, dim: str, label: Any) -> int:
    return int(np.flatnonzero(labels(data, dim) == label)[0])
