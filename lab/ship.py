"""`python -m lab.ship FOLDER MACHINE`: the result table of a finished study, copied into the organisms' folders."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from pathlib import Path

from sinkscope.errors import InputError, plainly
from sinkscope.files import write_atomically
from sinkscope.models.load import ORGANISMS

KEPT = (
    "model", "task", "scheme", "decoding_name", "decoding", "dtype", "policy", "control_of", "n", "draws", "accuracy", "low",
    "high", "difference", "difference_low", "difference_high", "difference_p_holm", "effect_count", "effect_count_low",
    "effect_count_high", "effect_count_p_holm", "effect_mass", "effect_mass_low", "effect_mass_high", "effect_mass_p_holm",
    "hidden_share", "sinks_hit", "key_share",
)  # fmt: skip


def ship(study: Path, where: str, shelf: Path = ORGANISMS) -> list[Path]:
    """Write results.json for each organism of a finished study; `where`: the machine that it ran on."""
    import pandas as pd

    table = study / "tables" / "results.parquet"
    if not table.is_file():
        raise InputError(f"{study} has no tables/results.parquet; finish the study first")
    written = []
    for model, rows in pd.read_parquet(table).groupby("model"):
        folder = shelf / str(model).removeprefix("organism/")
        if not folder.is_dir():
            continue
        kept = rows[[column for column in KEPT if column in rows]]
        data = {
            "date": datetime.now(timezone.utc).date().isoformat(), "where": where,
            "digest": str(rows["weights"].iloc[0]),
            "rows": json.loads(kept.to_json(orient="records", double_precision=6)),
        }  # fmt: skip
        write_atomically(folder / "results.json", json.dumps(data, indent=1) + "\n")
        written.append(folder / "results.json")
    return written


if __name__ == "__main__":
    with plainly():
        for path in ship(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "unknown machine"):
            print(path)
