"""transformers' own backbones, built without memory and filled tensor by tensor.

Building on the meta device and assigning each tensor as it is read means that an 8B model never exists twice. Most diffusion
families are one of these backbones with attention that looks both ways and with its usual names: `read_settings` and
`native_network` are all they need.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention.interface import NAME, register
from sinkscope.errors import CheckpointError
from sinkscope.models.checkpoint import Checkpoint, Parts, fill
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


def read_settings(checkpoint: Checkpoint, **changes: Any) -> dict[str, Any]:
    """The sizes of a config.json in transformers' words, checked, for its Llama and Qwen configs.

    Args:
        changes: settings that are not in config.json, or not under their usual names.
    """
    settings = checkpoint.config
    if settings.get("use_sliding_window") or settings.get("use_mrope"):
        raise CheckpointError(
            f"{checkpoint.source}: config.json switches on use_sliding_window or use_mrope; no released {checkpoint.model_type} "
            "model does, and sinkscope does not read such networks"
        )
    width, heads = checkpoint.size("hidden_size"), checkpoint.size("num_attention_heads")
    kv_heads = checkpoint.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise CheckpointError(
            f"{checkpoint.source}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    rope = dict(settings.get("rope_scaling") or settings.get("rope_parameters") or {})
    rope.setdefault("rope_type", rope.pop("type", "default"))
    rope.setdefault("rope_theta", checkpoint.number("rope_theta", 10000.0))
    usual: dict[str, Any] = {
        "vocab_size": checkpoint.size("vocab_size"),
        "hidden_size": width,
        "num_hidden_layers": checkpoint.size("num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": checkpoint.size("head_dim", max(1, width // heads)),
        "max_position_embeddings": checkpoint.size("max_position_embeddings", 131072),
        "rms_norm_eps": checkpoint.number("rms_norm_eps", 1e-6),
        "hidden_act": settings.get("hidden_act") or "silu",
        "rope_parameters": rope,
        "attention_bias": bool(settings.get("attention_bias")),
        "tie_word_embeddings": False,
        "pad_token_id": None,
        "use_cache": False,
        **changes,
    }
    if "intermediate_size" not in usual:
        usual["intermediate_size"] = checkpoint.size("intermediate_size")
    return usual


def both_ways(config_class: Any, checkpoint: Checkpoint, settings: dict[str, Any]) -> Any:
    """A config whose attention looks both ways, for a checkpoint that has as many layers as it says."""
    checkpoint.check_layers()
    config = config_class(**settings)
    config.is_causal = False
    return config


def native_network(
    network_class: Any,
    config: Any,
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    renamed: Callable[[str], str] = str,
    divided: Callable[[Any], Mapping[str, Parts]] | None = None,
    exact: Collection[str] = (),
) -> Any:
    """A network of transformers with a checkpoint's weights.

    Args:
        renamed: name of a parameter in the network → its name in the checkpoint.
        divided: from the network, still empty, to its stored tensors that are not parameters one by one (see Parts).
        exact: buffers of the network that the checkpoint holds, in the dtype that it holds them in.
    """
    network = empty_network(network_class, config)
    parts = {} if divided is None else divided(network)
    made = {target for part in parts.values() for _, target, _ in part.pieces}
    names = {renamed(name): name for name in (*dict(network.named_parameters()), *exact) if name not in made}
    tied = bool(checkpoint.config.get("tie_word_embeddings"))
    if tied:
        names.pop(renamed("lm_head.weight"), None)
    fill(
        network,
        checkpoint,
        names,
        device,
        dtype,
        lambda: side_by_side(network, device, dtype),
        parts,
        exact,
    )
    if tied:
        network.lm_head.weight = network.model.embed_tokens.weight
    # Its frequencies were made on the meta device; they are not part of a checkpoint.
    network.model.rotary_emb = type(network.model.rotary_emb)(config).to(device)
    return network


def expert_parts(network: Any, renamed: Callable[[str], str] = str) -> dict[str, Parts]:
    """Where the experts' weights of a checkpoint, one tensor each, lie in the network's stacks of all experts of a layer.

    Args:
        network: on the meta device.
    """
    found: dict[str, Parts] = {}
    for index, layer in enumerate(network.model.layers):
        experts = getattr(layer.mlp, "experts", None)
        if experts is None:
            continue
        owner = f"model.layers.{index}.mlp.experts"
        count, both, width = experts.gate_up_proj.shape
        half = both // 2
        for expert in range(count):
            for name, place in (("gate_proj", slice(0, half)), ("up_proj", slice(half, both))):
                stored = renamed(f"{owner}.{expert}.{name}.weight")
                found[stored] = Parts((half, width), ((..., f"{owner}.gate_up_proj", (expert, place)),))
            stored = renamed(f"{owner}.{expert}.down_proj.weight")
            found[stored] = Parts((width, half), ((..., f"{owner}.down_proj", expert),))
    return found
