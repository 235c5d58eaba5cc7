"""LLaDA: a Llama block with bidirectional attention, in the official OLMo-style layout.

Checked against the official modelling code at float32 (tests/golden/llada). In bf16 the rotation happens in float32, as in
the official code. Attention masks are honoured, as the hub's file does since 2025-10-21 (before, it ignored them).
"""

from __future__ import annotations

from typing import Any

import torch

from sinkscope.base.errors import CheckpointError
from sinkscope.models.backbone import BackboneFamily, with_bias
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES, FullPrecisionRotary

EOT = 126348
"""The end of a turn in the official tokenizer, for checkpoints whose files do not say."""

BLOCK = {
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
}
"""Module of a LLaDA block → module of a Llama layer."""
MODULES = {target: module for module, target in BLOCK.items()}
TOP = {"model.embed_tokens": "wte", "model.norm": "ln_f", "lm_head": "ff_out"}
"""Module of the Llama network → module of LLaDA's, outside of layers."""

QKV = ("q_proj", "k_proj", "v_proj")
NORMS = ("attn_norm", "ff_norm")

ONLY: dict[str, tuple[Any, ...]] = {
    "block_type": (None, "llama"),
    "layer_norm_type": (None, "rms"),
    "activation_type": (None, "silu", "swiglu"),
    "rope": (None, True),
    "alibi": (None, False),
    "attention_layer_norm": (None, False),
    "input_emb_norm": (None, False),
    "bias_for_layer_norm": (None, False),
    "block_group_size": (None, 1),
    "rope_full_precision": (None, True),
    "clip_qkv": (None,),
    "layer_norm_with_affine": (None, True),
}
"""Settings of the official config class that change the network, with the values that released models use."""
READ = (
    "d_model", "n_heads", "n_kv_heads", "n_layers", "mlp_ratio", "mlp_hidden_size", "max_sequence_length", "vocab_size",
    "embedding_size", "rms_norm_eps", "rope_theta", "weight_tying", "tie_word_embeddings", "include_bias", "include_qkv_bias",
    "multi_query_attention", "scale_logits",
)  # fmt: skip
"""Settings of the official config class that are read."""
IDLE = (
    "alibi_bias_max", "attention_layer_norm_with_affine", "codebook_size", "llm_vocab_size", "new_vocab_size",
    "num_new_special_tokens", "num_vq_tokens", "w_clip_vit",
)  # fmt: skip
"""Those without effect in the networks that are read: of parts that are off, of MMaDA's training and pictures."""


class Llada(BackboneFamily):
    """The LLaDA family (GSAI-ML/LLaDA-8B-Base, -Instruct, LLaDA-1.5)."""

    def claims(self, checkpoint: Checkpoint) -> bool:
        """By model_type; LLaDA-MoE has the same one, and experts."""
        return super().claims(checkpoint) and not has_experts(checkpoint)

    def config(self, checkpoint: Checkpoint) -> Any:
        """LLaDA's sizes as a LlamaConfig whose attention looks both ways."""
        from transformers import LlamaConfig

        checkpoint.check_sizes()
        self.check(checkpoint)
        config = LlamaConfig(**llama_settings(checkpoint))
        config.is_causal = False
        return config

    def fit(self, checkpoint: Checkpoint, network: Any) -> None:
        """Biases where the checkpoint has them."""
        everywhere = bool(checkpoint.config.get("include_bias"))
        qkv = everywhere or bool(checkpoint.config.get("include_qkv_bias"))
        for layer in network.model.layers:
            for module, target in BLOCK.items():
                if module not in NORMS:
                    bias = qkv if module in QKV else everywhere
                    layer.set_submodule(target, with_bias(layer.get_submodule(target), bias))
        network.lm_head = with_bias(network.lm_head, everywhere and not self.tied(checkpoint))

    def finish(self, checkpoint: Checkpoint, network: Any, device: torch.device) -> None:
        """Full-precision rotation, and the scale of the logits."""
        theta = checkpoint.number("rope_theta")
        network.model.rotary_emb = FullPrecisionRotary(network.config.head_dim, theta, device)
        if checkpoint.config.get("scale_logits"):
            network.logit_scale = 1.0 / checkpoint.size("d_model") ** 0.5

    def tied(self, checkpoint: Checkpoint) -> bool:
        """By a name of its own."""
        return bool(checkpoint.config.get("weight_tying"))

    def renamed(self, name: str) -> str:
        """Name in a Llama network → name in a LLaDA checkpoint.

        `ff_out` stands for two things: the down-projection inside a block, and the LM head at the top.
        """
        target, _, leaf = name.rpartition(".")
        if target in TOP:
            return f"model.transformer.{TOP[target]}.{leaf}"
        _, _, index, inner = name.split(".", 3)
        target, _, leaf = inner.rpartition(".")
        # What another distribution adds to attention stands beside the projections.
        inner = f"{MODULES[target]}.{leaf}" if target in MODULES else inner.removeprefix("self_attn.")
        return f"model.transformer.blocks.{index}.{inner}"


def has_experts(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint of model_type "llada" is LLaDA-MoE, which is another network altogether."""
    named = checkpoint.config.get("architectures")
    architectures = named if isinstance(named, list) else []
    return any("MoE" in str(name) for name in architectures) or bool(checkpoint.config.get("num_experts"))


def llama_settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """LLaDA's config keys in the words of transformers' LlamaConfig."""
    settings = checkpoint.config
    width, heads = checkpoint.size("d_model"), checkpoint.size("n_heads")
    if width % heads:
        raise CheckpointError(f"{checkpoint.source}: d_model {width} is not a multiple of n_heads {heads}")
    kv_heads = 1 if settings.get("multi_query_attention") else checkpoint.size("n_kv_heads", heads)
    if heads % kv_heads:
        raise CheckpointError(f"{checkpoint.source}: n_heads {heads} is not a multiple of n_kv_heads {kv_heads}")
    # Files name the width itself, or leave it null or 0 and name a multiple of the model's.
    sized = bool(settings.get("mlp_hidden_size"))
    hidden = checkpoint.size("mlp_hidden_size") if sized else int(checkpoint.number("mlp_ratio") * width)
    return {
        "vocab_size": checkpoint.rows,
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": checkpoint.size("n_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width // heads,
        "max_position_embeddings": checkpoint.size("max_sequence_length", 4096),
        "rms_norm_eps": checkpoint.number("rms_norm_eps", 1e-5),
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": checkpoint.number("rope_theta")},
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "pad_token_id": None,
        "use_cache": False,
    }


FAMILY = FAMILIES.add(
    Llada(
        name="llada",
        about="masked diffusion from scratch; blocks decoded left to right, low-confidence remasking",
        label="masked diffusion, from scratch (as LLaDA)",
        model_types=("llada",),
        padded="keys",
        counts_padding=True,
        backbone="Llama",
        only=ONLY,
        reads=(*READ, *IDLE),
        ids={"mask": 126336, "eos": 126081, "bos": 126080, "eot": EOT},
        texts={"eot": "<|eot_id|>"},
        orders={"mask": "cto", "eos": "cgto", "bos": "gcto", "pad": "cte", "eot": "to"},
    )
)
