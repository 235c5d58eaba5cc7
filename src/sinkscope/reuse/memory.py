"""Memory that stays where it is: a CUDA graph reads and writes the same places in every replay."""

from __future__ import annotations

import torch
from torch import Tensor


class Memory:
    """Tensors by name, one place for each shape; writing another value into a place is what a captured forward sees."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, torch.Size], Tensor] = {}

    def put(self, name: str, value: Tensor) -> Tensor:
        """The place of this name and shape, with the value copied into it."""
        place = self._places.get((name, value.shape))
        if place is None:
            place = self._places[name, value.shape] = torch.empty(
                value.shape, dtype=value.dtype, device=value.device
            )
        return place.copy_(value)
