"""Window: each query keeps the keys around it, and if wanted the first ones (the sinks of StreamingLLM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sinkscope.attention.key_mask import Band
from sinkscope.base.checks import whole
from sinkscope.base.errors import InputError
from sinkscope.policies.policy import POLICIES, FixedRule


@POLICIES.add
@dataclass(frozen=True)
class Window(FixedRule):
    """Keeps key j for query i when |i − j| < width, or j is among the first real keys; never more than `future` ahead.

    `Window(n, future=0)` with n as wide as the sequence makes a diffusion model causal. `first` is the attention-sink cache of
    StreamingLLM (arXiv 2309.17453): comparing first=4 with first=0 shows whether a model relies on fixed anchors.

    >>> str(Window(64, first=4))
    'window:64,first=4'
    """

    width: int
    first: int = 0
    future: int | None = None

    word: ClassVar[str] = "window"

    def __post_init__(self) -> None:
        whole("width", self.width, 1)
        whole("first", self.first, 0)
        if self.future is not None:
            whole("future", self.future, 0)
        super().__post_init__()
        if self.regions is not None:
            raise InputError("a window is about distance, not regions; leave out regions")
        if self.heads is not None:
            raise InputError("a window is the same for all heads of a layer; leave out heads")

    def band(self) -> Band | None:
        return Band(self.width, self.first, self.future)
