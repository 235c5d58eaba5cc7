"""Tables of the English experiment as they are kept in lab/english, from finished studies and from training runs.

    python -m lab.english_tables --out lab/english/weights --runs english-runs study-english-weights study-english-random
    python -m lab.english_tables --out lab/english/shares study-english-shares
    python -m lab.english_tables --out lab/reuse/english study-reuse-english

Each table of the studies becomes one CSV file, without times and without columns that are empty or repeat the study's settings;
several studies are put below each other. passages.csv has the nats per token of every passage, a column for each policy and draw;
claims.csv what each study says of each claim of the paper, for each model and task.
Of the runs: training.json, by name, and the sinks by training step, emergence.csv.gz.
What is printed is for docs/english.md: what each policy costs, by group of models and by reading, with intervals over seeds.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sinkscope.report.study.claims import Judged
from sinkscope.report.study.source import read

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
        for model, judgements in by_model.items():
            for one in judgements:
                about, status = one.about.partition(" (")[0], one.status
                place = {"claim": claim, "model": model, "about": about}
                yield {**place, "status": status, "evidence": one.evidence}


def emergence(runs: Path) -> Iterator[dict[str, Any]]:
    """A row for each run, step, share of masks and measure; "first_received" is the attention on the first key, × uniform.

    Of the last step also "gu_first: layer 0" and so on: the share of a layer's heads, counted row by row, whose mean attention
    on the first key is above 0.3.
    """
    for file in sorted(runs.glob("*/emergence.json")):
        points = json.loads(file.read_text(encoding="utf-8"))["points"]
        for point in points:
            about = {"run": file.parent.name, "step": point["step"], "tokens": point["tokens"]}
            for share, level in point["levels"].items():
                for measure, value in measures(level, last=point is points[-1]).items():
                    yield {**about, "masked share": share, "measure": measure, "value": value}


def measures(level: dict[str, Any], last: bool) -> dict[str, float]:
    """The numbers of one step and share of masks, by name."""
    found = {name: level[name] for name in sorted(level) if isinstance(level[name], (int, float))}
    kinds = {name: kind["share"] for name, kind in level.get("enrichment", {}).items() if kind["base"]}
    layers = level["by_layer"].get("gu_first", []) if last else []
    return (
        found
        | {f"share of sinks: {name}": share for name, share in sorted(kinds.items())}
        | {f"gu_first: layer {layer}": share for layer, share in enumerate(layers)}
    )


def training(runs: Path) -> dict[str, Any]:
    """Name of a run → its training.json; a source that is a folder is known by its last name."""
    found = {}
    for file in sorted(runs.glob("*/training.json")):
        about = json.loads(file.read_text(encoding="utf-8"))
        for place in (about, about["adaptation"]):
            place["source"] = Path(place["source"]).name
        found[file.parent.name] = about
    return found


COSTS = ("nll", "accuracy", "difference", "effect_count", "effect_mass", "hidden_share")
"""Measures of evaluations that are printed; traces have others, and all of them are."""


def costs(replicates: pd.DataFrame) -> list[str]:
    """What each policy costs, and what traces show, as rows of a Markdown table for each task and reading."""
    if replicates.empty:
        return []
    lines = []
    for (task, reading), part in replicates.groupby(["task", "decoding_name"], sort=False):
        groups = list(dict.fromkeys(part["group"]))
        lines += ["", f"{task}, {reading}", f"| | {' | '.join(groups)} |", "|---" * (len(groups) + 1) + "|"]
        evaluated = bool(part["measure"].isin(("nll", "accuracy")).any())
        for name in dict.fromkeys(part["policy" if evaluated else "measure"]):
            mine = part[part["policy" if evaluated else "measure"] == name]
            cells = [_spreads(mine[mine["group"] == group], evaluated) for group in groups]
            lines.append(f"| {f'`{name}`' if evaluated else name} | {' | '.join(cells)} |")
    return lines


def _spreads(rows: pd.DataFrame, named: bool) -> str:
    known = {row["measure"]: _spread(row) for _, row in rows.iterrows()}
    if named:
        return "; ".join(f"{name} {known[name]}" for name in COSTS if name in known)
    return "; ".join(known.values())


def _spread(row: Any) -> str:
    known = f"{row['value']:.3f}"
    return known if pd.isna(row.get("low")) else f"{known} [{row['low']:.3f}, {row['high']:.3f}]"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("studies", nargs="*", type=Path, help="folders of finished studies")
    parser.add_argument("--runs", type=Path, help="the folder of training runs")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    frames = {name: table(given.studies, name) for name in TABLES}
    judged = pd.DataFrame([row for study in given.studies for row in claims(read(study).judged)])
    for name, frame in {**frames, "passages": passages(given.studies), "claims": judged}.items():
        if not frame.empty:
            frame.to_csv(given.out / f"{name}.csv", index=False, float_format="%.6g")
            print(f"{name}: {len(frame)} rows")
    print(*costs(frames["replicates"]), sep="\n")
    if given.runs is not None:
        about = json.dumps(training(given.runs), indent=1, sort_keys=True) + "\n"
        (given.out / "training.json").write_text(about, encoding="utf-8")
        rows = pd.DataFrame(list(emergence(given.runs))).to_csv(index=False)
        (given.out / "emergence.csv.gz").write_bytes(gzip.compress(rows.encode(), 9, mtime=0))
        for name, run in training(given.runs).items():
            print(f"{name}: held out {run['held_out']}, {run['seconds']:.0f} s on {run['hardware']}")


if __name__ == "__main__":
    main()
