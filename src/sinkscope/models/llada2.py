"""LLaDA2.0 and 2.1: a mixture of experts with shared ones and grouped routing, in transformers' GLM-4-MoE block.

Checked against the official modelling code at float32 (tests/golden/llada2). Without a mask the official forward looks both ways
over everything, and so does ours unless a block is given; the generation loops always give one. Logits come in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.errors import CheckpointError
from sinkscope.models.backbone import both_ways, expert_parts, native_network, read_settings
from sinkscope.models.checkpoint import Checkpoint, Parts
from sinkscope.models.family import FAMILIES, Family, Known, Padding, SpecialIds, usual_ids

MASK, EOS = 156895, 156892
"""Ids of the official tokenizer, and defaults of the official loop."""

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

ONLY = {
    "use_qk_norm": (None, True),
    "use_qkv_bias": (None, False),
    "use_bias": (None, False),
    "norm_topk_prob": (None, True),
    "score_function": (None, "sigmoid"),
    "moe_router_enable_expert_bias": (None, True),
}
"""Settings that change the network, with the values that released models use."""

SETTINGS = "T=0, block 32, 32 steps a block, threshold 0.95"
EDITING = "T=0, block 32, threshold 0.95, editing_threshold 0.9, max_post_steps 16"
MINI = (20, 16, 16_300_000_000, True)
FLASH = (32, 32, 103_000_000_000, True)
"""Layers, heads and parameters of mixtures of experts."""

KNOWN = (
    Known("inclusionAI/LLaDA2.0-mini", SETTINGS, *MINI),
    Known("inclusionAI/LLaDA2.0-flash", SETTINGS, *FLASH),
    Known("inclusionAI/LLaDA2.1-mini", EDITING, *MINI),
    Known("inclusionAI/LLaDA2.1-flash", EDITING, *FLASH),
)


@dataclass(frozen=True)
class Llada2(Family):
    """The LLaDA2 family (inclusionAI/LLaDA2.0-mini, -flash, LLaDA2.1-mini, -flash)."""

    name: str = "llada2"
    about: str = "block diffusion with a mixture of experts; 2.1 edits tokens that it has written"
    known: tuple[Known, ...] = KNOWN
    model_types: tuple[str, ...] = ("llada2_moe", "llada2_moe_veomni")
    padding: Padding = "apart"
    blocks: bool = True

    def config(self, checkpoint: Checkpoint) -> Any:
        """LLaDA2's sizes as a Glm4MoeConfig whose attention looks both ways."""
        from transformers import Glm4MoeConfig

        _check_transformers(checkpoint)
        for key, allowed in ONLY.items():
            if checkpoint.config.get(key) not in allowed:
                raise CheckpointError(
                    f"{checkpoint.source}: config.json sets {key} to {checkpoint.config.get(key)!r}; no released LLaDA2 model "
                    "does, and sinkscope does not read such networks"
                )
        rotated = checkpoint.number("partial_rotary_factor", 0.5)
        settings = read_settings(
            checkpoint,
            moe_intermediate_size=checkpoint.size("moe_intermediate_size"),
            n_routed_experts=checkpoint.size("num_experts"),
            num_experts_per_tok=checkpoint.size("num_experts_per_tok"),
            n_shared_experts=checkpoint.size("num_shared_experts", 1),
            n_group=checkpoint.size("n_group", 1),
            topk_group=checkpoint.size("topk_group", 1),
            first_k_dense_replace=int(checkpoint.config.get("first_k_dense_replace") or 0),
            routed_scaling_factor=checkpoint.number("routed_scaling_factor", 1.0),
            norm_topk_prob=True,
            use_qk_norm=True,
        )
        settings["rope_parameters"]["partial_rotary_factor"] = rotated
        return both_ways(Glm4MoeConfig, checkpoint, settings)

    def build(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """A GLM-4-MoE network with LLaDA2's weights."""
        from transformers import Glm4MoeForCausalLM

        config = self.config(checkpoint)
        routed = range(config.first_k_dense_replace, config.num_hidden_layers)
        biases = [f"model.layers.{layer}.mlp.gate.e_score_correction_bias" for layer in routed]
        built: nn.Module = native_network(
            Glm4MoeForCausalLM, config, checkpoint, device, dtype, _renamed, _divided(checkpoint), biases
        )
        return built

    def head(self, network: Any, hidden: Tensor) -> Tensor:
        """In float32, as the official forward returns them."""
        return super().head(network, hidden).float()

    def special_ids(self, checkpoint: Checkpoint, tokenizer: Any) -> SpecialIds:
        """Ids from the checkpoint's files, else the official ones."""
        return usual_ids(checkpoint, tokenizer, MASK, EOS, turn_text="<|role_end|>")


def _renamed(name: str) -> str:
    """Name in the network → name in the checkpoint."""
    for ours, theirs in NAMES:
        name = name.replace(ours, theirs)
    return name


def _divided(checkpoint: Checkpoint) -> Any:
    """From the empty network to the stored tensors that are not parameters one by one: q, k and v in one, experts one by one.

    Checkpoints of dFactory, the training code, hold the experts of a layer in one tensor each for gate, up and down.
    """

    def parts(network: Any) -> dict[str, Parts]:
        experts = expert_parts(network)
        merged = "model.layers.{}.mlp.experts.gate_proj"
        if any(merged.format(index) in checkpoint.shapes for index in range(len(network.model.layers))):
            experts = _merged_experts(network)
        return {**experts, **_joined_attention(network)}

    return parts


def _joined_attention(network: Any) -> dict[str, Parts]:
    """query_key_value holds the rows of q, then k, then v."""
    found = {}
    for index, layer in enumerate(network.model.layers):
        pieces, start = [], 0
        for name in ("q_proj", "k_proj", "v_proj"):
            rows, width = getattr(layer.self_attn, name).weight.shape
            pieces.append((slice(start, start + rows), f"model.layers.{index}.self_attn.{name}.weight", ...))
            start += rows
        stored = f"model.layers.{index}.attention.query_key_value.weight"
        found[stored] = Parts((start, width), tuple(pieces))
    return found


def _merged_experts(network: Any) -> dict[str, Parts]:
    """Gate, up and down of all experts of a layer, one tensor [experts, …] each."""
    found = {}
    for index, layer in enumerate(network.model.layers):
        experts = getattr(layer.mlp, "experts", None)
        if experts is None:
            continue
        owner = f"model.layers.{index}.mlp.experts"
        count, both, width = experts.gate_up_proj.shape
        half = both // 2
        for name, place in (("gate_proj", slice(0, half)), ("up_proj", slice(half, both))):
            piece = (..., f"{owner}.gate_up_proj", (slice(None), place))
            found[f"{owner}.{name}"] = Parts((count, half, width), (piece,))
        found[f"{owner}.down_proj"] = Parts((count, width, half), ((..., f"{owner}.down_proj", ...),))
    return found


def _check_transformers(checkpoint: Checkpoint) -> None:
    import transformers

    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if version < NEEDED:
        raise CheckpointError(
            f"{checkpoint.source}: transformers {transformers.__version__} routes tokens of this model to wrong experts; "
            f"LLaDA2 needs transformers {'.'.join(map(str, NEEDED))} or newer: pip install -U transformers"
        )


FAMILY = FAMILIES.add(Llada2())
