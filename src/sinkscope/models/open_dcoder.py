"""Open-dCoder: Qwen2.5-Coder trained as a masked diffusion model; raw logits at position j predict token j + 1.

Its config.json is that of a plain Qwen2 model: nothing in it says that attention looks both ways. A Qwen2 checkpoint is taken
for one when its config names a mask token (no causal model has one), when its name holds "open-dcoder", or when the caller says
so: `ss.load(…, family="open_dcoder")`. Checked against the official code at float32 (tests/golden/open_dcoder).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sinkscope.models.backbone import both_ways, native_network, read_settings
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES, Family, Known, SpecialIds, usual_ids

KNOWN = (
    Known(
        "fredzzp/open-dcoder-0.5B",
        "sample script: 128 tokens and steps, p2, T=0.5, top_k 200, alg_temp 0.5; its causal source is Qwen/Qwen2.5-Coder-0.5B",
        24,
        14,
        490_000_000,
    ),
)


@dataclass(frozen=True)
class OpenDcoder(Family):
    """The Open-dCoder family (fredzzp/open-dcoder-0.5B)."""

    name: str = "open_dcoder"
    about: str = "masked diffusion from Qwen2.5-Coder; Dream's schedule, with remasking (p2)"
    known: tuple[Known, ...] = KNOWN
    model_types: tuple[str, ...] = ("qwen2",)
    shifted: bool = True

    def claims(self, checkpoint: Checkpoint) -> bool:
        """A Qwen2 model that names a mask token, or is called open-dcoder."""
        if not super().claims(checkpoint):
            return False
        config, generation = checkpoint.config, checkpoint.generation_config
        masks = any(found.get("mask_token_id") is not None for found in (config, generation))
        called = "opendcoder" in checkpoint.source.lower().replace("-", "").replace("_", "")
        return masks or called

    def config(self, checkpoint: Checkpoint) -> Any:
        """The sizes as a Qwen2Config whose attention looks both ways."""
        from transformers import Qwen2Config

        settings = read_settings(checkpoint, use_sliding_window=False)
        settings.pop("attention_bias")
        return both_ways(Qwen2Config, checkpoint, settings)

    def build(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """A Qwen2 network with its own names."""
        from transformers import Qwen2ForCausalLM

        built: nn.Module = native_network(
            Qwen2ForCausalLM, self.config(checkpoint), checkpoint, device, dtype
        )
        return built

    def special_ids(self, checkpoint: Checkpoint, tokenizer: Any) -> SpecialIds:
        """Ids from the checkpoint's files; the mask is the tokenizer's."""
        return usual_ids(checkpoint, tokenizer, mask_text="[MASK]")


FAMILY = FAMILIES.add(OpenDcoder())
