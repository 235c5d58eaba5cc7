"""transformers' own backbones, built without memory and filled tensor by tensor.

Building on the meta device and assigning each tensor as it is read means that an 8B model never exists twice. Most diffusion
families are one of these backbones with attention that looks both ways and with its usual names: a
`BackboneFamily` of a few facts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention.interface import NAME, register
from sinkscope.base.errors import CheckpointError
from sinkscope.base.fast import fast
from sinkscope.base.files import fit
from sinkscope.models.checkpoint import ROTATION, Checkpoint, StoredParts, fill
from sinkscope.models.family import Family
from sinkscope.models.settings import USUAL, check_settings


def empty_network(checkpoint: Checkpoint, network_class: Any, config: Any) -> Any:
    """The network on the meta device, with sinkscope's attention and what a distribution changes: no memory for its weights."""
    register()
    config._attn_implementation = NAME
    with torch.device("meta"):
        network = network_class(config)
    if checkpoint.change is not None:
        checkpoint.change.change(network, checkpoint.config, checkpoint.source)
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
    if not fast(device):
        return {}
    from sinkscope.gpu.stacked import room

    return room(network, device, dtype)


def read_settings(checkpoint: Checkpoint, rope: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The sizes of a config.json in transformers' words, checked, for its Llama and Qwen configs.

    Args:
        rope: settings of the rotation, and changes: others, that are not in config.json, or not under their usual names.
    """
    settings = checkpoint.config
    width, heads = checkpoint.size("hidden_size"), checkpoint.size("num_attention_heads")
    kv_heads = checkpoint.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise CheckpointError(
            f"{checkpoint.source}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    rotation = fit(Mapping[str, Any], next(filter(None, map(settings.get, ROTATION)), {}), "rope_scaling")
    # Older files call the kind of rotation `type`.
    rotation.setdefault("rope_type", rotation.pop("type", "default"))
    rotation.setdefault("rope_theta", checkpoint.number("rope_theta", 10000.0))
    usual: dict[str, Any] = {
        **checkpoint.sizes("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
        "num_key_value_heads": kv_heads,
        "head_dim": checkpoint.size("head_dim", max(1, width // heads)),
        "max_position_embeddings": checkpoint.size("max_position_embeddings", 131072),
        "rms_norm_eps": checkpoint.number("rms_norm_eps", 1e-6),
        "hidden_act": settings.get("hidden_act") or "silu",
        "rope_parameters": rotation | dict(rope or {}),
        "attention_bias": bool(settings.get("attention_bias")),
        "tie_word_embeddings": False,
        "pad_token_id": None,
        "use_cache": False,
        **changes,
    }
    if "intermediate_size" not in usual:
        usual["intermediate_size"] = checkpoint.size("intermediate_size")
    return usual


ONLY: dict[str, tuple[Any, ...]] = {"use_sliding_window": (None, False), "use_mrope": (None, False)}
"""Settings that change a network → the values that released models use."""


@dataclass(frozen=True)
class BackboneFamily(Family):
    """A diffusion family whose network is one of transformers', with attention both ways.

    Attributes:
        backbone: transformers' name of the network, such as "Qwen2".
        only: settings of config.json that change the network → the values that released models use, besides ONLY.
        reads: settings that `settings` reads, besides the usual ones; any other that is on is refused (see models.settings).
    """

    backbone: str = ""
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict, hash=False)
    reads: tuple[str, ...] = ()

    def backbone_of(self, checkpoint: Checkpoint) -> str:
        """transformers' name of a checkpoint's network."""
        return self.backbone

    def settings(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Settings of transformers' config that are not in config.json, or not under their usual names."""
        return {}

    def renamed(self, name: str) -> str:
        """Name of a parameter in the network → its name in the checkpoint."""
        return name

    def divided(self, checkpoint: Checkpoint, network: Any) -> Mapping[str, StoredParts]:
        """The stored tensors that are not parameters of the network, still empty, one by one (see Parts)."""
        return expert_parts(network)

    def tied(self, checkpoint: Checkpoint) -> bool:
        """Whether the head is the embedding."""
        return bool(checkpoint.config.get("tie_word_embeddings"))

    def fit(self, checkpoint: Checkpoint, network: Any) -> None:
        """Change the empty network where a checkpoint differs from transformers' own; most do not."""

    def finish(self, checkpoint: Checkpoint, network: Any, device: torch.device) -> None:
        """What a network needs besides its weights: its frequencies were made on the meta device, and are in no checkpoint."""
        network.model.rotary_emb = type(network.model.rotary_emb)(network.config).to(device)

    def exact(self, config: Any) -> Collection[str]:
        """Buffers of the network that the checkpoint holds, in the dtype that it holds them in."""
        return ()

    def check(self, checkpoint: Checkpoint, *usual: str) -> None:
        """Refuse settings that change the network in a way that is not read."""
        for key, allowed in {**ONLY, **self.only}.items():
            if checkpoint.config.get(key) not in allowed:
                released = (
                    f"which no released {checkpoint.model_type} model does; sinkscope does not read such networks"
                )
                raise checkpoint.misfit(key, released)
        check_settings(checkpoint, (*usual, *self.only, *self.reads))

    def config(self, checkpoint: Checkpoint) -> Any:
        import transformers

        backbone = self.backbone_of(checkpoint)
        # Of Llama's settings the others' networks know no bias of their feed-forward layers.
        self.check(checkpoint, *USUAL, *(("mlp_bias",) if backbone == "Llama" else ()))
        if set(checkpoint.config.get("layer_types") or ["full_attention"]) != {"full_attention"}:
            raise checkpoint.misfit(
                "layer_types", "which should be full_attention everywhere, as in all released models"
            )
        more = self.settings(checkpoint)
        settings = read_settings(checkpoint, **more)
        if backbone == "Llama":
            settings["mlp_bias"] = bool(checkpoint.config.get("mlp_bias"))
        if backbone in ("Qwen2", "Qwen3"):
            settings["use_sliding_window"] = False
        if backbone in ("Qwen2", "Ministral3"):  # q, k and v always have a bias, or never
            settings.pop("attention_bias")
        checkpoint.check_sizes(partial="partial_rotary_factor" in more.get("rope", {}))
        config = getattr(transformers, f"{backbone}Config")(**settings)
        config.is_causal = self.causal
        return config

    def build(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
        import transformers

        if checkpoint.quantised:
            raise CheckpointError(
                f"{checkpoint.source} is quantised with {checkpoint.quantised}; sinkscope reads {checkpoint.model_type} models "
                "in float32, bfloat16 or float16: give the original checkpoint"
            )
        with checkpoint.described():
            config = self.config(checkpoint)
            network_class = getattr(transformers, f"{self.backbone_of(checkpoint)}ForCausalLM")
            network = empty_network(checkpoint, network_class, config)
        self.fit(checkpoint, network)
        parts, exact = self.divided(checkpoint, network), self.exact(config)
        assembled = {target for part in parts.values() for _, target, _ in part.pieces}
        parameters = (*dict(network.named_parameters()), *exact)
        names = {self.renamed(name): name for name in parameters if name not in assembled}
        tied = self.tied(checkpoint)
        if tied:
            names.pop(self.renamed("lm_head.weight"), None)
        room = partial(side_by_side, network, device, dtype)
        fill(network, checkpoint, names, device, dtype, room, parts, exact)
        if tied:
            network.lm_head.weight = network.model.embed_tokens.weight
        self.finish(checkpoint, network, device)
        built: nn.Module = network
        return built


ROUTING = (
    "moe_intermediate_size", "num_experts", "num_experts_per_tok", "decoder_sparse_step", "mlp_only_layers", "norm_topk_prob",
)  # fmt: skip
"""What `routing` reads."""


def routing(checkpoint: Checkpoint, normalised: bool = False) -> dict[str, Any]:
    """Sizes and routing of a mixture of experts, in the words that Qwen3-MoE and its descendants share.

    Args:
        normalised: whether the weights of the chosen experts sum to 1 where config.json does not say.
    """
    return {
        **checkpoint.sizes("moe_intermediate_size", "num_experts", "num_experts_per_tok"),
        "decoder_sparse_step": checkpoint.size("decoder_sparse_step", 1),
        "mlp_only_layers": list(checkpoint.config.get("mlp_only_layers") or []),
        "norm_topk_prob": bool(checkpoint.config.get("norm_topk_prob", normalised)),
    }


def expert_parts(network: Any, merged: bool = False) -> dict[str, StoredParts]:
    """Where the experts' weights of a checkpoint lie in the network's stacks of all experts of a layer.

    Args:
        network: on the meta device.
        merged: gate, up and down of all experts of a layer are one stored tensor [experts, …] each; otherwise each expert's are.
    """
    parts_of: dict[str, StoredParts] = {}
    for index, layer in enumerate(network.model.layers):
        experts = getattr(layer.mlp, "experts", None)
        if experts is None:
            continue
        owner = f"model.layers.{index}.mlp.experts"
        count, both, width = experts.gate_up_proj.shape
        half = both // 2
        stored: dict[str, tuple[str, tuple[int, ...], Any]] = {owner: ("", (count,), slice(None))}
        if not merged:
            stored = {f"{owner}.{expert}": (".weight", (), expert) for expert in range(count)}
        for name, (leaf, stack, selected) in stored.items():
            for projection, rows in (("gate_proj", slice(0, half)), ("up_proj", slice(half, both))):
                piece = (..., f"{owner}.gate_up_proj", (selected, rows))
                parts_of[f"{name}.{projection}{leaf}"] = StoredParts((*stack, half, width), (piece,))
            piece = (..., f"{owner}.down_proj", selected)
            parts_of[f"{name}.down_proj{leaf}"] = StoredParts((*stack, width, half), (piece,))
    return parts_of
