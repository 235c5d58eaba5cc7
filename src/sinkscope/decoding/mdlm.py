"""dllm's MDLM sampler, for A2D models: LLaDA's loop with its own schedule, and rows padded on the right.

Blocks are counted from the end of each row's own prompt. How many masks a step decides comes from a float32 schedule, rounded
half to even; steps that would decide nothing are left out. Shorter rows are filled up with the end token, which nothing sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.decoding.base import DECODINGS
from sinkscope.decoding.llada import BlockDecoding, LladaLoop
from sinkscope.decoding.step import Step


class MdlmLoop(LladaLoop):
    """LLaDA's loop with blocks that are counted from the end of each row's own prompt, whose length is Long [B, 1]."""

    options: MdlmDecoding

    def begin(self, *group: Any) -> None:
        super().begin(*group)
        self.given &= self.columns < self.lengths + self.options.length

    def first_state(self, ids: Tensor) -> Tensor:
        """Each prompt followed by its masks, then the end token."""
        length, special = self.options.length, self.model.ids
        filler = special.eos[0] if special.eos else special.pad or 0
        state = torch.nn.functional.pad(ids, (0, length), value=filler)
        lengths = self.engine.prompts.lengths or [ids.shape[1]] * len(ids)
        self.lengths = torch.tensor(lengths, device=ids.device)[:, None]
        columns = torch.arange(state.shape[1], device=ids.device)[None]
        state = torch.where(columns < self.lengths, state, self.engine.mask_id)
        return torch.where(columns < self.lengths + length, state, filler)

    def run(self) -> Iterator[Step]:
        """Block by block; the rows decide as many masks as each one's own schedule says."""
        options, lengths, columns = self.options, self.lengths, self.columns
        for block in range(options.blocks):
            start, end = lengths + block * options.block, lengths + (block + 1) * options.block
            own = (columns >= start) & (columns < end.minimum(lengths + options.length))
            masks = ((self.x == self.engine.mask_id) & own).sum(1)
            plans = [transfers(int(count), options.steps_per_block) for count in masks]
            for counts in zip_longest(*plans, fillvalue=0):
                yield self.step(end, list(counts))


@DECODINGS.add
@dataclass(frozen=True)
class MdlmDecoding(BlockDecoding):
    """The sampler of A2D models; options as in LLaDA's loop, but any length, block and number of steps go together.

    Attributes:
        steps: in all; every block has the same share, rounded up.

    >>> ss.MdlmDecoding(length=20, steps=10, block=8).new_tokens
    20
    """

    steps: int = 128
    threshold: ClassVar[float | None] = None  # type: ignore[misc]
    factor: ClassVar[float | None] = None  # type: ignore[misc]

    kind: ClassVar[str] = "mdlm"
    families: ClassVar[tuple[str, ...]] = ("a2d",)
    whole_blocks: ClassVar[bool] = False
    loop: ClassVar[type[MdlmLoop]] = MdlmLoop

    @property
    def blocks(self) -> int:
        """Blocks of the answer; the last one may be shorter."""
        return -(-self.length // self.block)

    @property
    def steps_per_block(self) -> int:
        """Steps of one block at most."""
        return -(-self.steps // self.blocks)

    @property
    def max_steps(self) -> int:
        """Steps of all blocks at most: each decides a mask or more."""
        return min(self.steps_per_block, self.block) * self.blocks

    def reachable(self, x: Tensor, prompt: int, step: int) -> Tensor:
        """Everything up to the end of the block that the step belongs to."""
        for block in range(self.blocks):
            step -= len(transfers(min(self.block, self.length - block * self.block), self.steps_per_block))
            if step < 0:
                break
        end = prompt + (block + 1) * self.block
        return torch.arange(x.shape[1], device=x.device)[None] < end


def transfers(masks: int, steps: int, draw: Callable[[int, Tensor], int] | None = None) -> list[int]:
    """How many of a block's masks each step decides, of so many steps; those that would decide none are left out.

    draw: gives a number from the masks that are left and the share that is due; None: the nearest to it.

    >>> transfers(8, 5)
    [2, 2, 1, 2, 1]
    """
    counts = []
    for step in range(steps):
        now, then = (torch.tensor(time / steps, dtype=torch.float32) for time in (steps - step, steps - step - 1))
        # The linear schedule: masked at time t are 1 − α(t) of the tokens, with α(t) = 1 − t.
        due = 1 - ((1 - (1 - then)) / (1 - (1 - now))).double()
        count = min(int(torch.round(masks * due)) if draw is None or not masks else draw(masks, due), masks)
        if count:
            counts.append(count)
        masks -= count
    return counts
