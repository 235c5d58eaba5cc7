"""A2D: causal models that dllm converted to masked diffusion; Qwen3, Qwen2 or Llama with bidirectional attention.

Checked against dllm's modelling code at float32 (tests/golden/a2d_qwen3, a2d_llama). Rows of unequal length are padded on the
right; padding hides key columns only, and positions stay 0..S−1. Logits are not shifted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sinkscope.attention.visibility import Padded
from sinkscope.models.backbone import both_ways, native_network, read_settings
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import (
    FAMILIES,
    Family,
    Known,
    Padding,
    SpecialIds,
    usual_ids,
)

BACKBONES = {"a2d-qwen3": "Qwen3", "a2d-qwen2": "Qwen2", "a2d-llama": "Llama"}
"""model_type → transformers' name of the backbone."""

SETTINGS = "T=0, low_confidence; sample script: 128 tokens and steps, block 32; evaluation: 256 tokens, steps and block"

KNOWN = (
    Known(
        "dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1",
        f"{SETTINGS}; its causal source is Qwen/Qwen3-0.6B",
        28,
        16,
        600_000_000,
    ),
    Known(
        "dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1",
        f"{SETTINGS}; its causal source is Qwen/Qwen2.5-Coder-0.5B-Instruct",
        24,
        14,
        490_000_000,
    ),
)


@dataclass(frozen=True)
class A2d(Family):
    """The A2D family (dllm-hub/…-diffusion-mdlm-v0.1)."""

    name: str = "a2d"
    about: str = "causal models converted to masked diffusion by dllm; decoded by its MDLM sampler"
    known: tuple[Known, ...] = KNOWN
    model_types: tuple[str, ...] = tuple(BACKBONES)
    padded: Padded = "keys"
    counts_padding: bool = True
    padding: Padding = "right"

    def config(self, checkpoint: Checkpoint) -> Any:
        """The backbone's own config, with attention that looks both ways."""
        import transformers

        backbone = BACKBONES[checkpoint.model_type]
        settings = read_settings(checkpoint)
        if backbone == "Llama":
            settings["mlp_bias"] = bool(checkpoint.config.get("mlp_bias"))
        else:
            settings["use_sliding_window"] = False
        if backbone == "Qwen2":
            settings.pop("attention_bias")
        return both_ways(getattr(transformers, f"{backbone}Config"), checkpoint, settings)

    def build(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """The backbone with the checkpoint's weights, which carry its own names."""
        import transformers

        network_class = getattr(transformers, f"{BACKBONES[checkpoint.model_type]}ForCausalLM")
        built: nn.Module = native_network(network_class, self.config(checkpoint), checkpoint, device, dtype)
        return built

    def special_ids(self, checkpoint: Checkpoint, tokenizer: Any) -> SpecialIds:
        """Ids from the checkpoint's files; the mask is the tokenizer's."""
        return usual_ids(checkpoint, tokenizer, mask_text="<|mask|>")


FAMILY = FAMILIES.add(A2d())
