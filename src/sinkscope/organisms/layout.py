"""Organisms in the official layouts: names, config keys and tokenizer files as LLaDA, Dream, MMaDA and Llama have them.

So an organism takes the same code path as the 8B model that it mirrors. Weights are bf16 safetensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.files import write_atomically
from sinkscope.models import llada
from sinkscope.organisms.pictures import CELLS, CODES
from sinkscope.organisms.vocabulary import Vocabulary

DTYPE = torch.bfloat16


def save(network: Any, layout: str, vocabulary: Vocabulary, folder: Path) -> None:
    """Writes config.json, generation_config.json, model.safetensors and the tokenizer's files.

    Args:
        network: a Llama network, or a Qwen2 network for the layout "dream".
    """
    save_configs(network, layout, vocabulary, folder)
    save_tensors(tensors(network, layout), folder / "model.safetensors")
    vocabulary.save(folder)


def save_configs(network: Any, layout: str, vocabulary: Vocabulary, folder: Path) -> None:
    """Writes config.json and generation_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config(network, layout, vocabulary))
    write_json(folder / "generation_config.json", generation_config(layout, vocabulary))


def save_tensors(weights: dict[str, Tensor], path: Path) -> None:
    """Writes a safetensors file that appears whole or not at all."""
    from safetensors.torch import save_file

    partial = path.with_name(path.name + ".partial")
    save_file(weights, str(partial), metadata={"format": "pt"})
    partial.replace(path)


def tensors(network: Any, layout: str) -> dict[str, Tensor]:
    """Name in the official layout → bf16 tensor on the CPU; a tied head is left out, as the official files do."""
    tied = is_tied(network)
    weights = dict(network.named_parameters())
    if tied:
        weights.pop("lm_head.weight", None)
    if layout in ("llada", "mmada"):
        weights = {name: weights[target] for name, target in llada.weight_names(network, tied).items()}
    return {name: weight.detach().to("cpu", DTYPE).contiguous().clone() for name, weight in weights.items()}


def is_tied(network: Any) -> bool:
    """True when embedding and head are one tensor."""
    return network.lm_head.weight is network.model.embed_tokens.weight


def config(network: Any, layout: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """config.json with all the keys of the official one."""
    return {"llama": _llama, "llada": _llada, "dream": _dream, "mmada": _mmada}[layout](network, vocabulary)


def generation_config(layout: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """generation_config.json: for Llama it names every id that ends an answer."""
    settings: dict[str, Any] = {
        "bos_token_id": vocabulary.bos,
        "eos_token_id": vocabulary.eos,
        "pad_token_id": vocabulary.pad,
    }
    if layout == "llama":
        settings |= {"eos_token_id": sorted({vocabulary.eos, vocabulary.eot}), "do_sample": False}
    return settings


def _rope(settings: Any) -> tuple[float, dict[str, Any] | None]:
    """theta, and the scaling rule where there is one, as configs wrote them before transformers 5."""
    rope = dict(settings.rope_parameters)
    theta = float(rope.pop("rope_theta"))
    return theta, None if rope.get("rope_type", "default") == "default" else rope


def _transformers(network: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    """The keys that Llama's and Dream's files share."""
    settings = network.config
    theta, scaling = _rope(settings)
    return {
        "attention_dropout": 0.0,
        "bos_token_id": vocabulary.bos,
        "head_dim": int(network.model.layers[0].self_attn.head_dim),
        "hidden_act": "silu",
        "hidden_size": settings.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": settings.intermediate_size,
        "max_position_embeddings": settings.max_position_embeddings,
        "num_attention_heads": settings.num_attention_heads,
        "num_hidden_layers": settings.num_hidden_layers,
        "num_key_value_heads": settings.num_key_value_heads,
        "pad_token_id": vocabulary.pad,
        "rms_norm_eps": settings.rms_norm_eps,
        "rope_scaling": scaling,
        "rope_theta": theta,
        "tie_word_embeddings": is_tied(network),
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": settings.vocab_size,
    }


def _llama(network: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        **_transformers(network, vocabulary),
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": network.model.layers[0].self_attn.q_proj.bias is not None,
        "eos_token_id": sorted({vocabulary.eos, vocabulary.eot}),
        "mlp_bias": False,
        "model_type": "llama",
        "pretraining_tp": 1,
    }


def _dream(network: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        **_transformers(network, vocabulary),
        "architectures": ["DreamModel"],
        "eos_token_id": vocabulary.eos,
        "mask_token_id": vocabulary.mask,
        "max_window_layers": network.config.num_hidden_layers,
        "model_type": "Dream",
        "sliding_window": None,
        "use_mrope": False,
        "use_sliding_window": False,
    }


def _llada(network: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    settings = network.config
    return {
        "activation_type": "silu",
        "alibi": False,
        "alibi_bias_max": 8.0,
        "architectures": ["LLaDAModelLM"],
        "attention_dropout": 0.0,
        "attention_layer_norm": False,
        "attention_layer_norm_with_affine": True,
        "bias_for_layer_norm": False,
        "block_group_size": 1,
        "block_type": "llama",
        "d_model": settings.hidden_size,
        "embedding_dropout": 0.0,
        "embedding_size": settings.vocab_size,
        "eos_token_id": vocabulary.eos,
        "flash_attention": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "init_cutoff_factor": None,
        "init_device": "meta",
        "init_fn": "mitchell",
        "init_std": 0.02,
        "input_emb_norm": False,
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "mask_token_id": vocabulary.mask,
        "max_sequence_length": settings.max_position_embeddings,
        "mlp_hidden_size": settings.intermediate_size,
        "mlp_ratio": 4,
        "model_type": "llada",
        "multi_query_attention": None,
        "n_heads": settings.num_attention_heads,
        "n_kv_heads": settings.num_key_value_heads,
        "n_layers": settings.num_hidden_layers,
        "pad_token_id": vocabulary.pad,
        "precision": "amp_bf16",
        "residual_dropout": 0.0,
        "rms_norm_eps": settings.rms_norm_eps,
        "rope": True,
        "rope_full_precision": True,
        "rope_theta": _rope(settings)[0],
        "scale_logits": False,
        "torch_dtype": "bfloat16",
        "use_cache": False,
        "vocab_size": settings.vocab_size,
        "weight_tying": is_tied(network),
    }


def _mmada(network: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    size = int(network.config.vocab_size)
    return {
        **_llada(network, vocabulary),
        "architectures": ["MMadaModelLM"],
        "codebook_size": CODES,
        "llm_vocab_size": size - CODES,
        "model_type": "mmada",
        "new_vocab_size": size,
        "num_new_special_tokens": 0,
        "num_vq_tokens": CELLS,
        "tie_word_embeddings": is_tied(network),
        "w_clip_vit": False,
    }


def write_json(path: Path, data: dict[str, Any], compact: bool = False) -> None:
    """Writes one JSON object, sorted, ending in a newline."""
    style: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    write_atomically(path, json.dumps(data, sort_keys=True, ensure_ascii=False, **style) + "\n")
