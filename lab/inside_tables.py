"""What sinks hold: tables of finished studies (`inside`, lab/studies/inside-english.toml), without what repeats in every row.

python -m lab.inside_tables STUDY lab/inside    # holdings.csv and inspection.csv.gz; of the study of English english-….csv
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from lab.english_tables import write

DROPPED = (
    "family", "dtype", "weights", "task_version", "scheme", "decoding_name", "decoding", "policy", "seeds", "cell",
)  # fmt: skip
"""Columns that are the same in every row, or in every row of a model: the study's manifest has them."""


def tables(study: Path, out: Path) -> list[Path]:
    """Writes both tables with four significant digits."""
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for name, ending in (("holdings", "csv"), ("inspection", "csv.gz")):
        frame = pd.read_parquet(study / "tables" / f"{name}.parquet").drop(columns=list(DROPPED))
        english = set(frame["model"]) <= {"smollm2", "smollm2-twin"}
        made.append(out / f"{'english-' if english else ''}{name}.{ending}")
        write(frame, made[-1], "%.4g")
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    print(*tables(given.study, given.out), sep="\n")
