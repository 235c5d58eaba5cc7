"""`sinkscope compare`: evaluations in one table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sinkscope.commands.output import refuse_existing, say, show_json
from sinkscope.errors import InputError
from sinkscope.files import write_atomically
from sinkscope.study.comparison import compare_runs
from sinkscope.tasks.evaluation import open_evaluation
from sinkscope.text import csv_text


def compare(runs: Iterable[Path], csv: Path | None = None, force: bool = False, json: bool = False) -> None:
    """Print the table of some runs. A folder that holds runs, and is none itself, stands for all of them."""
    if csv is not None and not force:
        refuse_existing(csv, "--csv")
    table = compare_runs([open_evaluation(path) for path in find_runs(runs)])
    if csv is not None:
        write_atomically(csv, csv_text(table.frame()))
    if json:
        show_json({"rows": table.frame(), "notes": table.notes})
        return
    say(table)
    if csv is not None:
        say(f"\ntable: {csv}")


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The folders of runs among these and right below them, each once."""
    runs: dict[Path, Path] = {}
    for path in paths:
        settings = path / "settings.json"
        inside = [settings] if settings.is_file() else sorted(path.glob("*/settings.json"))
        if not inside:
            raise InputError(
                f"{path} is not the folder of an evaluation, and none lies in it; give --out of `evaluate`"
            )
        for file in inside:
            runs.setdefault(file.parent.resolve(), file.parent)
    return list(runs.values())
