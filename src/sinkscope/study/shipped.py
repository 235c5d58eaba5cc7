"""Results that ship with the organisms: full-size tables, made on a GPU, shown beside what was computed here.

`accuracy.json` beside an organism's weights: its accuracy without a policy on many documents. `results.json`: its masking table,
written by `python -m lab.cards results`, or the rows of the study `full`, written by
`python -m sinkscope.study.shipped FOLDER`. Both are labelled with date and machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError
from sinkscope.files import write_atomically
from sinkscope.models.load import ORGANISMS
from sinkscope.tasks.task import digest

SHELF = ORGANISMS
KEPT = (
    "model", "task", "scheme", "decoding_name", "decoding", "dtype", "policy", "control_of", "n", "draws", "accuracy", "low",
    "high", "difference", "difference_low", "difference_high", "difference_p_holm", "effect_count", "effect_count_low",
    "effect_count_high", "effect_count_p_holm", "effect_mass", "effect_mass_low", "effect_mass_high", "effect_mass_p_holm",
    "hidden_share", "sinks_hit", "key_share",
)  # fmt: skip


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


def write(study: Path, where: str, shelf: Path = SHELF) -> list[Path]:
    """Copy the result table of a finished study into the organisms' folders."""
    import pandas as pd

    table = study / "tables" / "results.parquet"
    if not table.is_file():
        raise InputError(f"{study} has no tables/results.parquet; finish the study first")
    frame = pd.read_parquet(table)
    written = []
    for model, table_of_model in frame.groupby("model"):
        folder = shelf / str(model).removeprefix("organism/")
        if not folder.is_dir():
            continue
        kept = table_of_model[[column for column in KEPT if column in table_of_model]]
        data = {
            "date": datetime.now(timezone.utc).date().isoformat(), "where": where,
            "digest": str(table_of_model["weights"].iloc[0]),
            "rows": json.loads(kept.to_json(orient="records", double_precision=6)),
        }  # fmt: skip
        write_atomically(folder / "results.json", json.dumps(data, indent=1) + "\n")
        written.append(folder / "results.json")
    return written


if __name__ == "__main__":
    for path in write(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "unknown machine"):
        print(path)
