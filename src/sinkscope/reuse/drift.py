"""DriftReuse: a refresh when the most attended keys of the layers have moved, or are others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from sinkscope.base.checks import at_least, declared
from sinkscope.base.errors import InputError
from sinkscope.reuse.rule import REUSES, Reuse


@REUSES.add
@dataclass(frozen=True)
class DriftReuse(Reuse):
    """Keeps keys and values until the most attended ones drift, as Elastic-Cache does (arXiv 2510.14973).

    The most attended key outside of the block, one of each layer, is looked at in every step; a forward that finds a drift is
    followed by a refresh.

    Attributes:
        threshold: by key: cosine; from 1 on every forward is full, and the loop exact. By union: share of keys, from 0 to 1.
        by: "key": these keys are computed in every step beside the block, and a layer's has drifted where its cosine with that of
            the layer's last refresh is below the threshold. "union": they have drifted where less than this share of them, over
            all layers, was among them in the last full forward; nothing is computed beside the block.
        refresh: "all": a full forward. "layers": a deep refresh, by key alone. The columns of a partial forward go through the
            layers as in one, and from the first layer on whose key has drifted, in any row, all columns do; each of the others
            enters that layer with the residual stream that was last computed for it. Deeper layers then track the keys that
            are most attended now; the others go on with theirs.

    >>> str(DriftReuse(0.9)), str(DriftReuse(0.9, refresh="layers")), str(DriftReuse(0.5, by="union"))
    ('drift:0.9', 'drift:0.9,refresh=layers', 'drift:0.5,by=union')
    """

    threshold: int | float  # a whole one keeps its point in the text form
    by: Literal["key", "union"] = "key"
    refresh: Literal["all", "layers"] = "all"

    word: ClassVar[str] = "drift"
    alone: ClassVar[bool] = True

    def __post_init__(self) -> None:
        declared(self)
        if self.by == "union" and self.deepens:
            raise InputError(
                "by=union looks at the keys of all layers together, so no layer is the one that has drifted; "
                "leave out refresh=layers, or take by=key"
            )
        object.__setattr__(self, "threshold", float(at_least("threshold", self.threshold, -1.0)))

    @property
    def watches(self) -> str:
        return self.by

    @property
    def deepens(self) -> bool:
        return self.refresh == "layers"

    @property
    def series(self) -> str:
        """By what a drift is answered with."""
        return "drift, layers" if self.deepens else self.word

    @property
    def exact(self) -> bool:
        return self.by == "key" and self.threshold >= 1

    def due(self, age: int, begins: bool) -> bool:
        """Where a block begins; else drift decides."""
        return begins

    def drifted_from(self, likeness: Tensor) -> int | None:
        """The first layer that fell below the threshold with refresh "layers", else 0 as soon as anything has."""
        below = (likeness < self.threshold).any(1).tolist()
        if True not in below:
            return None
        return below.index(True) if self.deepens else 0
