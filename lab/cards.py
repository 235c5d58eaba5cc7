"""The organisms' cards, and the measured files that they are written from.

    python -m lab.cards accuracy    # accuracy.json: 500 held-out answers per task through the official loops, graded
    python -m lab.cards profile     # profile.json: what its sinks are like, from answers on a CPU
    python -m lab.cards write       # README.md and emergence.svg

The masking table, lab/full/results.csv, comes from `sinkscope study full`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sinkscope.base.errors import InputError, SinkscopeError, nearest
from sinkscope.models.load import ORGANISMS as WEIGHTS
from sinkscope_train.recipe import RECIPES


def accuracy(folder: Path, count: int, batch: int = 128) -> dict[str, Any]:
    """accuracy.json as data: task → n, right, accuracy and 95 % Wilson interval, with when and where."""
    from lab.profile import about
    from sinkscope.models.load import load
    from sinkscope.statistics import wilson
    from sinkscope_train.monitor import held_out_answers, right_answers

    model, tasks = load(folder), {}
    for name, entry in held_out_answers(model, count, batch).items():
        right = right_answers(name, model.family, entry["answers"])
        tasks[name] = {
            "n": len(right), "right": sum(right), "accuracy": round(sum(right) / len(right), 4),
            "interval": [round(bound, 4) for bound in wilson(sum(right), len(right))], "decoding": entry["decoding"],
        }  # fmt: skip
    return {**about(model), "batch": batch, "tasks": tasks}


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("accuracy", "profile", "write"))
    parser.add_argument("--prompts", type=int, help="questions; default: 24 for a profile, 500 of each task")
    parser.add_argument("--models", default=",".join(RECIPES), help="names, separated by commas")
    parser.add_argument("--root", type=Path, default=WEIGHTS, help="folder that holds NAME/ for every organism")
    given = parser.parse_args(words)
    try:
        for name in given.models.split(","):
            if not (given.root / name / "config.json").is_file():
                raise InputError(f"there is no organism {given.root / name}: {nearest(name, list(RECIPES))}")
            if given.prompts is not None and given.prompts < 2:
                raise InputError(f"prompts is {given.prompts}: intervals need at least 2, and about 10 to be trusted")
            began = time.monotonic()
            for path in _make(given.command, given.root / name, given.prompts):
                print(f"{path}: {time.monotonic() - began:.0f} s")
    except SinkscopeError as error:
        sys.exit(f"error: {error}")


def _make(command: str, folder: Path, prompts: int | None) -> list[Path]:
    from sinkscope_train.layout import write_json

    if command == "write":
        from lab.card import write_card

        return write_card(folder)
    path = folder / f"{command}.json"
    if command == "profile":
        from lab.profile import profile

        write_json(path, profile(folder, prompts or 24), compact=True)
    else:
        write_json(path, accuracy(folder, prompts or 500))
    return [path]


if __name__ == "__main__":
    main()
