"""KeepTop: keep only the keys that received the most attention; what inference with fewer keys does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.policies.policy import Scope, ScoredRule, finite, number, top


@dataclass(frozen=True)
class KeepTop(ScoredRule):
    """Keeps the ceil(fraction · n) of n candidates with the highest received attention and takes the others away.

    The kernel then runs on the kept keys only, so long inputs get faster.

    >>> str(KeepTop(0.25, scope="layer"))
    'keep:0.25@layer'
    """

    fraction: float
    scope: Scope = "head"

    word: ClassVar[str] = "keep"

    def __post_init__(self) -> None:
        if not 0 < finite("fraction", self.fraction) <= 1:
            raise InputError(f"fraction should lie above 0 and at most at 1, got {self.fraction!r}")
        object.__setattr__(self, "fraction", float(self.fraction))
        super().__post_init__()

    @property
    def empty_rule(self) -> bool:
        """Everything is kept."""
        return self.fraction == 1.0

    def choose(self, scores: Tensor, candidates: Tensor) -> Tensor:
        """The candidates below the kept ones."""
        counts = candidates.sum(-1, keepdim=True)
        # ceil on exact numbers: 0.1 · 30 is 3.0000000000000004 in floating point, and ceil of that would be 4.
        exact = Fraction(repr(self.fraction))
        kept = [[math.ceil(exact * count) for count in row] for row in counts[..., 0].tolist()]
        return candidates & ~top(scores, candidates, torch.tensor(kept, device=scores.device)[..., None])

    def argument(self) -> str:
        """The fraction."""
        return number(self.fraction)
