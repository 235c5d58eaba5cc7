"""Received attention: how much attention each key gets, relative to uniform attention.

    received_j = Σ_i w_i A_ij / Σ_i w_i u_ij        u_ij = 1 / (keys that query i can see, before any policy)

where i runs over the real queries that can see j. Uniform attention gives 1 everywhere, causal or not, padded or not; in a
bidirectional call without padding this is the column sum of the attention matrix (the score of arXiv 2510.15731, read as a
sum). Keys that are padding, or that no query of the class can see, are NaN.

`column_mass` is the statistic itself, from q, k and the log-sum-exp that the fused kernel returned: exp(q·k·scale − lse) is
the attention weight, so a tile of queries at a time suffices and no S×S matrix exists. On a GPU a kernel (`gpu.columns`) does
it; `tiled_mass` is the same in plain operations, and `dense_map` is the reference for both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.attention.kernels import column_kernels
from sinkscope.attention.visibility import Scores, Visibility, per_head, query_weights, relative

TILE_BYTES = 32 << 20
TILE_ROWS = 64
"""Upper bounds on one tile of scores: its memory, and its queries, so that a tile stays narrow for short inputs too."""


def received(scores: Scores, lse: Tensor, weights: Tensor | None = None, uniform: Tensor | None = None) -> Tensor:
    """Received attention of every key, per query head and class of queries.

    Args:
        lse: Float32 [B, H, Q]: over the keys that the softmax ran over. Masked keys get 0, not NaN.
        weights: Float [B, C, Q], 1 where a query belongs to a class; None: one class of all real queries.
        uniform: Float64 [B|1, C, K]: `visibility.uniform` of weights that have passed `query_weights`, for callers that
            have it already (it is the same in all layers).

    Returns:
        Float32 [B, H, C, K], uniform = 1, NaN where there is no key.
    """
    if uniform is None or weights is None:
        weights = query_weights(scores.visibility, weights, scores.query)
        uniform = scores.visibility.uniform(weights)
    return column_mass(scores, lse, weights, uniform)


def column_mass(scores: Scores, lse: Tensor, weights: Tensor, uniform: Tensor | None = None) -> Tensor:
    """Σ_i w_i A_ij, Float32 [B, H, C, K], by the kernel where there is one; with `uniform` [B|1, C, K] relative to it.

    Args:
        weights: Float [B, C, Q], 0 in padding.
    """
    kernels, key_mask = column_kernels(scores.query), scores.key_mask
    # The kernel knows all patterns but masks given in full, and what a policy masks for some queries only.
    if kernels is not None and scores.visibility.dense is None and (key_mask is None or key_mask.alike):
        summed: Tensor = kernels.column_sums(
            scores.query, scores.key, lse, scores.visibility, key_mask, scores.scale, weights, uniform
        )
        return summed
    mass = tiled_mass(scores, lse, weights)
    return mass if uniform is None else relative(mass, uniform)


def tiled_mass(scores: Scores, lse: Tensor, weights: Tensor, tile_bytes: int = TILE_BYTES) -> Tensor:
    """Σ_i w_i A_ij, Float32 [B, H, C, K], a tile of queries at a time.

    Args:
        weights: Float [B, C, Q], 0 for queries that do not count (padding included).
        tile_bytes: memory that one tile of scores may take.
    """
    (B, H, Q, D), (G, K) = scores.query.shape, scores.key.shape[1:3]
    exact, visibility = scores.exact, scores.visibility
    keys = scores.key.to(exact).reshape(B * G, K, D).transpose(1, 2)
    # A row that counts in no class may have no key at all, and then its log-sum-exp means nothing.
    minus = torch.where((weights > 0).any(1)[:, None, :], -lse.to(exact), float("-inf"))
    weights = weights.to(exact)
    total = torch.zeros(B, H, weights.shape[1], K, dtype=exact, device=scores.device)
    rows = max(1, min(Q, TILE_ROWS, tile_bytes // max(1, B * H * K * total.element_size())))
    for start in range(0, Q, rows):
        stop = min(start + rows, Q)
        query = scores.query[:, :, start:stop].to(exact).reshape(B * G, -1, D)
        each = minus[:, :, start:stop].reshape(B * G, -1, 1)
        # One pass over the tile for scale, product and log-sum-exp: on a CPU this is bound by memory.
        share = torch.baddbmm(each, query, keys, alpha=scores.scale).exp_().view(B, H, stop - start, K)
        if visibility.triangular and scores.key_mask is None:  # the same as below, and much faster
            share.tril_(visibility.offset + start)
        elif scores.key_mask is not None or not visibility.everything:
            share.masked_fill_(~scores.allowed(start, stop), 0.0)
        total += weights[:, None, :, start:stop] @ share
    return total.to(torch.float32)


def dense_map(scores: Scores, sink: Tensor | None = None) -> Tensor:
    """The attention matrix itself, from its definition and not from the kernel's log-sum-exp: the reference.

    Args:
        sink: Float [H]: the score of a learned sink, whose share is left out of the matrix.

    Returns:
        Float32 [B, H, Q, K] (float64 for float64 inputs). Rows without a key are 0; rows of padded queries follow
        `visibility.padded`.
    """
    exact, visibility = scores.exact, scores.visibility
    every = scores.query.to(exact) @ per_head(scores.key, scores.query).to(exact).transpose(-1, -2) * scores.scale
    every = every.masked_fill(~scores.allowed(0, visibility.queries), float("-inf"))
    if sink is not None:
        level = sink.to(exact)[None, :, None, None].expand(*every.shape[:-1], 1)
        every = torch.cat((every, level), -1)
    attention = every.softmax(-1).nan_to_num(0.0)[..., : visibility.keys]
    real = visibility.real_queries()
    if real is not None and visibility.padded != "keys":
        fill = 0.0 if visibility.padded == "none" else 1.0 / visibility.keys
        attention = torch.where(real[:, None, :, None], attention, fill)
    return attention


def dense_received(attention: Tensor, visibility: Visibility, weights: Tensor) -> Tensor:
    """Received attention from a full map: Float [B, H, Q, K] → [B, H, C, K]. The reference for `received`."""
    mass = weights[:, None].to(attention.dtype) @ attention
    return relative(mass, visibility.uniform(weights))
