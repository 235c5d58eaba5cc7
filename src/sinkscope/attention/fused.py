"""Attention output and log-sum-exp from the device's fused kernels, with key columns hidden where asked.

The same kernel serves traced and untraced runs: measuring must not change the result being measured. Hidden and padded
keys enter as a bias of shape [B, H, 1, K] that the kernels broadcast over queries, so no S×S matrix is built.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.attention.visibility import Visibility

ROWS_PER_TILE = 256
"""Query rows per call where a pattern needs an explicit mask (sliding windows, models' own patterns)."""


def attend(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, hidden: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """softmax(q·k·scale over the visible and not hidden keys) · v, and the log-sum-exp of each row.

    Args:
        query: Float [B, H, Q, D].
        key: Float [B, G, K, D], G dividing H (grouped heads arrive unrepeated).
        value: Float [B, G, K, E].
        hidden: Bool [B|1, H|1, K], the keys that may not be used; None or nowhere True: the plain call, bit for bit.
            A query that would lose every visible key keeps its scores.

    Returns:
        Output [B, H, Q, E] in the dtype of value, and log-sum-exp Float32 [B, H, Q] (meaningless for rows without a key).
    """
    if hidden is None:
        out, lse = _visible(query, key, value, visibility, None, scale)
    else:
        out, lse = _with_hidden(query, key, value, visibility, hidden, scale)
    return _padded_rows(out, value, visibility), lse


def _with_hidden(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, hidden: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    stranded = visibility.stranded(hidden)
    rows = visibility.queries
    patterned = visibility.dense is not None or visibility.causal or visibility.banded
    if rows == 1 or not patterned:
        # All queries of a head see the same keys, so they are stranded together: that head is left alone.
        return _visible(query, key, value, visibility, hidden & ~stranded[..., :1], scale)
    if visibility.dense is not None or visibility.banded or rows < visibility.keys:
        return _tiled(query, key, value, visibility, hidden, stranded, scale)
    out, lse = _visible(query, key, value, visibility, hidden, scale)
    lost = stranded.flatten(0, -2).any(0).nonzero()
    if lost.numel():
        # In a causal call the stranded queries stand at the beginning: only that prefix is computed again.
        count = int(lost.max()) + 1
        plain_out, plain_lse = _visible(
            query[:, :, :count], key[:, :, :count], value[:, :, :count], visibility.prefix(count), None, scale
        )
        again = stranded[..., :count]
        out = torch.cat([torch.where(again[..., None], plain_out, out[:, :, :count]), out[:, :, count:]], 2)
        lse = torch.cat([torch.where(again, plain_lse, lse[:, :, :count]), lse[:, :, count:]], 2)
    return out, lse


def _visible(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, hidden: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """One kernel call where the pattern is "all", "causal" or "one row", with key columns taken out by a bias."""
    rows = visibility.queries
    if visibility.dense is not None or (visibility.banded and rows > 1):
        return _tiled(query, key, value, visibility, hidden, None, scale)
    if visibility.causal and 1 < rows < visibility.keys:
        return _tiled(query, key, value, visibility, hidden, None, scale)
    if visibility.banded:
        first, _ = visibility.key_range(0, rows)
        out_of_reach = torch.arange(visibility.keys, device=query.device) < first
        hidden = out_of_reach[None, None] if hidden is None else hidden | out_of_reach
    bias = _column_bias(visibility.real, hidden)
    return kernel(query, key, value, bias, visibility.causal and rows > 1, scale)


def _tiled(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visibility: Visibility,
    hidden: Tensor | None,
    stranded: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Query tiles with an explicit mask each, over the range of keys that the tile can see."""
    outs, lses = [], []
    for start in range(0, visibility.queries, ROWS_PER_TILE):
        stop = min(start + ROWS_PER_TILE, visibility.queries)
        first, last = visibility.key_range(start, stop)
        visible = visibility.rows(start, stop, query.device)
        if visible is None:
            visible = torch.ones(1, 1, 1, visibility.keys, dtype=torch.bool, device=query.device)
        if hidden is not None:
            taken = hidden[:, :, None, :]
            if stranded is not None:
                taken = taken & ~stranded[:, :, start:stop, None]
            visible = visible & ~taken
        bias = torch.where(visible[..., first:last], 0.0, float("-inf"))
        out, lse = kernel(
            query[:, :, start:stop], key[:, :, first:last], value[:, :, first:last], bias, False, scale
        )
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs, 2), torch.cat(lses, 2)


def _column_bias(real: Tensor | None, hidden: Tensor | None) -> Tensor | None:
    """Float32 [B|1, H|1, 1, K]: 0 for keys that may be used, −inf for the others; None when all may."""
    if real is None and hidden is None:
        return None
    out = torch.zeros((), dtype=torch.bool, device=(real if hidden is None else hidden).device)  # type: ignore[union-attr]
    if real is not None:
        out = out | ~real[:, None, None, :]
    if hidden is not None:
        out = out | hidden[:, :, None, :]
    return torch.where(out, float("-inf"), 0.0).to(torch.float32)


def _padded_rows(out: Tensor, value: Tensor, visibility: Visibility) -> Tensor:
    """Gives the rows of padded queries what the official code gives them (see Visibility.padded)."""
    real = visibility.real_queries()
    if real is None or visibility.padded == "keys":
        return out
    if visibility.padded == "none":
        return out.masked_fill(~real[:, None, :, None], 0.0)
    mean = value.mean(2, keepdim=True).repeat_interleave(out.shape[1] // value.shape[1], 1)
    return torch.where(real[:, None, :, None], out, mean)


def kernel(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The fused kernel of the device at hand that also returns the log-sum-exp.

    Args:
        bias: Float32 [B|1, H|1, Q|1, K], added to the scores, or None.
        causal: upper-left causal; only with Q = K.
    """
    if key.shape[-1] == value.shape[-1]:
        if query.device.type == "cpu":
            return _cpu(query, key, value, bias, causal, scale)
        if query.device.type == "cuda" and query.dtype != torch.float64 and key.shape[-1] <= 256:
            return _cuda(query, key, value, bias, causal, scale)
    return plain(query, key, value, bias, causal, scale)


def _cpu(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    if bias is not None and query.dtype == torch.float64:
        bias = bias.double()
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=bias, scale=scale
    )
    return out, lse


def _cuda(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    B, H, Q, K = query.shape[0], query.shape[1], query.shape[2], key.shape[2]
    if bias is None and query.dtype in (torch.bfloat16, torch.float16):
        found = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, causal, False, scale=scale
        )
        return found[0], found[1]
    if bias is not None:
        # The kernel wants rows aligned to 16 bytes; a padded buffer seen through a slice gives it that.
        wide = bias.new_zeros(*bias.shape[:-1], (K + 15) // 16 * 16, dtype=query.dtype)
        wide[..., :K] = bias
        bias = wide[..., :K].expand(B, H, Q, K)
    out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, 0.0, causal, scale=scale
    )
    return out, lse[..., :Q]


def plain(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The same in plain operations, a tile of queries at a time: for devices and shapes without a fused kernel."""
    groups = query.shape[1] // key.shape[1]
    keys = key.repeat_interleave(groups, 1).to(torch.promote_types(key.dtype, torch.float32))
    values = value.repeat_interleave(groups, 1)
    outs, lses = [], []
    for start in range(0, query.shape[2], ROWS_PER_TILE):
        rows = query[:, :, start : start + ROWS_PER_TILE].to(keys.dtype)
        scores = rows @ keys.transpose(-1, -2) * scale
        if bias is not None:
            scores = scores + (bias if bias.shape[2] == 1 else bias[:, :, start : start + ROWS_PER_TILE])
        if causal:
            index = torch.arange(keys.shape[2], device=query.device)
            here = torch.arange(start, start + rows.shape[2], device=query.device)[:, None]
            scores = scores.masked_fill(index > here, float("-inf"))
        lse = scores.logsumexp(-1)
        weights = torch.where(lse[..., None] == float("-inf"), 0.0, (scores - lse[..., None]).exp())
        outs.append(weights.to(values.dtype) @ values)
        lses.append(torch.where(lse == float("-inf"), 0.0, lse).to(torch.float32))
    return torch.cat(outs, 2), torch.cat(lses, 2)
