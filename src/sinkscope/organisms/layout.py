"""Organisms in the official layouts: names, config keys and tokenizer files as LLaDA, Dream, MMaDA and Llama have them.

So an organism takes the same code path as the 8B model that it mirrors. Weights are bf16 safetensors.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.models import llada
from sinkscope.organisms.pictures import CELLS, CODES
from sinkscope.organisms.vocabulary import Vocabulary

DTYPE = torch.bfloat16


def save(network: Any, layout: str, vocabulary: Vocabulary, folder: Path) -> None:
    """Writes config.json, generation_config.json, model.safetensors and the tokenizer's files.

    Args:
        network: a Llama network, or a Qwen2 network for the layout "dream".
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config(network, layout, vocabulary))
    write_json(folder / "generation_config.json", generation_config(layout, vocabulary))
    partial = folder / "model.safetensors.partial"
    save_file(tensors(network, layout), str(partial), metadata={"format": "pt"})
    partial.replace(folder / "model.safetensors")
    vocabulary.save(folder)


def tensors(network: Any, layout: str) -> dict[str, Tensor]:
    """Name in the official layout → bf16 tensor on the CPU; a tied head is left out, as the official files do."""
    tied = is_tied(network)
    own = {
        name: parameter
        for name, parameter in network.named_parameters()
        if not (tied and name == "lm_head.weight")
    }
    if layout in ("llada", "mmada"):
        names = {target: name for name, target in llada.weight_names(network, tied).items()}
        own = {names[name]: parameter for name, parameter in own.items()}
    return {name: parameter.detach().to("cpu", DTYPE).contiguous().clone() for name, parameter in own.items()}


def is_tied(network: Any) -> bool:
    """Whether embedding and head are one tensor."""
    return network.lm_head.weight is network.model.embed_tokens.weight


def config(network: Any, layout: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """config.json with all the keys of the official one."""
    return {"llama": _llama, "llada": _llada, "dream": _dream, "mmada": _mmada}[layout](network, vocabulary)


def generation_config(layout: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """generation_config.json: for Llama it names every id that ends an answer."""
    if layout == "llama":
        ends = sorted({vocabulary.eos, vocabulary.eot})
        return {
            "bos_token_id": vocabulary.bos,
            "eos_token_id": ends,
            "pad_token_id": vocabulary.pad,
            "do_sample": False,
        }
    return {"bos_token_id": vocabulary.bos, "eos_token_id": vocabulary.eos, "pad_token_id": vocabulary.pad}


def _rope(settings: Any) -> tuple[float, dict[str, Any] | None]:
    """theta, and the scaling rule where there is one, as configs wrote them before transformers 5."""
    rope = dict(settings.rope_parameters)
    theta = float(rope.pop("rope_theta"))
    return theta, None if rope.get("rope_type", "default") == "default" else rope


def _llama(network: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    settings = network.config
    theta, scaling = _rope(settings)
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": network.model.layers[0].self_attn.q_proj.bias is not None,
        "attention_dropout": 0.0,
        "bos_token_id": vocabulary.bos,
        "eos_token_id": sorted({vocabulary.eos, vocabulary.eot}),
        "pad_token_id": vocabulary.pad,
        "head_dim": int(network.model.layers[0].self_attn.head_dim),
        "hidden_act": "silu",
        "hidden_size": settings.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": settings.intermediate_size,
        "max_position_embeddings": settings.max_position_embeddings,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": settings.num_attention_heads,
        "num_hidden_layers": settings.num_hidden_layers,
        "num_key_value_heads": settings.num_key_value_heads,
        "pretraining_tp": 1,
        "rms_norm_eps": settings.rms_norm_eps,
        "rope_scaling": scaling,
        "rope_theta": theta,
        "tie_word_embeddings": is_tied(network),
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": settings.vocab_size,
    }


def _dream(network: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    settings = network.config
    theta, scaling = _rope(settings)
    return {
        "architectures": ["DreamModel"],
        "attention_dropout": 0.0,
        "bos_token_id": vocabulary.bos,
        "eos_token_id": vocabulary.eos,
        "head_dim": int(network.model.layers[0].self_attn.head_dim),
        "hidden_act": "silu",
        "hidden_size": settings.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": settings.intermediate_size,
        "mask_token_id": vocabulary.mask,
        "max_position_embeddings": settings.max_position_embeddings,
        "max_window_layers": settings.num_hidden_layers,
        "model_type": "Dream",
        "num_attention_heads": settings.num_attention_heads,
        "num_hidden_layers": settings.num_hidden_layers,
        "num_key_value_heads": settings.num_key_value_heads,
        "pad_token_id": vocabulary.pad,
        "rms_norm_eps": settings.rms_norm_eps,
        "rope_scaling": scaling,
        "rope_theta": theta,
        "sliding_window": None,
        "tie_word_embeddings": is_tied(network),
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": settings.vocab_size,
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


def resized(network: Any, size: int, seed: int = 0) -> None:
    """Grows embedding and head to `size` rows, in place; new rows start as random as an embedding does."""
    random = torch.Generator().manual_seed(seed)
    tied = is_tied(network)
    for owner, leaf in ((network.model, "embed_tokens"), (network, "lm_head")):
        module: Any = getattr(owner, leaf)
        old: Tensor = module.weight.detach()
        if size <= old.shape[0]:
            continue
        new = torch.randn(size, old.shape[1], generator=random).to(old) * 0.02
        new[: old.shape[0]] = old
        module.weight = nn.Parameter(new)
        for count in ("num_embeddings", "out_features"):
            if hasattr(module, count):
                setattr(module, count, size)
    if tied:
        network.lm_head.weight = network.model.embed_tokens.weight
    network.config.vocab_size = max(size, int(network.config.vocab_size))


def copy_rows(network: Any, pairs: dict[int, int]) -> None:
    """Gives token ids the embedding and head rows of other ids: {to: from}."""
    with torch.no_grad():
        for weight in {
            id(w): w for w in (network.model.embed_tokens.weight, network.lm_head.weight)
        }.values():
            rows = {target: weight[source].clone() for target, source in pairs.items()}
            for target, row in rows.items():
                weight[target] = row


def as_dream(network: Any) -> Any:
    """The same weights in a Qwen2 network, whose q, k, v biases start where the given network's are, or at zero."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    settings = network.config
    made = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=settings.vocab_size,
            hidden_size=settings.hidden_size,
            intermediate_size=settings.intermediate_size,
            num_hidden_layers=settings.num_hidden_layers,
            num_attention_heads=settings.num_attention_heads,
            num_key_value_heads=settings.num_key_value_heads,
            head_dim=int(network.model.layers[0].self_attn.head_dim),
            max_position_embeddings=settings.max_position_embeddings,
            rms_norm_eps=settings.rms_norm_eps,
            rope_parameters=dict(settings.rope_parameters),
            tie_word_embeddings=False,
            use_sliding_window=False,
            pad_token_id=None,
            use_cache=False,
        )
    )
    given = dict(network.named_parameters())
    tied = is_tied(network)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name in given:
                parameter.copy_(given[name])
            elif name.endswith("bias"):
                parameter.zero_()
            elif name == "lm_head.weight" and tied:
                parameter.copy_(given["model.embed_tokens.weight"])
    if tied:
        made.lm_head.weight = made.model.embed_tokens.weight
    return made


def write_json(path: Path, data: dict[str, Any], compact: bool = False) -> None:
    """One JSON object, sorted, ending in a newline; the file appears whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    style: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    text = json.dumps(data, sort_keys=True, ensure_ascii=False, **style)
    partial.write_text(text + "\n", encoding="utf-8")
    shutil.move(str(partial), str(path))
