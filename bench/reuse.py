"""Steps under reuse rules beside the exact step, and the work that each rule saves.

LLaDA's loop decides one token per step, in blocks of 32. Every rule runs through whole blocks in the middle of an answer, so
that columns behind the block are as many as they are on average; its time is the mean of all steps of these blocks, with the full
forwards, and with what it captures anew in each of them. A block before them is not counted: kernels are compiled there. All
rules and the exact loop stay in memory and take turns, block by block.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sinkscope.base.errors import InputError
from sinkscope.cli.bench import Grid
from sinkscope.decoding.groups import Plan
from sinkscope.decoding.llada import LladaDecoding
from sinkscope.generation.timing import SKIPPED, random_tokens, synchronize
from sinkscope.models.model import Model
from sinkscope.models.prompts import encode
from sinkscope.reuse.rule import Reuse
from sinkscope.reuse.text import parse_reuse
from sinkscope.reuse.wrapper import Acting

RULES = (
    "prefix:block", "prefix:block,fresh=rest", "prefix:8", "sparse:0.5,by=received", "sparse:0.25,by=received",
    "sparse:0.25,by=sinks", "sparse:0.25,by=random", "drift:0.9",
)  # fmt: skip
GRIDS: dict[bool, Grid] = {True: ((1, 1280), (8, 1280)), False: ((1, 256), (8, 256))}
"""Rows, and tokens in a row (answer included), on a GPU and elsewhere."""
TURNS = 2
"""Blocks of each rule that are timed; an answer has one before them, and one behind them."""


def cases(model: Model, grid: Grid | None, answer: int, block: int, steps: int) -> Iterator[dict[str, Any]]:
    """Measures every rule at every batch and length.

    Args:
        answer: new tokens, or at most half of the length. steps: of the exact loop, that are timed.

    Yields:
        Seconds of a step (mean over whole blocks), of the exact step, of full and partial steps (medians), numbers of steps, and
        the share of multiply-adds that was saved in these blocks; seconds are None where memory ran out.
    """
    for batch, length in grid or GRIDS[model.device.type == "cuda"]:
        new = min(answer, length // 2 // block * block)
        if new < 2 * TURNS * block:
            raise InputError(f"{batch}x{length}: {4 * TURNS * block} tokens are needed, half of them the answer")
        try:
            measured = _measure(model, batch, length, new, block, steps)
        except torch.OutOfMemoryError:
            measured = [{"rule": text, "seconds": None} for text in RULES]
        torch.cuda.empty_cache()
        yield from ({"batch": batch, "length": length, **case} for case in measured)


def _measure(model: Model, batch: int, length: int, answer: int, block: int, steps: int) -> list[dict[str, Any]]:
    before = (answer // block // 2 - TURNS) * block  # tokens of the blocks that are passed over
    prompt = random_tokens(model, batch, length - answer + before)
    decoding = LladaDecoding(length=answer - before, block=block)
    exact = _Loop(model, prompt, decoding, None)
    loops = [_Loop(model, prompt, decoding, parse_reuse(text)) for text in RULES]
    try:
        exact.advance(SKIPPED)
        for loop in loops:
            loop.advance(block)
        for loop in (exact, *loops):
            loop.forget()
        for _ in range(TURNS):
            exact.advance(max(1, min(steps, block) // TURNS))
            for loop in loops:
                loop.advance(block)
        each = {"exact_seconds": statistics.median(exact.full), "exact_steps": len(exact.full)}
        return [{"rule": text, **each, **loop.result()} for text, loop in zip(RULES, loops, strict=True)]
    finally:
        for loop in (exact, *loops):
            loop.group.engine.release()


class _Loop:
    """A generation under one rule, that advances when it is told to.

    Attributes:
        full, partial: seconds of the steps so far, by what their forward was.
    """

    def __init__(self, model: Model, prompt: Tensor, decoding: LladaDecoding, rule: Reuse | None) -> None:
        plan = Plan(model=model, batch=encode(model, prompt, None), decoding=decoding)
        (rows,) = plan.groups()
        self.device = model.device
        self.rule = None if rule is None else Acting(rule)
        self.group = plan.start(rows, wraps=() if self.rule is None else [self.rule.wrap])
        self.forget()

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
        self.full: list[float] = []
        self.partial: list[float] = []
        self._before = self._work()

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
        work = None if self.rule is None or not self.rule.engines else self.rule.engines[0].work
        return (0.0, 0.0) if work is None else (float(work.done.sum()), float(work.exact.sum()))


def _median(times: list[float]) -> float | None:
    return statistics.median(times) if times else None
