"""MaskKeys: mask chosen columns of chosen layers in every forward, prefill included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.attention.visibility import Visibility
from sinkscope.base.checks import whole
from sinkscope.base.errors import InputError
from sinkscope.policies.policy import POLICIES, FixedRule

Columns = tuple[tuple[int, tuple[int, ...]], ...]


@POLICIES.add
@dataclass(frozen=True)
class MaskKeys(FixedRule):
    """Masks the same key columns for all queries, heads and rows of a layer.

    If every key a query can see would be masked, that query is left unmasked (the first query of a causal model, if column 0 is
    masked). Columns index the input tensor, including padding; layers that are not named are untouched.

    Args:
        chosen: layer → columns.

    >>> str(MaskKeys({0: [0, 5], 2: [1]}))
    'keys:0=0+5/2=1'
    """

    chosen: Columns | Mapping[int, Iterable[int]]

    word: ClassVar[str] = "keys"
    by_column: ClassVar[bool] = True

    def __post_init__(self) -> None:
        columns_of = self.chosen
        if isinstance(columns_of, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in columns_of):
            columns_of = dict(columns_of)
        if not isinstance(columns_of, Mapping):
            raise InputError(f"MaskKeys takes a mapping of layer to columns, such as {{0: [0]}}, got {self.chosen!r}")
        cleaned = []
        for layer, columns in columns_of.items():
            if isinstance(columns, (str, int)) or not isinstance(columns, Iterable):
                raise InputError(
                    f"MaskKeys takes a list of columns for each layer, got {columns!r} for layer {layer!r}"
                )
            checked = tuple(sorted({whole("a column of MaskKeys", column, 0) for column in columns}))
            if checked:
                cleaned.append((whole("a layer of MaskKeys", layer, 0), checked))
        object.__setattr__(self, "chosen", tuple(sorted(cleaned)))
        super().__post_init__()

    @property
    def by_layer(self) -> dict[int, tuple[int, ...]]:
        """Layer → columns."""
        return dict(self.chosen)  # type: ignore[arg-type]

    @property
    def most(self) -> int:
        """The columns of the layer that names most."""
        return max(map(len, self.by_layer.values()), default=0)

    def check(self, layers: int, keys: int) -> None:
        for layer, columns in self.by_layer.items():
            if layer >= layers or columns[-1] >= keys:
                raise InputError(
                    f"MaskKeys names column {columns[-1]} of layer {layer}, but the model has layers 0 to {layers - 1}, and the "
                    f"sequence columns 0 to {keys - 1}"
                )
        super().check(layers, keys)

    def columns(self, layer: int, visibility: Visibility, device: torch.device) -> Tensor | None:
        """Bool [1, 1, K]: the columns of this layer that exist by now."""
        chosen = tuple(column for column in self.by_layer.get(layer, ()) if column < visibility.keys)
        return _marked(chosen, visibility.keys, device) if chosen else None

    def written_argument(self) -> str:
        return "/".join(f"{layer}={'+'.join(map(str, columns))}" for layer, columns in self.by_layer.items())

    @classmethod
    def read_argument(cls, text: str) -> Any:
        """`layer=column+column/layer=column` as a mapping."""
        chosen: dict[int, list[int]] = {}
        for item in text.split("/") if text else ():
            layer, equals, columns = item.partition("=")
            numbers = [layer, *columns.split("+")]
            if not equals or not all(number.strip().isdecimal() for number in numbers):
                raise InputError(f"columns are written as layer=column+column, got {item!r}")
            chosen[int(layer)] = [int(column) for column in columns.split("+")]
        return chosen


@lru_cache(maxsize=1024)
def _marked(columns: tuple[int, ...], keys: int, device: torch.device) -> Tensor:
    """Bool [1, 1, K]; made once, because a captured step cannot copy indices from the host."""
    masked = torch.zeros(1, 1, keys, dtype=torch.bool)
    masked[..., list(columns)] = True
    return masked.to(device)
