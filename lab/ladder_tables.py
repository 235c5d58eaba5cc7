"""Tables, curves and pictures of docs/training.md, from a finished study of a sweep and from its runs.

    python -m lab.ladder_tables study runs/half-hour --out lab/ladder --pictures docs/images

Of the study, or of several over the same runs, each with its own tasks (the one with traces last): the tables whose names begin
with `ladder`. Of the runs: training.json by name, with the command that repeats each, and the sinks by training step,
emergence.csv.gz.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from lab.study_tables import table, write
from sinkscope.statistics import mean_interval
from sinkscope_train.figures import plot_ladder

TABLES = (
    "ladder", "ladder_runs", "ladder_sinks", "ladder_profiles", "ladder_interventions", "ladder_trends", "ladder_hits",
)  # fmt: skip
KEPT = ("recipe", "tokens", "parameters", "loss", "seconds", "hardware", "torch", "python")


def once(frame: pd.DataFrame) -> pd.DataFrame:
    """Without rows that a later study has too: what is said of the runs themselves, with more of it where there are traces."""
    about = [column for column in frame if column != "emerged" and not pd.api.types.is_float_dtype(frame[column])]
    return frame.drop_duplicates(about, keep="last") if about else frame


def between_decodings(runs: pd.DataFrame) -> pd.DataFrame:
    """What a mask costs the texts of a run that is read in its own order, minus what it costs in one forward pass: over seeds."""
    rows = []
    texts = runs[runs["task"] == "text"]
    keys = ["objective", "intervention", "policy"]
    for key, group in texts.fillna({"intervention": ""}).groupby(keys, sort=False):
        for damage in ("damage", "beyond_mass"):
            each = group.pivot(index="seed", columns="decoding_name", values=damage)
            both = {"order", "half"} <= set(each)
            pairs: list[float] = (each["order"] - each["half"]).dropna().tolist() if both else []
            if len(pairs) > 2:
                value, low, high = mean_interval(pairs)
                differences = {"difference": value, "difference_low": low, "difference_high": high}
                rows.append({**dict(zip(keys, key, strict=True)), "damage": damage, **differences})
    return pd.DataFrame(rows)


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, nargs="+", help="the folder of a finished study")
    parser.add_argument("runs", type=Path, help="the folder of the training runs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--battery", type=Path, help="the folder of a finished study battery, for skill_losses.csv")
    parser.add_argument("--pictures", type=Path, help="for ladder.png")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    frames = {name: once(table(given.study, name)) for name in TABLES}
    frames["decodings"] = between_decodings(frames["ladder_runs"])
    for name, frame in ((name, frame) for name, frame in frames.items() if len(frame)):
        write(frame, given.out / f"{name}.csv{'.gz' if name == 'ladder_runs' else ''}", "%.5g")
    if given.battery is not None:
        write(table([given.battery], "skill_losses"), given.out / "skill_losses.csv", "%.5g")
    about = json.dumps(training(given.runs), indent=1, sort_keys=True) + "\n"
    (given.out / "training.json").write_text(about, encoding="utf-8")
    write(pd.DataFrame(list(emergence(given.runs))), given.out / "emergence.csv.gz", "%.4g")
    if given.pictures is not None:
        damage, sinks = frames["ladder"], frames["ladder_sinks"]
        plain = [frame[frame["intervention"].fillna("") == ""] for frame in (damage, sinks)]
        # Of accuracies the page has a table: masked models learned too little to lose much of them.
        picture = plot_ladder(plain[0][plain[0]["task"] == "text"], plain[1])
        picture.figure.savefig(given.pictures / f"{picture.name}.png", dpi=150)


if __name__ == "__main__":
    main()
