"""A loop, and what passes between it, its engine and a recorder: a `Request` for each forward, a `Step` for each decision."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from sinkscope.attention.context import CallRecorder, ForwardContext
from sinkscope.policies.account import StepAccount

if TYPE_CHECKING:
    from sinkscope.decoding.engine import Engine
    from sinkscope.decoding.streams import Streams

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


Options = TypeVar("Options", bound=Any)


class Loop(Generic[Options]):
    """One official loop: what it makes of any state, and, once it has begun, its steps on one group of rows.

    Attributes:
        x: Long [B, S]: the state. prompt: its first column behind the prompts.
        alive: Bool [B]: rows that have not ended. alone: each ends by itself, as in a batch of one.
        grows: what is not written yet is no mask, but −1.
    """

    grows: ClassVar[bool] = False

    def __init__(self, options: Options, engine: Engine) -> None:
        self.options, self.engine, self.model = options, engine, engine.model

    def begin(self, ids: Tensor, streams: Streams | None, per_row: bool, twin: Twin | None = None) -> None:
        """Take a group of rows; `run` then gives its steps.

        Args:
            ids: Long [B, P]: the prompts. streams: None when the decoding draws nothing.
            per_row: every row decides by itself, as in a batch of one; else as the official loop does for a batch.
            twin: the unconditional prompt, for decodings that need one.
        """
        self.streams, self.per_row, self.alone, self.twin = streams, per_row, self.engine.prompts.alone, twin
        self.prompt = ids.shape[1]
        self.alive = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
        self.x = self.first_state(ids)

    def first_state(self, ids: Tensor) -> Tensor:
        """Long [B, S]: the prompts Long [B, P] followed by masks, or −1, of the columns that the options say."""
        new = self.options.columns(self.prompt) - self.prompt
        return torch.nn.functional.pad(ids, (0, new), value=-1 if self.grows else self.engine.mask_id)

    def run(self) -> Iterator[Step]:
        """Step by step, until all rows have ended."""
        raise NotImplementedError

    # ---- on any state, such as a recorded one

    def hidden(self, x: Tensor) -> Tensor:
        """Last hidden states [B, S, width] of a whole state Long [B, S], with the attention that the loop gives it."""
        return self.engine.forward(Request(x))

    def predictions(self, x: Tensor, given: Tensor, masked: Tensor) -> Tensor:
        """Float [N, V]: logits that predict the masked positions of a state, guidance applied.

        Args:
            x: Long [B, S]. given: Bool [B, S]: what was given before the first step. masked: Bool [B, S], N of them.
        """
        hidden = self.hidden(x)
        return self.model.head((shifted(hidden) if self.model.spec.shifted else hidden)[masked])

    def best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The best candidate for each row of logits [N, V] and the loop's confidence in it, without draws: Long, Float64 [N]."""
        confidence, candidate = logits.double().softmax(-1).max(-1)
        return candidate, confidence


def shifted(hidden: Tensor) -> Tensor:
    """Hidden states [B, S, width] of the position before each, whose logits predict it; position 0 keeps its own."""
    return torch.cat([hidden[:, :1], hidden[:, :-1]], 1)


def select(confidence: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
    """The positions of highest confidence in each row, and how many of them had an equal rival.

    Rows that decide equally many are looked at together; a row's choice does not depend on that.

    Args:
        confidence: Float [B, S], −inf where nothing can be chosen.
        counts: how many each row chooses.

    Returns:
        Bool [B, S], and Long [B]: chosen positions with the same confidence as one that was not chosen.
    """
    chosen = torch.zeros_like(confidence, dtype=torch.bool)
    for count in sorted(set(counts) - {0}):
        if counts.count(count) == len(counts):
            chosen.scatter_(1, torch.topk(confidence, count).indices, True)
        else:
            rows = torch.tensor([row for row, own in enumerate(counts) if own == count], device=chosen.device)
            columns = torch.topk(confidence[rows], count).indices
            chosen[rows[:, None], columns] = True
    # Nothing that was left can beat what was chosen from the top, so only the largest of the rest can tie.
    rest = confidence.masked_fill(chosen, float("-inf")).amax(-1, keepdim=True)
    tied = chosen & (confidence == rest) & (rest > float("-inf"))
    return chosen, tied.sum(-1)


def chance(spread: Tensor, tokens: Tensor) -> Tensor:
    """The probability of tokens Long [...] in Float [..., V]."""
    return spread.gather(-1, tokens[..., None])[..., 0]


def even_plan(masks: int, steps: int) -> list[int]:
    """How many masks each of so many steps decides: as even as possible, the first ones taking the remainder.

    >>> even_plan(8, 3)
    [3, 3, 2]
    """
    return [masks // steps + (step < masks % steps) for step in range(steps)]
