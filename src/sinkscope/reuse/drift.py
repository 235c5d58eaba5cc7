"""DriftReuse: a full forward when the most attended key of a layer has moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sinkscope.checks import at_least
from sinkscope.reuse.rule import REUSES, Reuse


@REUSES.add
@dataclass(frozen=True)
class DriftReuse(Reuse):
    """Keeps keys and values until the most attended one of a layer drifts, as Elastic-Cache does (arXiv 2510.14973).

    The most attended key outside of the block, one of each layer, is computed in every step beside the block. Where the cosine
    of its key with that of the last full forward falls below the threshold in any layer, the next forward is a full one.

    Attributes:
        threshold: cosine; from 1 on every forward is full, and the loop exact.

    >>> str(DriftReuse(0.9))
    'drift:0.9'
    """

    threshold: float

    word: ClassVar[str] = "drift"
    tracks: ClassVar[bool] = True
    alone: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", float(at_least("threshold", self.threshold, -1.0)))

    @property
    def exact(self) -> bool:
        """With a threshold of 1 or more."""
        return self.threshold >= 1

    def due(self, age: int, begins: bool) -> bool:
        """Where a block begins; else drift decides."""
        return begins

    def drifted(self, cosine: Tensor) -> bool:
        """Whether any layer's key fell below the threshold."""
        return bool((cosine < self.threshold).any())
