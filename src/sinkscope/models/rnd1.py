"""RND1: Qwen3-30B-A3B converted to masked diffusion; raw logits at position j predict token j + 1.

Checked against the official modelling code at float32 (tests/golden/rnd1). The official config class overwrites every size by
those of the 30B model; ours are those of config.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sinkscope.models.backbone import both_ways, expert_parts, native_network, read_settings
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES, Family, Known, SpecialIds, usual_ids

MASK, EOS = 151669, 151645
"""Ids of the official tokenizer."""

KNOWN = (
    Known(
        "radicalnumerics/RND1-Base-0910",
        "256 tokens and steps; README: T=0.01, sampled; its causal source is Qwen/Qwen3-30B-A3B",
        48,
        32,
        30_500_000_000,
        mixture=True,
    ),
)


@dataclass(frozen=True)
class Rnd1(Family):
    """The RND1 family (radicalnumerics/RND1-Base-0910)."""

    name: str = "rnd1"
    about: str = (
        "masked diffusion from Qwen3-30B-A3B, a mixture of experts; the least certain positions stay masked"
    )
    known: tuple[Known, ...] = KNOWN
    model_types: tuple[str, ...] = ("rnd1",)
    shifted: bool = True

    def config(self, checkpoint: Checkpoint) -> Any:
        """RND1's sizes as a Qwen3MoeConfig whose attention looks both ways."""
        from transformers import Qwen3MoeConfig

        settings = read_settings(
            checkpoint,
            moe_intermediate_size=checkpoint.size("moe_intermediate_size"),
            num_experts=checkpoint.size("num_experts"),
            num_experts_per_tok=checkpoint.size("num_experts_per_tok"),
            decoder_sparse_step=checkpoint.size("decoder_sparse_step", 1),
            mlp_only_layers=list(checkpoint.config.get("mlp_only_layers") or []),
            norm_topk_prob=bool(checkpoint.config.get("norm_topk_prob", True)),
        )
        return both_ways(Qwen3MoeConfig, checkpoint, settings)

    def build(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """A Qwen3-MoE network with RND1's weights, which carry the same names."""
        from transformers import Qwen3MoeForCausalLM

        built: nn.Module = native_network(
            Qwen3MoeForCausalLM, self.config(checkpoint), checkpoint, device, dtype, divided=expert_parts
        )
        return built

    def special_ids(self, checkpoint: Checkpoint, tokenizer: Any) -> SpecialIds:
        """Ids from the checkpoint's files, else the official ones."""
        return usual_ids(checkpoint, tokenizer, MASK, EOS)


FAMILY = FAMILIES.add(Rnd1())
