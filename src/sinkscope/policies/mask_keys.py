"""MaskKeys: hide chosen columns of chosen layers in every forward, prefill included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.attention.interface import Hiding
from sinkscope.attention.taken import Taken
from sinkscope.attention.visibility import Visibility
from sinkscope.errors import InputError


@dataclass(frozen=True)
class MaskKeys:
    """Hides the same key columns from all queries, heads and rows of a layer.

    Scores of hidden columns become −inf before the softmax, which renormalises over the rest. A query that would lose
    every key it sees keeps its scores (the first query of a causal model, when column 0 is hidden). Columns index the
    tensor as it is passed, padding included; layers that are not named are untouched.

    >>> MaskKeys({0: [0, 5], 2: [1]})
    MaskKeys({0: [0, 5], 2: [1]})
    """

    columns: tuple[tuple[int, tuple[int, ...]], ...]

    def __init__(self, columns: Mapping[int, Iterable[int]]) -> None:
        if not isinstance(columns, Mapping):
            raise InputError(f"MaskKeys takes a mapping of layer to columns, such as {{0: [0]}}, got {columns!r}")
        cleaned = []
        for layer, chosen in columns.items():
            indices = tuple(sorted(set(_index(column, "column") for column in chosen)))
            if indices:
                cleaned.append((_index(layer, "layer"), indices))
        object.__setattr__(self, "columns", tuple(sorted(cleaned)))

    def __repr__(self) -> str:
        inside = ", ".join(f"{layer}: {list(columns)}" for layer, columns in self.columns)
        return f"MaskKeys({{{inside}}})"

    def __str__(self) -> str:
        return "keys:" + ",".join(f"{layer}={'+'.join(map(str, columns))}" for layer, columns in self.columns)

    def check(self, layers: int, keys: int) -> None:
        """Every layer and column must exist."""
        for layer, columns in self.columns:
            if layer >= layers:
                raise InputError(f"MaskKeys names layer {layer}, but the model has layers 0 to {layers - 1}")
            if columns[-1] >= keys:
                raise InputError(f"MaskKeys names column {columns[-1]}, but the sequence has columns 0 to {keys - 1}")

    def fixed(self) -> Hiding | None:
        """Itself; nothing when no column is named, so that the plain path runs bit for bit."""
        return self if self.columns else None

    def take(
        self, layer: int, query: Tensor, key: Tensor, visibility: Visibility, scale: float
    ) -> Taken | None:
        """The columns of this layer that exist by now."""
        chosen = [column for column in dict(self.columns).get(layer, ()) if column < visibility.keys]
        if not chosen:
            return None
        hidden = torch.zeros(1, 1, visibility.keys, dtype=torch.bool, device=query.device)
        hidden[..., chosen] = True
        return Taken(hidden)


def _index(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"MaskKeys takes {what} numbers from 0 on, got {value!r}")
    return value
