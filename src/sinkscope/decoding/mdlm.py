"""dllm's MDLM sampler, for A2D models: LLaDA's loop with its own schedule, and rows padded on the right.

Blocks are counted from the end of each row's own prompt. How many masks a step decides comes from a float32 schedule, rounded
half to even; steps that would decide nothing are left out. Shorter rows are filled up with the end token, which nothing sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkscope.base.checks import at_least, one_of, whole
from sinkscope.decoding.base import DECODINGS
from sinkscope.decoding.engine import Engine
from sinkscope.decoding.llada import REMASKING, BlockDecoding, BlockLoop
from sinkscope.decoding.step import Step, Twin
from sinkscope.decoding.streams import Streams


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

    kind: ClassVar[str] = "mdlm"
    families: ClassVar[tuple[str, ...]] = ("a2d",)
    whole_blocks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("length", "steps", "block"):
            whole(name, getattr(self, name), 1)
        at_least("temperature", self.temperature, 0.0)
        at_least("cfg", self.cfg, 0.0)
        one_of("remasking", self.remasking, REMASKING)

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

    def begin(
        self, engine: Engine, ids: Tensor, streams: Streams | None, per_row: bool, twin: Twin | None = None
    ) -> tuple[Tensor, Iterator[Step]]:
        """Each prompt followed by its masks, then the end token; and the loop."""
        lengths = torch.tensor(engine.prompts.lengths or [ids.shape[1]] * len(ids), device=ids.device)[:, None]
        filler = engine.model.ids.eos[0] if engine.model.ids.eos else engine.model.ids.pad or 0
        columns = torch.arange(ids.shape[1] + self.length, device=ids.device)[None]
        state = torch.nn.functional.pad(ids, (0, self.length), value=filler)
        state = torch.where(columns < lengths, state, engine.mask_id)
        state = torch.where(columns < lengths + self.length, state, filler)
        return state, MdlmLoop(self, engine, state, lengths, streams).run()

    def reachable(self, x: Tensor, prompt: int, step: int) -> Tensor:
        """Everything up to the end of the block that the step belongs to."""
        for block in range(self.blocks):
            step -= len(transfers(min(self.block, self.length - block * self.block), self.steps_per_block))
            if step < 0:
                break
        end = prompt + (block + 1) * self.block
        return torch.arange(x.shape[1], device=x.device)[None] < end


class MdlmLoop(BlockLoop):
    """LLaDA's loop with blocks that are counted from the end of each row's own prompt, Long [B, 1]."""

    options: MdlmDecoding

    def __init__(
        self, options: MdlmDecoding, engine: Engine, x: Tensor, lengths: Tensor, streams: Streams | None
    ) -> None:
        super().__init__(options, engine, x, 0, streams, True)
        self.lengths = lengths
        self.given &= self.columns < lengths + options.length

    def run(self) -> Iterator[Step]:
        """Block by block; the rows decide as many masks as each one's own schedule says."""
        options, lengths, columns = self.options, self.lengths, self.columns
        for block in range(options.blocks):
            start, end = lengths + block * options.block, lengths + (block + 1) * options.block
            own = (columns >= start) & (columns < end.minimum(lengths + options.length))
            masks = ((self.x == self.engine.mask_id) & own).sum(1)
            plans = [transfers(int(count), options.steps_per_block) for count in masks]
            for number in range(max(map(len, plans))):
                yield self.step(end, [plan[number] if number < len(plan) else 0 for plan in plans])


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
