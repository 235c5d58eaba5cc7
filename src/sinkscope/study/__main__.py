"""`python -m sinkscope.study NAME`: the answers of a study on a machine that has torch and little else.

The answers of evaluations and replays are computed and saved (with --traces also traces and inspections); grades, tables and
report are left to `sinkscope study NAME` with the same options, on any machine that the folder is copied to. Give the
same --dtype there: it is part of every answer's identity. Models that are folders, and answered all, need not be copied.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from sinkscope.errors import plainly
from sinkscope.study import run, spec
from sinkscope.study.facts import present
from sinkscope.study.trained_runs import trained_runs
from sinkscope.text import pairs


class Lines(run.Progress):
    """Progress as plain lines."""

    def __init__(self) -> None:
        self.work, self.tenth = 1.0, -1

    def say(self, text: str) -> None:
        print(text, flush=True)

    def begin(self, work: float, done: float) -> None:
        self.work = work

    def advance(self, done: float, cell: str) -> None:
        if int(10 * done / self.work) > self.tenth:
            self.tenth = int(10 * done / self.work)
            self.say(f"{done / self.work:.0%} done, {cell}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m sinkscope.study",
        description="Compute the answers of a study on a machine that has torch and little else.",
    )
    parser.add_argument("name", help="a built-in study, or a .toml file")
    parser.add_argument("--out", type=Path, help="the study's folder; default: study-NAME")
    parser.add_argument("--model", action="append", default=[], help="in place of the study's; several times")
    parser.add_argument(
        "--runs", type=Path, help="the folder of a training sweep: its finished runs as models"
    )
    parser.add_argument("--samples", type=int, help="documents per cell in place of the study's")
    parser.add_argument("--data", action="append", default=[], help="a task's file, TASK=FILE; several times")
    parser.add_argument("--dtype", help="in place of the study's; the same on every machine")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--shard", type=int, default=256, help="answers in a unit of work")
    parser.add_argument("--on", default="here", help="here, local, ray or slurm")
    parser.add_argument("--workers", type=int, help="at a time, on local; default: one for each GPU")
    parser.add_argument(
        "--traces", action="store_true", help="traces too, which need pandas, xarray and zarr"
    )
    given = parser.parse_args()
    with plainly():
        data = pairs(given.data, "--data")
        runs = {} if given.runs is None else trained_runs(given.runs)
        study = spec.changed(given.name, given.model, None, given.samples, given.dtype, data, runs)
        study, left_out = present(study)
        if left_out:
            print(left_out, flush=True)
        out = given.out or Path(f"study-{study.name}")
        outcome = run.run_study(
            study, out, given.on, given.device, given.workers, given.shard, progress=Lines(), tables=False,
            traces=given.traces,
        )  # fmt: skip
    print(f"{outcome.computed} answers computed; this does the rest:", shlex.join(the_rest(given, out)))


def the_rest(given: argparse.Namespace, out: Path) -> list[str]:
    """The command that grades, tabulates and draws, with the options that the answers' identities follow from."""
    words = ["sinkscope", "study", given.name, "--out", str(out)]
    for name in ("model", "runs", "samples", "data", "dtype"):
        value = getattr(given, name)
        for one in value if isinstance(value, list) else [] if value is None else [value]:
            words += [f"--{name}", str(one)]
    return words


if __name__ == "__main__":
    main()
