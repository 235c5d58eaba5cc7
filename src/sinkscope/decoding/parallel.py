"""Parallel unmasking (Fast-dLLM, arXiv 2505.22618): a step decides every mask that the model is sure of, and at least one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sinkscope.base.checks import at_least, share
from sinkscope.base.errors import InputError
from sinkscope.decoding.step import Step

if TYPE_CHECKING:
    from sinkscope.decoding.llada import LladaLoop
else:
    LladaLoop = object


class OwnPace(LladaLoop):
    """Beside LLaDA's loop or one that derives from it: every row goes at its own pace, or all together."""

    def run(self) -> Iterator[Step]:
        """Step by step; a block has at most one step for each of its tokens."""
        size, x = self.options.block, self.x
        block, age = (torch.zeros(len(x), dtype=torch.long, device=x.device) for _ in range(2))
        last = self.options.length // size - 1
        while bool(self.alive.any()):
            start = self.prompt + block.clamp(max=last)[:, None] * size
            end = start + size
            together = bool((end == end[0]).all())
            yield self.step(int(end[0]) if together else end, [1] * len(x))
            age += 1
            left = (self.x == self.engine.mask_id) & (self.columns >= start) & (self.columns < end)
            done = ~left.any(1) | (age >= size)
            done = done if self.per_row else done.all().expand_as(done)
            going, ended = block < last, self.ended(self.x.gather(1, end - 1)[:, 0])
            if ended is not None:
                going = going & ~ended
            self.alive = self.alive & (going | ~done)
            block, age = block + done.long(), age.masked_fill(done, 0)

    def choose(self, confidence: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        """As many as the model is sure of."""
        return confident(confidence, self.options.threshold, self.options.factor)


def check_parallel(threshold: object, factor: object, length: int, steps: int, confidence: str | None = None) -> None:
    """Raise InputError unless the options go together; confidence: why the loop's confidence is no probability, or None."""
    if threshold is None and factor is None:
        return
    if threshold is not None and factor is not None:
        raise InputError("threshold and factor are two rules for the same choice; give one of them")
    if threshold is not None:
        share("threshold", threshold, "; 0.9 is usual")
    else:
        at_least("factor", factor, 0.0)
    if steps != length:
        raise InputError(
            f"with a threshold or factor the model's confidence decides how many steps there are, got steps {steps}; leave it out"
        )
    if confidence is not None:
        raise InputError(f"a threshold or factor needs a probability as confidence, but {confidence}")


def confident(scores: Tensor, threshold: float | None, factor: float | None) -> tuple[Tensor, Tensor]:
    """The positions that are decided together, and ties.

    With a threshold: those whose confidence c reaches it. With a factor f: the n most confident, as long as
    (n + 1)(1 − c) < f holds for the n-th. In both cases the most confident one, also where it does not pass.

    Args:
        scores: Float [B, S], −inf where nothing can be chosen.

    Returns:
        Bool [B, S], and Long [B]: chosen positions with the same confidence as one that was not chosen.
    """
    ordered, order = scores.sort(dim=1, descending=True, stable=True)
    if threshold is not None:
        passes = ordered >= threshold
    else:
        ranks = torch.arange(1, scores.shape[1] + 1, device=scores.device)
        passes = (ranks + 1) * (1 - ordered) < float(factor or 0.0)
    passes[:, 0] = True
    passes = passes.cumprod(1).bool() & (ordered > float("-inf"))
    chosen = torch.zeros_like(passes).scatter(1, order, passes)
    rest = scores.masked_fill(chosen, float("-inf")).amax(-1, keepdim=True)
    return chosen, (chosen & (scores == rest) & (rest > float("-inf"))).sum(-1)
