"""`sinkscope bench reuse`: steps under reuse rules beside the exact step, and the work that each rule saves.

LLaDA's loop decides one token per step, in blocks of 32. Every rule runs through whole blocks in the middle of an answer, so
that columns behind the block are as many as they are on average; its time is the mean of all steps of these blocks, with the full
forwards, and with what it captures anew in each of them. A block before them is not counted: kernels are compiled there. All
rules and the exact loop stay in memory and take turns, block by block.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sinkscope.bench.clock import SKIPPED, synchronize
from sinkscope.bench.shapes import random_tokens
from sinkscope.decoding import LladaDecoding
from sinkscope.decoding.groups import grouped, start_group
from sinkscope.errors import InputError
from sinkscope.models.model import Model
from sinkscope.models.prompts import encode
from sinkscope.reuse.rule import Reuse
from sinkscope.reuse.text import parse_reuse

RULES = (
    "prefix:block", "prefix:block,fresh=rest", "prefix:8", "sparse:0.5,by=received", "sparse:0.25,by=received",
    "sparse:0.25,by=sinks", "sparse:0.25,by=random", "drift:0.9",
)  # fmt: skip
GRIDS = {True: ((1, 1280), (8, 1280)), False: ((1, 256), (8, 256))}
"""Rows, and tokens in a row (answer included), on a GPU and elsewhere."""
TURNS = 2
"""Blocks of each rule that are timed."""
LEAST = 2 * TURNS
"""Blocks of the shortest answer: one before those that are timed, and one behind them."""


def cases(
    model: Model,
    grid: Sequence[tuple[int, int]],
    answer: int,
    block: int,
    steps: int,
    say: Callable[[str], None],
    keep: Callable[[list[dict[str, Any]]], None],
) -> list[dict[str, Any]]:
    """Measures every rule at every batch and length.

    Args:
        answer: new tokens, or at most half of the length. steps: of the exact loop, that are timed.
        keep: called with all cases so far after each batch and length.

    Returns:
        One dictionary per batch, length and rule: seconds of a step (mean over whole blocks), of the exact step, of full and
        of partial steps (medians), numbers of steps, and the share of multiply-adds that was saved in these blocks;
        seconds are None where memory ran out.
    """
    measured: list[dict[str, Any]] = []
    for batch, length in grid:
        new = min(answer, length // 2 // block * block)
        if batch < 1 or new < LEAST * block:
            raise InputError(
                f"{batch}x{length}: a batch of at least 1 and {2 * LEAST * block} tokens are needed, half of them the answer"
            )
        try:
            found = _measure(model, batch, length, new, block, steps)
        except torch.OutOfMemoryError:
            found = [{"rule": text, "seconds": None} for text in RULES]
        torch.cuda.empty_cache()
        for case in found:
            measured.append({"batch": batch, "length": length, **case})
            if case["seconds"] is None:
                say(f"{batch} × {length}, {case['rule']}: out of memory")
            else:
                each, exact = (case[name] * 1e3 for name in ("seconds", "exact_seconds"))
                say(f"{batch} × {length}, {case['rule']}: {each:.1f} ms a step, exact {exact:.1f} ms")
        keep(measured)
    return measured


def _measure(
    model: Model, batch: int, length: int, answer: int, block: int, steps: int
) -> list[dict[str, Any]]:
    before = (answer // block // 2 - TURNS) * block  # tokens of the blocks that are passed over
    prompt = random_tokens(model, batch, length - answer + before)
    decoding = LladaDecoding(length=answer - before, block=block)
    exact = _Loop(model, prompt, decoding, None)
    loops = [_Loop(model, prompt, decoding, parse_reuse(text)) for text in RULES]
    try:
        exact.advance(SKIPPED)
        for loop in loops:
            loop.advance(block)
        for one in (exact, *loops):
            one.forget()
        for _ in range(TURNS):
            exact.advance(max(1, min(steps, block) // TURNS))
            for loop in loops:
                loop.advance(block)
        each = statistics.median(exact.full)
        return [
            {"rule": text, "exact_seconds": each, "exact_steps": len(exact.full), **loop.result()}
            for text, loop in zip(RULES, loops, strict=True)
        ]
    finally:
        for one in (exact, *loops):
            one.group.engine.release()


class _Loop:
    """A generation under one rule, that advances when it is told to.

    Attributes:
        full, partial: seconds of the steps so far, by what their forward was.
    """

    def __init__(self, model: Model, prompt: Tensor, decoding: LladaDecoding, rule: Reuse | None) -> None:
        batch = encode(model, prompt, None)
        (rows,) = grouped(prompt.shape[1], batch.lengths, per_row=False)
        self.device = model.device
        self.group = start_group(model, batch, rows, decoding, None, None, None, None, reuse=rule)
        self.full: list[float] = []
        self.partial: list[float] = []
        self._before = (0.0, 0.0)

    def advance(self, steps: int) -> None:
        """Run and time some steps."""
        for _ in range(steps):
            synchronize(self.device)
            begun = time.perf_counter()
            step = self.group.advance()
            synchronize(self.device)
            took = time.perf_counter() - begun
            if step is None:
                raise RuntimeError("the loop has ended before all steps were timed")
            whole = step.fresh is None or bool(step.fresh.all())
            (self.full if whole else self.partial).append(took)

    def forget(self) -> None:
        """Count neither time nor work of the steps so far."""
        self.full, self.partial, self._before = [], [], self._work()

    def result(self) -> dict[str, Any]:
        """What the steps took, and the share of the work that they saved."""
        done, whole = (now - then for now, then in zip(self._work(), self._before, strict=True))
        times = [*self.full, *self.partial]
        return {
            "seconds": statistics.fmean(times), "steps": len(times), "full_steps": len(self.full),
            "full_seconds": _median(self.full), "partial_seconds": _median(self.partial),
            "work_saved": 1 - done / whole,
        }  # fmt: skip

    def _work(self) -> tuple[float, float]:
        """Multiply-adds of all rows, done and as the exact loop would have done them."""
        reuse = self.group.engine.reuse
        return (0.0, 0.0) if reuse is None else (float(reuse.work.done.sum()), float(reuse.work.exact.sum()))


def _median(times: list[float]) -> float | None:
    return statistics.median(times) if times else None
