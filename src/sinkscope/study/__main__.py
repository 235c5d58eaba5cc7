"""`python -m sinkscope.study NAME`: the answers of a study on a machine that has torch and little else.

The answers of evaluations are computed and saved; grades, traces, replays, tables and report are left to `sinkscope study NAME`
with the same options, on any machine that the folder is copied to. Give the
same --dtype there: it is part of every answer's identity.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sinkscope.errors import plainly
from sinkscope.study import run, spec
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
    parser.add_argument("--samples", type=int, help="documents per cell in place of the study's")
    parser.add_argument("--data", action="append", default=[], help="a task's file, TASK=FILE; several times")
    parser.add_argument("--dtype", help="in place of the study's; the same on every machine")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--shard", type=int, default=256, help="answers in a unit of work")
    parser.add_argument("--on", default="here", help="here, local, ray or slurm")
    given = parser.parse_args()
    with plainly():
        data = pairs(given.data, "--data")
        study = spec.changed(given.name, given.model, None, given.samples, given.dtype, data)
        out = given.out or Path(f"study-{study.name}")
        outcome = run.run_study(
            study, out, given.on, given.device, shard=given.shard, progress=Lines(), tables=False
        )
    print(f"{outcome.computed} answers computed; `sinkscope study {given.name} --out {out}` does the rest")


if __name__ == "__main__":
    main()
