"""`sinkscope bench`: measures speed on this machine and prints the table; `--out` keeps it as JSON."""

from __future__ import annotations

import re
import sys
from functools import partial
from json import dumps
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError


def bench_command(
    shape: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    grid: str | None = None,
    steps: int | None = None,
    alone: bool = False,
    out: Path | None = None,
    *,
    json: bool = False,
) -> None:
    """Runs the benchmark.

    Args:
        shape: llada-8b, dream-7b, llama-8b, llada2-mini, sdar-8b, llada-small, llama-small (random weights), a checkpoint,
            job (a whole cell of a study) or reuse (steps under reuse rules); None: llada-8b on a GPU, else llada-small.
        grid: "1x384,8x512": batch and length of every case; None: the device's own.
        alone: without the official style and eager maps.
        out: a JSON file to keep the result in.
        json: print the result as JSON, and nothing else on stdout.
    """
    from sinkscope.bench import measure, table
    from sinkscope.models.load import resolve_device

    if out is not None and not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent} to write {out.name} into; make it first")
    cases = None if grid is None else parse_grid(grid)
    steps = measure.STEPS if steps is None else steps
    if steps < 2:
        raise InputError(f"steps is {steps}; at least 2 are needed to time one")
    if shape is None:
        shape = "llada-8b" if resolve_device(device).type == "cuda" else "llada-small"
    tell = partial(print, flush=True, file=sys.stderr if json else sys.stdout)

    def keep(result: dict[str, Any]) -> None:
        if out is not None:
            out.write_text(dumps(result, indent=1) + "\n", encoding="utf-8")

    result = measure.run(shape, device, dtype, cases, steps, not alone, tell, keep)
    keep(result)
    print(dumps(result, indent=1) if json else f"\n{table.text(result)}")
    if out is not None:
        tell(f"\nkept in {out}")


def parse_grid(text: str) -> tuple[tuple[int, int], ...]:
    """Batch and length pairs from text.

    >>> parse_grid("1x384, 8x512")
    ((1, 384), (8, 512))
    """
    cases = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*[x×]\s*(\d+)\s*", part)
        if match is None:
            raise InputError(f"grid has {part.strip()!r}; give batch x length pairs such as 1x384,8x512")
        cases.append((int(match[1]), int(match[2])))
    return tuple(cases)
