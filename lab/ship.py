"""`python -m lab.ship FOLDER MACHINE`: the result table of a finished study becomes results.json in the organisms' folders."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError, plainly
from sinkscope.files import write_atomically
from sinkscope.models.load import ORGANISMS
from sinkscope.policies import parse_policy
from sinkscope.policies.mask_random import MaskRandom
from sinkscope.study.store import Store

KEPT = (
    "model", "task", "scheme", "decoding_name", "decoding", "dtype", "policy", "control_of", "n", "draws", "accuracy", "low",
    "high", "difference", "difference_low", "difference_high", "difference_p_holm", "effect_count", "effect_count_low",
    "effect_count_high", "effect_count_p_holm", "effect_mass", "effect_mass_low", "effect_mass_high", "effect_mass_p_holm",
    "hidden_share", "sinks_hit", "key_share",
)  # fmt: skip
SHARED = ("model", "scheme", "decoding_name", "decoding", "dtype")
"""Columns that are the same in all rows of a task: written once."""
DIGITS = 4


def ship(study: Path, where: str, shelf: Path = ORGANISMS) -> list[Path]:
    """Write results.json for each organism of a finished study; `where`: the machine that it ran on."""
    import pandas as pd

    table = study / "tables" / "results.parquet"
    if not table.is_file():
        raise InputError(f"{study} has no tables/results.parquet; finish the study first")
    call = Store(study).manifest()["calls"][-1]
    written = []
    for model, rows in pd.read_parquet(table).groupby("model", sort=False):
        folder = shelf / str(model).removeprefix("organism/")
        if not folder.is_dir():
            continue
        data = _results([_row(row) for row in rows.to_dict("records")])
        about = {
            "made_by": f"sinkscope study {study_name(study)}", "date": call["when"][:10], "where": where,
            "digest": str(rows["weights"].iloc[0]),
        }  # fmt: skip
        write_atomically(folder / "results.json", lines({**about, **data}))
        written.append(folder / "results.json")
    return written


def study_name(folder: Path) -> str:
    """The name of the study in a folder."""
    study = Store(folder).study()
    return "of an unknown name" if study is None else study.name


def _row(row: dict[Any, Any]) -> dict[str, Any]:
    """A row with what its policy says of itself; numbers that do not apply are left out."""
    rule = parse_policy(row["policy"])
    acting = rule.like if isinstance(rule, MaskRandom) else rule
    kept = {name: row[name] for name in KEPT if name in row} | {
        name: getattr(acting, name, None) for name in ("scope", "effect")
    }
    return {
        name: round(value, DIGITS) if isinstance(value, float) else value
        for name, value in kept.items()
        if value is not None and value == value
    }


def _results(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "documents": max(row["n"] for row in rows),
        "tests": "Holm's correction is over all tests of the study's table",
        "shared": {row["task"]: {name: row[name] for name in SHARED if name in row} for row in rows},
        "rows": [{name: value for name, value in row.items() if name not in SHARED} for row in rows],
    }


def lines(data: dict[str, Any]) -> str:
    """JSON with one line for each row: small, and a change of one row is a change of one line."""
    head = [
        f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in data.items()
        if key != "rows"
    ]
    rows = ",\n".join(
        json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")) for row in data["rows"]
    )
    return "{\n" + ",\n".join(head) + f',\n"rows": [\n{rows}\n]\n}}\n'


if __name__ == "__main__":
    with plainly():
        for path in ship(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "unknown machine"):
            print(path)
