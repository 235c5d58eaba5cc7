"""Models that are replicates of one training, with other seeds: means over models, with intervals over models.

A study names them by `group`. The intervals of its other tables are over documents, for one model; another training would have
other weights, so what is said about a training needs these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from sinkscope.statistics import mean_interval

LEAST = 3
"""Models from which on there is an interval; with fewer nothing is concluded."""
MEASURES = ("nll", "accuracy", "difference", "effect_count", "effect_mass", "hidden_share", "sinks_hit")
"""Columns of `likelihood` and `results`; see there."""
KEYS = ("task", "decoding_name", "policy")


def replicates(groups: Mapping[str, str], frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """A row for each group, task, decoding, policy and measure.

    Args:
        groups: model → its group; models without one are left out.
        frames: tables of the study, of which `likelihood`, `results` and `sinks` are read.

    Returns:
        table: which one it comes from. models: how many. value: the mean over models; low, high: Student's 95 % interval over
        models, empty with fewer than LEAST; least, most: the smallest and largest model.
    """
    rows = []
    for (table, group, *key, measure), values in _values(groups, frames).items():
        low, high = (float("nan"), float("nan"))
        if len(values) >= LEAST:
            _, low, high = (float(part) for part in mean_interval(values))
        about: dict[str, Any] = {
            "group": group,
            **dict(zip(KEYS, key, strict=True)),
            "table": table,
            "measure": measure,
        }
        mean = sum(values) / len(values)
        spread: dict[str, Any] = {"low": low, "high": high, "least": min(values), "most": max(values)}
        rows.append({**about, "models": len(values), "value": mean, **spread})
    return pd.DataFrame(rows)


def _values(
    groups: Mapping[str, str], frames: Mapping[str, pd.DataFrame]
) -> dict[tuple[str, ...], list[float]]:
    """Table, group, task, decoding, policy and measure → a value for each model."""
    found: dict[tuple[str, ...], list[float]] = {}
    for table in ("likelihood", "results", "sinks"):
        for row in frames[table].to_dict("records") if table in frames else ():
            if groups.get(row["model"]):
                key = (table, groups[row["model"]], *(str(row[name]) for name in KEYS))
                for measure, value in _measured(row):
                    if value is not None and value == value:
                        found.setdefault((*key, measure), []).append(float(value))
    return found


def _measured(row: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    if "measure" in row:  # a long table
        return [(str(row["measure"]), row["value"])]
    return [(name, row.get(name)) for name in MEASURES]
