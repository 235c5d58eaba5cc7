"""Keys and values in memory of fixed size, so that every step of a generation is the same work.

A step then can be captured as a CUDA graph: it reads the state and its columns from the same places, writes its keys and values
into those columns, and attends over all columns, those that are not written yet masked like padding. A block that is not finished
is overwritten by the next forward of the same block.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import DynamicCache

if TYPE_CHECKING:
    from sinkscope.decoding.step import Request


@dataclass
class Memory:
    """What the forwards on a fixed cache read and write.

    Attributes:
        before: Long [B|1, 1]: columns of padding on the left. real: Bool [B, S], False there; None: nothing is padded.
        layers: layer → keys and values, Float [B, G, S, D] each.
    """

    before: Tensor
    real: Tensor | None
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


class FixedCache:
    """The cache of one group of rows, which goes on from transformers' growing one.

    Args:
        cache: what there is so far; it is emptied. state: Long [B, S], of as many columns as there will be.
        real: Bool [B, S], or None where nothing is padded.
    """

    def __init__(self, cache: Any, state: Tensor, real: Tensor | None) -> None:
        before = state.new_zeros(1, 1) if real is None else (~real).sum(1, keepdim=True)
        self.memory, self._columns = Memory(before, real), state.shape[1]
        for index, layer in enumerate(cache.layers):
            if layer.keys is not None:
                rooms = self.layer(index, layer.keys, layer.values)
                for room, stored in zip(rooms, (layer.keys, layer.values), strict=True):
                    room[:, :, : stored.shape[2]] = stored
                layer.keys = layer.values = None  # moved: nothing is kept twice

    def inputs(self, request: Request) -> Tensor:
        """Long [B · S + 2]: the state, the first column that is fed and the one behind the last key."""
        queries, ids = request.queries, request.ids
        # Filled in on the device: a copy from the host would wait for it.
        places = (queries.start, request.end or queries.stop)
        return torch.cat([ids.flatten(), *(ids.new_full((1,), place) for place in places)])

    def placed(self, request: Request, inputs: Tensor) -> Request:
        """The request on this cache, as these inputs say; every query sees every key."""
        state, (start, end) = inputs[:-2].view(request.ids.shape), (inputs[-2:-1], inputs[-1:])
        queries, memory = request.queries, self.memory
        columns = torch.arange(queries.stop - queries.start, device=inputs.device) + start
        visible = (torch.arange(state.shape[1], device=inputs.device) < end)[None].expand(state.shape)
        if memory.real is not None:
            visible = visible & memory.real
        # Later forwards have more keys, so that what is known of this one's number holds for them.
        placed = request.placed(columns, columns[None] - memory.before, visible, request.end or queries.stop)
        return replace(placed, ids=state, cache=InPlace(self, columns), block=None)

    def layer(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The memory of a layer whose new keys and values are like these, Float [B, G, Q, D] each."""
        layers = self.memory.layers
        if index not in layers:
            keys, values = (new.new_zeros(*new.shape[:2], self._columns, new.shape[3]) for new in (keys, values))
            layers[index] = keys, values
        return layers[index]


class InPlace(DynamicCache):  # type: ignore[misc]
    """A fixed cache as transformers knows it, for a forward whose keys and values go to some columns, Long [Q]."""

    def __init__(self, fixed: FixedCache, columns: Tensor) -> None:
        super().__init__()
        self._fixed, self._columns = fixed, columns

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write Float [B, G, Q, D] into the columns; all keys and values of the layer, Float [B, G, S, D]."""
        memory = self._fixed.layer(layer_idx, key_states, value_states)
        for whole, states in zip(memory, (key_states, value_states), strict=True):
            whole.index_copy_(2, self._columns, states)
        return memory

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """None: positions are given, and which columns are written the context knows."""
        return 0
