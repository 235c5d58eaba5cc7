"""MaskTop: mask the keys that received the most attention. The intervention of arXiv 2510.15731, section 4.3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from sinkscope.base.checks import finite, whole
from sinkscope.base.errors import InputError
from sinkscope.base.sink_rule import EPSILON, torch_sinks_of
from sinkscope.policies.policy import POLICIES, Scope, ScoredRule, top


@POLICIES.add
@dataclass(frozen=True)
class MaskTop(ScoredRule):
    """Masks the k keys with the highest received attention; equal scores go to the lower index.

    Attributes:
        k: how many; 0 masks none.
        epsilon: mask only those of them that are also sinks at this ε (see `sink_rule`).
        among: with ε, "sinks" masks those of the top k that are sinks; "others" those that are not: the two halves of the mask
            without ε.

    >>> str(MaskTop(5, scope="layer"))
    'top:5@layer'
    """

    k: int
    scope: Scope = "head"
    epsilon: float | None = None
    among: Literal["sinks", "others"] = "sinks"

    word: ClassVar[str] = "top"

    def __post_init__(self) -> None:
        whole("k", self.k, 0)
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", finite("epsilon", self.epsilon))
        if self.among == "others" and self.epsilon is None:
            raise InputError(f"among=others needs ε to tell sinks from others; give epsilon={EPSILON:g}")
        super().__post_init__()

    @property
    def most(self) -> int:
        return self.k

    def key_share(self, keys: int) -> float | None:
        """Not fixed with ε or a region."""
        fixed = self.epsilon is None and self.regions is None
        return round(min(1.0, self.k / keys), 6) if fixed else None

    def choose(self, scores: Tensor, candidates: Tensor, sinks: Callable[[float], Tensor] | None = None) -> Tensor:
        """The top k of the candidates; without `sinks` they are told by the scores alone."""
        chosen = top(scores, candidates, self.k)
        if self.epsilon is None:
            return chosen
        strong = torch_sinks_of(scores, self.epsilon) if sinks is None else sinks(self.epsilon)
        return chosen & (strong if self.among == "sinks" else ~strong)
