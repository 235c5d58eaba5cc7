"""What passes between a loop, its engine and a recorder: one `Step` per forward, the passes of a block loop, the prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from sinkscope.attention.context import CallRecorder
from sinkscope.decoding.graphs import Recorded
from sinkscope.policies.runtime import StepAccount


@dataclass(frozen=True)
class Step:
    """One forward pass and what the loop decided from it. Its tensors must not be written to later: they are still being copied.

    Attributes:
        before: Long [B, S]: the input of the forward; causal models: −1 where nothing is written yet.
        after: Long [B, S]: the state after the step.
        masked: Bool [B, S]: mask tokens in the input.
        confidence: Float [B, S]: of every candidate that was looked at; NaN elsewhere.
        candidate: Long [B, S]: the token that would be written; −1 elsewhere.
        everywhere: gives candidate and confidence of all masked positions, for a recorder, which can have it computed beside the
            next step; None: they are looked at already.
        decided: Bool [B, S]: positions that were written in this step.
        ties: Long [B]: selections that could have gone to another position of equal confidence.
        alive: Bool [B]: rows that took part; the others had already ended.
        codes: Long [B, N]: image codes sampled so far; None for text.
        kind: "denoise", or "store" for a step whose forward also put a finished block into the cache.
        fresh: Bool [B, S]: under a reuse rule, the columns whose keys and values were computed in this step, in
            all layers; None: all.
        error: Float64 [B]: KL of the predictions to exact ones, where a shadow measures it.
        idle: the schedule decides nothing in this step, so no forward was run and nothing was recorded.
    """

    before: Tensor
    after: Tensor
    masked: Tensor
    confidence: Tensor
    candidate: Tensor
    decided: Tensor
    ties: Tensor
    alive: Tensor
    codes: Tensor | None = None
    idle: bool = False
    everywhere: Callable[[], tuple[Tensor, Tensor]] | None = None
    kind: str = "denoise"
    fresh: Tensor | None = None
    error: Tensor | None = None


@dataclass(frozen=True)
class BlockPass:
    """One forward of a block loop over the first columns of a state.

    Attributes:
        queries: the columns that are fed; those before them are in the cache.
        active: how many of the last queries belong to the block that is being denoised.
        block: columns of the blocks that attention stands in; None: every query sees every key.
        kind: "denoise", "prefill" or "store". step: whether it is a step of the loop, or comes between two.
        stored: whether earlier blocks are in a cache, so that their queries are not seen again.
    """

    queries: slice
    active: int
    block: int | None
    kind: str = "denoise"
    step: bool = True
    stored: bool = False


@dataclass(frozen=True)
class Prompts:
    """The prompts of a batch, as a loop sees them.

    Attributes:
        lengths: tokens of each row of the group. shortest, longest: of the whole batch.
        alone: each row runs as in a batch of one, else as the official loop does for a batch.
    """

    lengths: tuple[int, ...] = ()
    shortest: int = 0
    longest: int = 0
    alone: bool = True


class ForwardRecorder(CallRecorder, Protocol):
    """What records the forwards of one group of rows; see `trace.step_recorder`."""

    @property
    def replayable(self) -> bool:
        """Whether a CUDA graph can repeat its part of a forward."""

    @property
    def replays_blocks(self) -> bool:
        """Whether that holds for blocks of different places too."""

    @property
    def steady(self) -> bool:
        """Whether it records every forward."""

    def next_forward(self) -> bool:
        """Count a forward, and say whether it is recorded."""

    def begin(
        self, real: Tensor | None, masked: Tensor, branches: int, block_pass: BlockPass | None = None
    ) -> Mapping[str, Tensor]:
        """Prepare for a forward, and name the classes of queries whose attention is wanted (see ForwardContext.queries).

        Args:
            real: Bool [B, S] or None. masked: Bool [B, S]: mask tokens.
            branches: 1, or 2 with guidance: attention calls then hold the conditional rows first.
            block_pass: of a block loop; None: of any other.
        """

    def end(self, account: StepAccount | None) -> Recorded:
        """Finish the forward that just ran; account: what the policy did in it. Variable → [B, layer, …]."""

    def adopt(self, arrays: Recorded, block_pass: BlockPass | None = None, repeated: bool = False) -> None:
        """Take what a forward has recorded; repeated: by a CUDA graph, whose next repetition writes to the same place."""
