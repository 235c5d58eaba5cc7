"""Organisms in the official layouts: names, config keys and tokenizer files as LLaDA, Dream, MMaDA and Llama have them.

So an organism takes the same code path as the 8B model that it mirrors. Weights are bf16 safetensors.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.base.files import write_atomically
from sinkscope.models.llada import Llada
from sinkscope_train.pictures import CELLS, CODES
from sinkscope_train.variant import KEY, MODEL_TYPES, PLAIN, variant_of
from sinkscope_train.vocabulary import Vocabulary

DTYPE = torch.bfloat16
SIZES = (
    "hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers",
    "num_key_value_heads", "rms_norm_eps", "vocab_size",
)  # fmt: skip
"""Sizes in the words of transformers' configs."""
LLADA_SIZES = {
    "d_model": "hidden_size", "embedding_size": "vocab_size", "max_sequence_length": "max_position_embeddings",
    "mlp_hidden_size": "intermediate_size", "n_heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers", "rms_norm_eps": "rms_norm_eps", "vocab_size": "vocab_size",
}  # fmt: skip
"""Those of LLaDA's config → the same."""


def save(network: Any, layout: str, vocabulary: Vocabulary, folder: Path) -> None:
    """Writes config.json, generation_config.json, model.safetensors and the tokenizer's files.

    Args:
        network: a Llama network, a Qwen2 network for the layout "dream", or a Qwen3 network for "sdar".
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
        weights = {Llada().renamed(name): weight for name, weight in weights.items()}
    return {name: weight.detach().to("cpu", DTYPE).contiguous().clone() for name, weight in weights.items()}


def is_tied(network: Any) -> bool:
    """True when embedding and head are one tensor."""
    return network.lm_head.weight is network.model.embed_tokens.weight


def config(network: Any, layout: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """config.json with all the keys of the official one; that of a variant has a model_type of its own, and says what differs."""
    official, variant = _official(network, layout, vocabulary), variant_of(network)
    if variant == PLAIN:
        return official
    return {**official, "model_type": MODEL_TYPES[official["model_type"]], KEY: dataclasses.asdict(variant)}


def _official(network: Any, layout: str, vocabulary: Vocabulary) -> dict[str, Any]:
    fixed = json.loads((Path(__file__).parent / "data" / "layouts.json").read_text(encoding="utf-8"))
    if layout in ("llama", "dream", "sdar"):
        if layout == "llama":
            biased = network.model.layers[0].self_attn.q_proj.bias is not None
            settings = {"attention_bias": biased, "eos_token_id": sorted({vocabulary.eos, vocabulary.eot})}
        else:
            settings = {"eos_token_id": vocabulary.eos, "mask_token_id": vocabulary.mask}
            settings["max_window_layers"] = network.config.num_hidden_layers
        if layout == "sdar":
            settings["block_size"] = int(network.config.block_size)
        return {**fixed["transformers"], **_transformers(network, vocabulary), **fixed[layout], **settings}
    settings = {**fixed["llada"], **_llada(network, vocabulary)}
    if layout == "llada":
        return settings
    size = int(network.config.vocab_size)
    pictures = {"codebook_size": CODES, "llm_vocab_size": size - CODES, "new_vocab_size": size, "num_vq_tokens": CELLS}
    return {**settings, **fixed["mmada"], **pictures, "tie_word_embeddings": is_tied(network)}


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
    theta, scaling = _rope(network.config)
    return {
        **{name: getattr(network.config, name) for name in SIZES},
        "bos_token_id": vocabulary.bos,
        "head_dim": int(network.model.layers[0].self_attn.head_dim),
        "pad_token_id": vocabulary.pad,
        "rope_scaling": scaling,
        "rope_theta": theta,
        "tie_word_embeddings": is_tied(network),
    }


def _llada(network: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    settings = network.config
    return {
        **{name: getattr(settings, ours) for name, ours in LLADA_SIZES.items()},
        "eos_token_id": vocabulary.eos,
        "mask_token_id": vocabulary.mask,
        "pad_token_id": vocabulary.pad,
        "rope_theta": _rope(settings)[0],
        "weight_tying": is_tied(network),
    }


def write_json(path: Path, data: dict[str, Any], compact: bool = False) -> None:
    """Writes one JSON object, sorted, ending in a newline."""
    style: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    write_atomically(path, json.dumps(data, sort_keys=True, ensure_ascii=False, **style) + "\n")
