"""MaskAbove: mask every key that is a sink at a threshold, however many there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sinkscope.base.checks import finite
from sinkscope.base.sink_rule import torch_sinks_of
from sinkscope.policies.policy import POLICIES, Scope, ScoredRule


@POLICIES.add
@dataclass(frozen=True)
class MaskAbove(ScoredRule):
    """Masks the keys that are sinks at ε (see `sink_rule`).

    In bidirectional attention ε = 3 is about four times uniform (equation 3 of arXiv 2510.15731 with the score read as a sum).

    >>> str(MaskAbove(3.0))
    'above:3'
    """

    epsilon: float
    scope: Scope = "head"

    word: ClassVar[str] = "above"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", finite("epsilon", self.epsilon))
        super().__post_init__()

    def choose(self, scores: Tensor, candidates: Tensor, sinks: Callable[[float], Tensor] | None = None) -> Tensor:
        """The candidates that are sinks; without `sinks` they are told by the scores alone."""
        strong = torch_sinks_of(scores, self.epsilon) if sinks is None else sinks(self.epsilon)
        return strong & candidates
