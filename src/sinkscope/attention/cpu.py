"""Attention on a CPU by a softmax that the output shares with column sums: short inputs, and one query over a cache.

The fused kernel keeps its weights to itself, so that received attention has to compute q·k and the exponentials again. Up to
`KEYS` keys, and for one query at any length, plain products are as fast as the kernel. Traced and untraced calls make the same
operations in the same order, and so do a row alone and the same row in a batch.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sinkscope.attention.key_mask import key_bias, listed
from sinkscope.attention.visibility import Scores

KEYS = 512
"""Keys of the longest input of several queries that is computed here; beyond it the fused kernel is clearly the faster one."""

ROWS = 128
TILE_SCORES = 4 << 20
"""Upper bounds on one tile: its queries, so that it stays in the cache, and its scores over all heads, for the memory."""

ALIGNMENT = 64
"""Bytes at a multiple of which torch lets a tensor begin on a CPU."""

LEAST = torch.finfo(torch.float32).min
"""Added to the score of a key that a newest token may not use: its weight is then 0. Not −inf: a row of nothing but padding
stays finite."""


@dataclass(frozen=True)
class Attended:
    """What one attention call gave.

    Attributes:
        output: [B, H, Q, E].
        lse: Float32 [B, H, Q] over the keys that were used; None: not computed, because nothing needed it.
        lse_raw: Float32 [B, H, Q] over the masked keys too; None: not computed, or nothing was masked.
        acted: Float32 [B, H, C, K]: Σ_i w_i A_ij of the weights that were asked for; None: none were.
        raw: the same as if nothing had been masked; None: nothing was, and it is `acted`.
    """

    output: Tensor
    lse: Tensor | None = None
    lse_raw: Tensor | None = None
    acted: Tensor | None = None
    raw: Tensor | None = None


def attend(scores: Scores, value: Tensor, weights: Tensor | None = None, lse: bool = False) -> Attended | None:
    """What a call gives that is computed here, with the column sums of `weights` [B, C, Q]; None: it is for the fused kernel.

    For a newest token the sums are those of its one query, whatever `weights`. The log-sum-exp comes only when `lse` asks for it
    or something is masked.
    """
    if is_newest(scores, value):
        attended = attend_newest(scores, value, lse)
    elif is_short(scores, value):
        attended = attend_short(scores, value, weights, lse)
    else:
        return None
    output = scores.visibility.padded_rows(attended.output, value)
    return attended if output is attended.output else replace(attended, output=output)


def is_short(scores: Scores, value: Tensor) -> bool:
    """Whether a call is a short one that is computed here: all queries see the same keys.

    Blocks, in which they do not, are computed here too while nothing is masked or padded (there a query might lack any key).
    It does not depend on recording or on the size of the batch: neither may change a bit of the output.
    """
    visibility = scores.visibility
    if visibility.causal or visibility.banded or visibility.dense is not None or visibility.keys > KEYS:
        return False
    whole = not visibility.blocked or (scores.key_mask is None and visibility.real is None)
    return whole and _is_plain(scores, value)


def is_newest(scores: Scores, value: Tensor) -> bool:
    """Whether a call is the newest token of a causal model that is computed here: it sees every real key."""
    visibility = scores.visibility
    return visibility.causal and visibility.queries == 1 and visibility.alike and _is_plain(scores, value)


def _is_plain(scores: Scores, value: Tensor) -> bool:
    """Float32 on a CPU, without gradients, and the same keys masked for all queries."""
    if scores.device.type != "cpu" or scores.query.dtype != torch.float32:
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in (scores.query, scores.key, value)):
        return False
    return scores.key_mask is None or scores.key_mask.alike


# ---- one query over a cache --------------------------------------------------------------------------


def attend_newest(scores: Scores, value: Tensor, lse: bool = False) -> Attended:
    """The output of one query, and its weights as the column sums: such a step is bound by the number of operations.

    Args:
        value: Float32 [B, G, K, E].
        lse: whether the log-sum-exp is wanted; where keys are masked it comes in any case, with and without them.
    """
    B, H, _, D = scores.query.shape
    G, K, E = value.shape[1:]
    real, masked = scores.visibility.real, scores.masked()
    unused = scores.query.new_empty(1, 1, 1)  # beta=0 leaves it out, but the product must be given it
    keys, query = scores.key.reshape(B * G, K, D).transpose(1, 2), scores.query.reshape(B * G, -1, D)
    every = torch.baddbmm(unused, query, keys, beta=0, alpha=scores.scale).view(B, H, K)
    # Padding and masked keys are added to the scores, so that masking nothing changes no bit.
    if real is not None:
        every = every + torch.where(~real[:, None], LEAST, 0.0)
    used = every if masked is None else every + torch.where(masked, LEAST, 0.0)
    share = used.softmax(-1)
    output = torch.bmm(share.view(B * G, -1, K), value.reshape(B * G, K, E)).view(B, H, 1, E)
    if masked is None:
        total = used.logsumexp(-1, keepdim=True) if lse else None
        return Attended(output, total, acted=share[:, :, None])
    total = used.logsumexp(-1, keepdim=True)
    # Added to the sum of the others, so that a head that loses nothing has the same bits in both.
    removed = every.masked_fill(~masked, float("-inf")).logsumexp(-1, keepdim=True)
    raw = every.softmax(-1)[:, :, None]
    return Attended(output, total, torch.logaddexp(total, removed), share[:, :, None], raw)


# ---- short inputs ------------------------------------------------------------------------------------


def attend_short(scores: Scores, value: Tensor, weights: Tensor | None = None, lse: bool = False) -> Attended:
    """The output, and of the same softmax what is asked for; the rows of the batch one after the other.

    Args:
        value: Float32 [B, G, K, E].
        weights: Float32 [B, C, Q]: classes of queries whose column sums are wanted; None: none are.
        lse: whether the log-sum-exp of each row is wanted; where keys are masked it comes in any case, with and without them.
    """
    (B, H, Q, _), visibility, masked = scores.query.shape, scores.visibility, scores.masked()
    whole = masked is None and visibility.real is None
    bias = None if whole else key_bias(visibility.real, masked)
    visible = visibility.rows(0, Q, scores.device) if visibility.blocked else None
    if visible is not None:  # nothing is masked or padded then
        bias = torch.where(visible, 0.0, float("-inf"))
    if masked is not None and visibility.real is not None:
        masked = masked & visibility.real[:, None]  # no query saw padding
    output = value.new_empty(B, Q, H, value.shape[-1])  # the layout that the model goes on with
    space = _space(H * _tile_rows(H, Q, visibility.keys) * visibility.keys)
    rows = []
    for b in range(B):
        q, k, v = (_aligned(x[b]) for x in (scores.query, scores.key, value))
        of_row, of_bias = (None if part is None else part[b % len(part)] for part in (masked, bias))
        counted = None if weights is None else _aligned(weights[b])
        row = _Row(q, k, v, of_row, of_bias, scores.scale, counted, lse)
        rows.append(row.attend(output[b], space))
    return Attended(output.transpose(1, 2), *(_stacked(sums) for sums in zip(*rows, strict=True)))


_memory = threading.local()


def _space(size: int) -> Tensor:
    """Float32 [size], the same memory in every call of a thread: new memory would have to be cleared by the system each time."""
    if getattr(_memory, "space", None) is None or _memory.space.numel() < size:
        with torch.inference_mode(False):  # a tensor of that mode could not be written outside of it
            _memory.space = torch.empty(size, dtype=torch.float32)
    space: Tensor = _memory.space[:size]
    return space


def _tile_rows(heads: int, queries: int, keys: int) -> int:
    """Queries of one tile; it does not depend on the batch."""
    return max(1, min(ROWS, queries, TILE_SCORES // (heads * keys)))


def _aligned(row: Tensor) -> Tensor:
    """A row of the batch where a row alone would lie in memory: the last bit of a product can depend on the alignment."""
    return row if row.data_ptr() % ALIGNMENT == 0 else row.clone()


def _stacked(rows: tuple[Tensor | None, ...]) -> Tensor | None:
    """What each row of the batch gave, in one tensor; None where they gave nothing."""
    tensors = [row for row in rows if row is not None]
    return torch.stack(tensors) if tensors else None


@dataclass(frozen=True)
class _Row:
    """One row of the batch, in the words of `attend_short` without B.

    Attributes:
        masked: Bool [H|1, K]: the real keys that are masked; every head keeps one.
        bias: Float32 [H|1, Q|1, K]: −inf for keys that may not be used, to be added to the scores; None: all may.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    masked: Tensor | None
    bias: Tensor | None
    scale: float
    weights: Tensor | None
    lse: bool

    def attend(
        self, output: Tensor, space: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Writes `output` [Q, H, E]; lse, lse_raw, acted, raw. space: memory for one tile.

        Sums are made in tensors of their own and not in a slice of the batch's: see `_aligned`.
        """
        (H, Q, D), (G, K, E) = self.query.shape, self.value.shape
        totals = self.query.new_empty(H, Q) if self.lse or self.masked is not None else None
        raw_totals = None if self.masked is None else self.query.new_empty(H, Q)
        acted = None if self.weights is None else self.query.new_zeros(H, self.weights.shape[0], K)
        raw = None if acted is None or self.masked is None else torch.zeros_like(acted)
        unused = self.query.new_empty(1, 1, 1)  # beta=0 leaves it out, but the product must be given it
        keys = self.key.transpose(1, 2)
        # Indices of the masked keys; and 0 for others, with which they are filled up where heads have unequally many.
        order = used = self.query.new_empty(0)
        if self.masked is not None:
            order, used = (part[:, None] for part in listed(self.masked, int(self.masked.sum(-1).max())))
        rows = _tile_rows(H, Q, K)
        for start in range(0, Q, rows):
            stop = min(start + rows, Q)
            tile = space[: H * (stop - start) * K]
            share, grouped = tile.view(H, stop - start, K), tile.view(G, -1, K)
            queries = self.query[:, start:stop].reshape(G, -1, D)
            torch.baddbmm(unused, queries, keys, beta=0, alpha=self.scale, out=grouped)
            # Taken before the tile is overwritten: with them the softmax over all keys follows from that over the others.
            of_masked = None
            if self.masked is not None:
                of_masked = share.gather(-1, order.expand(H, stop - start, -1)).masked_fill(used == 0, float("-inf"))
            if self.bias is not None:
                share.add_(self.bias if self.bias.shape[1] == 1 else self.bias[:, start:stop])
            top = None if totals is None else share.amax(-1)
            # In place: a tile that is written anew each time would come from memory and not from the cache.
            torch.softmax(share, -1, out=share)
            output[start:stop] = torch.bmm(grouped, self.value).view(H, stop - start, E).transpose(0, 1)
            if totals is not None and top is not None:
                totals[:, start:stop] = top - share.amax(-1).log()
            each = None if self.weights is None else self.weights[None, :, start:stop].expand(H, -1, -1)
            if acted is not None and each is not None:
                acted.baddbmm_(each, share)
            if of_masked is None or totals is None or raw_totals is None:
                continue
            total = totals[:, start:stop]
            whole = torch.logaddexp(total, of_masked.logsumexp(-1))
            raw_totals[:, start:stop] = whole
            if raw is not None and each is not None:
                raw.baddbmm_(each * (total - whole).exp()[:, None], share)
                more = each @ (of_masked - whole[..., None]).exp()
                raw.scatter_add_(-1, order.expand_as(more), more)
        return totals, raw_totals, acted, raw
