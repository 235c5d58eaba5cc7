"""Dream: a Qwen2 block with bidirectional attention; its raw logits at position j predict token j + 1.

Checked against the official modelling code at float32 (tests/golden/dream). The forward returns the raw logits; the shift
belongs to the generation loop (`decoding/dream.py`), as in the official code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sinkscope.errors import CheckpointError
from sinkscope.models.backbone import empty_network, side_by_side
from sinkscope.models.checkpoint import Checkpoint, fill
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
)


@dataclass(frozen=True)
class Dream(Family):
    """The Dream family (Dream-org/Dream-v0-Base-7B, -Instruct-7B)."""

    name: str = "dream"
    about: str = "masked diffusion adapted from Qwen2.5; shifted logits, any position may be decided"
    known: tuple[Known, ...] = KNOWN
    model_types: tuple[str, ...] = ("Dream",)

    def config(self, checkpoint: Checkpoint) -> Any:
        """Dream's sizes as a Qwen2Config whose attention looks both ways."""
        from transformers import Qwen2Config

        checkpoint.check_layers()
        config = Qwen2Config(**qwen_settings(checkpoint))
        config.is_causal = False
        return config

    def build(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """A Qwen2 network with Dream's weights, which carry the same names."""
        from transformers import Qwen2ForCausalLM

        tied = bool(checkpoint.config.get("tie_word_embeddings"))
        config = self.config(checkpoint)
        network = empty_network(Qwen2ForCausalLM, config)
        names = {name: name for name, _ in network.named_parameters()}
        if tied:
            names.pop("lm_head.weight", None)
        fill(network, checkpoint, names, device, dtype, lambda: side_by_side(network, device, dtype))
        if tied:
            network.lm_head.weight = network.model.embed_tokens.weight
        # Its frequencies were made on the meta device; they are not part of a checkpoint.
        network.model.rotary_emb = type(network.model.rotary_emb)(config).to(device)
        built: nn.Module = network
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


def qwen_settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """Dream's config keys in the words of transformers' Qwen2Config."""
    settings = checkpoint.config
    if settings.get("use_sliding_window") or settings.get("use_mrope"):
        raise CheckpointError(
            f"{checkpoint.source}: config.json switches on use_sliding_window or use_mrope; no released Dream model does, "
            "and sinkscope does not read such networks"
        )
    width, heads = checkpoint.size("hidden_size"), checkpoint.size("num_attention_heads")
    kv_heads = checkpoint.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise CheckpointError(
            f"{checkpoint.source}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    rope = dict(settings.get("rope_scaling") or settings.get("rope_parameters") or {})
    rope.setdefault("rope_type", rope.pop("type", "default"))
    rope.setdefault("rope_theta", checkpoint.number("rope_theta", 10000.0))
    return {
        "vocab_size": checkpoint.size("vocab_size"),
        "hidden_size": width,
        "intermediate_size": checkpoint.size("intermediate_size"),
        "num_hidden_layers": checkpoint.size("num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": checkpoint.size("head_dim", max(1, width // heads)),
        "max_position_embeddings": checkpoint.size("max_position_embeddings", 131072),
        "rms_norm_eps": checkpoint.number("rms_norm_eps", 1e-6),
        "hidden_act": settings.get("hidden_act") or "silu",
        "rope_parameters": rope,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "pad_token_id": None,
        "use_cache": False,
    }


FAMILY = FAMILIES.add(Dream())
