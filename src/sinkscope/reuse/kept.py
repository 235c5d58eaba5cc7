"""What is kept between forwards: keys, values and residual streams of columns, in memory that stays where it is."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.attention.context import CallEditor


class Columns(CallEditor):
    """Keys and values of every layer of one group of rows, and where they are seen the residual streams before the layers.

    A full forward leaves its keys and values here. A partial one brings those of its active columns, and attends over what
    `inputs` hands back: everything, or, once `gather` was called for the layers, the gathered keys and the active ones.

    Attributes:
        active: Long [B, A]: the columns of a partial forward; None: the forward, or what is left of it, is of all columns.
        moved: how often keys and values got another place in memory, because their shape was another.
    """

    PASSING = ("active",)  # what no repeated forward reads (see `gpu.state`)

    def __init__(self, whole: bool) -> None:
        self.active: Tensor | None = None
        self.moved = 0
        self._whole = whole
        self._stored: dict[int, tuple[Tensor, Tensor]] = {}
        self._streams: dict[int, Tensor] = {}

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

    def see(self, layer: int, stream: Tensor) -> None:
        """Keep the stream that enters a layer: Float [B, S, width], or [B, A, width] of the active columns.

        Refreshes alone bring it: the columns of a partial forward stay active until the next one, which computes them again.
        """
        if self.active is None:
            self._streams[layer] = stream
        else:
            self._streams[layer].scatter_(1, self.active[..., None].expand(stream.shape), stream)

    def entering(self, layer: int) -> Tensor:
        """Float [B, S, width]: the stream before a layer, each column as it was last computed."""
        return self._streams[layer]

    def _into(self, layer: int, shape: torch.Size, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Copies in the first columns of memory that stays where it is while its shape does: a CUDA graph reads it there."""
        stored = self._stored.get(layer)
        if stored is None or stored[0].shape != shape:
            stored = (key.new_zeros(shape), value.new_zeros((*shape[:3], value.shape[3])))
            self.moved += 1
        for store, fresh in zip(stored, (key, value), strict=True):
            store[:, :, : fresh.shape[2]] = fresh
        return stored


class Memory:
    """Tensors by name, one place for each shape: a captured forward reads and writes the same places in every replay."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, torch.Size], Tensor] = {}

    def put(self, name: str, value: Tensor) -> Tensor:
        """The place of this name and shape, with the value copied into it."""
        place = self._places.get((name, value.shape))
        if place is None:
            place = self._places[name, value.shape] = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        return place.copy_(value)
