"""LLaDA-MoE: a Qwen3-MoE block with bidirectional attention; its config says model_type "llada", like dense LLaDA's.

Checked against the official modelling code at float32 (tests/golden/llada_moe). Attention masks are honoured, as in dllm's copy
of the file; the hub's own ignores them. Router weights are never renormalised, whatever the config says, as in the official file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sinkscope.attention.visibility import Padded
from sinkscope.errors import CheckpointError
from sinkscope.models.backbone import both_ways, expert_parts, native_network, read_settings
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES, Family, Known, SpecialIds, usual_ids
from sinkscope.models.llada import has_experts

MASK, EOS = 156895, 156892
"""Ids of the official tokenizer; config.json does not name the mask."""

ONLY = {
    "shared_expert_intermediate_size": (None, 0),
    "moe_router_enable_expert_bias": (None, False),
    "clip_qkv": (None,),
    "partial_rotary_factor": (None, 1, 1.0),
    "qk_layernorm": (True,),
    "moe_router_score_function": (None, "softmax"),
    "router_num_group": (None, 1),
}
"""Settings of the official config class that change the network, with the values that released models use."""

SIZE = (16, 16, 7_400_000_000, True)
"""Layers, heads and parameters of a mixture of experts."""

KNOWN = (
    Known(
        "inclusionAI/LLaDA-MoE-7B-A1B-Instruct",
        "T=0, low_confidence, LLaDA's loop; 128 tokens, 128 steps, block 32 in the model's card",
        *SIZE,
    ),
    Known("inclusionAI/LLaDA-MoE-7B-A1B-Base", "as the Instruct model", *SIZE),
)


@dataclass(frozen=True)
class LladaMoe(Family):
    """The LLaDA-MoE family (inclusionAI/LLaDA-MoE-7B-A1B-Base, -Instruct)."""

    name: str = "llada_moe"
    about: str = "LLaDA with a mixture of 64 experts; decoded by LLaDA's loop"
    known: tuple[Known, ...] = KNOWN
    padded: Padded = "keys"
    counts_padding: bool = True
    model_types: tuple[str, ...] = ("llada", "lladamoe")

    def claims(self, checkpoint: Checkpoint) -> bool:
        """By model_type and experts: dense LLaDA has the same model_type."""
        return super().claims(checkpoint) and has_experts(checkpoint)

    def config(self, checkpoint: Checkpoint) -> Any:
        """LLaDA-MoE's sizes as a Qwen3MoeConfig whose attention looks both ways."""
        from transformers import Qwen3MoeConfig

        for key, allowed in ONLY.items():
            if checkpoint.config.get(key) not in allowed:
                raise CheckpointError(
                    f"{checkpoint.source}: config.json sets {key} to {checkpoint.config.get(key)!r}; no released LLaDA-MoE "
                    "model does, and sinkscope does not read such networks"
                )
        layers = checkpoint.size("num_hidden_layers")
        sparse = checkpoint.config.get("moe_layer_freq") or [1] * layers
        width, heads = checkpoint.size("hidden_size"), checkpoint.size("num_attention_heads")
        settings = read_settings(
            checkpoint,
            head_dim=width // heads,
            intermediate_size=checkpoint.size("dense_intermediate_size"),
            moe_intermediate_size=checkpoint.size("expert_intermediate_size"),
            num_experts=checkpoint.size("num_experts"),
            num_experts_per_tok=checkpoint.size("num_experts_per_tok"),
            mlp_only_layers=[layer for layer, routed in enumerate(sparse) if not routed],
            norm_topk_prob=False,
        )
        return both_ways(Qwen3MoeConfig, checkpoint, settings)

    def build(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """A Qwen3-MoE network with LLaDA-MoE's weights, which carry the same names."""
        from transformers import Qwen3MoeForCausalLM

        built: nn.Module = native_network(
            Qwen3MoeForCausalLM, self.config(checkpoint), checkpoint, device, dtype, divided=expert_parts
        )
        return built

    def special_ids(self, checkpoint: Checkpoint, tokenizer: Any) -> SpecialIds:
        """Ids from the checkpoint's files, else the official ones."""
        return usual_ids(checkpoint, tokenizer, MASK, EOS, turn_text="<|role_end|>")


FAMILY = FAMILIES.add(LladaMoe())
