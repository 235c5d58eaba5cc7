"""PrefixReuse: keys and values of all but some columns are kept between full forwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from sinkscope.base.checks import declared
from sinkscope.reuse.rule import REUSES, Refresh, Reuse, State, check_refresh


@REUSES.add
@dataclass(frozen=True)
class PrefixReuse(Reuse):
    """Keeps keys and values from one full forward to the next, and computes only some columns in between.

    Attributes:
        refresh: steps from one full forward to the next; "block": only where a block begins. 1 is the exact loop.
        fresh: what is computed in every step. "block": the current block (Fast-dLLM's dual cache, arXiv 2505.22618). "rest": the
            block and all behind it (its prefix cache). "masks": every mask, and what was decided in the previous step, which is
            kept from then on (the delayed writes of dKV-Cache, arXiv 2505.15781); a new block needs no full forward.

    >>> str(PrefixReuse(8, fresh="masks"))
    'prefix:8,fresh=masks'
    """

    refresh: Refresh = "block"
    fresh: Literal["block", "rest", "masks"] = "block"

    word: ClassVar[str] = "prefix"

    def __post_init__(self) -> None:
        check_refresh(self.refresh)
        declared(self)

    @property
    def moves(self) -> bool:  # type: ignore[override]
        """Masks become fewer in every step."""
        return self.fresh == "masks"

    def due(self, age: int, begins: bool) -> bool:
        """Where a block begins, unless all masks are computed anyway, and every `refresh` steps."""
        return super().due(age, begins and (self.fresh != "masks" or self.refresh == "block"))

    def active(self, state: State) -> Tensor:
        """As `fresh` says."""
        if self.fresh == "masks":
            return state.masked | state.changed | state.wanted.read
        return state.wanted.block | state.later if self.fresh == "rest" else state.wanted.block
