"""The columns that every table of a study begins with: the settings of the cell that a row is about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sinkscope.study.cells import Cell
from sinkscope.tasks.task import scheme_name

if TYPE_CHECKING:
    import pandas as pd


def settings_of(cell: Cell) -> dict[str, Any]:
    """The settings that every row carries."""
    model = cell.identity["model"]
    return {
        "model": cell.model.name, "family": model["family"], "dtype": model["dtype"], "weights": model["weights"],
        "task": cell.identity["task"]["task"], "task_version": cell.identity["task"].get("version", ""),
        "scheme": scheme_name(cell.identity["task"]), "decoding_name": cell.decoding_name, "decoding": cell.decoding,
        "policy": cell.policy, "seeds": json.dumps(list(cell.seeds)), "cell": cell.id,
        **({} if cell.reuse == "none" else {"reuse": cell.reuse}),
    }  # fmt: skip


def with_columns(frame: pd.DataFrame, columns: Mapping[str, Any]) -> pd.DataFrame:
    """A copy of the table with these columns in front, those that it has already left as they are."""
    frame = frame.copy()
    frame.attrs = {}
    for place, (name, value) in enumerate(columns.items()):
        if name not in frame:
            frame.insert(place, name, value)
    return frame
