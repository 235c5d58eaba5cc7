"""Forwards of block loops: a window that ends with the active block, whose earlier blocks are computed again or kept in a cache.

Attention stands in blocks, so a finished block no longer changes once it is written: computing it again in every step and keeping
its keys and values give the same states. A cache is filled by forwards of their own kind: "prefill" for the whole blocks of the
prompt, "store" for a block that is finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.decoding.step import Loop, Options, Request, Step, chance, select, step_of
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


class BlockLoop(Loop[Options]):
    """Blocks from left to right, each in the order predict, score, choose, write; finished ones behind a cache.

    Attributes:
        first: the first column of the first block. behind: the column behind the last one.
        end: the column behind the active block. here: the columns that are decided now: the block, or some of it.
        staying: Bool [B]: rows that have not left the block.
        cache: finished blocks, as far as column `stored`; None: they are computed again.
        reach: columns of the blocks that a denoising forward's attention stands in behind a cache; None: as large as a block.
    """

    reach: ClassVar[int | None] = None

    def begin(self, *group: Any) -> None:
        super().begin(*group)
        size = self.options.block
        self.first = self.prompt // size * size if self.options.rounded else self.prompt
        self.behind = self.x.shape[1]
        self.cache: Any = new_cache() if self.engine.cached else None
        self.stored = 0

    def run(self) -> Iterator[Step]:
        """Block by block."""
        if self.options.rounded:  # other loops read their prompts with more in mind
            self.read(self.first)
        for start in range(self.first, self.behind, self.options.block):
            self.end = min(start + self.options.block, self.behind)
            self.here, self.staying = slice(start, self.end), self.alive
            yield from self.denoise()
            yield from self.close()
            if not bool(self.alive.any()):
                return

    def denoise(self) -> Iterator[Step]:
        """The steps of a block."""
        for counts in self.plan():
            masked = self.x[:, self.here] == self.engine.mask_id
            going = self.going(masked, counts)
            if not bool(going.any()):
                return
            tokens, confidence = self.score(self.predict(going), going)
            chosen, ties = self.choose(tokens, confidence, masked, counts)
            yield self.write(tokens, confidence, chosen, ties, going)
            if self.leaves(tokens, chosen, going):
                return

    def plan(self) -> Iterable[Any]:
        """How many masks each step of the block decides, of all rows or of each."""
        raise NotImplementedError

    def going(self, masked: Tensor, counts: Any) -> Tensor:
        """Bool [B]: the rows that take part in a step; masked: Bool [B, n]."""
        return self.staying & masked.any(1)

    def predict(self, going: Tensor) -> Tensor:
        """Logits [B, n, V] of the block."""
        return self.model.head(self.look(going))

    def score(self, logits: Tensor, going: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens Long [B, n] for all positions, masked or not, and the confidence in them."""
        raise NotImplementedError

    def choose(self, tokens: Tensor, confidence: Tensor, masked: Tensor, counts: Any) -> tuple[Tensor, Tensor]:
        """The positions that are written, Bool [B, n], and ties Long [B]."""
        raise NotImplementedError

    def write(self, tokens: Tensor, confidence: Tensor, chosen: Tensor, ties: Tensor, going: Tensor) -> Step:
        """The step in which the rows that take part write the chosen positions."""
        x, mask_id, start = self.x, self.engine.mask_id, self.here.start
        self.x = x.clone()
        self.x[:, self.here] = torch.where(chosen & going[:, None], tokens, x[:, self.here])
        written = x != mask_id
        return step_of(
            x, self.x, going, mask_id, ties=ties.to(going.device) * going,
            confidence=placed(confidence.float(), x, start, float("nan")).masked_fill(written, float("nan")),
            candidate=placed(tokens, x, start, -1).masked_fill(written, -1),
        )  # fmt: skip

    def leaves(self, tokens: Tensor, chosen: Tensor, going: Tensor) -> bool:
        """Whether the loop leaves the block after a step; single rows leave `staying`."""
        return False

    def close(self) -> Iterable[Step]:
        """Store the block, and say which rows go on; gives the steps that this takes."""
        return ()

    # ---- forwards

    def read(self, end: int, needed: bool = False) -> Tensor | None:
        """Put the first `end` columns, whole blocks of the prompt, into the cache; their last hidden states [B, end, width].

        Args:
            needed: the hidden states are wanted even where there is no cache. Else None comes where nothing ran.
        """
        if end and (self.cache is not None or needed):
            return self._keeping(Request(self.x, None, slice(0, end), kind="prefill", step=False))
        return None

    def look(self, going: Tensor, size: int | None = None, **more: Any) -> Tensor:
        """Last hidden states [B, size, width] of the active block.

        Args:
            going: Bool [B]: the rows that take part. size: columns of the block, where it is shorter than others.
            more: of the request.
        """
        size, reach = size or self.options.block, self.reach or self.options.block
        request = Request(self.x, going, slice(self.stored, self.end), active=size, block=reach, **more)
        return self.passing(request)[:, -size:]

    def store(self, end: int, needed: bool = False, step: bool = False) -> Tensor | None:
        """Put the block before column `end`, which is finished, into the cache; its last hidden states [B, size, width].

        Args:
            needed, step: as in `read` and Request.
        """
        if self.cache is None and not needed:
            return None
        request = Request(self.x, self.alive, slice(self.stored, end), kind="store", step=step)
        return self._keeping(request)[:, -self.options.block :]

    def passing(self, request: Request) -> Tensor:
        """A forward that leaves nothing in the cache; without one, earlier blocks are computed again."""
        if self.cache is None:
            return self._forward(replace(request, block=self.options.block))
        self.cache.stores = False
        return self._forward(replace(request, cache=self.cache))

    def _keeping(self, request: Request) -> Tensor:
        """A forward that leaves its keys and values in the cache, where there is one."""
        if self.cache is not None:
            self.cache.stores, self.stored = True, request.queries.stop
        size = self.options.block
        return self._forward(replace(request, cache=self.cache, active=size, block=size))

    def _forward(self, request: Request) -> Tensor:
        return self.engine.forward(replace(request, **self.seen(request)))

    def seen(self, request: Request) -> Mapping[str, Any]:
        """What else a forward is to know of what its queries see, where blocks are not counted from column 0."""
        return {}


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
    wanted = [counts] * len(masked) if isinstance(counts, int) else list(counts)
    left = wanted if overflow else [min(pair) for pair in zip(wanted, masked.sum(1).tolist(), strict=True)]
    if threshold is None:
        return select(scores, left)
    high = scores > threshold
    enough = [sure >= count for sure, count in zip(high.sum(1).tolist(), wanted, strict=True)]
    chosen, ties = select(scores, [0 if sure else count for sure, count in zip(enough, left, strict=True)])
    return torch.where(torch.tensor(enough, device=high.device)[:, None], high, chosen), ties


def top_k_of(logits: Tensor, top_k: int | None, lowest: float = float("-inf"), exact: bool = False) -> Tensor:
    """Logits [..., V] that are `lowest` outside the most likely tokens; None or 0: all stay.

    Args:
        exact: of equal logits at the bound only some stay, so many as to be top_k; else all do.
    """
    if not top_k:
        return logits
    best = torch.topk(logits, min(top_k, logits.shape[-1]))
    if exact:
        return torch.full_like(logits, lowest).scatter_(-1, best.indices, best.values)
    return logits.masked_fill(logits < best.values[..., -1, None], lowest)


def top_p_of(
    values: Tensor,
    top_p: float | None,
    lowest: float = float("-inf"),
    least: int = 1,
    rising: bool = False,
    spread: bool = False,
) -> Tensor:
    """Logits [..., V] that are `lowest` outside the smallest set of likely tokens with probability top_p; None or 1: all stay.

    The token with which the set reaches the bound is still inside.

    Args:
        least: so many of the most likely tokens stay in any case.
        rising: probabilities are added up from the least likely token on, which rounds otherwise.
        spread: values are probabilities, not logits.
    """
    if top_p is None or not 0 < top_p < 1:
        return values
    ordered, order = torch.sort(values, descending=not rising)
    total = (ordered if spread else ordered.softmax(-1)).cumsum(-1)
    if rising:
        outside = total <= 1 - top_p
        outside[..., -1] = False
    else:
        outside = total > top_p
        outside = torch.cat([torch.zeros_like(outside[..., :least]), outside[..., least - 1 : -1]], -1)
    return values.masked_fill(torch.zeros_like(outside).scatter_(-1, order, outside), lowest)


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
    return tokens, chance(logits.softmax(-1), tokens)


def complete(x: Tensor, ends: Tensor | int, mask_id: int) -> Tensor:
    """Bool [B]: rows of Long [B, n] with an end token before which nothing is masked."""
    ended = torch.isin(x, ends)
    columns = torch.arange(x.shape[1], device=x.device)[None]
    before = columns < ended.long().argmax(1, keepdim=True)
    return ended.any(1) & ~((x == mask_id) & before).any(1)


def placed(values: Tensor, like: Tensor, start: int, empty: float) -> Tensor:
    """Values [B, n] of the columns from `start` on in a frame of `like` [B, S] that is `empty` elsewhere."""
    frame = torch.full(like.shape, empty, dtype=values.dtype, device=values.device)
    frame[:, start : start + values.shape[1]] = values
    return frame
