"""Attention over short inputs on a CPU: the weights exist for one tile of queries, so column sums cost only the adding up.

The fused kernel keeps its weights to itself, and received attention has to compute q·k and the exponentials again. Up to
`KEYS` keys plain products are as fast as it, and there a softmax can be shared by the output and by column sums. Traced
and untraced calls make the same operations in the same order, and so do a row alone and the same row in a batch: rows are
computed one after the other, in tiles whose size does not depend on the batch.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sinkscope.attention.key_mask import KeyMask
from sinkscope.attention.visibility import Visibility

KEYS = 512
"""Keys of the longest input that is computed here; beyond it the fused kernel is clearly the faster one."""

ROWS = 128
TILE_SCORES = 4 << 20
"""Upper bounds on one tile: its queries, so that it stays in the cache, and its scores over all heads, for the memory."""

ALIGNMENT = 64
"""Bytes at a multiple of which torch lets a tensor begin on a CPU."""


@dataclass(frozen=True)
class Attended:
    """What one attention call gave.

    Attributes:
        output: [B, H, Q, E].
        lse: Float32 [B, H, Q] over the kept keys; None: not computed, because nothing needed it.
        lse_raw: Float32 [B, H, Q] over the masked keys too; None: not computed, or nothing was masked.
        acted: Float32 [B, H, C, K]: Σ_i w_i A_ij of the weights that were asked for; None: none were.
        raw: the same as if nothing had been masked; None: nothing was, and it is `acted`.
    """

    output: Tensor
    lse: Tensor | None = None
    lse_raw: Tensor | None = None
    acted: Tensor | None = None
    raw: Tensor | None = None


def suits(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, key_mask: KeyMask | None
) -> bool:
    """Whether a call is computed here: short, float32, on a CPU, without gradients, all queries seeing the same keys.

    Blocks, in which they do not, are computed here too while nothing is masked or padded (there a query
    might lack any key). It does not depend on recording or on the size of the batch: neither may change a bit of the output.
    """
    if visibility.causal or visibility.banded or visibility.dense is not None:
        return False
    if query.device.type != "cpu" or query.dtype != torch.float32 or visibility.keys > KEYS:
        return False
    if torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value)):
        return False
    if visibility.blocked:
        return key_mask is None and visibility.real is None
    return key_mask is None or key_mask.alike


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visibility: Visibility,
    masked: Tensor | None,
    scale: float,
    weights: Tensor | None = None,
    lse: bool = False,
) -> Attended:
    """softmax(q·k·scale over the visible keys that are not masked) · v, and of the same softmax what is asked for.

    Args:
        query: Float32 [B, H, Q, D]; key, value: [B, G, K, D], [B, G, K, E], G dividing H.
        masked: Bool [B|1, H|1, K], None: none; every head keeps a real key.
        weights: Float32 [B, C, Q]: classes of queries whose column sums are wanted; None: none are.
        lse: whether the log-sum-exp of each row is wanted; with `masked` it comes in any case, with and without those keys.
    """
    B, H, Q, _ = query.shape
    real = visibility.real
    later = None
    if visibility.blocked:  # Float32 [Q, K]: −inf for keys of later blocks, to be added to the scores
        visible = replace(visibility, real=None).rows(0, Q, query.device)
        later = None if visible is None else torch.where(visible[0, 0], 0.0, float("-inf"))
    output = query.new_empty(B, Q, H, value.shape[-1])  # the layout that the model goes on with
    space = _space(H * _tile_rows(H, Q, key.shape[2]) * key.shape[2])
    rows = [
        _row(
            _aligned(query[b]),
            _aligned(key[b]),
            _aligned(value[b]),
            None if real is None else real[b],
            None if masked is None else masked[b % len(masked)],
            later,
            scale,
            None if weights is None else _aligned(weights[b]),
            lse,
            output[b],
            space,
        )
        for b in range(B)
    ]
    return Attended(output.transpose(1, 2), *(_stacked(parts) for parts in zip(*rows, strict=True)))


_held = threading.local()


def _space(size: int) -> Tensor:
    """Float32 [size], the same memory in every call of a thread: new memory would have to be cleared by the system each time."""
    if getattr(_held, "space", None) is None or _held.space.numel() < size:
        with torch.inference_mode(False):  # a tensor of that mode could not be written outside of it
            _held.space = torch.empty(size, dtype=torch.float32)
    space: Tensor = _held.space[:size]
    return space


def _tile_rows(heads: int, queries: int, keys: int) -> int:
    """Queries of one tile."""
    return max(1, min(ROWS, queries, TILE_SCORES // (heads * keys)))


def _aligned(row: Tensor) -> Tensor:
    """A row of the batch where a row alone would lie in memory: the last bit of a product can depend on the alignment."""
    return row if row.data_ptr() % ALIGNMENT == 0 else row.clone()


def _stacked(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    """What each row of the batch gave, in one tensor; None where they gave nothing."""
    found = [part for part in parts if part is not None]
    return torch.stack(found) if found else None


def _row(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    real: Tensor | None,
    masked: Tensor | None,
    later: Tensor | None,
    scale: float,
    weights: Tensor | None,
    lse: bool,
    output: Tensor,
    space: Tensor,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """One row of the batch, in the words of `attend` without B: writes `output` [Q, H, E], gives lse, lse_raw, acted, raw.

    Sums are made in tensors of their own and not in a slice of the batch's: see `_aligned`.
    """
    (H, Q, D), (G, K, E) = query.shape, value.shape
    totals = query.new_empty(H, Q) if lse or masked is not None else None
    raw_totals = None if masked is None else query.new_empty(H, Q)
    acted = None if weights is None else query.new_zeros(H, weights.shape[0], K)
    raw = None if acted is None or masked is None else torch.zeros_like(acted)
    unused = query.new_empty(1, 1, 1)  # beta=0 leaves it out, but the product must be given it
    keys, forbidden = key.transpose(1, 2), _forbidden(real, masked)
    masked_scores = None if masked is None else _Masked.of(masked, real)
    rows = _tile_rows(H, Q, K)
    for start in range(0, Q, rows):
        stop = min(start + rows, Q)
        tile = space[: H * (stop - start) * K]
        part, grouped = tile.view(H, stop - start, K), tile.view(G, -1, K)
        queries = query[:, start:stop].reshape(G, -1, D)
        torch.baddbmm(unused, queries, keys, beta=0, alpha=scale, out=grouped)
        hidden = None if masked_scores is None else masked_scores.scores(part)
        if forbidden is not None:
            part.add_(forbidden)
        if later is not None:
            part.add_(later[start:stop])
        top = None if totals is None else part.amax(-1)
        # In place: a tile that is written anew each time would come from memory and not from the cache.
        torch.softmax(part, -1, out=part)
        output[start:stop] = torch.bmm(grouped, value).view(H, stop - start, E).transpose(0, 1)
        if totals is not None and top is not None:
            totals[:, start:stop] = top - part.amax(-1).log()
        each = None if weights is None else weights[None, :, start:stop].expand(H, -1, -1)
        if acted is not None and each is not None:
            acted.baddbmm_(each, part)
        if masked_scores is None or hidden is None or totals is None or raw_totals is None:
            continue
        own = totals[:, start:stop]
        whole = torch.logaddexp(own, hidden.logsumexp(-1))
        raw_totals[:, start:stop] = whole
        if raw is not None and each is not None:
            raw.baddbmm_(each * (own - whole).exp()[:, None], part)
            masked_scores.add(raw, each @ (hidden - whole[..., None]).exp())
    return totals, raw_totals, acted, raw


@dataclass(frozen=True)
class _Masked:
    """The masked keys of one row of the batch.

    Attributes:
        order: Long [H|1, 1, n]: their indices, filled up with others where heads have unequally many.
        used: Bool [H|1, 1, n]: False for those others.
    """

    order: Tensor
    used: Tensor

    @staticmethod
    def of(masked: Tensor, real: Tensor | None) -> _Masked:
        """From Bool [H|1, K]; padding is left out, because no query saw it."""
        masked = masked if real is None else masked & real
        listed = masked.to(torch.uint8).topk(int(masked.sum(-1).max()), -1)
        return _Masked(listed.indices[:, None], listed.values[:, None].bool())

    def scores(self, part: Tensor) -> Tensor:
        """Their scores, Float [H, rows, K] → [H, rows, n], −inf for the others."""
        found = part.gather(-1, self.order.expand(*part.shape[:2], -1))
        return found.masked_fill_(~self.used, float("-inf"))

    def add(self, sums: Tensor, more: Tensor) -> None:
        """Adds their sums [H, C, n] to the columns of all keys [H, C, K]."""
        sums.scatter_add_(-1, self.order.expand_as(more), more)


def _forbidden(real: Tensor | None, masked: Tensor | None) -> Tensor | None:
    """Float32 [H|1, 1, K]: −inf for keys of a row that may not be used, to be added to the scores; None: all may."""
    forbidden = None if real is None else ~real[None]
    if masked is not None:
        forbidden = masked if forbidden is None else forbidden | masked
    return None if forbidden is None else torch.where(forbidden, float("-inf"), 0.0)[:, None]
