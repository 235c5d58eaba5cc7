"""The kernel of `columns`, in Triton. Importing this file needs triton; `columns` does it on first use."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

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
    zero = tl.zeros([BLOCK_K], dtype=tl.float32)
    sum0, sum1, sum2, sum3 = zero, zero, zero, zero
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
        w0 = tl.load(own, mask=here, other=0.0)
        counts = w0 > 0
        if CLASSES > 1:
            w1 = tl.load(own + w_c, mask=here, other=0.0)
            counts = counts | (w1 > 0)
        if CLASSES > 2:
            w2 = tl.load(own + 2 * w_c, mask=here, other=0.0)
            counts = counts | (w2 > 0)
        if CLASSES > 3:
            w3 = tl.load(own + 3 * w_c, mask=here, other=0.0)
            counts = counts | (w3 > 0)
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
        sum0 += tl.sum(share * w0[None, :], 1)
        if CLASSES > 1:
            sum1 += tl.sum(share * w1[None, :], 1)
        if CLASSES > 2:
            sum2 += tl.sum(share * w2[None, :], 1)
        if CLASSES > 3:
            sum3 += tl.sum(share * w3[None, :], 1)
    kept = there
    if HIDDEN and not STRANDED:
        kept = kept & (masked == 0)
    if REAL:
        kept = kept & (tl.load(real + b * keys + j, mask=there, other=0) != 0)
    target = out + b * o_b + h * o_h + j
    scales = norm + b * n_b + j
    _store(target, scales, sum0, there, kept, NORM)
    if CLASSES > 1:
        _store(target + o_c, scales + n_c, sum1, there, kept, NORM)
    if CLASSES > 2:
        _store(target + 2 * o_c, scales + 2 * n_c, sum2, there, kept, NORM)
    if CLASSES > 3:
        _store(target + 3 * o_c, scales + 3 * n_c, sum3, there, kept, NORM)


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


def lse_over_all(
    query: Tensor, key: Tensor, lse: Tensor, order: Tensor, used: Tensor, out: Tensor, scale: float
) -> None:
    """Launches the kernel; order: Long [B, H, count], used: Float [B, H, count], out: Float32 [B, H, Q], written."""
    B, H, Q, D = query.shape
    count = order.shape[-1]
    block = 64 if query.is_cuda else 32
    with torch.cuda.device(query.device) if query.is_cuda else nullcontext():
        _masked_kernel[(triton.cdiv(Q, block), B * H)](
            query, key, lse, order, used, out, *query.stride()[:3], *key.stride()[:3],
            Q, H, H // key.shape[1], count, scale,
            WIDTH=D, PADDED=max(16, triton.next_power_of_2(D)), COUNT=max(16, triton.next_power_of_2(count)),
            WIDEN=not query.is_cuda and query.dtype == torch.bfloat16, BLOCK_Q=block, num_warps=4,
        )  # fmt: skip


def column_sums(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    weights: Tensor,
    hidden: Tensor | None,
    stranded: Tensor | None,
    real: Tensor | None,
    norm: Tensor | None,
    out: Tensor,
    *,
    groups: int,
    offset: int,
    causal: bool,
    window: int | None,
    block: int | None,
    scale: float,
    blocks: tuple[int, int, int, int],
) -> None:
    """Launches the kernel; `columns.column_sums` says what the arguments are.

    Args:
        hidden: Uint8 [B, H, K]; stranded: Uint8 [B, H, Q]; real: Uint8 [B, K]; norm: Float32 [B, C, K].
        out: Float32 [B, H, C, K], C ≤ 4, written.
    """
    B, H, Q, D = query.shape
    K = key.shape[2]
    block_k, block_q, warps, stages = blocks
    # Pointers that are not used still have to be pointers.
    unused = out
    bytes_h = out if hidden is None else hidden
    bytes_s = out if stranded is None else stranded
    scales = unused if norm is None else norm
    arguments: list[Any] = [
        query, key, lse, weights, bytes_h, bytes_s, unused if real is None else real, scales, out,
        *query.stride()[:3], *key.stride()[:3], *weights.stride()[:2], *bytes_h.stride()[:3], *bytes_s.stride()[:3],
        *scales.stride()[:2], *out.stride()[:3], Q, K, H, groups, offset, 0 if window is None else window,
        1 if block is None else block, scale,
    ]  # fmt: skip
    with torch.cuda.device(query.device) if query.is_cuda else nullcontext():
        _kernel[(triton.cdiv(K, block_k), B * H)](
            *arguments,
            WIDTH=D,
            PADDED=max(16, triton.next_power_of_2(D)),
            CLASSES=weights.shape[1],
            CAUSAL=causal and Q > 1,
            WINDOW=window is not None,
            BLOCKS=block is not None,
            HIDDEN=hidden is not None,
            STRANDED=stranded is not None,
            REAL=real is not None,
            NORM=norm is not None,
            # The interpreter cannot multiply bfloat16; the products are exact in float32, as they are on a GPU.
            WIDEN=not query.is_cuda and query.dtype == torch.bfloat16,
            BLOCK_K=block_k,
            BLOCK_Q=block_q,
            num_warps=warps,
            num_stages=stages,
        )
