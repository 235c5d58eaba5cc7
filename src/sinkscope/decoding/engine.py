"""What a generation loop sees of the model: forward passes with whoever watches them, and one `Step` to yield per pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sinkscope.attention.interface import AttentionCall
from sinkscope.decoding import graphs
from sinkscope.decoding.graphs import Graphs
from sinkscope.models.model import Model
from sinkscope.policies.runtime import PolicyRuntime


@dataclass(frozen=True)
class Step:
    """One forward pass and what the loop decided from it.

    Attributes:
        before: Long [B, S]: the input of the forward; causal models: −1 where nothing is written yet.
        after: Long [B, S]: the state after the step.
        masked: Bool [B, S]: mask tokens in the input.
        confidence: Float [B, S]: of every candidate that was looked at; NaN elsewhere.
        candidate: Long [B, S]: the token that would be written; −1 elsewhere.
        decided: Bool [B, S]: positions that were written in this step.
        ties: Long [B]: selections that could have gone to another position of equal confidence.
        alive: Bool [B]: rows that took part; the others had already ended.
    """

    before: Tensor
    after: Tensor
    masked: Tensor
    confidence: Tensor
    candidate: Tensor
    decided: Tensor
    ties: Tensor
    alive: Tensor


class Watcher(Protocol):
    """Somebody who looks at every forward pass of a generation (the recorder, a policy)."""

    def begin(self, ids: Tensor, real: Tensor | None, masked: Tensor, branches: int) -> None:
        """Before a forward.

        Args:
            ids: Long [B, S]: the whole state, conditional branch only.
            real: Bool [B, S] or None.
            masked: Bool [B, S].
            branches: 1, or 2 with guidance: attention calls then hold the conditional rows first.
        """

    def __call__(self, call: AttentionCall) -> None:
        """After every attention call."""


class Recording(Watcher, Protocol):
    """The watcher that records.

    Attributes:
        found: what it computed in the forward that just ran: variable → one tensor per layer.
        replayable: whether a CUDA graph can repeat its part of a forward.
        steady: whether it records every forward.
    """

    found: dict[str, list[Tensor]]

    @property
    def replayable(self) -> bool:
        """See above."""

    @property
    def steady(self) -> bool:
        """See above."""

    def tick(self) -> bool:
        """A new forward: whether this one is recorded."""


@dataclass
class Engine:
    """The model for one group of rows of equal layout.

    Attributes:
        real: Bool [B, S]: padding of the whole sequence, or None.
        acting: the policy at work, or None. recorder: who records, or None.
        everything: confidence and candidates are wanted for all masked positions, not only the selectable ones.
        alive: Bool [B]: rows that have not ended; None: all. The others run along and count for nothing.
        forwards: forward passes so far, one number for all rows or one each (a guided step counts two).
    """

    model: Model
    real: Tensor | None
    acting: PolicyRuntime | None = None
    recorder: Recording | None = None
    everything: bool = False
    alive: Tensor | None = None
    forwards: int | Tensor = 0
    _graphs: Graphs | None = None

    @property
    def watchers(self) -> tuple[Watcher, ...]:
        """Who sees every attention call: the policy first, because the recorder reads its account."""
        return tuple(one for one in (self.acting, self.recorder) if one is not None)

    @property
    def mask_id(self) -> int:
        """The mask token; generation loops of masked models are only reached when there is one."""
        if self.model.ids.mask is None:
            raise RuntimeError("a masked loop was given a model without a mask token")
        return self.model.ids.mask

    def hidden(self, x: Tensor) -> Tensor:
        """Last hidden states [B, S, width] of the state x; they may be overwritten by the next call."""
        self._count(1)
        recorded = self.recorder is not None and self.recorder.tick()
        if not self._replayable or not graphs.wanted(x.device):
            return self._plain(x)
        if self._graphs is None:
            # A policy takes nothing in the first step, so its kernels are only met in the second.
            remember = (lambda: lambda: None) if self.acting is None else self.acting.remember
            self._graphs = Graphs(self._repeatable, remember, warm_ups=1 if self.acting is None else 2)
        hidden, found = self._graphs.run(x, (recorded, self.alive is None))
        if self.recorder is not None:
            self.recorder.found = found
        return hidden

    def release(self) -> None:
        """Gives captured forwards back; a later forward starts anew."""
        self._graphs = None

    @property
    def _replayable(self) -> bool:
        """Whether a graph can repeat the forward: a policy needs one kind of step, because each kind has its own memory."""
        recorder, acting = self.recorder, self.acting
        if acting is not None and (not acting.replayable or not (recorder is None or recorder.steady)):
            return False
        return recorder is None or recorder.replayable

    def _plain(self, x: Tensor) -> Tensor:
        self._begin(x, 1)
        return self.model.hidden(x, self.real, hiding=self.acting, taps=self.watchers)

    def _repeatable(self, x: Tensor, captured: bool) -> tuple[Tensor, dict[str, list[Tensor]]]:
        hidden = self._plain(x)
        if captured and self.acting is not None:
            self.acting.carry()
        return hidden, {} if self.recorder is None else self.recorder.found

    def guided(self, x: Tensor, unconditional: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """Hidden states of a state and of its unconditional twin, from one forward of twice the batch.

        Args:
            real: Bool [B, S]: the twin's own padding.
        """
        self._count(2)
        if self.recorder is not None:
            self.recorder.tick()
        self._begin(x, 2)
        both = None
        if self.real is not None or real is not None:
            full = torch.ones_like(x, dtype=torch.bool)
            both = torch.cat([full if self.real is None else self.real, full if real is None else real])
        hidden = self.model.hidden(
            torch.cat([x, unconditional]), both, hiding=self.acting, taps=self.watchers
        )
        conditional, twin = hidden.chunk(2)
        return conditional, twin

    def next_logits(self, state: Tensor, written: int, fed: int, cache: Any) -> Tensor:
        """Logits [B, V] behind the last written token of a causal model; `fed` tokens are already in the cache."""
        so_far = state[:, :written]
        real = None if self.real is None else self.real[:, :written]
        self._count(1)
        if self.recorder is not None:
            self.recorder.tick()
        for watcher in self.watchers:
            watcher.begin(so_far, real, torch.zeros_like(so_far, dtype=torch.bool), 1)
        logits = self.model.forward(
            so_far[:, fed:], real, hiding=self.acting, taps=self.watchers, keep=1, cache=cache
        )
        return logits[:, -1]

    def _begin(self, x: Tensor, branches: int) -> None:
        for watcher in self.watchers:
            watcher.begin(x, self.real, x == self.mask_id, branches)

    def _count(self, passes: int) -> None:
        self.forwards = self.forwards + (passes if self.alive is None else passes * self.alive.long())
        if self.acting is None:
            return
        if self.alive is None or self.acting.alive is None:
            self.acting.alive = None if self.alive is None else self.alive.clone()
        else:
            # Always the same memory: a captured step goes on reading it when rows end.
            self.acting.alive.copy_(self.alive)


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


def marked(positions: list[Tensor], like: Tensor) -> Tensor:
    """Bool [B, S]: True at the positions Long [count] of each row."""
    chosen = torch.zeros_like(like, dtype=torch.bool)
    for row, columns in enumerate(positions):
        chosen[row, columns] = True
    return chosen
