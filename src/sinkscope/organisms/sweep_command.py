"""`sinkscope train sweep`: the plan of a sweep, or the sweep itself, as a person sees it.

    python -m sinkscope.organisms.sweep_command FILE --out FOLDER

is the same command without typer, for machines that have torch and little else.
"""

from __future__ import annotations

import argparse
import signal
from functools import partial
from pathlib import Path

from sinkscope.errors import SinkscopeError, plainly
from sinkscope.organisms.command import TABLE
from sinkscope.organisms.sweep import plan, read_sweep, run_sweep
from sinkscope.text import aligned


def sweep_command(
    file: Path, out: Path, device: str = "auto", at_once: int = 1, planned: bool = False
) -> None:
    """Says what a sweep costs, or runs what is left of it."""
    sweep = read_sweep(file)
    if planned:
        rows = plan(sweep)
        table = [["run", "parameters", "tokens", "H200 minutes"]]
        table += [[row.name, f"{row.parameters:,}", f"{row.tokens:,}", f"{row.minutes:.1f}"] for row in rows]
        total = sum(row.minutes for row in rows)
        table.append([f"{len(rows)} runs", "", f"{sum(row.tokens for row in rows):,}", f"{total:.0f}"])
        print(*aligned(table), sep="\n")
        print(
            "minutes of an H200 that trains two runs at a time, from a line through two sizes that were measured (1m and 6m); "
            "start-up, checks and the study come on top. Nothing was trained: leave out --plan"
        )
        return
    # A scheduler's SIGTERM ends the runs with the sweep, and so does a Ctrl-C where a shell had it ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    # Each line at once, also where the output is a file that someone watches.
    outcome = run_sweep(sweep, out, device, at_once, partial(print, flush=True))
    if outcome.failed:
        raise SinkscopeError(
            f"{len(outcome.failed)} of {len(sweep.runs)} runs failed, the first: "
            + "; ".join(f"{name}: {why}" for name, why in list(outcome.failed.items())[:1])
            + f". See output.txt in their folders under {out}; the same command tries them again"
        )
    print(f"all {len(sweep.runs)} runs are finished; read them with: sinkscope study ladder --runs {out}")


def main() -> None:
    """The command line."""
    help_of = {name: told[2] for name, told in TABLE["sweep"].items() if isinstance(told, list)}
    parser = argparse.ArgumentParser(
        prog="python -m sinkscope.organisms.sweep_command", description="Train many models from one file."
    )
    parser.add_argument("file", type=Path, help=help_of["file"])
    parser.add_argument("--out", type=Path, required=True, help=help_of["out"])
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda")
    parser.add_argument("--at-once", type=int, default=1, help=help_of["at_once"])
    parser.add_argument("--plan", dest="planned", action="store_true", help=help_of["plan"])
    with plainly():
        sweep_command(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
