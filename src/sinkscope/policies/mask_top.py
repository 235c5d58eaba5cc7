"""MaskTop: take away the keys that received the most attention. The intervention of arXiv 2510.15731, section 4.3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.policies.policy import Scope, ScoredRule, finite, number, top, whole
from sinkscope.sink_rule import torch_sinks_of


@dataclass(frozen=True)
class MaskTop(ScoredRule):
    """Takes the k keys with the highest received attention; equal scores go to the lower index.

    Attributes:
        k: how many; 0 takes none.
        epsilon: take only keys that are sinks at this ε besides (above the mean of the others by more than ε).

    >>> str(MaskTop(5, scope="layer"))
    'top:5@layer'
    """

    k: int
    scope: Scope = "head"
    epsilon: float | None = None

    word: ClassVar[str] = "top"

    def __post_init__(self) -> None:
        whole("k", self.k, 0)
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", finite("epsilon", self.epsilon))
        super().__post_init__()

    @property
    def empty_rule(self) -> bool:
        """k = 0."""
        return self.k == 0

    @property
    def most(self) -> int:
        """k."""
        return self.k

    @property
    def sure(self) -> bool:
        """Without ε there is always a highest score."""
        return self.epsilon is None

    def check_rule(self, layers: int, keys: int) -> None:
        """There must be k keys."""
        super().check_rule(layers, keys)
        if self.k > keys:
            raise InputError(f"{self} takes {self.k} keys, but the sequence has only {keys}; use a smaller k")

    def choose(self, scores: Tensor, candidates: Tensor) -> Tensor:
        """The top k of the candidates."""
        chosen = top(scores, candidates, self.k)
        return chosen if self.epsilon is None else chosen & torch_sinks_of(scores, self.epsilon)

    def argument(self) -> str:
        """k."""
        return str(self.k)

    def options(self) -> dict[str, Any]:
        """ε, when given."""
        return ({} if self.epsilon is None else {"epsilon": number(self.epsilon)}) | super().options()
