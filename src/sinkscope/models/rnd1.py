"""RND1: Qwen3-30B-A3B converted to masked diffusion; raw logits at position j predict token j + 1.

Checked against the official modelling code at float32 (tests/golden/rnd1). The official config class overwrites every size by
those of the 30B model; ours are those of config.json.
"""

from __future__ import annotations

from typing import Any

from sinkscope.models.backbone import BackboneFamily
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES, Known


class Rnd1(BackboneFamily):
    """The RND1 family (radicalnumerics/RND1-Base-0910)."""

    def settings(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Sizes and routing of the experts."""
        return {
            "moe_intermediate_size": checkpoint.size("moe_intermediate_size"),
            "num_experts": checkpoint.size("num_experts"),
            "num_experts_per_tok": checkpoint.size("num_experts_per_tok"),
            "decoder_sparse_step": checkpoint.size("decoder_sparse_step", 1),
            "mlp_only_layers": list(checkpoint.config.get("mlp_only_layers") or []),
            "norm_topk_prob": bool(checkpoint.config.get("norm_topk_prob", True)),
        }


FAMILY = FAMILIES.add(
    Rnd1(
        name="rnd1",
        about="masked diffusion from Qwen3-30B-A3B, a mixture of experts; the least certain positions stay masked",
        known=(
            Known(
                "radicalnumerics/RND1-Base-0910",
                "256 tokens and steps; README: T=0.01, sampled; its causal source is Qwen/Qwen3-30B-A3B",
                (48, 32, 30_500_000_000),
                mixture=True,
            ),
        ),
        model_types=("rnd1",),
        shifted=True,
        backbone="Qwen3Moe",
        mask_id=151669,
        eos_id=151645,
    )
)
