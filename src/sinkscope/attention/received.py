"""Received attention: how much attention each key gets, relative to uniform attention.

    received_j = Σ_i w_i A_ij / Σ_i w_i u_ij        u_ij = 1 / (keys that query i can see, before any policy)

where i runs over the real queries that can see j. Uniform attention gives 1 everywhere, causal or not, padded or not; in a
bidirectional call without padding this is the column sum of the attention matrix (the score of arXiv 2510.15731, read as a
sum). Keys that are padding, or that no query of the class can see, are NaN.

`column_mass` is the statistic itself, from q, k and the log-sum-exp that the fused kernel returned: exp(q·k·scale − lse) is
the attention weight, so a tile of queries at a time suffices and no S×S matrix exists. On a GPU the kernel of `columns` does
it; `tiled_mass` is the same in plain operations, and `dense_map` is the reference for both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.attention import columns
from sinkscope.attention.key_mask import KeyMask
from sinkscope.attention.visibility import Visibility

TILE_BYTES = 32 << 20
TILE_ROWS = 64
"""Upper bounds on one tile of scores: its memory, and its queries, so that a tile stays narrow for short inputs too."""


def received(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    visibility: Visibility,
    key_mask: KeyMask | None,
    scale: float,
    weights: Tensor | None = None,
    uniform: Tensor | None = None,
) -> Tensor:
    """Received attention of every key, per query head and class of queries.

    Args:
        query: Float [B, H, Q, D]. key: Float [B, G, K, D], unrepeated. lse: Float32 [B, H, Q].
        key_mask: the keys that a policy hides; their attention is 0, not NaN. None when nothing is hidden.
        weights: Float [B, C, Q], 1 where a query belongs to a class; None: one class of all real queries.
        uniform: Float64 [B|1, C, K]: `visibility.uniform` of weights that have passed `query_weights`, for callers that
            know it already (it is the same in all layers).

    Returns:
        Float32 [B, H, C, K], uniform = 1, NaN where there is no key.
    """
    if uniform is None or weights is None:
        weights = query_weights(visibility, weights, query)
        uniform = visibility.uniform(weights)
    return column_mass(query, key, lse, visibility, key_mask, scale, weights, uniform)


def relative(mass: Tensor, uniform: Tensor) -> Tensor:
    """Column mass [B, H, C, K] divided by what uniform attention would bring [B|1, C, K]; NaN where that is nothing."""
    uniform = uniform[:, None]
    return torch.where(uniform > 0, mass / uniform.clamp(min=1e-300), float("nan")).to(torch.float32)


def query_weights(visibility: Visibility, weights: Tensor | None, query: Tensor) -> Tensor:
    """Float32 [B, C, Q] with padded queries at 0; without classes, one class of all real queries."""
    real = visibility.real_queries()
    if weights is None:
        weights = torch.ones(query.shape[0], 1, query.shape[2], device=query.device)
    weights = weights.to(torch.float32)
    return weights if real is None else weights * real[:, None, :]


def column_mass(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    visibility: Visibility,
    key_mask: KeyMask | None,
    scale: float,
    weights: Tensor,
    uniform: Tensor | None = None,
) -> Tensor:
    """Σ_i w_i A_ij, Float32 [B, H, C, K], by the kernel where there is one; with `uniform` [B|1, C, K] relative to it.

    Args:
        weights: Float [B, C, Q], 0 in padding.
    """
    if columns.available(query) and columns.covers(visibility, key_mask):
        return columns.column_sums(query, key, lse, visibility, key_mask, scale, weights, uniform)
    mass = tiled_mass(query, key, lse, visibility, key_mask, scale, weights)
    return mass if uniform is None else relative(mass, uniform)


def tiled_mass(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    visibility: Visibility,
    key_mask: KeyMask | None,
    scale: float,
    weights: Tensor,
    tile_bytes: int = TILE_BYTES,
) -> Tensor:
    """Σ_i w_i A_ij, a tile of queries at a time.

    Args:
        weights: Float [B, C, Q], 0 for queries that do not count (padding included).
        tile_bytes: memory that one tile of scores may take.

    Returns:
        Float32 [B, H, C, K].
    """
    B, H, Q, D = query.shape
    G, K = key.shape[1], key.shape[2]
    exact = torch.promote_types(query.dtype, torch.float32)
    keys = key.to(exact).reshape(B * G, K, D).transpose(1, 2)
    # A row that counts in no class may have no key at all, and then its log-sum-exp means nothing.
    minus = torch.where((weights > 0).any(1)[:, None, :], -lse.to(exact), float("-inf"))
    stranded = None if key_mask is None else key_mask.stranded(visibility, query.device)
    weights = weights.to(exact)
    total = torch.zeros(B, H, weights.shape[1], K, dtype=exact, device=query.device)
    rows = max(1, min(Q, TILE_ROWS, tile_bytes // max(1, B * H * K * total.element_size())))
    for start in range(0, Q, rows):
        stop = min(start + rows, Q)
        part = query[:, :, start:stop].to(exact).reshape(B * G, -1, D)
        each = minus[:, :, start:stop].reshape(B * G, -1, 1)
        # One pass over the tile for scale, product and log-sum-exp: on a CPU this is bound by memory.
        share = torch.baddbmm(each, part, keys, alpha=scale).exp_().view(B, H, stop - start, K)
        if visibility.triangular:  # the same as below, and much faster
            share.tril_(visibility.offset + start)
        else:
            visible = visibility.rows(start, stop, query.device)
            if visible is not None:
                share.masked_fill_(~visible, 0.0)
        if key_mask is not None and stranded is not None:
            share.masked_fill_(key_mask.in_force(visibility, start, stop, stranded, query.device), 0.0)
        total += weights[:, None, :, start:stop] @ share
    return total.to(torch.float32)


def dense_map(
    query: Tensor,
    key: Tensor,
    visibility: Visibility,
    key_mask: KeyMask | None,
    scale: float,
    sink: Tensor | None = None,
) -> Tensor:
    """The attention matrix itself, from its definition and not from the kernel's log-sum-exp: the reference.

    Args:
        sink: Float [H]: the score of a learned sink, whose share is left out of the matrix.

    Returns:
        Float32 [B, H, Q, K] (float64 for float64 inputs). Rows without a key are 0; rows of padded queries follow
        `visibility.padded`.
    """
    groups = query.shape[1] // key.shape[1]
    exact = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(exact) @ key.repeat_interleave(groups, 1).to(exact).transpose(-1, -2) * scale
    visible = visibility.rows(0, visibility.queries, query.device)
    if visible is None:
        visible = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=query.device)
    if key_mask is not None:
        stranded = key_mask.stranded(visibility, query.device)
        visible = visible & ~key_mask.in_force(visibility, 0, visibility.queries, stranded, query.device)
    scores = scores.masked_fill(~visible, float("-inf"))
    if sink is not None:
        level = sink.to(exact)[None, :, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, level), -1)
    attention = scores.softmax(-1).nan_to_num(0.0)[..., : visibility.keys]
    real = visibility.real_queries()
    if real is not None and visibility.padded != "keys":
        fill = 0.0 if visibility.padded == "none" else 1.0 / visibility.keys
        attention = torch.where(real[:, None, :, None], attention, fill)
    return attention


def dense_received(attention: Tensor, visibility: Visibility, weights: Tensor) -> Tensor:
    """Received attention from a full map: Float [B, H, Q, K] → [B, H, C, K]. The reference for `received`."""
    mass = weights[:, None].to(attention.dtype) @ attention
    return relative(mass, visibility.uniform(weights))
