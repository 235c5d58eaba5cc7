"""transformers' own backbones, built without memory and filled tensor by tensor.

Building on the meta device and assigning each tensor as it is read means that an 8B model never exists twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention.interface import NAME, register
from sinkscope.models.fused_forward import possible
from sinkscope.models.stacked import room


class FullPrecisionRotary(nn.Module):
    """RoPE angles as LLaDA computes and uses them: cosine and sine stay in float32.

    q and k are then rotated in float32 by type promotion and cast back by our attention function; transformers' own module
    would round the angles to the activations' dtype first, which changes bf16 results.
    """

    inv_freq: Tensor

    def __init__(self, head_dim: int, theta: float, device: torch.device) -> None:
        super().__init__()
        exponent = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
        self.register_buffer("inv_freq", 1.0 / theta**exponent, persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Float32 cos, sin [B|1, S, head_dim] at the given positions."""
        angles = position_ids[..., None].float() * self.inv_freq
        angles = torch.cat((angles, angles), -1)
        return angles.cos(), angles.sin()


def empty_network(network_class: Any, config: Any) -> Any:
    """The network on the meta device, with sinkscope's attention and no memory for its weights."""
    register()
    config._attn_implementation = NAME
    with torch.device("meta"):
        network = network_class(config)
    return network.eval()


def with_bias(linear: nn.Module, bias: bool) -> nn.Linear:
    """The linear layer, on the meta device, with or without a bias, as the checkpoint has it."""
    if not isinstance(linear, nn.Linear):
        raise TypeError(f"expected a linear layer, got {type(linear).__name__}")
    if (linear.bias is not None) == bias:
        return linear
    return nn.Linear(linear.in_features, linear.out_features, bias=bias, device="meta")


def side_by_side(network: Any, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """Memory for weights that the fused forward reads as one matrix; none where that forward cannot run anyway."""
    return room(network, device, dtype) if possible(device) else {}
