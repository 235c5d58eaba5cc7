"""Dream: a Qwen2 block with bidirectional attention; its raw logits at position j predict token j + 1.

Checked against the official modelling code at float32 (tests/golden/dream). The forward returns the raw logits; the shift
belongs to the generation loop (`decoding/dream.py`), as in the official code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sinkscope.models.backbone import both_ways, native_network, read_settings
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import (
    FAMILIES,
    Family,
    Known,
    SpecialIds,
    all_ids,
    first_id,
    tokenizer_id,
)

MASK, EOS, BOS = 151666, 151643, 151665
"""Ids of the official tokenizer, for checkpoints whose files do not say."""


KNOWN = (
    Known(
        "Dream-org/Dream-v0-Instruct-7B",
        "T=0.1, top_p 0.9, entropy, alg_temp 0. GSM8K 256 tokens and steps (81.0); HumanEval 768 (55.5)",
    ),
    Known(
        "Dream-org/Dream-v0-Base-7B",
        "entropy. GSM8K 8-shot 256, T=0 (77.2); HumanEval 512, T=0.2, top_p 0.95 (57.9)",
    ),
    Known(
        "Dream-org/Dream-Coder-v0-Instruct-7B",
        "README: 768 tokens and steps, T=0.1, top_p 0.95, entropy, alg_temp 0; its causal source is Qwen/Qwen2.5-Coder-7B",
    ),
    Known(
        "apple/DiffuCoder-7B-Instruct",
        "demo: 256 tokens and steps, T=0.3, top_p 0.95, entropy, alg_temp 0; its causal source is Qwen/Qwen2.5-Coder-7B",
    ),
    Known(
        "apple/DiffuCoder-7B-cpGRPO", "as the Instruct model, which it continues with reinforcement learning"
    ),
)


@dataclass(frozen=True)
class Dream(Family):
    """The Dream family (Dream-org/Dream-v0-Base-7B, -Instruct-7B)."""

    name: str = "dream"
    about: str = "masked diffusion adapted from Qwen2.5; shifted logits, any position may be decided"
    known: tuple[Known, ...] = KNOWN
    model_types: tuple[str, ...] = ("Dream",)
    shifted: bool = True

    def config(self, checkpoint: Checkpoint) -> Any:
        """Dream's sizes as a Qwen2Config whose attention looks both ways."""
        from transformers import Qwen2Config

        settings = read_settings(checkpoint, use_sliding_window=False)
        settings.pop("attention_bias")  # Qwen2 has none of its own: q, k and v always have a bias
        return both_ways(Qwen2Config, checkpoint, settings)

    def build(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """A Qwen2 network with Dream's weights, which carry the same names."""
        from transformers import Qwen2ForCausalLM

        built: nn.Module = native_network(
            Qwen2ForCausalLM, self.config(checkpoint), checkpoint, device, dtype
        )
        return built

    def special_ids(self, checkpoint: Checkpoint, tokenizer: Any) -> SpecialIds:
        """Ids from config.json and the tokenizer, else the official ones."""
        config = checkpoint.config
        size = checkpoint.size("vocab_size")
        eos = all_ids(
            config.get("eos_token_id"), tokenizer_id(tokenizer, "eos_token_id"), EOS if size > EOS else None
        )
        return SpecialIds(
            mask=first_id(
                config.get("mask_token_id"),
                tokenizer_id(tokenizer, "mask_token_id"),
                MASK if size > MASK else None,
            ),
            eos=eos,
            bos=first_id(
                tokenizer_id(tokenizer, "bos_token_id"),
                BOS if size > BOS else None,
                config.get("bos_token_id"),
            ),
            pad=first_id(config.get("pad_token_id"), tokenizer_id(tokenizer, "pad_token_id"), eos),
            eot=tokenizer_id(tokenizer, "eot_token_id", "<|im_end|>"),
        )


FAMILY = FAMILIES.add(Dream())
