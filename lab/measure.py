"""Held-out accuracy of a saved organism, loaded and run as any model is: `load`, the official loop, the task's own grading.

Answers and grades are kept apart, because programs are graded in a sandbox that the GPU machine may not have.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sinkscope import checks
from sinkscope.errors import InputError, plainly
from sinkscope.models.load import find, load
from sinkscope.organisms.layout import write_json
from sinkscope.organisms.monitor import held_out_answers, right_answers
from sinkscope.statistics import wilson

KEPT = ("digest", "date", "dtype", "batch")
"""Copied from the answers into accuracy.json."""


def machine(device: Any) -> str:
    """The machine, in words."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'' if threads == 1 else 's'}"


def answers(source: str | Path, count: int, batch: int = 128, device: str = "auto") -> dict[str, Any]:
    """A checkpoint's answers to the first `count` held-out questions of every task it knows, with when and where."""
    model = load(source, device=device)
    return {
        "digest": model.digest,
        "family": model.family,
        "dtype": str(model.dtype).removeprefix("torch."),
        "machine": machine(model.device),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "count": count,
        "batch": batch,
        "tasks": held_out_answers(model, count, batch),
    }


def grade(given: dict[str, Any]) -> dict[str, Any]:
    """Task → n, right, accuracy and 95 % Wilson interval."""
    graded = {}
    for name, entry in given["tasks"].items():
        right = right_answers(name, given["family"], entry["answers"])
        low, high = wilson(sum(right), len(right))
        graded[name] = {
            "n": len(right),
            "right": sum(right),
            "accuracy": round(sum(right) / len(right), 4),
            "interval": [round(low, 4), round(high, 4)],
            "decoding": entry["decoding"],
        }
    return graded


def read_answers(path: Path) -> dict[str, Any]:
    """Answers that `--ungraded` wrote, perhaps on another machine."""
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as JSON ({error}): give a file that --ungraded wrote"
        ) from error
    if not isinstance(made, dict) or not {*KEPT, "machine", "family", "count", "tasks"} <= made.keys():
        raise InputError(f"{path} holds no answers: give a file that --ungraded wrote")
    return made


def write_accuracy(folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Grades answers of these very weights and writes accuracy.json beside them."""
    digest = find(folder).digest
    if given["digest"] != digest:
        raise InputError(
            f"the answers are of weights {given['digest'][:12]}, and those in {folder} are {digest[:12]}: answer again with "
            "these, or name the folder that answered"
        )
    known = {key: given[key] for key in KEPT}
    graded = {**known, "where": given["machine"], "tasks": grade(given)}
    write_json(folder / "accuracy.json", graded)
    return graded


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Held-out accuracy of organisms, through the official loops."
    )
    parser.add_argument("folders", type=Path, nargs="+", help="checkpoint folders")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--ungraded",
        type=Path,
        help="write FOLDER/NAME.answers.json there, to be graded where there is a sandbox",
    )
    parser.add_argument("--answers", type=Path, help="answers made elsewhere; only grade them (one folder)")
    options = parser.parse_args(words)
    if options.answers is not None and len(options.folders) > 1:
        parser.error(f"--answers is one file, and {len(options.folders)} folders were given: name one")
    with plainly():
        checks.whole("count", options.count, 1)
        checks.whole("batch", options.batch, 1)
        for folder in options.folders:
            if not folder.is_dir():
                raise InputError(f"there is no folder {folder}: give a folder with a checkpoint")
        for folder in options.folders:
            _measure(folder, options)


def _measure(folder: Path, options: argparse.Namespace) -> None:
    if options.answers is not None:
        made = read_answers(options.answers)
    else:
        made = answers(folder, options.count, options.batch, options.device)
    if options.ungraded is not None:
        options.ungraded.mkdir(parents=True, exist_ok=True)
        write_json(options.ungraded / f"{folder.resolve().name}.answers.json", made, compact=True)
    else:
        print(json.dumps(write_accuracy(folder, made)["tasks"], indent=1))


if __name__ == "__main__":
    main()
