"""MMaDA's text loop (generate, mmu_generate, mmu_generate_fast): LLaDA's of February 2025, confidence in float64.

With guidance the official text loop drops the padding mask; ours honours it, so that a padded row equals its run alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkscope.base.checks import whole
from sinkscope.decoding.base import DECODINGS
from sinkscope.decoding.llada import ParallelDecoding
from sinkscope.models.model import Model


@DECODINGS.add
@dataclass(frozen=True)
class MmadaDecoding(ParallelDecoding):
    """MMaDA's text loop.

    Attributes:
        stop_at: a token id; after a block whose last token it is, generation ends and later blocks stay masked. With one
            random stream for the batch all rows must agree, as in the official code; with a stream per row each row stops
            by itself.

    >>> ss.generate("organism/multimodal", prompts, ss.MmadaDecoding(length=16, block=8)).states.shape
    torch.Size([17, 1, 53])
    """

    stop_at: int | None = None

    kind: ClassVar[str] = "mmada"
    families: ClassVar[tuple[str, ...]] = ("mmada",)
    reusable: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop_at is not None:
            whole("stop_at", self.stop_at, 0)

    def still_alive(self, alive: Tensor, last: Tensor, per_row: bool) -> Tensor:
        """Rows end where a block ends in stop_at: each by itself, or all when all agree."""
        if self.stop_at is None:
            return alive
        ended = last == self.stop_at
        return alive & ~ended if per_row else alive & ~ended.all()

    def alive(self, model: Model, x: Tensor, prompt: int, step: int, per_row: bool) -> Tensor:
        """Rows of whose finished blocks none ends in stop_at."""
        alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
        for block in range(step // self.steps_per_block if per_row else 0):
            alive = self.still_alive(alive, x[:, prompt + (block + 1) * self.block - 1], per_row)
        return alive
