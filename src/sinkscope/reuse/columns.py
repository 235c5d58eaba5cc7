"""Keys and values that are kept between forwards: all columns in place, or some of them gathered."""

from __future__ import annotations

import torch
from torch import Tensor


class Columns:
    """The keys and values of every layer of one group of rows; an editor of attention calls (see attention.context).

    A full forward leaves its keys and values here. A partial one brings those of its active columns, and attends over what
    `inputs` hands back: everything, or, once `gather` was called for the layers, the gathered keys and the active ones.

    Attributes:
        active: Long [B, A]: the columns of a partial forward; None: the forward is a full one.
        moved: how often keys and values got another place in memory, because their shape was another.
    """

    def __init__(self, whole: bool) -> None:
        self.active: Tensor | None = None
        self.moved = 0
        self._whole = whole
        self._stored: dict[int, tuple[Tensor, Tensor]] = {}

    def inputs(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep a full forward's keys and values [B, G, S, D]; add a partial one's [B, G, A, D] to what is kept."""
        if self.active is None:
            if self._whole:
                self._stored[layer] = self._into(layer, key.shape, key, value)
            return key, value
        kept = self._stored[layer]
        for store, fresh in zip(kept, (key, value), strict=True):
            if self._whole:
                index = self.active[:, None, :, None].expand(fresh.shape)
                store.scatter_(2, index, fresh)
            else:
                store[:, :, -fresh.shape[2] :] = fresh
        return kept

    def output(self, layer: int, output: Tensor) -> Tensor:
        """Outputs stay as they are."""
        return output

    def gather(self, layer: int, key: Tensor, value: Tensor, columns: Tensor, active: int) -> None:
        """Keep the keys and values of some columns, Long [B, k], with room for the active ones behind them."""
        index = columns[:, None, :, None]
        picked = [one.gather(2, index.expand(-1, one.shape[1], -1, one.shape[3])) for one in (key, value)]
        shape = (*key.shape[:2], columns.shape[1] + active, key.shape[3])
        self._stored[layer] = self._into(layer, torch.Size(shape), *picked)

    def keys_at(self, layer: int, columns: Tensor) -> Tensor:
        """The keys of one column of each row, Long [B]: Float [B, G · D]; where all columns are kept."""
        keys = self._stored[layer][0]
        rows = torch.arange(len(columns), device=columns.device)
        return keys[rows, :, columns].flatten(1)

    def _into(self, layer: int, shape: torch.Size, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Copies in the first columns of memory that stays where it is while its shape does: a CUDA graph reads it there."""
        stored = self._stored.get(layer)
        if stored is None or stored[0].shape != shape:
            stored = (key.new_zeros(shape), value.new_zeros((*shape[:3], value.shape[3])))
            self.moved += 1
        for store, fresh in zip(stored, (key, value), strict=True):
            store[:, :, : fresh.shape[2]] = fresh
        return stored
