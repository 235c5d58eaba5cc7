"""Tables, curves and pictures of docs/training.md, from a finished study of a sweep and from its runs.

    python -m lab.ladder_tables study runs/half-hour --out lab/ladder --pictures docs/images

Of the study: its tables whose names begin with `ladder`. Of the runs: training.json by name, with the command that repeats each,
and the sinks by training step, emergence.csv.gz.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from lab.english_tables import table
from sinkscope.report.figures.interventions import plot_interventions
from sinkscope.report.figures.ladder import plot_ladder

TABLES = ("ladder", "ladder_runs", "ladder_sinks", "ladder_profiles", "ladder_interventions", "ladder_trends")
KEPT = ("recipe", "tokens", "parameters", "loss", "seconds", "hardware", "torch", "python")


def training(runs: Path) -> dict[str, Any]:
    """Name of a run → settings, loss, time and the command that repeats it."""
    found = {}
    for file in sorted(runs.glob("*/training.json")):
        about = json.loads(file.read_text(encoding="utf-8"))
        command = (file.parent / "command.txt").read_text(encoding="utf-8").strip()
        found[file.parent.name] = {name: about[name] for name in KEPT if name in about} | {"command": command}
    return found


def emergence(runs: Path) -> Iterator[dict[str, Any]]:
    """A row for each run, step, share of masked targets and measure."""
    for file in sorted(runs.glob("*/emergence.json")):
        for point in json.loads(file.read_text(encoding="utf-8"))["points"]:
            for share, level in point["levels"].items():
                for measure, value in sorted(level.items()):
                    if isinstance(value, (int, float)):
                        yield {
                            "run": file.parent.name, "step": point["step"], "masked share": share,
                            "measure": measure, "value": value,
                        }  # fmt: skip


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, help="the folder of the finished study")
    parser.add_argument("runs", type=Path, help="the folder of the training runs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--battery", type=Path, help="the folder of a finished study battery, for skill_losses.csv"
    )
    parser.add_argument("--pictures", type=Path, help="for ladder.png and interventions.png")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    frames = {name: table([given.study], name) for name in TABLES}
    for name, frame in frames.items():
        frame.to_csv(given.out / f"{name}.csv", index=False, float_format="%.5g")
    if given.battery is not None:
        losses = table([given.battery], "skill_losses")
        losses.to_csv(given.out / "skill_losses.csv", index=False, float_format="%.5g")
    about = json.dumps(training(given.runs), indent=1, sort_keys=True) + "\n"
    (given.out / "training.json").write_text(about, encoding="utf-8")
    curves = pd.DataFrame(list(emergence(given.runs))).to_csv(index=False, float_format="%.4g")
    (given.out / "emergence.csv.gz").write_bytes(gzip.compress(curves.encode(), 9, mtime=0))
    if given.pictures is not None:
        damage, sinks = frames["ladder"], frames["ladder_sinks"]
        plain = [frame[frame["intervention"].fillna("") == ""] for frame in (damage, sinks)]
        # Of accuracies the page has a table: masked models learned too little to lose much of them.
        pictures = (
            plot_ladder(plain[0][plain[0]["task"] == "text"], plain[1]),
            plot_interventions(frames["ladder_interventions"]),
        )
        for picture in pictures:
            picture.figure.savefig(given.pictures / f"{picture.name}.png", dpi=150)


if __name__ == "__main__":
    main()
