"""MaskTop: mask the keys that received the most attention. The intervention of arXiv 2510.15731, section 4.3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sinkscope.checks import finite, whole
from sinkscope.policies.policy import POLICIES, Scope, ScoredRule, top
from sinkscope.sink_rule import torch_sinks_of


@POLICIES.add
@dataclass(frozen=True)
class MaskTop(ScoredRule):
    """Masks the k keys with the highest received attention; equal scores go to the lower index.

    Attributes:
        k: how many; 0 masks none.
        epsilon: mask only those of them that are also sinks at this ε (above the mean of the others by more than ε).

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
        """True for k = 0."""
        return self.k == 0

    @property
    def most(self) -> int:
        """k."""
        return self.k

    @property
    def sure(self) -> bool:
        """True without ε: there is always a highest score."""
        return self.epsilon is None

    def key_share(self, keys: int) -> float | None:
        """k of the keys; unknown with ε or a region."""
        fixed = self.epsilon is None and self.regions is None
        return round(min(1.0, self.k / keys), 6) if fixed else None

    def choose(self, scores: Tensor, candidates: Tensor) -> Tensor:
        """The top k of the candidates."""
        chosen = top(scores, candidates, self.k)
        return chosen if self.epsilon is None else chosen & torch_sinks_of(scores, self.epsilon)
