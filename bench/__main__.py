"""`python -m bench [SHAPE]`: measures speed on this machine, prints the table, and keeps it with `--out`.

SHAPE is the name of a network with random weights (shapes.toml) or a checkpoint: steps untraced, traced and masked beside the
official style and eager maps. `job` is a whole cell of a study, `reuse` steps under reuse rules. What enters a ratio is
measured in one process, one after the other, on the same network and prompt.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any

from bench import job, reuse, steps, table
from bench.device import limits
from bench.shapes import model_of
from sinkscope.base.checks import whole
from sinkscope.base.errors import InputError, SinkscopeError
from sinkscope.cli.bench import STEPS, TURNS, parse_grid
from sinkscope.decoding.llada import LladaDecoding
from sinkscope.generation.timing import ANSWER, BLOCK, MASKED, about
from sinkscope.models.load import resolve_device


def run(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measures every case, and keeps the result so far after each, so that nothing is lost when a run is stopped.

    Returns:
        JSON data: what was measured, on what, when; `cases` hold what `steps`, `job` and `reuse` say.
    """
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("shape", nargs="?", help="default: llada-8b on a GPU, else llada-small")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--grid", help="such as 1x384,8x512")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--alone", action="store_true", help="leave out the official style and eager maps")
    parser.add_argument("--out", type=Path, help="a JSON file to keep the result in")
    given = parser.parse_args(arguments)
    if given.out is not None and not given.out.parent.is_dir():
        raise InputError(f"there is no folder {given.out.parent} to write into; make it first")
    whole("--steps", given.steps, 2)
    grid = None if given.grid is None else parse_grid(given.grid)
    usual = "llada-8b" if resolve_device(given.device).type == "cuda" else "llada-small"
    shape = given.shape or usual
    model = model_of(usual if shape in ("job", "reuse") else shape, given.device, given.dtype)
    best = limits(model.device, model.dtype)
    if shape == "job":
        cases = job.cases(model, LladaDecoding(length=ANSWER, steps=given.steps, block=BLOCK))
    elif shape == "reuse":
        cases = reuse.cases(model, grid, ANSWER, BLOCK, given.steps)
    else:
        cases = steps.cases(model, grid, given.steps, not given.alone, best)
    turns = 1 if model.device.type == "cuda" else TURNS
    result: dict[str, Any] = {
        "shape": shape, **about(model),
        "settings": {
            "steps": given.steps, "answer": ANSWER, "block": BLOCK, "capture": "heads", "policy": MASKED, "turns": turns,
        },
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(), **vars(best), "cases": [],
    }  # fmt: skip
    for case in cases:
        result["cases"].append(case)
        print(table.line(result), flush=True)
        if given.out is not None:
            given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"\n{table.text(result)}")
    return result


if __name__ == "__main__":
    try:
        run()
    except SinkscopeError as error:
        sys.exit(f"error: {error}")
