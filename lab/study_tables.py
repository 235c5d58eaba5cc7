"""Tables of finished studies as they are kept in lab/.

    python -m lab.study_tables study-english-weights study-english-random --out lab/english/weights
    python -m lab.study_tables study-inside --out lab/inside --tables holdings inspection --digits 4
    python -m lab.study_tables study-pairs --out lab/pairs --tables pairs calibration claims

Each table of the studies becomes one CSV file, without times and without columns that are empty or repeat the study's settings;
several studies are put below each other. passages.csv.gz has the nats per token of every passage, a column for each policy and
draw; pairs.csv the means of pairs of traces over documents; claims.csv.gz what each study says of each claim of the paper, for
each model and task.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sinkscope.report.study.source import read
from sinkscope.statistics import mean_interval
from sinkscope.verdicts import wording

TABLES = ("likelihood", "results", "replicates", "reuse", "agreement", "sinks", "passages", "claims")
REPEATED = ("cell", "decoding", "scheme", "capture", "settings", "prompt", "output", "fingerprint", "stream")
"""Columns that say for every row what the study file says once, or that only a study's folder needs."""

ELSEWHERE = ("samples", "here", "dtype", "weights", "task_version", "seeds")
"""Columns that tables of traces need not repeat: other tables have them for each model, and samples are a row of it."""

CONSTANT = (*ELSEWHERE, "family", "decoding_name", "policy")
"""And those that are the same in every row, or in every row of a model."""

LEFT_OUT = {
    "sinks": ELSEWHERE, "holdings": CONSTANT, "inspection": CONSTANT, "sensitivity": CONSTANT, "thresholds": CONSTANT,
    "calibration": (*ELSEWHERE, "family"), "pairs": (*ELSEWHERE, "family"),
}  # fmt: skip

TIMES = ("seconds", "seconds_exact", "timed_with", "time_saved", "time_saved_low", "time_saved_high")
"""Of machines that did other work at the same time."""

PACKED = ("passages", "sinks", "inspection", "claims")


def table(studies: Sequence[Path], name: str) -> pd.DataFrame:
    """A table of all studies that have it."""
    files = [path for study in studies if (path := study / "tables" / f"{name}.parquet").is_file()]
    frames = [frame for frame in map(pd.read_parquet, files) if len(frame)]
    if not frames:
        return pd.DataFrame()
    whole = pd.concat(frames, ignore_index=True).dropna(axis="columns", how="all")
    return whole.drop(columns=[*REPEATED, *TIMES, *LEFT_OUT.get(name, ())], errors="ignore")


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


def pairs(studies: Sequence[Path]) -> pd.DataFrame:
    """Changes between traces without and with a policy: means over documents."""
    keys = ["model", "decoding_name", "policy", "measure", "unit"]
    rows = [
        {**dict(zip(keys, key, strict=True)), "n": values.count(), **mean_interval(values.to_numpy())._asdict()}
        for key, values in table(studies, "pairs").groupby(keys, sort=False)["value"]
    ]
    return pd.DataFrame(rows)


def claims(studies: Sequence[Path]) -> pd.DataFrame:
    """A row for each claim, model that it is about, and task or set of traces that decides on it or does not."""
    judged = [told for study in studies for told in read(study).judged.items()]
    rows = [
        {
            "claim": claim, "model": model, "about": verdict.about, "status": verdict.status.value,
            "evidence": wording.evidence(verdict),
        }
        for claim, by_model in judged
        for model, verdicts in by_model.items()
        for verdict in verdicts
    ]  # fmt: skip
    return pd.DataFrame(rows)


MADE: dict[str, Callable[[Sequence[Path]], pd.DataFrame]] = {"passages": passages, "pairs": pairs, "claims": claims}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", type=Path, help="folders of finished studies")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tables", nargs="+", default=TABLES, help=f"names; default: {', '.join(TABLES)}")
    parser.add_argument("--digits", type=int, default=6, help="that count; default: 6")
    parser.add_argument("--prefix", default="", help="before the names of the files")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.tables:
        frame = MADE[name](given.studies) if name in MADE else table(given.studies, name)
        if not frame.empty:
            file = f"{given.prefix}{name}.csv{'.gz' if name in PACKED else ''}"
            write(frame, given.out / file, f"%.{given.digits}g")
            print(f"{name}: {len(frame)} rows")


if __name__ == "__main__":
    main()
