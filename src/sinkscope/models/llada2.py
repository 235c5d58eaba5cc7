"""LLaDA2.0 and 2.1: a mixture of experts with shared ones and grouped routing, in transformers' GLM-4-MoE block.

Checked against the official modelling code at float32 (tests/golden/llada2). Without a mask the official forward looks both ways
over everything, and so does ours unless a block is given; the generation loops always give one. Logits come in float32.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from sinkscope.base.errors import CheckpointError
from sinkscope.models.backbone import BackboneFamily, expert_parts
from sinkscope.models.checkpoint import ORIGINAL, Checkpoint, StoredParts
from sinkscope.models.family import FAMILIES

NEEDED = (5, 6)
"""The first transformers whose router leaves excluded experts out; before, one with a negative score could win."""

NAMES = (
    ("self_attn.q_norm", "attention.query_layernorm"),
    ("self_attn.k_norm", "attention.key_layernorm"),
    ("self_attn.o_proj", "attention.dense"),
    ("embed_tokens", "word_embeddings"),
    ("gate.e_score_correction_bias", "gate.expert_bias"),
)
"""Part of a name in the GLM-4-MoE network → the same in a LLaDA2 checkpoint."""


READ = (
    "partial_rotary_factor", "rotary_dim", "moe_intermediate_size", "num_experts", "num_experts_per_tok",
    "num_shared_experts", "n_group", "topk_group", "first_k_dense_replace", "routed_scaling_factor",
)  # fmt: skip
"""Settings of config.json that `settings` reads."""


class Llada2(BackboneFamily):
    """The LLaDA2 family (inclusionAI/LLaDA2.0-mini, -flash, LLaDA2.1-mini, -flash)."""

    def config(self, checkpoint: Checkpoint) -> Any:
        """LLaDA2's sizes as a Glm4MoeConfig; refused under a transformers that would route tokens otherwise."""
        import transformers

        version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
        if version < NEEDED:
            raise CheckpointError(
                f"{checkpoint.source}: transformers {transformers.__version__} routes tokens of this model to wrong experts; "
                f"LLaDA2 needs transformers {'.'.join(map(str, NEEDED))} or newer: pip install -U transformers"
            )
        return super().config(checkpoint)

    def settings(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Sizes and routing of the experts; part of each head is rotated."""
        rotated, width = checkpoint.number("partial_rotary_factor", 0.5), checkpoint.size("hidden_size")
        head = checkpoint.size("head_dim", max(1, width // checkpoint.size("num_attention_heads")))
        if rotated < 1 and checkpoint.size("rotary_dim", int(head * rotated)) != int(head * rotated):
            raise checkpoint.misfit("rotary_dim", f"which is not the share {rotated:g} of head_dim {head}; {ORIGINAL}")
        return {
            "rope": {"partial_rotary_factor": rotated},
            **checkpoint.sizes("moe_intermediate_size", "num_experts_per_tok", n_routed_experts="num_experts"),
            "n_shared_experts": checkpoint.size("num_shared_experts", 1),
            "n_group": checkpoint.size("n_group", 1),
            "topk_group": checkpoint.size("topk_group", 1),
            "first_k_dense_replace": int(checkpoint.config.get("first_k_dense_replace") or 0),
            "routed_scaling_factor": checkpoint.number("routed_scaling_factor", 1.0),
            "norm_topk_prob": True,
            "use_qk_norm": True,
        }

    def renamed(self, name: str) -> str:
        for ours, theirs in NAMES:
            name = name.replace(ours, theirs)
        return name

    def divided(self, checkpoint: Checkpoint, network: Any) -> Mapping[str, StoredParts]:
        """q, k and v in one, experts one by one; in one tensor a layer in checkpoints of dFactory, the training code."""
        places = range(len(network.model.layers))
        merged = any(f"model.layers.{index}.mlp.experts.gate_proj" in checkpoint.shapes for index in places)
        return {**expert_parts(network, merged), **_joined_attention(network)}

    def exact(self, config: Any) -> Collection[str]:
        routed = range(config.first_k_dense_replace, config.num_hidden_layers)
        return [f"model.layers.{layer}.mlp.gate.e_score_correction_bias" for layer in routed]

    def head(self, network: Any, hidden: Tensor) -> Tensor:
        """In float32, as the official forward returns them."""
        return super().head(network, hidden).float()


def _joined_attention(network: Any) -> dict[str, StoredParts]:
    """query_key_value holds the rows of q, then k, then v."""
    parts = {}
    for index, layer in enumerate(network.model.layers):
        pieces, start = [], 0
        for name in ("q_proj", "k_proj", "v_proj"):
            rows, width = getattr(layer.self_attn, name).weight.shape
            pieces.append((slice(start, start + rows), f"model.layers.{index}.self_attn.{name}.weight", ...))
            start += rows
        stored = f"model.layers.{index}.attention.query_key_value.weight"
        parts[stored] = StoredParts((start, width), tuple(pieces))
    return parts


FAMILY = FAMILIES.add(
    Llada2(
        name="llada2",
        about="block diffusion with a mixture of experts; 2.1 edits tokens that it has written",
        label="block diffusion, mixture of experts (as LLaDA2)",
        model_types=("llada2_moe", "llada2_moe_veomni"),
        padding="apart",
        blocks=True,
        backbone="Glm4Moe",
        reads=READ,
        only={
            "use_qk_norm": (None, True),
            "use_qkv_bias": (None, False),
            "use_bias": (None, False),
            "norm_topk_prob": (None, True),
            "score_function": (None, "sigmoid"),
            "moe_router_enable_expert_bias": (None, True),
            "expert_capacity": (None,),  # experts would be chosen for whole blocks first
            "norm_head": (None, False),
            "norm_softmax": (None, False),
            "use_rmsnorm": (None, True),
            "using_split_qkv_in_self_attention": (None, False),
        },
        ids={"mask": 156895, "eos": 156892},
        texts={"eot": "<|role_end|>"},
    )
)
