"""`sinkscope compare`: evaluations in one table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sinkscope.errors import InputError
from sinkscope.study.comparison import compare_runs
from sinkscope.tasks.evaluate import open_evaluation


def compare(paths: Iterable[Path], csv: Path | None = None) -> None:
    """Prints the table of some runs; a folder that is no run stands for all runs right below it."""
    table = compare_runs([open_evaluation(path) for path in find_runs(paths)])
    print(table)
    if csv is not None:
        csv.parent.mkdir(parents=True, exist_ok=True)
        table.frame().to_csv(csv, index=False)
        print(f"\ntable: {csv}")


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The folders of runs among these and right below them, each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        inside = [path] if (path / "settings.json").is_file() else sorted(path.glob("*/settings.json"))
        if not inside:
            raise InputError(
                f"{path} is not the folder of an evaluation, and none lies in it; give --out of `evaluate`"
            )
        for one in inside:
            folder = one.parent if one.name == "settings.json" else one
            found.setdefault(folder.resolve(), folder)
    return list(found.values())
