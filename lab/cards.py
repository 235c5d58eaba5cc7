"""The organisms' cards, and the measured files that they are written from.

python -m lab.cards profile     # profile.json: what its sinks are like
python -m lab.cards write       # README.md and emergence.svg

results.json, the masking table, comes from `sinkscope study full` (`python -m lab.ship FOLDER MACHINE`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from sinkscope.errors import InputError, nearest, plainly
from sinkscope.models.load import ORGANISMS as WEIGHTS
from sinkscope.organisms.recipe import RECIPES


def main(given: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Cards of the organisms, and the files they are written from."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    about = commands.add_parser("profile", help="record held-out answers on a CPU: profile.json")
    about.add_argument("--prompts", type=int, default=24)
    card = commands.add_parser("write", help="README.md and emergence.svg, from the measured files")
    for one in (about, card):
        one.add_argument("--models", default=",".join(RECIPES), help="names, separated by commas")
        one.add_argument(
            "--root", type=Path, default=WEIGHTS, help="folder that holds NAME/ for every organism"
        )
    options = parser.parse_args(given)
    with plainly():
        _run(options)


def _run(options: argparse.Namespace) -> None:
    for name in options.models.split(","):
        if not (options.root / name / "config.json").is_file():
            raise InputError(f"there is no organism {options.root / name}: {nearest(name, list(RECIPES))}")
        began = time.monotonic()
        if options.command == "profile":
            from lab.profile import write_profile

            print(f"{write_profile(name, options.prompts, options.root)}: {time.monotonic() - began:.0f} s")
        else:
            from lab.card import write_card

            for path in write_card(name, options.root):
                print(path)


if __name__ == "__main__":
    main()
