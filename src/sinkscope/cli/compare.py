"""`sinkscope compare`: evaluations in one table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from sinkscope.base.errors import InputError
from sinkscope.cli import options
from sinkscope.cli.options import argument, option
from sinkscope.cli.output import check_target, show_result

_RUNS = "folders of evaluations, or folders that hold some"


def compare(
    runs: Annotated[list[Path], argument("FOLDER", _RUNS)],
    csv: Annotated[Path | None, option("FILE", "also write the table to this file")] = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Put evaluations in one table: policies against none and against their controls, with paired statistics."""
    from sinkscope.base.files import write_atomically
    from sinkscope.base.text import csv_text
    from sinkscope.study.comparison import compare_runs, untested
    from sinkscope.study.shown import comparison
    from sinkscope.tasks.evaluation import open_evaluation

    if csv is not None:
        check_target(csv, "--csv", force)
    table = compare_runs([open_evaluation(path) for path in find_runs(runs)])
    if csv is not None:
        write_atomically(csv, csv_text(table))
    lines = [comparison(table), *([] if csv is None else [f"\ntable: {csv}"])]
    show_result(json, {"rows": table, "notes": untested(table)}, lines)


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The folders of runs among these and right below them, each once."""
    runs: dict[Path, Path] = {}
    for path in paths:
        files = [*path.glob("settings.json")] or sorted(path.glob("*/settings.json"))
        if not files:
            raise InputError(
                f"{path} is not the folder of an evaluation, and none lies in it; give --out of `evaluate`"
            )
        for file in files:
            runs.setdefault(file.parent.resolve(), file.parent)
    return list(runs.values())
