"""Fast-dLLM v2: Qwen2.5 fine-tuned as a block diffusion model; raw logits at position j predict token j + 1.

Checked against the modelling code that is taken to be the hub's, at float32 (tests/golden/fast_dllm_v2). The official forward
builds its block mask itself, of 32 columns unless told otherwise, and ignores attention masks; ours honours right padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sinkscope.models.backbone import both_ways, native_network, read_settings
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES, Family, Known, Padding, SpecialIds, usual_ids

MASK, EOS, BLOCK = 151665, 151645, 32
"""Ids of the official tokenizer, and the block size of the official forward when none is given."""

KNOWN = (
    Known(
        "Efficient-Large-Model/Fast_dLLM_v2_7B",
        "T=0, block 32, small_block 8, threshold 0.9; its causal twin is Qwen/Qwen2.5-7B-Instruct",
        28,
        28,
        7_600_000_000,
    ),
    Known("Efficient-Large-Model/Fast_dLLM_v2_1.5B", "as the 7B model", 28, 12, 1_500_000_000),
)


@dataclass(frozen=True)
class FastDllmV2(Family):
    """The Fast-dLLM v2 family (Efficient-Large-Model/Fast_dLLM_v2_7B, _1.5B)."""

    name: str = "fast_dllm_v2"
    about: str = "block diffusion from Qwen2.5; sub-blocks decoded in parallel, shifted logits, a KV cache of whole blocks"
    known: tuple[Known, ...] = KNOWN
    model_types: tuple[str, ...] = ("Fast_dLLM_Qwen",)
    padding: Padding = "apart"
    blocks: bool = True
    shifted: bool = True

    def config(self, checkpoint: Checkpoint) -> Any:
        """Fast-dLLM's sizes as a Qwen2Config whose attention looks both ways."""
        from transformers import Qwen2Config

        settings = read_settings(checkpoint, use_sliding_window=False)
        settings.pop("attention_bias")
        return both_ways(Qwen2Config, checkpoint, settings)

    def build(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """A Qwen2 network with Fast-dLLM's weights, which carry the same names."""
        from transformers import Qwen2ForCausalLM

        built: nn.Module = native_network(
            Qwen2ForCausalLM, self.config(checkpoint), checkpoint, device, dtype
        )
        return built

    def block(self, checkpoint: Checkpoint) -> int | None:
        """32, whatever the config says: `bd_size` is for training."""
        return BLOCK

    def special_ids(self, checkpoint: Checkpoint, tokenizer: Any) -> SpecialIds:
        """Ids from the checkpoint's files, else the official ones."""
        return usual_ids(checkpoint, tokenizer, MASK, EOS, mask_text="|<MASK>|")


FAMILY = FAMILIES.add(FastDllmV2())
