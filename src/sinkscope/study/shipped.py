"""Results that ship with the organisms: full-size tables, made on a GPU, shown beside what was computed here.

`accuracy.json` beside an organism's weights: its accuracy without a policy on many documents. `results.json`: its masking
table, from `sinkscope study full` (`lab.ship`). Both are labelled with date and machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.models.load import ORGANISMS
from sinkscope.tasks.task import digest

SHELF = ORGANISMS


@dataclass(frozen=True)
class Shipped:
    """Rows that came with the package. `label` says when and where they were made."""

    label: str
    rows: tuple[dict[str, Any], ...]


def read(models: Sequence[str], digests: dict[str, str], shelf: Path = SHELF) -> list[Shipped]:
    """The results that ship with these models; those of other weights than the ones here are left out."""
    results = []
    for model in models:
        folder = shelf / model.removeprefix("organism/")
        for name, what, rows in (
            ("results.json", "result", whole_rows),
            ("accuracy.json", "accuracy", _rows),
        ):
            if model.startswith("organism/") and (folder / name).is_file():
                data = json.loads((folder / name).read_text(encoding="utf-8"))
                if data["digest"] == digests.get(model):
                    made = f", {data['made_by']}" if "made_by" in data else ""
                    label = f"shipped {what} of {data['date']}, {data['where']}{made}"
                    results.append(Shipped(label, tuple({"model": model, **row} for row in rows(data))))
    return results


def digest_of(models: Sequence[str], shelf: Path = SHELF) -> str:
    """A text that changes when other results ship with the models."""
    files = [
        shelf / model.removeprefix("organism/") / name
        for model in models
        for name in ("accuracy.json", "results.json")
    ]
    return digest([path.read_text(encoding="utf-8") for path in files if path.is_file()])


def whole_rows(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of results.json, each with the values that all rows of its task share (`shared`, written once)."""
    shared = data.get("shared", {})
    return [{**shared.get(row.get("task"), {}), **row} for row in data["rows"]]


def _rows(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The accuracies of accuracy.json as rows."""
    return [
        {
            "task": task, "policy": "none", "n": result["n"], "accuracy": result["accuracy"], "low": result["interval"][0],
            "high": result["interval"][1], "decoding": json.dumps(result["decoding"]),
        }
        for task, result in data["tasks"].items()
        if {"n", "accuracy", "interval"} <= result.keys()  # of some tasks only the loss in training is known
    ]  # fmt: skip
