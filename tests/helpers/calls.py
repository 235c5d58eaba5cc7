"""What tests of attention calls share: a policy and a module as simple as can be, and a watch over allocations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sinkscope.attention.context import AttentionCall, KeyMasker
from sinkscope.attention.key_mask import KeyMask


@dataclass
class Masks(KeyMasker):
    """A policy that masks the same keys in every layer."""

    key_mask: KeyMask | None

    def mask(self, layer: int, query: Tensor, key: Tensor, visibility: object, scale: float) -> KeyMask | None:
        return self.key_mask


class Recorder:
    """Keeps every call, or hands it to a function; says beforehand which classes of queries will be read."""

    def __init__(self, *names: str, see: Callable[[AttentionCall], None] | None = None) -> None:
        self.names, self.see = names, see
        self.calls: list[AttentionCall] = []

    def reads(self, layer: int) -> tuple[str, ...]:
        return self.names

    def record(self, call: AttentionCall) -> None:
        self.calls.append(call)
        if self.see is not None:
            self.see(call)

    def residual(self, layer: int, hidden: Tensor) -> None:
        """Nothing is kept."""


def module(causal: bool, layer: int = 2) -> nn.Module:
    """As transformers' attention modules look to an attention function."""
    found = nn.Module()
    found.layer_idx, found.is_causal = layer, causal  # type: ignore[assignment]
    return found


class LargestTensor(TorchDispatchMode):
    """Notes the largest number of elements that any operation allocates: views of a stored tensor count as what is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.operation = 0, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, torch.Tensor) and one.untyped_storage().nbytes():
                stored = one.untyped_storage().nbytes() // one.element_size()
                if stored > self.largest:
                    self.largest, self.operation = stored, str(func)
        return result
