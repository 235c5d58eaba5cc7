"""What a generation loop sees of the model: forward passes with whoever watches them, and one `Step` to yield per pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sinkscope.attention.interface import AttentionCall
from sinkscope.models.model import Model
from sinkscope.policies.acting import Acting


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
    acting: Acting | None = None
    recorder: Watcher | None = None
    everything: bool = False
    alive: Tensor | None = None
    forwards: int | Tensor = 0

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
        """Last hidden states [B, S, width] of the state x."""
        self._begin(x, 1)
        return self.model.hidden(x, self.real, hiding=self.acting, taps=self.watchers)

    def guided(self, x: Tensor, unconditional: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """Hidden states of a state and of its unconditional twin, from one forward of twice the batch.

        Args:
            real: Bool [B, S]: the twin's own padding.
        """
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
        for watcher in self.watchers:
            watcher.begin(so_far, real, torch.zeros_like(so_far, dtype=torch.bool), 1)
        logits = self.model.forward(
            so_far[:, fed:], real, hiding=self.acting, taps=self.watchers, keep=1, cache=cache
        )
        return logits[:, -1]

    def _begin(self, x: Tensor, branches: int) -> None:
        self._count(branches)
        for watcher in self.watchers:
            watcher.begin(x, self.real, x == self.mask_id, branches)

    def _count(self, passes: int) -> None:
        self.forwards = self.forwards + (passes if self.alive is None else passes * self.alive.long().cpu())
        if self.acting is not None:
            self.acting.alive = self.alive


def count_ties(confidence: Tensor, chosen: Tensor) -> int:
    """How many of the chosen positions had the same confidence as one that was not chosen.

    Args:
        confidence: Float [S], −inf where nothing can be chosen.
        chosen: Long [k].
    """
    left = torch.ones_like(confidence, dtype=torch.bool)
    left[chosen] = False
    rest = confidence[left & (confidence > float("-inf"))]
    if not len(rest) or not len(chosen):
        return 0
    # Nothing that was left can beat what was chosen from the top, so only the largest of the rest can tie.
    return int((confidence[chosen] == rest.max()).sum())
