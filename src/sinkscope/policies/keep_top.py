"""KeepTop: keep only the keys that received the most attention; what inference with fewer keys does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor

from sinkscope.base.checks import finite, share
from sinkscope.policies.policy import POLICIES, Scope, ScoredRule, top


@POLICIES.add
@dataclass(frozen=True)
class KeepTop(ScoredRule):
    """Keeps the ceil(fraction · n) of n candidates with the highest received attention and masks the others.

    The kernel then runs on the kept keys only, so long inputs get faster.

    >>> str(KeepTop(0.25, scope="layer"))
    'keep:0.25@layer'
    """

    fraction: float
    scope: Scope = "head"

    word: ClassVar[str] = "keep"

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", share("fraction", finite("fraction", self.fraction)))
        super().__post_init__()

    @property
    def most(self) -> int | None:
        return 0 if self.fraction == 1.0 else None

    def key_share(self, keys: int) -> float | None:
        return round(1 - self.fraction, 6) if self.regions is None else None

    def choose(self, scores: Tensor, candidates: Tensor) -> Tensor:
        counts = candidates.sum(-1, keepdim=True)
        # ceil on exact numbers: 0.1 · 30 is 3.0000000000000004 in floating point, and ceil of that would be 4.
        exact = Fraction(repr(self.fraction))
        sizes = [[math.ceil(exact * count) for count in row] for row in counts[..., 0].tolist()]
        return candidates & ~top(scores, candidates, torch.tensor(sizes, device=scores.device)[..., None])
