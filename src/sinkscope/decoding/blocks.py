"""Forwards of block loops: a window that ends with the active block, whose earlier blocks are computed again or kept in a cache.

Attention stands in blocks, so a finished block no longer changes once it is written: computing it again in every step and keeping
its keys and values give the same states. A cache is filled by forwards of their own kind: "prefill" for the whole blocks of the
prompt, "store" for a block that is finished. On a GPU it then moves into memory of fixed size, in which all forwards of a block
look alike, and are repeated as CUDA graphs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding.engine import Engine
from sinkscope.decoding.step import BlockPass, Step
from sinkscope.decoding.streams import Streams
from sinkscope.models.static_cache import StaticBlockCache, static_blocks


def new_cache() -> Any:
    """A KV cache for block loops: transformers' own, to which a forward adds only when it should.

    Attributes:
        stores: whether forwards add their keys and values; else they see those of earlier blocks and leave nothing behind.
        block: the active block's keys and values by layer, as an earlier forward left them; None: not kept.
        at: the column of the active block from which a forward replaces them; None: it computes the whole block.
    """
    from transformers import DynamicCache

    class BlockCache(DynamicCache):  # type: ignore[misc]
        stores = True
        block: dict[int, tuple[Tensor, Tensor]] | None = None
        at: int | None = None

        def update(
            self, key_states: Tensor, value_states: Tensor, layer_idx: int, *more: Any, **options: Any
        ) -> tuple[Tensor, Tensor]:
            if self.stores:
                added: tuple[Tensor, Tensor] = super().update(
                    key_states, value_states, layer_idx, *more, **options
                )
                return added
            if self.block is not None:
                if self.at is not None:
                    kept_keys, kept_values = self.block[layer_idx]
                    columns = slice(self.at, self.at + key_states.shape[2])
                    kept_keys[:, :, columns], kept_values[:, :, columns] = key_states, value_states
                    key_states, value_states = kept_keys, kept_values
                else:
                    self.block[layer_idx] = key_states.clone(), value_states.clone()
            if layer_idx >= len(self.layers) or self.layers[layer_idx].keys is None:
                return key_states, value_states
            stored = self.layers[layer_idx]
            return torch.cat([stored.keys, key_states], 2), torch.cat([stored.values, value_states], 2)

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return int(super().get_seq_length(layer_idx)) + (self.at or 0)

    return BlockCache()


class Blocks:
    """The forwards of one block loop.

    Args:
        size: columns of a block.
        reach: columns of the blocks that a denoising forward's attention stands in behind a cache; None: as large as `size`.
    """

    def __init__(self, engine: Engine, size: int, reach: int | None = None) -> None:
        self.engine, self.size, self.reach = engine, size, reach or size
        self.cache: Any = new_cache() if engine.cached else None
        self.stored = 0  # columns in the cache
        self._static: StaticBlockCache | None = None
        self._kept = False

    def prefill(self, x: Tensor, end: int, needed: bool = False) -> Tensor | None:
        """Put the first `end` columns, whole blocks of the prompt, into the cache; their last hidden states [B, end, width].

        Args:
            needed: the hidden states are wanted even where there is no cache. Else None comes where nothing ran.
        """
        if end and (self.cache is not None or needed):
            return self._store(x[:, :end], "prefill", step=False)
        return None

    def denoise(self, x: Tensor, end: int, alive: Tensor | None = None) -> Tensor:
        """Last hidden states [B, size, width] of the active block, the last one before column `end`."""
        if self._repeats(x, end):
            return self._repeated(x, end, slice(self.stored, end), "denoise", True, alive)
        if self.cache is not None:
            self.cache.stores = False
        taken = BlockPass(
            slice(self.stored, end),
            self.size,
            self.size if self.cache is None else self.reach,
            stored=self.cache is not None,
        )
        return self.engine.block_hidden(x[:, :end], taken, self.cache, alive)[:, -self.size :]

    def store(
        self, x: Tensor, end: int, alive: Tensor | None = None, needed: bool = False, step: bool = False
    ) -> Tensor | None:
        """Put the block before column `end`, which is finished, into the cache; its last hidden states [B, size, width].

        Args:
            needed, step: as in `prefill` and BlockPass.
        """
        if self._repeats(x, end):
            hidden = self._repeated(x, end, slice(self.stored, end), "store", step, alive)
            self.stored = end
            return hidden
        if self.cache is not None or needed:
            hidden = self._store(x[:, :end], "store", step, alive)
            return hidden[:, -self.size :]
        return None

    def _repeats(self, x: Tensor, end: int) -> bool:
        """Whether forwards of the block before column `end` run on a cache of fixed size, to which the first of them moves."""
        if self._static is None:
            # A block that stands inside of one of those that attention knows has queries that all see the same.
            alone = self.cache is not None and self.size == end - self.stored and not self.reach % self.size
            if not alone or not self.engine.repeats_blocks(x.device):
                return False
            self._static = static_blocks(self.cache, x.shape[1])
        return True

    def _repeated(
        self, x: Tensor, end: int, queries: slice, kind: str, step: bool, alive: Tensor | None
    ) -> Tensor:
        if self._static is None:
            raise RuntimeError("the cache did not move yet")
        taken = BlockPass(queries, queries.stop - queries.start, None, kind, step, stored=True)
        return self.engine.block_repeated(x, end, taken, self._static, alive)

    def _store(self, x: Tensor, kind: str, step: bool, alive: Tensor | None = None) -> Tensor:
        end = x.shape[1]
        taken = BlockPass(
            slice(self.stored, end), self.size, self.size, kind, step, stored=self.cache is not None
        )
        if self.cache is not None:
            self.cache.stores = True
        hidden = self.engine.block_hidden(x, taken, self.cache, alive)
        if self.cache is not None:
            self.stored = end
        return hidden

    @property
    def kept(self) -> bool:
        """Whether the cache holds keys and values of an active block, of this one or an earlier."""
        return (
            self._kept
            if self._static is not None
            else self.cache is not None and self.cache.block is not None
        )

    def forget(self) -> None:
        """Drop those of the active block."""
        self._kept = False
        if self.cache is not None:
            self.cache.block = None

    def refresh(self, x: Tensor, end: int, first: int | None, size: int, alive: Tensor | None) -> Tensor:
        """A denoising forward over the active block's own cache, whose keys may be stale (Fast-dLLM's sub-block cache).

        Args:
            first: the column of the block from which `size` columns are computed again; None: the whole block is.

        Returns:
            Last hidden states [B, size, width], or of the whole block.
        """
        cache: Any = self.cache
        cache.stores = False
        if first is None:
            cache.block = {}
            self._kept = True
            return self.denoise(x, end, alive)
        start = end - self.size + first
        if self._static is not None:
            return self._repeated(x, end, slice(start, start + size), "denoise", True, alive)
        cache.at = first
        try:
            taken = BlockPass(slice(start, start + size), size, None, stored=True)
            return self.engine.block_hidden(x[:, :end], taken, cache, alive)
        finally:
            cache.at = None


def filtered(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Logits [N, V] with −inf outside the top_k most likely tokens and then the smallest set with probability top_p.

    The token that passes the bound of top_p is still inside.
    """
    if top_k is not None and top_k > 0:
        least = torch.topk(logits, min(top_k, logits.shape[-1]))[0][..., -1, None]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if top_p is not None and top_p < 1:
        ordered, order = torch.sort(logits, descending=True)
        outside = ordered.softmax(-1).cumsum(-1) > top_p
        outside = torch.cat([torch.zeros_like(outside[..., :1]), outside[..., :-1]], -1)
        logits = logits.masked_fill(torch.zeros_like(outside).scatter_(-1, order, outside), float("-inf"))
    return logits


def transferred(
    confidence: Tensor, masked: Tensor, count: int, threshold: float | None, overflow: bool = False
) -> tuple[Tensor, Tensor]:
    """The positions that a step writes: all masked ones above the threshold, or the `count` best where those are fewer.

    Args:
        confidence: Float [B, n]. masked: Bool [B, n]. threshold: None: always the `count` best.
        overflow: where fewer than `count` are masked, others are written too, as `torch.topk` happens to find them.

    Returns:
        Bool [B, n], and Long [B]: chosen positions with an equal rival.
    """
    scores = confidence.masked_fill(~masked, float("-inf"))
    chosen = torch.zeros_like(masked)
    ties = torch.zeros(len(masked), dtype=torch.long)
    for row, own in enumerate(scores):
        high = own > (float("inf") if threshold is None else threshold)
        if threshold is not None and int(high.sum()) >= count:
            chosen[row] = high
            continue
        best = torch.topk(own, count if overflow else min(count, int(masked[row].sum()))).indices
        chosen[row, best] = True
        rest = own.masked_fill(chosen[row], float("-inf")).amax()
        ties[row] = int((chosen[row] & (own == rest) & (rest > float("-inf"))).sum())
    return chosen, ties


def draw(spread: Tensor, streams: Streams | None, rows: Tensor) -> Tensor:
    """One token for every position of the rows Bool [B] that take part, from Float [B, n, V]: Long [B, n], 0 elsewhere.

    One stream for the batch draws for all rows, as officially. Without streams the most likely token.
    """
    if streams is None:
        return spread.argmax(-1)
    where = (rows if streams.per_row else torch.ones_like(rows))[:, None].expand(spread.shape[:2])
    tokens = torch.zeros(spread.shape[:2], dtype=torch.long, device=spread.device)
    tokens[where] = streams.one_of_each(spread[where], where)
    return tokens


def block_step(
    x: Tensor,
    start: int,
    tokens: Tensor,
    confidence: Tensor,
    chosen: Tensor,
    ties: Tensor,
    alive: Tensor,
    mask_id: int,
) -> Step:
    """The step in which the rows Bool [B] that take part write the chosen positions Bool [B, n] from column `start` on."""
    after, here = x.clone(), slice(start, start + tokens.shape[1])
    after[:, here] = torch.where(chosen & alive[:, None], tokens, x[:, here])
    masked = x == mask_id
    seen = placed(confidence.float(), x, start, float("nan")).masked_fill(~masked, float("nan"))
    candidate = placed(tokens, x, start, -1).masked_fill(~masked, -1)
    decided = (after != x) & (after != mask_id)
    return Step(x, after, masked, seen, candidate, decided, ties * alive.cpu(), alive)


def placed(values: Tensor, like: Tensor, start: int, empty: float) -> Tensor:
    """Values [B, n] of the columns from `start` on in a frame of `like` [B, S] that is `empty` elsewhere."""
    frame = torch.full(like.shape, empty, dtype=values.dtype, device=values.device)
    frame[:, start : start + values.shape[1]] = values
    return frame


def even_plan(size: int, steps: int) -> list[int]:
    """How many positions each of so many steps decides: as even as possible, the first ones taking the remainder."""
    return [size // steps + (step < size % steps) for step in range(steps)]
