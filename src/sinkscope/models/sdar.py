"""SDAR: Qwen3 continued as a block diffusion model; position j predicts token j, and attention stands in blocks.

Checked against the official modelling code at float32 (tests/golden/sdar). The official norm, a kernel of flash-attn, multiplies
by its weight before it casts back; transformers' casts first, which in bf16 may differ in the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from sinkscope.models.backbone import both_ways, native_network, read_settings
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES, Family, Known, Padding, SpecialIds, all_ids, usual_ids

MASK, EOS, BLOCK = 151669, 151643, 4
"""Ids and block size of the official models, for checkpoints whose files do not say."""

EVALUATION = (
    "published scores: scoring raw, T=1, top_k 1, block 4, 4 steps, threshold 1 (static) or 0.95 (dynamic)"
)

KNOWN = (
    Known("JetLM/SDAR-1.7B-Chat", EVALUATION, 28, 16, 2_000_000_000),
    Known("JetLM/SDAR-4B-Chat", EVALUATION, 36, 32, 4_400_000_000),
    Known("JetLM/SDAR-8B-Chat", f"{EVALUATION}; its causal twin is Qwen/Qwen3-8B", 36, 32, 8_200_000_000),
)


@dataclass(frozen=True)
class Sdar(Family):
    """The SDAR family (JetLM/SDAR-1.7B-Chat, -4B-Chat, -8B-Chat)."""

    name: str = "sdar"
    about: str = "block diffusion from Qwen3; small blocks decoded left to right behind a KV cache"
    known: tuple[Known, ...] = KNOWN
    model_types: tuple[str, ...] = ("sdar",)
    padding: Padding = "apart"
    blocks: bool = True

    def config(self, checkpoint: Checkpoint) -> Any:
        """SDAR's sizes as a Qwen3Config whose attention looks both ways."""
        from transformers import Qwen3Config

        return both_ways(Qwen3Config, checkpoint, read_settings(checkpoint, use_sliding_window=False))

    def build(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """A Qwen3 network with SDAR's weights, which carry the same names."""
        from transformers import Qwen3ForCausalLM

        built: nn.Module = native_network(
            Qwen3ForCausalLM, self.config(checkpoint), checkpoint, device, dtype
        )
        return built

    def block(self, checkpoint: Checkpoint) -> int | None:
        """The block size that config.json names; the official forward demands a mask."""
        return checkpoint.size("block_size", BLOCK)

    def special_ids(self, checkpoint: Checkpoint, tokenizer: Any) -> SpecialIds:
        """Ids from the checkpoint's files; the end ids are those of generation_config.json, as in the official script."""
        ids = usual_ids(checkpoint, tokenizer, MASK, EOS, mask_text="<MASK>")
        ends = all_ids(checkpoint.generation_config.get("eos_token_id"), ids.eos)
        return replace(ids, eos=ends)


FAMILY = FAMILIES.add(Sdar())
