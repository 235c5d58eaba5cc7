"""LLaDA-MoE: a Qwen3-MoE block with bidirectional attention; its config says model_type "llada", like dense LLaDA's.

Checked against the official modelling code at float32 (tests/golden/llada_moe). Attention masks are honoured, as in dllm's copy
of the file; the hub's own ignores them. Router weights are never renormalised, whatever the config says, as in the official file.
"""

from __future__ import annotations

from typing import Any

from sinkscope.models.backbone import BackboneFamily
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES
from sinkscope.models.llada import has_experts

READ = (
    "dense_intermediate_size", "expert_intermediate_size", "num_experts", "num_experts_per_tok", "moe_layer_freq",
    "norm_topk_prob",
)  # fmt: skip
"""Settings of config.json that `settings` reads."""


class LladaMoe(BackboneFamily):
    """The LLaDA-MoE family (inclusionAI/LLaDA-MoE-7B-A1B-Base, -Instruct)."""

    def claims(self, checkpoint: Checkpoint) -> bool:
        """By model_type and experts: dense LLaDA has the same model_type."""
        return super().claims(checkpoint) and has_experts(checkpoint)

    def settings(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Sizes and routing of the experts, some under names of their own."""
        sparse = checkpoint.config.get("moe_layer_freq") or [1] * checkpoint.size("num_hidden_layers")
        return {
            "head_dim": checkpoint.size("hidden_size") // checkpoint.size("num_attention_heads"),
            **checkpoint.sizes("num_experts", "num_experts_per_tok"),
            **checkpoint.sizes(
                intermediate_size="dense_intermediate_size", moe_intermediate_size="expert_intermediate_size"
            ),
            "mlp_only_layers": [layer for layer, routed in enumerate(sparse) if not routed],
            "norm_topk_prob": False,
        }


FAMILY = FAMILIES.add(
    LladaMoe(
        name="llada_moe",
        about="LLaDA with a mixture of 64 experts; decoded by LLaDA's loop",
        label="masked diffusion, mixture of experts (as LLaDA-MoE)",
        padded="keys",
        counts_padding=True,
        model_types=("llada", "lladamoe"),
        backbone="Qwen3Moe",
        reads=READ,
        only={
            "shared_expert_intermediate_size": (None, 0),
            "moe_router_enable_expert_bias": (None, False),
            "clip_qkv": (None,),
            "qk_layernorm": (True,),
            "moe_router_score_function": (None, "softmax"),
            "router_num_group": (None, 1),
            "router_topk_group": (None, 1),
            "routed_scaling_factor": (None, 1),
            "partial_rotary_factor": (None, 1),
        },
        ids={"mask": 156895, "eos": 156892},  # config.json does not name the mask
        texts={"eot": "<|role_end|>"},
    )
)
