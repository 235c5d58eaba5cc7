"""Forwards of block loops: a window that ends with the active block, whose earlier blocks are computed again or kept in a cache.

Attention stands in blocks, so a finished block no longer changes once it is written: computing it again in every step and keeping
its keys and values give the same states. A cache is filled by forwards of their own kind: "prefill" for the whole blocks of the
prompt, "store" for a block that is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding.engine import Engine
from sinkscope.decoding.step import Request, Step
from sinkscope.decoding.streams import Streams


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
                added: tuple[Tensor, Tensor] = super().update(key_states, value_states, layer_idx, *more, **options)
                return added
            if self.block is not None:
                if self.at is not None:
                    # In place: the block is kept from forward to forward, and only the columns from `at` on are new.
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
            # Queries of a forward that begins inside the block stand `at` columns behind what is stored.
            return int(super().get_seq_length(layer_idx)) + (self.at or 0)

    return BlockCache()


class Blocks:
    """The forwards of one block loop.

    Args:
        size: columns of a block.
        reach: columns of the blocks that a denoising forward's attention stands in behind a cache; None: as large as `size`.
        seen: gives what else a request says of what its queries see, where blocks are not counted from column 0.
    """

    def __init__(
        self,
        engine: Engine,
        size: int,
        reach: int | None = None,
        seen: Callable[[Request], Mapping[str, Any]] | None = None,
    ) -> None:
        self.engine, self.size, self.reach, self._seen = engine, size, reach or size, seen
        self.cache: Any = new_cache() if engine.cached else None
        self.stored = 0  # columns in the cache

    def prefill(self, x: Tensor, end: int, needed: bool = False, **more: Any) -> Tensor | None:
        """Put the first `end` columns, whole blocks of the prompt, into the cache; their last hidden states [B, end, width].

        Args:
            needed: the hidden states are wanted even where there is no cache. Else None comes where nothing ran.
            more: of the request.
        """
        if end and (self.cache is not None or needed):
            return self._store(Request(x, None, slice(0, end), kind="prefill", step=False, **more))
        return None

    def denoise(self, x: Tensor, end: int, alive: Tensor | None = None, size: int | None = None, **more: Any) -> Tensor:
        """Last hidden states [B, size, width] of the active block, the last one before column `end`.

        Args:
            size: its columns, where it is shorter than others. more: of the request.
        """
        size = self.size if size is None else size
        request = Request(x, alive, slice(self.stored, end), active=size, block=self.reach, **more)
        return self._look(request)[:, -size:]

    def store(
        self, x: Tensor, end: int, alive: Tensor | None = None, needed: bool = False, step: bool = False, **more: Any
    ) -> Tensor | None:  # fmt: skip
        """Put the block before column `end`, which is finished, into the cache; its last hidden states [B, size, width].

        Args:
            needed, step: as in `prefill` and Request. more: of the request.
        """
        if self.cache is None and not needed:
            return None
        request = Request(x, alive, slice(self.stored, end), kind="store", step=step, **more)
        return self._store(request)[:, -self.size :]

    def refresh(self, x: Tensor, end: int, first: int | None, size: int, alive: Tensor | None) -> Tensor:
        """A denoising forward over the active block's own cache, whose keys may be stale (Fast-dLLM's sub-block cache).

        Args:
            first: the column of the block from which `size` columns are computed again; None: the whole block is.

        Returns:
            Last hidden states [B, size, width], or of the whole block.
        """
        if first is None:
            self.cache.block = {}
            return self.denoise(x, end, alive)
        start = end - self.size + first
        self.cache.at = first
        try:
            return self._look(Request(x, alive, slice(start, start + size), end, active=size, block=None))
        finally:
            self.cache.at = None

    @property
    def kept(self) -> bool:
        """Whether the cache holds keys and values of an active block, of this one or an earlier."""
        return self.cache is not None and self.cache.block is not None

    def forget(self) -> None:
        """Drop those of the active block."""
        if self.cache is not None:
            self.cache.block = None

    def _look(self, request: Request) -> Tensor:
        """A forward that leaves nothing in the cache; without one, earlier blocks are computed again."""
        if self.cache is None:
            return self._forward(replace(request, block=self.size))
        self.cache.stores = False
        return self._forward(replace(request, cache=self.cache))

    def _store(self, request: Request) -> Tensor:
        """A forward that leaves its keys and values in the cache, where there is one."""
        if self.cache is not None:
            self.cache.stores, self.stored = True, request.queries.stop
        return self._forward(replace(request, cache=self.cache, active=self.size, block=self.size))

    def _forward(self, request: Request) -> Tensor:
        return self.engine.forward(request if self._seen is None else replace(request, **self._seen(request)))


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
    confidence: Tensor,
    masked: Tensor,
    counts: int | Sequence[int],
    threshold: float | None = None,
    overflow: bool = False,
) -> tuple[Tensor, Tensor]:
    """The positions that a step writes: all masked ones above the threshold, or the `counts` best where those are fewer.

    Args:
        confidence: Float [B, n]. masked: Bool [B, n]. counts: of each row, or of all. threshold: None: always the best.
        overflow: where fewer than `count` are masked, others are written too, as `torch.topk` happens to find them.

    Returns:
        Bool [B, n], and Long [B]: chosen positions with an equal rival.
    """
    scores = confidence.masked_fill(~masked, float("-inf"))
    chosen = torch.zeros_like(masked)
    ties = torch.zeros(len(masked), dtype=torch.long)
    for row, row_scores in enumerate(scores):
        count = counts if isinstance(counts, int) else counts[row]
        high = row_scores > (float("inf") if threshold is None else threshold)
        if threshold is not None and int(high.sum()) >= count:
            chosen[row] = high
            continue
        if not (count := count if overflow else min(count, int(masked[row].sum()))):
            continue
        best = torch.topk(row_scores, count).indices
        chosen[row, best] = True
        # The best of those that were not chosen; −inf: every masked position was, so nothing was tied.
        rest = row_scores.masked_fill(chosen[row], float("-inf")).amax()
        ties[row] = int((chosen[row] & (row_scores == rest) & (rest > float("-inf"))).sum())
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


def noisy(logits: Tensor, temperature: float, streams: Streams | None, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The arg max of logits [B, n, V] with Gumbel noise, Long [B, n], and its probability without.

    Args:
        rows: Bool [B]: those that draw.
    """
    warm = logits
    if temperature > 0 and streams is not None:
        uniform = streams.uniform(tuple(logits.shape), torch.float64, rows.tolist())
        warm = logits.double().exp() / (-uniform.log()) ** temperature
    tokens = warm.argmax(-1)
    return tokens, logits.softmax(-1).gather(-1, tokens[..., None])[..., 0]


def complete(x: Tensor, ends: Tensor | int, mask_id: int) -> Tensor:
    """Bool [B]: rows of Long [B, n] with an end token before which nothing is masked."""
    ended = torch.isin(x, ends)
    columns = torch.arange(x.shape[1], device=x.device)[None]
    before = columns < ended.long().argmax(1, keepdim=True)
    return ended.any(1) & ~((x == mask_id) & before).any(1)


def block_step(
    x: Tensor, start: int, tokens: Tensor, confidence: Tensor, chosen: Tensor, ties: Tensor, alive: Tensor, mask_id: int
) -> Step:  # fmt: skip
    """The step in which the rows Bool [B] that take part write the chosen positions Bool [B, n] from column `start` on."""
    after, here = x.clone(), slice(start, start + tokens.shape[1])
    after[:, here] = torch.where(chosen & alive[:, None], tokens, x[:, here])
    masked = x == mask_id
    seen = placed(confidence.float(), x, start, float("nan")).masked_fill(~masked, float("nan"))
    candidate = placed(tokens, x, start, -1).masked_fill(~masked, -1)
    decided = (after != x) & (after != mask_id)
    return Step(x, after, masked, seen, candidate, decided, ties * alive.cpu(), alive)


def store_step(x: Tensor, after: Tensor, alive: Tensor, mask_id: int) -> Step:
    """The step in which rows Bool [B] store a finished block; what it wrote are no candidates that were chosen."""
    nothing, ties = torch.full(x.shape, float("nan"), device=x.device), torch.zeros(len(x), dtype=torch.long)
    decided, none = (after != x) & (after != mask_id), torch.full_like(x, -1)
    return Step(x, after, x == mask_id, nothing, none, decided, ties, alive, kind="store")


def placed(values: Tensor, like: Tensor, start: int, empty: float) -> Tensor:
    """Values [B, n] of the columns from `start` on in a frame of `like` [B, S] that is `empty` elsewhere."""
    frame = torch.full(like.shape, empty, dtype=values.dtype, device=values.device)
    frame[:, start : start + values.shape[1]] = values
    return frame
