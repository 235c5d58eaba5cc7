"""Keys and values in memory of fixed size, so that every step of a generation is the same work.

A step then can be captured as a CUDA graph: it reads the new tokens and their column from the same places, writes its keys and
values into that column, and attends over all columns, those that are not written yet masked like padding.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class StaticCache:
    """The cache of one group of rows.

    Args:
        layers: [keys, values] of each layer after the prefill, Float [B, G, P, D] each.
        columns: S, all columns that there will be. real: Bool [B, S], False in left padding; None: nothing is padded.

    Attributes:
        inputs: Long [B + 1]: the tokens of the step, and the column they stand in.
    """

    def __init__(self, layers: list[tuple[Tensor, Tensor]], columns: int, real: Tensor | None) -> None:
        first = layers[0][0]
        rows, groups, prompt, width = first.shape
        self.keys = torch.zeros(
            len(layers), rows, groups, columns, width, dtype=first.dtype, device=first.device
        )
        self.values = torch.zeros_like(self.keys)
        for index, (keys, values) in enumerate(layers):
            self.keys[index, :, :, :prompt].copy_(keys)
            self.values[index, :, :, :prompt].copy_(values)
        self._index = torch.arange(columns, device=first.device)
        self._real = real
        self._before = torch.zeros(rows, 1, dtype=torch.long, device=first.device)
        if real is not None:
            self._before = (~real).sum(1, keepdim=True)

    def begin(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What follows from the inputs Long [B + 1] of a step.

        Returns:
            ids Long [B, 1], positions Long [B, 1], visible columns Bool [B, S], the column of the step Long [1].
        """
        ids, column = inputs[:-1, None], inputs[-1:]
        visible = (self._index <= column)[None].expand(len(ids), -1)
        if self._real is not None:
            visible = visible & self._real
        return ids, column - self._before, visible, column

    def update(self, layer: int, column: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write Float [B, G, 1, D] into a column; all keys and values of the layer, Float [B, G, S, D]."""
        self.keys[layer].index_copy_(2, column, key)
        self.values[layer].index_copy_(2, column, value)
        return self.keys[layer], self.values[layer]


def prefilled(cache: Any) -> list[tuple[Tensor, Tensor]]:
    """[keys, values] of each layer of transformers' dynamic cache."""
    return [(layer.keys, layer.values) for layer in cache.layers]


class StaticBlockCache(Protocol):
    """The cache of a block loop: transformers' interface over memory of fixed size.

    Attributes:
        columns: Long [Q]: where the next forward writes its keys and values.
    """

    columns: Tensor


def static_blocks(cache: Any, columns: int) -> StaticBlockCache:
    """A cache of so many columns that goes on from transformers' dynamic cache of the prompt.

    Every forward writes its block in place: one that is not finished yet is overwritten by the next forward of the same block.
    """
    from transformers import DynamicCache

    class Blocks(DynamicCache):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.columns = torch.zeros(0, dtype=torch.long)
            self.memory: dict[int, tuple[Tensor, Tensor]] = {}

        def update(
            self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
        ) -> tuple[Tensor, Tensor]:
            if layer_idx not in self.memory:
                known = layer_idx < len(cache.layers) and cache.layers[layer_idx].keys is not None
                stored = cache.layers[layer_idx] if known else None
                self.memory[layer_idx] = (
                    _room(key_states, columns, None if stored is None else stored.keys),
                    _room(value_states, columns, None if stored is None else stored.values),
                )
                if stored is not None:
                    stored.keys = stored.values = None  # moved: nothing is kept twice
            for memory, states in zip(self.memory[layer_idx], (key_states, value_states), strict=True):
                memory.index_copy_(2, self.columns, states)
            return self.memory[layer_idx]

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return 0  # positions are given, and which columns are written the context knows

    made: StaticBlockCache = Blocks()
    return made


def _room(like: Tensor, columns: int, stored: Tensor | None) -> Tensor:
    """Zeros [B, G, columns, D] that begin with what is stored, [B, G, P, D]."""
    room = like.new_zeros(*like.shape[:2], columns, like.shape[3])
    if stored is not None:
        room[:, :, : stored.shape[2]] = stored
    return room
