"""The kernels of the device at hand: attention with its log-sum-exp, the same one for traced and untraced runs; column sums."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention.visibility import per_head
from sinkscope.base.fast import fast

_log = logging.getLogger(__name__)

PLAIN_ROWS = 256
"""Query rows per tile where there is no fused kernel."""


def kernel(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Output [B, H, Q, E] and log-sum-exp Float32 [B, H, Q].

    Args:
        query: Float [B, H, Q, D]; key, value: [B, G, K, D], [B, G, K, E].
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
    if query.dtype in (torch.bfloat16, torch.float16):
        if cudnn_works(query.device, query.dtype, query.shape[-1]):
            return _cudnn(query, key, value, bias, causal, scale)
        if bias is None:
            out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
                query, per_head(key, query), per_head(value, query), 0.0, causal, False, scale=scale
            )
            return out, lse
    key, value = per_head(key, query), per_head(value, query)
    B, H, Q, K = query.shape[0], query.shape[1], query.shape[2], key.shape[2]
    if bias is not None:
        # The kernel wants rows aligned to 16 bytes; a padded buffer seen through a slice gives it that.
        wide = torch.zeros(*bias.shape[:-1], (K + 15) // 16 * 16, dtype=query.dtype, device=query.device)
        wide[..., :K] = bias
        bias = wide[..., :K].expand(B, H, Q, K)
    out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, 0.0, causal, scale=scale
    )
    return out, lse[..., :Q]


def _cudnn(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """cuDNN takes grouped heads as they are, and a bias that is the same for all queries as one row."""
    if bias is not None:
        rows = bias.shape[2]
        bias = bias.to(query.dtype).expand(query.shape[0], query.shape[1], rows, -1).contiguous()
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, key, value, bias, True, 0.0, causal, False, scale=scale
    )
    return out, lse.view(lse.shape[:3])


_CUDNN: dict[tuple[torch.device, torch.dtype, int], bool] = {}


def cudnn_works(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether cuDNN's attention gives the right output and log-sum-exp here: it is nearly twice as fast on Hopper.

    Tried once; a capture that comes first cannot try, and goes without.
    """
    case = device, dtype, width
    if case not in _CUDNN:
        if torch.cuda.is_current_stream_capturing():
            return False
        _CUDNN[case] = _try_cudnn(*case)
    return _CUDNN[case]


def _try_cudnn(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """On small inputs, with and without a bias, grouped heads and an odd length, against plain operations.

    What is supported depends on the GPU, on cuDNN's version and on the width of the heads, and not all of that raises an error.
    """
    draw = torch.Generator(device).manual_seed(0)
    query = torch.randn(2, 4, 37, width, device=device, generator=draw).to(dtype)
    key, value = (torch.randn(2, 2, 37, width, device=device, generator=draw).to(dtype) for _ in range(2))
    bias = torch.zeros(2, 4, 1, 37, device=device)
    bias[:, :, :, 5] = float("-inf")
    scale = width**-0.5
    try:
        for causal in (False, True):
            for masked in (None, bias):
                out, lse = _cudnn(query, key, value, masked, causal, scale)
                expected, total = plain(query, key, value, masked, causal, scale)
                close = (out - expected).abs().max() < 0.05 and (lse - total).abs().max() < 1e-3
                if not bool(close):
                    return False
    except RuntimeError:
        return False
    return True


def plain(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The same in plain operations, a tile of queries at a time: for devices and shapes without a fused kernel."""
    keys = per_head(key, query).to(torch.promote_types(key.dtype, torch.float32))
    values = per_head(value, query)
    outs, lses = [], []
    for start in range(0, query.shape[2], PLAIN_ROWS):
        rows = query[:, :, start : start + PLAIN_ROWS].to(keys.dtype)
        scores = rows @ keys.transpose(-1, -2) * scale
        if bias is not None:
            scores = scores + (bias if bias.shape[2] == 1 else bias[:, :, start : start + PLAIN_ROWS])
        if causal:
            index = torch.arange(keys.shape[2], device=query.device)
            scores = scores.masked_fill(index > index[start : start + rows.shape[2], None], float("-inf"))
        lse = scores.logsumexp(-1)
        weights = torch.where(lse[..., None] == float("-inf"), 0.0, (scores - lse[..., None]).exp())
        outs.append(weights.to(values.dtype) @ values)
        lses.append(torch.where(lse == float("-inf"), 0.0, lse).to(torch.float32))
    return torch.cat(outs, 2), torch.cat(lses, 2)


def column_kernels(query: Tensor) -> Any:
    """The kernels for received attention (`gpu.columns`) where they can run for queries [B, H, Q, D]; None elsewhere."""
    small = query.shape[-1] <= 256 and query.dtype in (torch.bfloat16, torch.float16, torch.float32)
    return _columns() if small and fast(query.device) else None


@cache
def _columns() -> Any:
    """The compiled kernels, or None with one notice where Triton is missing."""
    try:
        from sinkscope.gpu import columns
    except ImportError as error:
        _log.warning(
            "Triton is not installed (%s): received attention is computed by the slower tiled path. "
            "Install the extra with: pip install 'sinkscope[triton]'",
            error,
        )
        return None
    return columns
