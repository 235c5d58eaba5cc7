"""A2D: causal models that dllm converted to masked diffusion; Qwen3, Qwen2 or Llama with bidirectional attention.

Checked against dllm's modelling code at float32 (tests/golden/a2d_qwen3, a2d_llama). Rows of unequal length are padded on the
right; padding hides key columns only, and positions stay 0..S−1. Logits are not shifted.
"""

from __future__ import annotations

from sinkscope.models.backbone import BackboneFamily
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES, Known

BACKBONES = {"a2d-qwen3": "Qwen3", "a2d-qwen2": "Qwen2", "a2d-llama": "Llama"}
"""model_type → transformers' name of the backbone."""

SETTINGS = "T=0, low_confidence; sample script: 128 tokens and steps, block 32; evaluation: 256 tokens, steps and block"


class A2d(BackboneFamily):
    """The A2D family (dllm-hub/…-diffusion-mdlm-v0.1)."""

    def backbone_of(self, checkpoint: Checkpoint) -> str:
        """As the model_type says."""
        return BACKBONES[checkpoint.model_type]


FAMILY = FAMILIES.add(
    A2d(
        name="a2d",
        about="causal models converted to masked diffusion by dllm; decoded by its MDLM sampler",
        known=(
            Known(
                "dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1",
                f"{SETTINGS}; its causal source is Qwen/Qwen3-0.6B",
                (28, 16, 600_000_000),
            ),
            Known(
                "dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1",
                f"{SETTINGS}; its causal source is Qwen/Qwen2.5-Coder-0.5B-Instruct",
                (24, 14, 490_000_000),
            ),
        ),
        model_types=tuple(BACKBONES),
        padded="keys",
        counts_padding=True,
        padding="right",
        mask_text="<|mask|>",
    )
)
