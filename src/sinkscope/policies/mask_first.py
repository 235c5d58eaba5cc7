"""MaskFirst: take away the first tokens, where causal models keep their sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkscope.attention.key_mask import first_real
from sinkscope.attention.visibility import Visibility
from sinkscope.errors import InputError
from sinkscope.policies.policy import FixedRule, whole


@dataclass(frozen=True)
class MaskFirst(FixedRule):
    """Takes the first k real tokens of every row, in every forward.

    >>> str(MaskFirst(1))
    'first:1'
    """

    k: int

    word: ClassVar[str] = "first"

    def __post_init__(self) -> None:
        whole("k", self.k, 0)
        super().__post_init__()

    @property
    def empty_rule(self) -> bool:
        """k = 0."""
        return self.k == 0

    def check_rule(self, layers: int, keys: int) -> None:
        """There must be k keys."""
        super().check_rule(layers, keys)
        if self.k > keys:
            raise InputError(f"{self} takes {self.k} keys, but the sequence has only {keys}; use a smaller k")

    def columns(self, layer: int, visibility: Visibility, device: torch.device) -> Tensor | None:
        """Bool [B|1, 1, K]."""
        index = torch.arange(visibility.keys, device=device)
        begin = first_real(visibility, device)[:, None, None]
        return (index >= begin) & (index < begin + self.k)

    def argument(self) -> str:
        """k."""
        return str(self.k)
