"""Dream: a Qwen2 block with bidirectional attention; its raw logits at position j predict token j + 1.

Checked against the official modelling code at float32 (tests/golden/dream). The forward returns the raw logits; the shift
belongs to the generation loop (`decoding/dream.py`), as in the official code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sinkscope.attention.visibility import Padded
from sinkscope.errors import CheckpointError
from sinkscope.models.backbone import empty_network, side_by_side
from sinkscope.models.checkpoint import Checkpoint, fill
from sinkscope.models.family import SpecialIds, all_ids, first_id, shifted_positions, tokenizer_id

MASK, EOS, BOS = 151666, 151643, 151665
"""Ids of the official tokenizer, for checkpoints whose files do not say."""


@dataclass(frozen=True)
class Dream:
    """The Dream family (Dream-org/Dream-v0-Base-7B, -Instruct-7B)."""

    name: str = "dream"
    causal: bool = False
    padded: Padded = "none"
    chat_template: str | None = None
    model_types: ClassVar[tuple[str, ...]] = ("Dream",)

    def build(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """A Qwen2 network with Dream's weights, which carry the same names."""
        from transformers import Qwen2Config, Qwen2ForCausalLM

        tied = bool(checkpoint.config.get("tie_word_embeddings"))
        config = Qwen2Config(**qwen_settings(checkpoint))
        config.is_causal = False
        network = empty_network(Qwen2ForCausalLM, config)
        names = {name: name for name, _ in network.named_parameters()}
        if tied:
            names.pop("lm_head.weight", None)
        fill(network, checkpoint, names, device, dtype, side_by_side(network, device, dtype))
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

    def positions(self, real: Tensor | None, shape: tuple[int, int], device: torch.device) -> Tensor:
        """Counted from the first real token; padding at 1."""
        return shifted_positions(real, shape, device)


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
    rope.setdefault("rope_theta", float(settings.get("rope_theta") or 10000.0))
    return {
        "vocab_size": checkpoint.size("vocab_size"),
        "hidden_size": width,
        "intermediate_size": checkpoint.size("intermediate_size"),
        "num_hidden_layers": checkpoint.size("num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": checkpoint.size("head_dim", max(1, width // heads)),
        "max_position_embeddings": checkpoint.size("max_position_embeddings", 131072),
        "rms_norm_eps": float(settings.get("rms_norm_eps") or 1e-6),
        "hidden_act": settings.get("hidden_act") or "silu",
        "rope_parameters": rope,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "pad_token_id": None,
        "use_cache": False,
    }


FAMILY = Dream()
