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
        if not model.startswith("organism/") or not folder.is_dir():
            continue
        for name, reader in (("results.json", _results), ("accuracy.json", _accuracy)):
            if (folder / name).is_file():
                data = json.loads((folder / name).read_text(encoding="utf-8"))
                if data.get("digest") in (None, digests.get(model)):
                    results.append(reader(model, folder, data))
    return results


def digest_of(models: Sequence[str], shelf: Path = SHELF) -> str:
    """A text that changes when other results ship with the models."""
    files = [
        shelf / model.removeprefix("organism/") / name
        for model in models
        for name in ("accuracy.json", "results.json")
    ]
    return digest([path.read_text(encoding="utf-8") for path in files if path.is_file()])


def _results(model: str, folder: Path, data: dict[str, Any]) -> Shipped:
    made_by = data.get("made_by", "study full")
    label = f"shipped result of {data.get('date', 'unknown date')}, {data.get('where', 'unknown machine')}, {made_by}"
    return Shipped(label, tuple(whole_rows(data)))


def whole_rows(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of results.json, each with the values that all rows of its task share (`shared`, written once)."""
    shared = data.get("shared", {})
    return [{**shared.get(row.get("task"), {}), **row} for row in data["rows"]]


def _accuracy(model: str, folder: Path, data: dict[str, Any]) -> Shipped:
    when = data.get("date") or _trained(folder)
    rows = [
        {
            "model": model, "task": task, "policy": "none", "n": result["n"], "accuracy": result["accuracy"],
            "low": result["interval"][0], "high": result["interval"][1], "decoding": json.dumps(result.get("decoding")),
        }
        for task, result in data["tasks"].items()
        if {"n", "accuracy", "interval"} <= result.keys()  # of some tasks only the loss in training is known
    ]  # fmt: skip
    return Shipped(f"shipped accuracy of {when}, {data.get('where', 'unknown machine')}", tuple(rows))


def _trained(folder: Path) -> str:
    """The date in training.json, or that it is not known."""
    try:
        data = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "unknown date"
    return str(data.get("date") or data.get("finished") or "unknown date")
