"""LLaDA: a Llama block with bidirectional attention, in the official OLMo-style layout.

Checked against the official modelling code at float32 (tests/golden/llada). In bf16 the rotation happens in float32, as in
the official code. Attention masks are honoured, as the hub's file does since 2025-10-21 (before, it ignored them).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from sinkscope.attention.visibility import Padded
from sinkscope.base.errors import CheckpointError
from sinkscope.models.backbone import empty_network, side_by_side, with_bias
from sinkscope.models.checkpoint import Checkpoint, fill
from sinkscope.models.family import FAMILIES, Family, FullPrecisionRotary, SpecialIds, all_ids, first_id, id_reader
from sinkscope.models.settings import check_settings
from sinkscope.models.variant import own_parameters, read_variant, vary

MASK, EOS, BOS, EOT = 126336, 126081, 126080, 126348
"""Ids of the official tokenizer, for checkpoints whose files do not say."""

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

QKV = ("q_proj", "k_proj", "v_proj")
NORMS = ("attn_norm", "ff_norm")

ONLY = {
    "block_type": ("llama",),
    "layer_norm_type": ("rms",),
    "activation_type": ("silu", "swiglu"),
    "rope": (True,),
    "alibi": (False,),
    "attention_layer_norm": (False,),
    "input_emb_norm": (False,),
    "bias_for_layer_norm": (False,),
    "block_group_size": (1,),
    "rope_full_precision": (True,),
    "clip_qkv": (None,),
    "layer_norm_with_affine": (True,),
}
"""Settings of the official config class that change the network, with the values that released models use."""


@dataclass(frozen=True)
class Llada(Family):
    """The LLaDA family (GSAI-ML/LLaDA-8B-Base, -Instruct, LLaDA-1.5)."""

    name: str = "llada"
    about: str = "masked diffusion from scratch; blocks decoded left to right, low-confidence remasking"
    label: str = "masked diffusion, from scratch (as LLaDA)"
    padded: Padded = "keys"
    counts_padding: bool = True
    model_types: tuple[str, ...] = ("llada",)

    def claims(self, checkpoint: Checkpoint) -> bool:
        """By model_type; LLaDA-MoE has the same one, and experts."""
        return super().claims(checkpoint) and not has_experts(checkpoint)

    def config(self, checkpoint: Checkpoint) -> Any:
        """LLaDA's sizes as a LlamaConfig whose attention looks both ways."""
        from transformers import LlamaConfig

        checkpoint.check_sizes()
        _refuse_variants(checkpoint)
        config = LlamaConfig(**llama_settings(checkpoint))
        config.is_causal = False
        return config

    def build(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """A Llama network with LLaDA's weights, biases and full-precision rotation."""
        from transformers import LlamaForCausalLM

        checkpoint.refuse_quantised()
        with checkpoint.described():
            config = self.config(checkpoint)
            network = empty_network(LlamaForCausalLM, config)
        settings = checkpoint.config
        everywhere = bool(settings.get("include_bias"))
        qkv = everywhere or bool(settings.get("include_qkv_bias"))
        for layer in network.model.layers:
            for module, target in BLOCK.items():
                if module not in NORMS:
                    bias = qkv if module in QKV else everywhere
                    layer.set_submodule(target, with_bias(layer.get_submodule(target), bias))
        vary(network, read_variant(settings, checkpoint.source))
        tied = bool(settings.get("weight_tying"))
        network.lm_head = with_bias(network.lm_head, everywhere and not tied)
        room = partial(side_by_side, network, device, dtype)
        fill(network, checkpoint, weight_names(network, tied), device, dtype, room)
        if tied:
            network.lm_head.weight = network.model.embed_tokens.weight
        theta = checkpoint.number("rope_theta")
        network.model.rotary_emb = FullPrecisionRotary(config.head_dim, theta, device)
        if settings.get("scale_logits"):
            network.logit_scale = 1.0 / checkpoint.size("d_model") ** 0.5
        built: nn.Module = network
        return built

    def special_ids(self, checkpoint: Checkpoint, tokenizer: Any) -> SpecialIds:
        """Ids from config.json, generation_config.json and the tokenizer, else the official ones."""
        read = id_reader(checkpoint, tokenizer, vocabulary_size(checkpoint))
        eos = all_ids(*read("eos", "cgt", EOS))
        return SpecialIds(
            mask=first_id(*read("mask", "ct", MASK)),
            eos=eos,
            bos=first_id(*read("bos", "gct", BOS)),
            pad=first_id(*read("pad", "ct"), eos),
            eot=first_id(*read("eot", "t", EOT, "<|eot_id|>")),
        )


def vocabulary_size(checkpoint: Checkpoint) -> int:
    """Rows of the embedding."""
    return checkpoint.size("embedding_size" if checkpoint.config.get("embedding_size") else "vocab_size")


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
    given = bool(settings.get("mlp_hidden_size"))
    hidden = checkpoint.size("mlp_hidden_size") if given else int(checkpoint.number("mlp_ratio") * width)
    return {
        "vocab_size": vocabulary_size(checkpoint),
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


def weight_names(network: Any, tied: bool) -> dict[str, str]:
    """Name in a LLaDA checkpoint → name in the Llama network, for every parameter the network has.

    `ff_out` stands for two things: the down-projection inside a block, and the LM head at the top.
    """
    top = "model.transformer"
    names = {f"{top}.wte.weight": "model.embed_tokens.weight", f"{top}.ln_f.weight": "model.norm.weight"}
    if not tied:
        names[f"{top}.ff_out.weight"] = "lm_head.weight"
        if network.lm_head.bias is not None:
            names[f"{top}.ff_out.bias"] = "lm_head.bias"
    for index, layer in enumerate(network.model.layers):
        for module, target in BLOCK.items():
            for leaf, _ in layer.get_submodule(target).named_parameters():
                names[f"{top}.blocks.{index}.{module}.{leaf}"] = f"model.layers.{index}.{target}.{leaf}"
        for name in own_parameters(layer):
            names[f"{top}.blocks.{index}.{name}"] = f"model.layers.{index}.self_attn.{name}"
    return names


READ = (
    "d_model", "n_heads", "n_kv_heads", "n_layers", "mlp_ratio", "mlp_hidden_size", "max_sequence_length", "vocab_size",
    "embedding_size", "rms_norm_eps", "rope_theta", "weight_tying", "tie_word_embeddings", "include_bias", "include_qkv_bias",
    "multi_query_attention", "scale_logits", *ONLY,
)  # fmt: skip
"""Settings of the official config class that are read, or refused."""
IDLE = (
    "alibi_bias_max", "attention_layer_norm_with_affine", "codebook_size", "llm_vocab_size", "new_vocab_size",
    "num_new_special_tokens", "num_vq_tokens", "w_clip_vit",
)  # fmt: skip
"""Those without effect in the networks that are read: of parts that are off, of MMaDA's training and pictures."""


def _refuse_variants(checkpoint: Checkpoint) -> None:
    check_settings(checkpoint, (*READ, *IDLE))
    for key, allowed in ONLY.items():
        value = checkpoint.config.get(key)
        if value is not None and value not in allowed:
            raise CheckpointError(
                f"{checkpoint.source}: config.json sets {key} to {value!r}; sinkscope reads LLaDA networks with {key} "
                f"{' or '.join(repr(one) for one in allowed)}, as all released ones have"
            )


FAMILY = FAMILIES.add(Llada())
