"""MaskFirst: mask the first tokens, where causal models keep their sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkscope.attention.key_mask import first_real
from sinkscope.attention.visibility import Visibility
from sinkscope.base.checks import whole
from sinkscope.policies.policy import POLICIES, FixedRule


@POLICIES.add
@dataclass(frozen=True)
class MaskFirst(FixedRule):
    """Masks the first k real tokens of every row, in every forward.

    >>> str(MaskFirst(1))
    'first:1'
    """

    k: int

    word: ClassVar[str] = "first"

    def __post_init__(self) -> None:
        whole("k", self.k, 0)
        super().__post_init__()

    @property
    def most(self) -> int:
        return self.k

    def key_share(self, keys: int) -> float | None:
        return round(min(1.0, self.k / keys), 6) if self.regions is None else None

    def columns(self, layer: int, visibility: Visibility, device: torch.device) -> Tensor | None:
        index = torch.arange(visibility.keys, device=device)
        begin = first_real(visibility, device)[:, None, None]
        return (index >= begin) & (index < begin + self.k)
