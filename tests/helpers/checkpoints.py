"""Tiny random checkpoints in the official layouts, for every config variant that released models may have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


def llada_config(**changes: Any) -> dict[str, Any]:
    """A config in LLaDA's words, all official keys that matter present."""
    config = {
        "model_type": "llada", "architectures": ["LLaDAModelLM"], "activation_type": "silu", "alibi": False,
        "attention_layer_norm": False, "bias_for_layer_norm": False, "block_group_size": 1, "block_type": "llama",
        "d_model": 48, "embedding_size": 96, "eos_token_id": 80, "include_bias": False, "include_qkv_bias": False,
        "input_emb_norm": False, "layer_norm_type": "rms", "mask_token_id": 90, "max_sequence_length": 64,
        "mlp_hidden_size": 80, "mlp_ratio": 4, "multi_query_attention": None, "n_heads": 4, "n_kv_heads": 4, "n_layers": 2,
        "pad_token_id": 80, "rms_norm_eps": 1e-5, "rope": True, "rope_full_precision": True, "rope_theta": 500000.0,
        "scale_logits": False, "vocab_size": 96, "weight_tying": False, "torch_dtype": "float32",
    }  # fmt: skip
    return {**config, **changes}


def llada_tensors(config: dict[str, Any], seed: int = 0) -> Tensors:
    """Random weights with the names and shapes of LLaDA's layout."""
    d, heads = config["d_model"], config["n_heads"]
    size = config["embedding_size"] or config["vocab_size"]
    kv = (1 if config["multi_query_attention"] else config["n_kv_heads"] or heads) * (d // heads)
    m = config["mlp_hidden_size"] or int(config["mlp_ratio"] * d)
    everywhere = config["include_bias"]
    qkv = everywhere or config["include_qkv_bias"]
    new = _Writer(seed)
    top = "model.transformer"
    new.embedding(f"{top}.wte", size, d)
    for i in range(config["n_layers"]):
        block = f"{top}.blocks.{i}"
        for name, rows, columns, bias in (
            ("q_proj", d, d, qkv),
            ("k_proj", kv, d, qkv),
            ("v_proj", kv, d, qkv),
            ("attn_out", d, d, everywhere),
            ("ff_proj", m, d, everywhere),
            ("up_proj", m, d, everywhere),
            ("ff_out", d, m, everywhere),
        ):
            new.linear(f"{block}.{name}", rows, columns, bias)
        new.norm(f"{block}.attn_norm", d)
        new.norm(f"{block}.ff_norm", d)
    new.norm(f"{top}.ln_f", d)
    if not config["weight_tying"]:
        new.linear(f"{top}.ff_out", size, d, everywhere)
    return new.tensors


def dream_config(**changes: Any) -> dict[str, Any]:
    """A config in Dream's words."""
    config = {
        "model_type": "Dream", "architectures": ["DreamModel"], "bos_token_id": 80, "eos_token_id": 80, "hidden_act": "silu",
        "hidden_size": 48, "intermediate_size": 80, "mask_token_id": 90, "max_position_embeddings": 128,
        "max_window_layers": 2, "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
        "pad_token_id": 80, "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "float32", "use_mrope": False, "use_sliding_window": False,
        "vocab_size": 96,
    }  # fmt: skip
    return {**config, **changes}


def llama_config(**changes: Any) -> dict[str, Any]:
    """A config of a causal model in transformers' Llama layout."""
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": False, "bos_token_id": 80,
        "eos_token_id": 81, "hidden_act": "silu", "hidden_size": 48, "intermediate_size": 80, "max_position_embeddings": 128,
        "mlp_bias": False, "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32", "vocab_size": 96,
    }  # fmt: skip
    return {**config, **changes}


def hf_tensors(config: dict[str, Any], seed: int = 0) -> Tensors:
    """Random weights with the names and shapes of Dream's and Llama's layout."""
    d, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim") or d // heads
    kv = config["num_key_value_heads"] * head
    m = config["intermediate_size"]
    dream = config["model_type"] == "Dream"
    qkv = dream or config.get("attention_bias", False)
    other = not dream and config.get("attention_bias", False)
    mlp = config.get("mlp_bias", False)
    new = _Writer(seed)
    new.embedding("model.embed_tokens", config["vocab_size"], d)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        new.linear(f"{layer}.self_attn.q_proj", heads * head, d, qkv)
        new.linear(f"{layer}.self_attn.k_proj", kv, d, qkv)
        new.linear(f"{layer}.self_attn.v_proj", kv, d, qkv)
        new.linear(f"{layer}.self_attn.o_proj", d, heads * head, other)
        new.linear(f"{layer}.mlp.gate_proj", m, d, mlp)
        new.linear(f"{layer}.mlp.up_proj", m, d, mlp)
        new.linear(f"{layer}.mlp.down_proj", d, m, mlp)
        new.norm(f"{layer}.input_layernorm", d)
        new.norm(f"{layer}.post_attention_layernorm", d)
    new.norm("model.norm", d)
    if not config["tie_word_embeddings"]:
        new.linear("lm_head", config["vocab_size"], d, False)
    return new.tensors


def tensors_for(config: dict[str, Any], seed: int = 0) -> Tensors:
    """Random weights for a config of any layout."""
    return (llada_tensors if config["model_type"] in ("llada", "mmada") else hf_tensors)(config, seed)


def write(
    folder: Path,
    config: dict[str, Any],
    tensors: Tensors | None = None,
    shards: int = 1,
    generation_config: dict[str, Any] | None = None,
) -> Tensors:
    """Writes config.json and the weights, in one file or in shards with an index; returns the weights."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    found = tensors_for(config) if tensors is None else tensors
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if generation_config is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation_config), encoding="utf-8")
    if shards == 1:
        save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
        return found
    names = sorted(found)
    index: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        chosen = names[shard::shards]
        save_file({name: found[name] for name in chosen}, folder / file, metadata={"format": "pt"})
        index.update(dict.fromkeys(chosen, file))
    total = sum(tensor.numel() * tensor.element_size() for tensor in found.values())
    content = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content), encoding="utf-8")
    return found


class _Writer:
    """Draws weights large enough that attention is far from uniform and a wrong layout shows."""

    def __init__(self, seed: int) -> None:
        self.tensors: Tensors = {}
        self._draw = torch.Generator().manual_seed(seed)

    def linear(self, name: str, rows: int, columns: int, bias: bool) -> None:
        scale = 2.0 if name.endswith(("q_proj", "k_proj")) else 1.0
        self.tensors[f"{name}.weight"] = torch.randn(rows, columns, generator=self._draw) * scale / columns**0.5
        if bias:
            self.tensors[f"{name}.bias"] = torch.randn(rows, generator=self._draw) * 0.5

    def norm(self, name: str, width: int) -> None:
        self.tensors[f"{name}.weight"] = 1 + 0.3 * torch.randn(width, generator=self._draw)

    def embedding(self, name: str, size: int, width: int) -> None:
        self.tensors[f"{name}.weight"] = torch.randn(size, width, generator=self._draw)
