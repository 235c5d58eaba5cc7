"""What passes between a loop, its engine and a recorder: a `Request` for each forward, a `Step` for each decision."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from sinkscope.attention.context import CallRecorder, ForwardContext
from sinkscope.policies.account import StepAccount

Recorded = dict[str, Tensor]
"""Variable → [B, layer, …]: what one forward has recorded."""

Twin = tuple[Tensor, Tensor | None]
"""Ids Long [B, S] and padding Bool [B, S] of the unconditional twin of a state."""


@dataclass(frozen=True)
class Wanted:
    """What a loop needs of a forward.

    Attributes:
        block: Bool [B, S]: the columns that the loop works on until `start` changes, masks left before them included.
        read: Bool [B, S]: the columns whose hidden states are read in this step.
        start: the first column of the block.
    """

    block: Tensor
    read: Tensor
    start: int


@dataclass(frozen=True)
class Places:
    """Queries and keys of a request as tensors, for a cache of fixed size, in which columns that are not written yet are padding.

    Attributes:
        columns: Long [Q]: the columns that are fed. positions: Long [B|1, Q]. visible: Bool [B, S]: the keys that they see.
        written: columns that are certainly written: in later forwards of the same kind there are more.
    """

    columns: Tensor
    positions: Tensor
    visible: Tensor
    written: int


@dataclass(frozen=True)
class Request:
    """One forward pass, as a loop asks for it.

    Attributes:
        ids: Long [B, S]: the state; −1 where nothing is written.
        alive: Bool [B]: rows that have not ended; None: all. The others run along and count for nothing.
        queries: the columns that are fed. end: the column behind the last key; None: that behind the last query. Other keys
            are in the cache.
        cache: transformers' KV cache, which the forward reads and may add to; None: none.
        kind: "denoise"; "next": the newest token of a causal model; "prefill": the prompt, "store": a finished block, which are
            put into the cache; "read": a text that a causal model reads in one forward, or a prompt for its scores only.
        keep: of a text that is read: how many of the last queries are its steps, whose logits are wanted; 0: the last one alone.
        step: whether it is a step of the loop, or comes between two.
        active: of a block loop: how many of the last queries belong to the block that is being denoised; None: no block loop.
        block: columns of the blocks that attention stands in; "model": as in the family's plain forward; None: none.
        causal: whether a query sees no key after itself; "model": as in the family's plain forward.
        pattern, soft: see ForwardContext. real: Bool [B, S]: padding, where it is not that of the prompts; None: theirs.
        noise: Bool [B, S]: what counts as masked in a model without a mask token; None: mask tokens do.
        twin: the unconditional state, which runs in the same forward.
        wanted: tells what the loop needs of the result; None: everything.
        places: queries and keys once more, on the device.
        through: runs the state under a context where not all of it goes through all layers; None: the plain way.
        repeats: with `through`: requests of equal `repeats` do the same on the device; None: none does.
    """

    ids: Tensor
    alive: Tensor | None = None
    queries: slice = field(default_factory=partial(slice, 0, None))
    end: int | None = None
    cache: Any = None
    kind: Literal["denoise", "next", "prefill", "store", "read"] = "denoise"
    keep: int = 0
    step: bool = True
    active: int | None = None
    block: int | Literal["model"] | None = "model"
    causal: bool | Literal["model"] = "model"
    pattern: Tensor | None = None
    soft: Tensor | None = None
    real: Tensor | None = None
    noise: Tensor | None = None
    twin: Twin | None = None
    wanted: Callable[[], Wanted] | None = None
    places: Places | None = None
    through: Callable[[Tensor, ForwardContext], Tensor] | None = None
    repeats: Hashable | None = None

    @property
    def state(self) -> Tensor:
        """Long [B, K]: the ids of all keys so far."""
        return self.ids if self.places is not None else self.ids[:, : self.end or self.queries.stop]

    @property
    def fed(self) -> Tensor:
        """Long [B, Q]: the ids of the queries."""
        places = self.places
        return self.ids[:, self.queries] if places is None else self.ids.index_select(1, places.columns)

    def placed(self, columns: Tensor, positions: Tensor, visible: Tensor, written: int) -> Request:
        """The same with queries and keys on the device: see Places."""
        return replace(self, places=Places(columns, positions, visible, written))

    def masked(self, mask_id: int | None) -> Tensor:
        """Bool [B, K]: the keys that are masked."""
        if self.noise is not None:
            return self.noise[:, : self.state.shape[1]]
        return self.state == (-1 if mask_id is None else mask_id)

    def predicted(self, mask_id: int | None, shifted: bool) -> tuple[Tensor | None, Tensor | None]:
        """Bool [B, Q] each: the queries at masks, and those whose predictions are read; None: not told by masks.

        Args:
            shifted: what predicts a position is the one before it (position 0: itself).
        """
        if self.noise is not None:  # all of a canvas is predicted anew, and nothing of what is stored
            scored = torch.full_like(self.fed, self.kind == "denoise", dtype=torch.bool)
            return self.noise[:, self.queries], scored
        if mask_id is None:
            return None, None
        masked = self.fed == mask_id
        if not shifted:
            return masked, masked
        before = torch.nn.functional.pad(masked[:, 1:], (0, 1))
        first = torch.arange(masked.shape[1], device=masked.device) == 0
        return masked, before | (masked & first)

    @property
    def stored(self) -> bool:
        """Whether earlier blocks are in a cache, so that their queries are not seen again."""
        return self.cache is not None


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
        fresh: Bool [B, S]: the columns whose keys and values were computed in this step, in all layers; None: all.
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


NO_MASK = -2
"""An id that no state holds, for loops without a mask token."""


def step_of(before: Tensor, after: Tensor, alive: Tensor, mask_id: int, **told: Any) -> Step:
    """A step of which only this much is told: masks are the mask tokens, what changed into another token was decided, nothing
    tied, and there are no other candidates, nor confidence in them.
    """
    usual: dict[str, Callable[[], Tensor]] = {
        "masked": lambda: before == mask_id,
        "confidence": lambda: torch.full(before.shape, float("nan"), device=before.device),
        "candidate": lambda: torch.full_like(before, -1),
        "decided": lambda: (after != before) & (after != mask_id),
        "ties": lambda: torch.zeros(len(before), dtype=torch.long),
    }
    left_out = {name: value() for name, value in usual.items() if name not in told}
    return Step(**{"before": before, "after": after, "alive": alive, **left_out, **told})


@dataclass(frozen=True)
class Prompts:
    """The prompts of a batch, as a loop sees them.

    Attributes:
        lengths: tokens of each row of the group. shortest, longest: of the whole batch.
        alone: each row runs as in a batch of one, else as the official loop does for a batch.
        rows: the numbers of the group's rows in the batch.
    """

    lengths: tuple[int, ...] = ()
    shortest: int = 0
    longest: int = 0
    alone: bool = True
    rows: tuple[int, ...] = (0,)


class ForwardRecorder(CallRecorder, Protocol):
    """What records the forwards of one group of rows; see `trace.step_recorder`."""

    def next_forward(self) -> None:
        """Count a step."""

    def replay_key(self, request: Request, masked: bool) -> Hashable | None:
        """What of a forward decides which operations it is recorded with; None: they cannot be repeated as they are.

        Args:
            masked: a policy acts, and keeps the scores of one kind of step.
        """

    def begin(self, request: Request, real: Tensor | None, mask_id: int | None) -> Mapping[str, Tensor]:
        """Prepare for a forward, and name the classes of queries whose attention is wanted (see ForwardContext.queries).

        Args:
            real: Bool [B, K] or None: of the conditional rows, which attention calls hold first.
        """

    def end(self, account: StepAccount | None) -> Recorded:
        """Finish the forward that just ran; account: what the policy did in it. Variable → [B, layer, …]."""

    def adopt(self, arrays: Recorded, request: Request, repeated: bool = False) -> None:
        """Take what a forward has recorded; repeated: by a CUDA graph, whose next repetition writes to the same place."""
