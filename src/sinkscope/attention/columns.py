"""The Triton kernel for received attention: a block of keys stays, the queries stream by, nothing of size S×S exists.

One program holds BLOCK_K keys of one head, walks over the queries in blocks, computes exp(q·k·scale − lse) and adds it up per
class of queries. No values are read, no atomics are used: the same input gives the same bits. `received.column_mass` is the
same sum in plain operations and decides which of the two runs.
"""

from __future__ import annotations

import logging
import math
import os
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention.key_mask import KeyMask
from sinkscope.attention.visibility import Visibility

CLASSES = 4
"""Classes of queries that one launch sums; more are done in several launches."""

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton was asked to interpret its kernels on the CPU; like Triton itself, we look once, when it is imported."""

_log = logging.getLogger(__name__)


def available(query: Tensor) -> bool:
    """Whether the kernel can run where `query` [B, H, Q, D] lies: on a CUDA device, or in Triton's interpreter."""
    on_device = query.device.type == "cuda" or INTERPRETED
    small = query.shape[-1] <= 256 and query.dtype in (torch.bfloat16, torch.float16, torch.float32)
    return on_device and small and _compiled() is not None


def covers(visibility: Visibility, key_mask: KeyMask | None) -> bool:
    """Whether the kernel knows the pattern: all but masks given in full, and what a policy masks for some queries only."""
    return visibility.dense is None and (key_mask is None or key_mask.alike)


@cache
def _compiled() -> Any:
    """The compiled kernel, or None with one notice where Triton is missing."""
    try:
        from sinkscope.attention import columns_triton
    except ImportError as error:
        _log.warning(
            "Triton is not installed (%s): received attention is computed by the slower tiled path. "
            "Install the extra with: pip install 'sinkscope[triton]'",
            error,
        )
        return None
    return columns_triton.column_sums


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
    """Σ_i w_i A_ij by the kernel; with `uniform`, divided by it.

    Args:
        query: Float [B, H, Q, D]. key: Float [B, G, K, D], G dividing H. lse: Float32 [B, H, Q].
        weights: Float [B, C, Q], 0 for queries that do not count.
        uniform: Float [B|1, C, K]: what uniform attention would bring; the result is NaN where it is 0.

    Returns:
        Float32 [B, H, C, K].
    """
    kernel = _compiled()
    B, H, Q, D = query.shape
    G, K = key.shape[1], key.shape[2]
    classes = weights.shape[1]
    out = torch.empty(B, H, classes, K, dtype=torch.float32, device=query.device)
    query, key = (one if one.stride(-1) == 1 else one.contiguous() for one in (query, key))
    lse, weights = lse.contiguous(), weights.to(torch.float32).contiguous()
    hidden = stranded = real = None
    if key_mask is not None and key_mask.keys is not None:
        hidden = key_mask.keys.expand(B, H, K).view(torch.uint8)
        if not key_mask.strands_none(visibility):
            stranded = key_mask.stranded(visibility, query.device).expand(B, H, Q).view(torch.uint8)
    if visibility.real is not None:
        real = visibility.real.contiguous().view(torch.uint8)
    norm = (
        None if uniform is None else uniform.to(torch.float32).expand(B, classes, K).contiguous()
    )  # often a no-op
    blocks = block_sizes(D, query.element_size(), Q)
    for first in range(0, classes, CLASSES):
        count = min(CLASSES, classes - first)
        kernel(
            query,
            key,
            lse,
            weights[:, first : first + count],
            hidden,
            stranded,
            real,
            None if norm is None else norm[:, first : first + count],
            out[:, :, first : first + count],
            groups=H // G,
            offset=visibility.offset,
            causal=visibility.causal,
            window=visibility.window if visibility.banded else None,
            block=visibility.block if visibility.blocked else None,
            scale=scale * math.log2(math.e),
            blocks=blocks,
        )
    return out


def lse_over_all(query: Tensor, key: Tensor, lse: Tensor, key_mask: KeyMask, scale: float) -> Tensor:
    """The log-sum-exp over all keys, from that over the kept ones and the scores of the few masked ones.

    Args:
        lse: Float32 [B, H, Q]: over the kept keys. key_mask: keys, at most `key_mask.most` of each head, of a call in which every
            query sees every key.

    Returns:
        Float32 [B, H, Q].
    """
    if key_mask.keys is None or key_mask.most is None:
        raise ValueError("lse_over_all needs keys whose number is known")
    B, H, Q, _ = query.shape
    order, used = key_mask.listed or listed(key_mask.keys, key_mask.most)
    out = torch.empty(B, H, Q, dtype=torch.float32, device=query.device)
    query, key = (one if one.stride(-1) == 1 else one.contiguous() for one in (query, key))
    from sinkscope.attention import columns_triton

    columns_triton.lse_over_all(
        query,
        key,
        lse.contiguous(),
        order.expand(B, H, -1).contiguous(),
        used.expand(B, H, -1).contiguous(),
        out,
        scale * math.log2(math.e),
    )
    return out


def listed(keys: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Indices of the marked keys of Bool [..., K], and 0 where a head has fewer than `most`: Long, Float [..., most]."""
    found = keys.to(torch.float16).topk(most, -1)
    return found.indices, found.values


def block_sizes(width: int, itemsize: int, queries: int) -> tuple[int, int, int, int]:
    """Keys and queries of a block, warps and pipeline stages, so that the blocks fit into shared memory.

    >>> block_sizes(128, 2, 512)
    (128, 64, 4, 3)
    """
    if INTERPRETED:
        return 32, 32, 1, 1
    keys, rows, stages = 128, 64, 3 if width <= 128 else 2
    if itemsize == 4:  # full float32 products run on the plain cores: small blocks keep them busy
        keys, rows, stages = (64, 64, 2) if width <= 128 else (32, 32, 2)
    return keys, min(rows, 16) if queries <= 16 else rows, 4, stages
