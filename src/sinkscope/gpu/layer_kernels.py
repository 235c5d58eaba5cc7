"""What stands between the matrix products of a decoder layer, as three Triton kernels. Importing this file needs triton.

transformers runs these steps as some twenty small kernels per layer, each of which reads and writes all activations. Here each
is one kernel, with the roundings of the eager code at the same places: sums and products are computed in float32 and rounded to
the activations' dtype wherever the eager code stores a tensor. No multiply-add is contracted (`enable_fp_fusion=False`), because
the eager kernels round products before they are added. Two things may differ from the eager result, both in the last bit of a
float32 number before it is rounded: the order in which the squares of a row are added up, and their division by the width.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# Triton's kernels are its own language: their arguments have no Python types.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from sinkscope.base.fast import INTERPRETED
from sinkscope.gpu.streams import on


@triton.jit
def _rounded(x, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """The float32 x in another dtype, to the nearest, ties to even; the interpreter by itself would cut bfloat16 off."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        x = bits.to(tl.uint32).to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
def _add_norm_kernel(
    stream, branch, weight, out, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """One program: one token. The stream is overwritten by its sum with the branch."""
    d = tl.arange(0, BLOCK)
    here = d < WIDTH
    place = tl.program_id(0).to(tl.int64) * WIDTH + d
    dtype = out.dtype.element_ty
    x = tl.load(stream + place, mask=here, other=0.0).to(tl.float32)
    if ADD:
        x = x + tl.load(branch + place, mask=here, other=0.0).to(tl.float32)
        total = _rounded(x, dtype, INTERPRETED)
        tl.store(stream + place, total, mask=here)
        x = total.to(tl.float32)
    variance = tl.div_rn(tl.sum(x * x, 0), WIDTH * 1.0)
    x = _rounded(x * tl.rsqrt(variance + eps), dtype, INTERPRETED).to(tl.float32)
    w = tl.load(weight + d, mask=here, other=0.0).to(tl.float32)
    tl.store(out + place, _rounded(w * x, dtype, INTERPRETED), mask=here)


@triton.jit
def _rotate_kernel(
    heads, cos, sin, x_t, c_b, c_s, tokens, count,
    HALF: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK heads of one token, in place. Both halves of a row of cos and sin hold the same angles."""
    token = tl.program_id(0)
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, PADDED)
    own = d < HALF
    here = (h < count)[:, None] & own[None, :]
    angle = (token // tokens).to(tl.int64) * c_b + (token % tokens).to(tl.int64) * c_s + d
    c = tl.load(cos + angle, mask=own, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + angle, mask=own, other=0.0).to(tl.float32)[None, :]
    first = heads + token.to(tl.int64) * x_t + h[:, None] * (2 * HALF) + d[None, :]
    a = tl.load(first, mask=here, other=0.0).to(tl.float32)
    b = tl.load(first + HALF, mask=here, other=0.0).to(tl.float32)
    # Angles in float32 make float32 products (LLaDA); angles in the dtype of the heads make rounded ones (Dream).
    product = cos.dtype.element_ty
    ac = _rounded(a * c, product, INTERPRETED).to(tl.float32)
    bs = _rounded(b * s, product, INTERPRETED).to(tl.float32)
    bc = _rounded(b * c, product, INTERPRETED).to(tl.float32)
    sa = _rounded(a * s, product, INTERPRETED).to(tl.float32)
    dtype = heads.dtype.element_ty
    tl.store(first, _rounded(ac - bs, dtype, INTERPRETED), mask=here)
    tl.store(first + HALF, _rounded(bc + sa, dtype, INTERPRETED), mask=here)


@triton.jit
def _silu_mul_kernel(both, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, INTERPRETED: tl.constexpr):
    """One program: BLOCK channels of one token; `both` holds the gate's WIDTH channels, then the others."""
    token = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = d < WIDTH
    dtype = out.dtype.element_ty
    gate = tl.load(both + token * (2 * WIDTH) + d, mask=here, other=0.0).to(tl.float32)
    up = tl.load(both + token * (2 * WIDTH) + WIDTH + d, mask=here, other=0.0).to(tl.float32)
    # torch's own kernel uses CUDA's expf and an exact division; Triton's would be quicker and off by a bit or two.
    power = tl.exp(-gate) if INTERPRETED else libdevice.exp(-gate)
    gate = _rounded(tl.div_rn(gate, 1.0 + power), dtype, INTERPRETED).to(tl.float32)
    tl.store(out + token * WIDTH + d, _rounded(gate * up, dtype, INTERPRETED), mask=here)


def add_norm(stream: Tensor, branch: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """stream += branch, and the RMS norm of the sum.

    Args:
        stream: Float [..., W], contiguous; overwritten by the sum. branch: the same shape, or None for nothing to add.
        weight: Float [W].

    Returns:
        Float [..., W].
    """
    width = stream.shape[-1]
    stream, out = _dense(stream), torch.empty_like(stream)
    added = stream if branch is None else branch.contiguous()
    block = triton.next_power_of_2(width)
    with on(stream.device):
        _add_norm_kernel[(stream.numel() // width,)](
            stream, added, weight, out, eps,
            WIDTH=width, BLOCK=block, ADD=branch is not None, INTERPRETED=INTERPRETED,
            num_warps=max(1, min(16, block // 512)), enable_fp_fusion=False,
        )  # fmt: skip
    return out


def rotate(heads: Tensor, cos: Tensor, sin: Tensor, count: int) -> None:
    """Rotary positions for the first `count` heads of every token, in place.

    Args:
        heads: Float [B, S, at least count, D], contiguous: q, then k, then whatever stays as it is.
        cos, sin: Float [B|1, S, D], float32 or the dtype of heads; both halves of D are alike.
    """
    B, S, _, D = heads.shape
    _dense(heads)
    cos, sin = cos.contiguous(), sin.contiguous()
    padded = triton.next_power_of_2(D // 2)
    block = triton.next_power_of_2(count) if INTERPRETED else max(1, 1024 // padded)
    with on(heads.device):
        _rotate_kernel[(B * S, triton.cdiv(count, block))](
            heads, cos, sin, heads.stride(1), 0 if cos.shape[0] == 1 else cos.stride(0), cos.stride(1), S, count,
            HALF=D // 2, PADDED=padded, BLOCK=block, INTERPRETED=INTERPRETED, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip


def silu_mul(both: Tensor) -> Tensor:
    """silu(gate) · up of both: Float [..., 2·M], contiguous, the gate first → Float [..., M]."""
    width = both.shape[-1] // 2
    out = torch.empty(*both.shape[:-1], width, dtype=both.dtype, device=both.device)
    block = triton.next_power_of_2(width) if INTERPRETED else 1024
    with on(both.device):
        _silu_mul_kernel[(out.numel() // width, triton.cdiv(width, block))](
            _dense(both), out, WIDTH=width, BLOCK=block, INTERPRETED=INTERPRETED, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def _dense(x: Tensor) -> Tensor:
    """x itself, which the kernels walk through as one block of memory."""
    if not x.is_contiguous():
        raise ValueError(f"the kernels need contiguous activations, got strides {x.stride()} for {list(x.shape)}")
    return x
