"""Received attention in Triton: a tile of keys stays, the queries stream by, nothing of size S×S exists.

One program holds some keys of one head, walks over the queries in tiles, computes exp(q·k·scale − lse) and adds it up per class
of queries. No values are read, no atomics are used: the same input gives the same bits. `attention.received.tiled_mass` is the
same sum in plain operations. Importing this file needs triton.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, disable-error-code="assignment"
# Triton's kernels are its own language: their arguments have no Python types.
from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from sinkscope.base.fast import INTERPRETED
from sinkscope.gpu.streams import on

if TYPE_CHECKING:
    from sinkscope.attention.key_mask import KeyMask
    from sinkscope.attention.visibility import Visibility

CLASSES = 4
"""Classes of queries that one launch sums; more are done in several launches."""

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _kernel(
    query, key, lse, weights, hidden, stranded, real, norm, out,
    q_b, q_h, q_i, k_b, k_g, k_j, w_b, w_c, h_b, h_h, h_j, s_b, s_h, s_i, n_b, n_c, o_b, o_h, o_c,
    queries, keys, heads, groups, offset, window, block_size, scale,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, CLASSES: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    BLOCKS: tl.constexpr, HIDDEN: tl.constexpr, STRANDED: tl.constexpr, REAL: tl.constexpr, NORM: tl.constexpr,
    WIDEN: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_K keys of one head of one row. `scale` holds log2(e) already."""
    pair = tl.program_id(1)
    b, h = (pair // heads).to(tl.int64), (pair % heads).to(tl.int64)
    first = tl.program_id(0) * BLOCK_K
    j = first + tl.arange(0, BLOCK_K)
    d = tl.arange(0, PADDED)
    there = j < keys
    block = key + b * k_b + (h // groups) * k_g + j[:, None].to(tl.int64) * k_j + d[None, :]
    k = tl.load(block, mask=there[:, None] & (d < WIDTH)[None, :], other=0.0)
    if WIDEN:
        k = k.to(tl.float32)
    masked = tl.zeros([BLOCK_K], dtype=tl.int1)
    if HIDDEN:
        masked = tl.load(hidden + b * h_b + h * h_h + j * h_j, mask=there, other=0) != 0
    sums = (tl.zeros([BLOCK_K], dtype=tl.float32),) * CLASSES
    begin, end = 0, queries
    if CAUSAL:  # no query before the first key of the block sees any of it
        begin = tl.maximum(0, (first - offset) // BLOCK_Q * BLOCK_Q)
    if BLOCKS:  # nor does one before the model's block that this key stands in
        begin = tl.maximum(0, (first // block_size * block_size - offset) // BLOCK_Q * BLOCK_Q)
    if WINDOW:
        end = tl.minimum(queries, first + BLOCK_K - 1 - offset + window)
        if not CAUSAL:
            begin = tl.maximum(0, (first - offset - window + 1) // BLOCK_Q * BLOCK_Q)
    for start in range(begin, end, BLOCK_Q):
        i = start + tl.arange(0, BLOCK_Q)
        here = i < queries
        rows = query + b * q_b + h * q_h + i[None, :].to(tl.int64) * q_i + d[:, None]
        q = tl.load(rows, mask=here[None, :] & (d < WIDTH)[:, None], other=0.0)
        if WIDEN:
            q = q.to(tl.float32)
        total = tl.load(lse + pair.to(tl.int64) * queries + i, mask=here, other=0.0)
        own = weights + b * w_b + i
        each, counts = (), tl.zeros([BLOCK_Q], dtype=tl.int1)  # the weights of every class
        for c in tl.static_range(CLASSES):
            each += (tl.load(own + c * w_c, mask=here, other=0.0),)
            counts = counts | (each[c] > 0)
        score = tl.dot(k, q, input_precision="ieee") * scale  # [BLOCK_K, BLOCK_Q]
        share = tl.exp2(score - (total * LOG2E)[None, :])
        seen = tl.broadcast_to(counts[None, :], [BLOCK_K, BLOCK_Q])
        if CAUSAL:
            seen = seen & (j[:, None] <= (i + offset)[None, :])
        if BLOCKS:
            seen = seen & ((j // block_size)[:, None] <= ((i + offset) // block_size)[None, :])
        if WINDOW:
            ahead = (i + offset)[None, :] - j[:, None]
            seen = seen & (ahead < window)
            if not CAUSAL:
                seen = seen & (ahead > -window)
        if STRANDED:
            alone = tl.load(stranded + b * s_b + h * s_h + i * s_i, mask=here, other=0) != 0
            seen = seen & (alone[None, :] | (masked == 0)[:, None])
        # A row that counts in no class may have no key at all; its log-sum-exp means nothing and may overflow here.
        share = tl.where(seen, share, 0.0)
        added = ()
        for c in tl.static_range(CLASSES):
            added += (sums[c] + tl.sum(share * each[c][None, :], 1),)
        sums = added
    kept = there
    if HIDDEN and not STRANDED:
        kept = kept & (masked == 0)
    if REAL:
        kept = kept & (tl.load(real + b * keys + j, mask=there, other=0) != 0)
    target = out + b * o_b + h * o_h + j
    scales = norm + b * n_b + j
    for c in tl.static_range(CLASSES):
        _store(target + c * o_c, scales + c * n_c, sums[c], there, kept, NORM)


@triton.jit
def _store(target, scales, total, there, kept, NORM: tl.constexpr):
    """Writes a block of sums; padding receives nothing; with NORM, relative to uniform attention, NaN where that is 0."""
    total = tl.where(kept, total, 0.0)
    if NORM:
        uniform = tl.load(scales, mask=there, other=1.0)
        total = tl.where(uniform > 0, total / uniform, float("nan"))
    tl.store(target, total, mask=there)


@triton.jit
def _masked_kernel(
    query, key, lse, order, used, out, q_b, q_h, q_i, k_b, k_g, k_j, queries, heads, groups, count, scale,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, COUNT: tl.constexpr, WIDEN: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_Q queries of one head, all of its masked keys. `scale` holds log2(e) already."""
    pair = tl.program_id(1).to(tl.int64)
    b, h = pair // heads, pair % heads
    i = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    c = tl.arange(0, COUNT)
    d = tl.arange(0, PADDED)
    here, listed = i < queries, c < count
    j = tl.load(order + pair * count + c, mask=listed, other=0)
    masked = tl.load(used + pair * count + c, mask=listed, other=0.0) > 0
    rows = key + b * k_b + (h // groups) * k_g + j[:, None] * k_j + d[None, :]
    k = tl.load(rows, mask=listed[:, None] & (d < WIDTH)[None, :], other=0.0)
    block = query + b * q_b + h * q_h + i[None, :].to(tl.int64) * q_i + d[:, None]
    q = tl.load(block, mask=here[None, :] & (d < WIDTH)[:, None], other=0.0)
    if WIDEN:
        k = k.to(tl.float32)
        q = q.to(tl.float32)
    score = tl.dot(k, q, input_precision="ieee") * scale  # [COUNT, BLOCK_Q]
    score = tl.where(masked[:, None], score, float("-inf"))
    own = tl.load(lse + pair * queries + i, mask=here, other=0.0) * LOG2E
    top = tl.maximum(tl.max(score, 0), own)
    total = tl.sum(tl.exp2(score - top[None, :]), 0) + tl.exp2(own - top)
    tl.store(out + pair * queries + i, (top + tl.log2(total)) / LOG2E, mask=here)


def column_sums(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    visibility: Visibility,
    key_mask: KeyMask | None,
    scale: float,
    weights: Tensor,
    uniform: Tensor | None = None,
) -> Tensor:
    """Σ_i w_i A_ij; with `uniform`, divided by it.

    Args:
        query: Float [B, H, Q, D]. key: Float [B, G, K, D], G dividing H. lse: Float32 [B, H, Q].
        weights: Float [B, C, Q], 0 for queries that do not count.
        uniform: Float [B|1, C, K]: what uniform attention would bring; the result is NaN where it is 0.

    Returns:
        Float32 [B, H, C, K].
    """
    B, H, Q, D = query.shape
    G, K = key.shape[1], key.shape[2]
    classes = weights.shape[1]
    out = torch.empty(B, H, classes, K, dtype=torch.float32, device=query.device)
    query, key = _rows(query), _rows(key)
    lse, weights = lse.contiguous(), weights.to(torch.float32).contiguous()
    masked = stranded = None
    if key_mask is not None and key_mask.keys is not None:
        masked = key_mask.keys.expand(B, H, K).view(torch.uint8)
        if not key_mask.strands_none(visibility):
            stranded = key_mask.stranded(visibility, query.device).expand(B, H, Q).view(torch.uint8)
    real = None if visibility.real is None else visibility.real.contiguous().view(torch.uint8)
    norm = None if uniform is None else uniform.to(torch.float32).expand(B, classes, K).contiguous()
    window = visibility.window if visibility.banded else None
    block = visibility.block if visibility.blocked else None
    tile_k, tile_q, warps, stages = tile_sizes(D, query.element_size(), Q)
    # Pointers that are not used still have to be pointers.
    bytes_h, bytes_s, bytes_r = (out if part is None else part for part in (masked, stranded, real))
    for first in range(0, classes, CLASSES):
        some = slice(first, first + CLASSES)
        w, o = weights[:, some], out[:, :, some]
        scales = o if norm is None else norm[:, some]
        with on(query.device):
            _kernel[(triton.cdiv(K, tile_k), B * H)](
                query, key, lse, w, bytes_h, bytes_s, bytes_r, scales, o,
                *query.stride()[:3], *key.stride()[:3], *w.stride()[:2], *bytes_h.stride()[:3], *bytes_s.stride()[:3],
                *scales.stride()[:2], *o.stride()[:3], Q, K, H, H // G, visibility.offset, window or 0, block or 1,
                scale * math.log2(math.e),
                WIDTH=D, PADDED=max(16, triton.next_power_of_2(D)), CLASSES=w.shape[1], CAUSAL=visibility.causal and Q > 1,
                WINDOW=window is not None, BLOCKS=block is not None, HIDDEN=masked is not None,
                STRANDED=stranded is not None, REAL=real is not None, NORM=norm is not None, WIDEN=_widen(query),
                BLOCK_K=tile_k, BLOCK_Q=tile_q, num_warps=warps, num_stages=stages,
            )  # fmt: skip
    return out


def lse_over_all(query: Tensor, key: Tensor, lse: Tensor, key_mask: KeyMask, scale: float) -> Tensor:
    """The log-sum-exp over all keys, from that over the kept ones and the scores of the few masked ones.

    Args:
        lse: Float32 [B, H, Q]: over the kept keys. key_mask: keys, at most `key_mask.most` of each head, of a call in which every
            query sees every key.

    Returns:
        Float32 [B, H, Q].
    """
    B, H, Q, D = query.shape
    order, used = (part.expand(B, H, -1).contiguous() for part in key_mask.listing())
    count = order.shape[-1]
    out = torch.empty(B, H, Q, dtype=torch.float32, device=query.device)
    query, key = _rows(query), _rows(key)
    tile = 64 if query.is_cuda else 32
    with on(query.device):
        _masked_kernel[(triton.cdiv(Q, tile), B * H)](
            query, key, lse.contiguous(), order, used, out, *query.stride()[:3], *key.stride()[:3],
            Q, H, H // key.shape[1], count, scale * math.log2(math.e),
            WIDTH=D, PADDED=max(16, triton.next_power_of_2(D)), COUNT=max(16, triton.next_power_of_2(count)),
            WIDEN=_widen(query), BLOCK_Q=tile, num_warps=4,
        )  # fmt: skip
    return out


def _rows(x: Tensor) -> Tensor:
    """x with numbers of its last axis side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _widen(query: Tensor) -> bool:
    """The interpreter cannot multiply bfloat16; the products are exact in float32, as they are on a GPU."""
    return not query.is_cuda and query.dtype == torch.bfloat16


def tile_sizes(width: int, itemsize: int, queries: int) -> tuple[int, int, int, int]:
    """Keys and queries of a tile, warps and pipeline stages, so that the tiles fit into shared memory."""
    if INTERPRETED:
        return 32, 32, 1, 1
    keys, rows, stages = 128, 64, 3 if width <= 128 else 2
    if itemsize == 4:  # full float32 products run on the plain cores: small tiles keep them busy
        keys, rows, stages = (64, 64, 2) if width <= 128 else (32, 32, 2)
    return keys, min(rows, 16) if queries <= 16 else rows, 4, stages
