"""Tables of the English experiment as they are kept in lab/english, from finished studies.

    python -m lab.english_tables --out lab/english/weights study-english-weights study-english-random
    python -m lab.english_tables --out lab/english/shares study-english-shares
    python -m lab.english_tables --out lab/reuse/english study-reuse-english

Each table of the studies becomes one CSV file, without times and without columns that are empty or repeat the study's settings;
several studies are put below each other. passages.csv.gz has the nats per token of every passage, a column for each policy and
draw; claims.csv what each study says of each claim of the paper, for each model and task.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sinkscope.report.study.source import read
from sinkscope.verdicts import wording
from sinkscope.verdicts.questions import Judged

TABLES = ("likelihood", "results", "replicates", "reuse", "agreement", "sinks")
REPEATED = ("cell", "decoding", "scheme", "capture", "settings", "prompt", "output", "fingerprint", "stream")
"""Columns that say for every row what the study file says once, or that only a study's folder needs."""

ELSEWHERE = ("samples", "here", "dtype", "weights", "task_version", "seeds")
"""Columns that the table of traces need not repeat: other tables have them for each model, and samples are a row of it."""

TIMES = ("seconds", "seconds_exact", "timed_with", "time_saved", "time_saved_low", "time_saved_high")
"""Of machines that did other work at the same time."""


def table(studies: Sequence[Path], name: str) -> pd.DataFrame:
    """A table of all studies that have it."""
    files = [path for study in studies if (path := study / "tables" / f"{name}.parquet").is_file()]
    frames = [frame for frame in map(pd.read_parquet, files) if len(frame)]
    if not frames:
        return pd.DataFrame()
    whole = pd.concat(frames, ignore_index=True).dropna(axis="columns", how="all")
    left_out = (*REPEATED, *TIMES, *(ELSEWHERE if name == "sinks" else ()))
    return whole.drop(columns=[column for column in left_out if column in whole])


def write(frame: pd.DataFrame, path: Path, digits: str) -> None:
    """As CSV; compressed if its name says so, the same table always to the same file."""
    packed: Any = {"method": "gzip", "mtime": 0} if path.suffix == ".gz" else None
    frame.to_csv(path, index=False, float_format=digits, compression=packed)


def passages(studies: Sequence[Path]) -> pd.DataFrame:
    """Nats per token: a row for each model, reading and passage, a column for each policy and draw."""
    read = table(studies, "passages")
    if read.empty:
        return read
    rows = [name for name in ("model", "decoding_name", "reuse", "seed", "document") if name in read]
    wide = read.pivot(index=rows, columns="policy", values="nll")
    return wide.rename_axis(columns=None).reset_index()


def claims(judged: Judged) -> Iterator[dict[str, str]]:
    """A row for each claim, model that it is about, and task or set of traces that decides on it or does not."""
    for claim, by_model in judged.items():
        for model, verdicts in by_model.items():
            for verdict in verdicts:
                setting = {"claim": claim, "model": model, "about": verdict.about}
                yield {**setting, "status": verdict.status.value, "evidence": wording.evidence(verdict)}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", type=Path, help="folders of finished studies")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    frames = {name: table(given.studies, name) for name in TABLES}
    judged = pd.DataFrame([row for study in given.studies for row in claims(read(study).judged)])
    for name, frame in {**frames, "passages": passages(given.studies), "claims": judged}.items():
        if not frame.empty:
            write(frame, given.out / f"{name}.csv{'.gz' if name in ('passages', 'sinks') else ''}", "%.6g")
            print(f"{name}: {len(frame)} rows")


if __name__ == "__main__":
    main()
