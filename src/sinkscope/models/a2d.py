"""A2D: causal models that dllm converted to masked or block diffusion; Qwen3, Qwen2 or Llama with bidirectional attention.

Checked against dllm's modelling code at float32 (tests/golden/a2d_qwen3, a2d_llama, a2d_bd3lm). Logits are not shifted. Nothing
in config.json says which of dllm's samplers a checkpoint was trained for. That of MDLM pads rows on the right, where padding
hides key columns only and positions stay 0..S−1; that of BD3LM (`Bd3lmDecoding`) pads on the left, counts positions from the
first real token, and its attention stands in blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.models.backbone import BackboneFamily
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES

BACKBONES = {"a2d-qwen3": "Qwen3", "a2d-qwen2": "Qwen2", "a2d-llama": "Llama"}
"""model_type → transformers' name of the backbone."""


class A2d(BackboneFamily):
    """The A2D family (dllm-hub/…-diffusion-mdlm-v0.1)."""

    def backbone_of(self, checkpoint: Checkpoint) -> str:
        return BACKBONES[checkpoint.model_type]

    def positions(self, real: Tensor | None, shape: tuple[int, int], device: torch.device) -> Tensor:
        """0..S−1 where padding stands on the right; else the real tokens before a column, 0 in padding."""
        if real is None or not bool((~real[:, :-1] & real[:, 1:]).any()):
            return super().positions(None, shape, device)
        return (real.long().cumsum(-1) - 1).masked_fill(~real, 0)


FAMILY = FAMILIES.add(
    A2d(
        name="a2d",
        about="causal models converted to masked diffusion by dllm; decoded by its MDLM sampler",
        label="masked diffusion, from an autoregressive model (as A2D)",
        model_types=tuple(BACKBONES),
        padded="keys",
        counts_padding=True,
        padding="right",
        optional_blocks=True,
        texts={"mask": "<|mask|>"},
        orders={"mask": "tcgo", "eos": "tcgop", "bos": "tcg", "pad": "tcge"},  # dllm asks the tokenizer
    )
)
