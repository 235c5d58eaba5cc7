"""`sinkscope bench`: what tracing and masking cost on this machine for this model, as ratios of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import sinkscope as ss
from sinkscope.base.checks import whole
from sinkscope.base.errors import InputError
from sinkscope.cli import options
from sinkscope.cli.inputs import numbers
from sinkscope.cli.options import option
from sinkscope.cli.output import show_result, table

if TYPE_CHECKING:
    from sinkscope.generation.timing import Timing

STEPS, SHORTEST = 16, 64
RATIOS = (("traced", "untraced"), ("masked", "traced"))
TURNS = 3
"""Repetitions of every measurement on a CPU."""
Grid = tuple[tuple[int, ...], ...]
"""Rows, and tokens in a row (answer included), of every case."""


def bench(
    source: options.Source,
    grid: Annotated[str, option("NxN,…", "batch and length of each case")] = "1x128,8x128",
    steps: Annotated[int, option("N", "steps of each measurement")] = STEPS,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    family: options.Family = None,
    mask_token_id: options.MaskId = None,
    json: options.Json = False,
) -> None:
    """Measure what tracing and masking cost on this machine for this model, as ratios of one run."""
    from sinkscope.generation.timing import MASKED, about, decoding_for, random_tokens, timings

    sizes = parse_grid(grid)
    whole("--steps", steps, 2)
    model = ss.load(source, device, dtype, family=family, mask_token_id=mask_token_id)
    cases: list[dict[str, Any]] = []
    for batch, length in sizes:
        decoding = decoding_for(model, length, steps)
        prompt = random_tokens(model, batch, length - decoding.new_tokens)
        # A CPU's measurements are repeated: other processes slow some of them.
        each = timings(model, prompt, decoding, 1 if model.device.type == "cuda" else TURNS)
        ratios = {f"{one} / {other}": ratio(each[one], each[other]) for one, other in RATIOS}
        cases.append({"batch": batch, "length": length, **each, **ratios})
    what = about(model)
    title = f"{source} in {what['dtype']} on {what['device']}: medians of steps; masked: {MASKED}"
    rows = [(f"{case['batch']} × {case['length']}", *map(cell, list(case.values())[2:])) for case in cases]
    shown = table(("batch × length", *list(cases[0])[2:]), rows)
    show_result(json, {"model": source, **what, "policy": MASKED, "cases": cases}, [title, shown])


def parse_grid(text: str) -> Grid:
    """Batch and length pairs from text.

    >>> parse_grid("1x384, 8x512")
    ((1, 384), (8, 512))
    """
    cases = numbers(text, "--grid", "batch x length pairs such as 1x384,8x512", r"\d+[x×]\d+")
    for batch, length in cases:
        if batch < 1 or length <= SHORTEST:
            raise InputError(f"--grid has {batch}x{length}; give a batch of 1 or more and a length above {SHORTEST}")
    return tuple(cases)


def ratio(first: Timing | None, second: Timing | None) -> float | None:
    """Of two times of a step."""
    return None if first is None or second is None else first.seconds / second.seconds


def cell(value: Timing | float | None) -> str:
    """A time or a ratio as people read it; None: memory ran out."""
    if value is None:
        return "out of memory"
    return f"{value:.2f}×" if isinstance(value, float) else f"{value.seconds * 1e3:.1f} ms"
