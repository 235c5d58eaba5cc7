"""Keys and values in memory of fixed size, so that every step of a generation is the same work.

A step then can be captured as a CUDA graph: it reads the new tokens and their column from the same places, writes its keys and
values into that column, and attends over all columns, those that are not written yet masked like padding.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sinkscope.decoding.step import Request


@dataclass
class CausalMemory:
    """What a causal model's steps read and write.

    Attributes:
        keys, values: Float [layer, B, G, S, D]. tokens: Long [B, S]: what is written so far.
        real: Bool [B, S], False in left padding; None: nothing is padded. before: Long [B, 1]: columns of padding.
        prompt: columns of the prompt.
    """

    keys: Tensor
    values: Tensor
    tokens: Tensor
    real: Tensor | None
    before: Tensor
    prompt: int


class StaticCache:
    """The cache of one group of rows of a causal model.

    Args:
        cache: transformers' growing one, with the prompt in it; it is emptied.
        state: Long [B, S], of as many columns as there will be. real: Bool [B, S] or None.
    """

    def __init__(self, cache: Any, state: Tensor, real: Tensor | None) -> None:
        first = cache.layers[0].keys
        rows, groups, prompt, width = first.shape
        shape = (len(cache.layers), rows, groups, state.shape[1], width)
        keys, values = first.new_zeros(shape), first.new_zeros(shape)
        for index, layer in enumerate(cache.layers):
            keys[index, :, :, :prompt].copy_(layer.keys)
            values[index, :, :, :prompt].copy_(layer.values)
            layer.keys = layer.values = None  # nothing is kept twice
        before = torch.zeros(rows, 1, dtype=torch.long, device=first.device)
        if real is not None:
            before = (~real).sum(1, keepdim=True)
        self.memory = CausalMemory(keys, values, state.clone(), real, before, prompt)

    def written(self, request: Request) -> int:
        """Columns that are written in every step."""
        return self.memory.prompt

    def inputs(self, request: Request) -> Tensor:
        """Long [B + 1]: the newest tokens, and the column they stand in."""
        newest = request.queries.stop - 1
        return torch.cat([request.ids[:, newest], request.ids.new_full((1,), newest)])

    def placed(self, request: Request, inputs: Tensor) -> Request:
        """The request on this cache, as these inputs say."""
        memory, column = self.memory, inputs[-1:]
        # In memory that stays: a captured step writes the newest token there.
        memory.tokens.index_copy_(1, column, inputs[:-1, None])
        index = torch.arange(memory.tokens.shape[1], device=inputs.device)
        visible = (index <= column)[None].expand(len(memory.tokens), -1)
        if memory.real is not None:
            visible = visible & memory.real
        placed = request.placed(column, column - memory.before, visible, self.written(request))
        return replace(placed, ids=memory.tokens, cache=self)

    def update(self, layer: int, column: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write Float [B, G, 1, D] into a column; all keys and values of the layer, Float [B, G, S, D]."""
        keys, values = self.memory.keys[layer], self.memory.values[layer]
        keys.index_copy_(2, column, key)
        values.index_copy_(2, column, value)
        return keys, values


@dataclass
class BlockMemory:
    """What the forwards of a block loop read and write: layer → keys and values, Float [B, G, S, D] each."""

    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


class BlockCache:
    """The cache of a block loop, which goes on from transformers' dynamic one of the prompt.

    Every forward writes its block in place: one that is not finished yet is overwritten by the next forward of the same block.

    Args:
        cache: what there is so far; each layer is moved when it is first met. columns: S, of the whole sequence.
    """

    def __init__(self, cache: Any, columns: int) -> None:
        self.memory = BlockMemory()
        self.cache, self.columns = cache, columns

    def written(self, request: Request) -> int:
        """Columns that are written."""
        return request.end or request.queries.stop

    def inputs(self, request: Request) -> Tensor:
        """Long [B · S + 2]: the state, the first column that is fed and the one behind the last key."""
        queries, ids = request.queries, request.ids
        # Filled in on the device: a copy from the host would wait for it.
        places = (queries.start, request.end or queries.stop)
        return torch.cat([ids.flatten(), *(ids.new_full((1,), place) for place in places)])

    def placed(self, request: Request, inputs: Tensor) -> Request:
        """The request on this cache, as these inputs say; every query sees every key."""
        state, (start, end) = inputs[:-2].view(request.ids.shape), (inputs[-2:-1], inputs[-1:])
        queries = request.queries
        columns = torch.arange(queries.stop - queries.start, device=inputs.device) + start
        visible = (torch.arange(state.shape[1], device=inputs.device) < end)[None].expand(state.shape)
        placed = request.placed(columns, columns[None], visible, self.written(request))
        return replace(placed, ids=state, cache=_in_place(self, columns), block=None)

    def layer(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The memory of a layer whose new keys and values are like these."""
        layers = self.memory.layers
        if index not in layers:
            known = index < len(self.cache.layers) and self.cache.layers[index].keys is not None
            stored = self.cache.layers[index] if known else None
            layers[index] = (
                _room(keys, self.columns, None if stored is None else stored.keys),
                _room(values, self.columns, None if stored is None else stored.values),
            )
            if stored is not None:
                stored.keys = stored.values = None  # moved: nothing is kept twice
        return layers[index]


def _in_place(blocks: BlockCache, columns: Tensor) -> Any:
    """The cache as transformers knows it, for a forward whose keys and values go to these columns Long [Q]."""
    from transformers import DynamicCache

    class InPlace(DynamicCache):  # type: ignore[misc]
        def update(
            self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
        ) -> tuple[Tensor, Tensor]:
            memory = blocks.layer(layer_idx, key_states, value_states)
            for whole, states in zip(memory, (key_states, value_states), strict=True):
                whole.index_copy_(2, columns, states)
            return memory

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return 0  # positions are given, and which columns are written the context knows

    return InPlace()


def _room(like: Tensor, columns: int, stored: Tensor | None) -> Tensor:
    """Zeros [B, G, columns, D] that begin with what is stored, [B, G, P, D]."""
    room = like.new_zeros(*like.shape[:2], columns, like.shape[3])
    if stored is not None:
        room[:, :, : stored.shape[2]] = stored
    return room
