"""Which causal types of transformers can be measured: a tiny random network of each is saved, loaded and looked at.

`python -m lab.causal_types` writes the table of docs/models.md between its markers. Of types with towers for images the whole
network is saved, and its text network is loaded.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import sinkscope as ss

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
BEGIN, END = "<!-- causal types: begin (lab/causal_types.py) -->", "<!-- causal types: end -->"

SIZES: dict[str, Any] = {
    "vocab_size": 96, "embedding_size": 32, "hidden_size": 32, "d_model": 32, "n_embd": 32, "intermediate_size": 48,
    "ffn_dim": 48, "n_inner": 48, "intermediate_size_mlp": 48, "num_hidden_layers": 4, "num_layers": 4, "n_layer": 4,
    "n_layers": 4, "num_attention_heads": 4, "num_heads": 4, "n_head": 4, "n_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "global_head_dim": 8, "swa_head_dim": 8, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "kv_channels": 8,
    "max_position_embeddings": 128, "n_positions": 128, "n_ctx": 128, "rotary_dim": 8,
    "depth": 2, "image_size": 28, "patch_size": 14, "out_hidden_size": 32, "vision_output_dim": 32, "projector_input_dim": 32,
    "projector_output_dim": 32, "num_position_embeddings": 4, "deepstack_visual_indexes": [1],
    "encoder_layers": 4, "encoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_layers": 4, "decoder_attention_heads": 4, "decoder_ffn_dim": 48,
    "num_local_experts": 4, "num_experts": 4, "moe_num_experts": 4, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_topk": 2, "moe_k": 2, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24, "first_k_dense_replace": 2, "expert_ffn_hidden_size": 24,
    "ffn_hidden_size": 48, "zero_expert_num": 2,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "index_n_heads": 2, "index_head_dim": 16, "index_topk": 4,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64, "mamba_num_heads": 4, "mamba_head_dim": 16,
    "mamba_n_groups": 1, "n_mamba_heads": 2, "mamba_headdim": 16, "mamba_ngroups": 1, "ssm_state_size": 8, "n_groups": 1,
    "chunk_size": 8, "mamba_chunk_size": 8, "lru_width": 32, "sliding_window": 6, "attention_chunk_size": 8,
    "window_size": 6, "attention_window_size": 6, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96,
    "laurel_rank": 8, "altup_num_inputs": 2, "num_kv_shared_layers": 0, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""Small sizes, by whatever name a config has for them."""

EXTRA: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "deepseek_v4": {
        "layer_types": ["sliding_attention"] * 2 + ["compressed_sparse_attention", "heavily_compressed_attention"]
    },
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "bailing_hybrid": {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            layer: {"rope_type": "default", "rope_theta": 10000.0} for layer in ("sliding_attention", "full_attention")
        },
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_head_dim": 16,
        "num_key_value_heads": 4,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "n_mamba_heads": 4,
    },
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
    },
    "zaya": {"num_experts_per_tok": 1, "num_experts_per_token": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "reformer": {"is_decoder": True, "axial_pos_embds": False, "attention_head_size": 8, "feed_forward_size": 48},
    "mamba2": {"num_heads": 8, "head_dim": 8},
}
"""What a type needs besides."""
OTHER = ("blt", "git", "moshi", "musicgen", "musicgen_melody", "phi4_multimodal")
"""Types whose networks read bytes, images or sounds."""


@dataclass(frozen=True)
class Outcome:
    """What became of a type: the layers that can be measured, out of how many; or why it is refused."""

    kind: str
    measured: tuple[int, ...] = ()
    layers: int = 0
    gated: bool = False
    learned: bool = False
    reason: str = ""
    generates: str = ""


def small(config_class: Any) -> Any:
    """A config with small sizes."""
    plain = config_class()
    names = {*plain.to_dict(), *vars(plain)}
    sizes = {name: value for name, value in SIZES.items() if name in names}
    if "kv_lora_rank" in sizes:  # latent attention has a key for every query head
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    return config_class(**{**sizes, **EXTRA.get(config_class.model_type, {})})


def tiny(kind: str) -> Any:
    """A tiny random network of a causal type of transformers; raises whatever transformers raises where none can be made."""
    import transformers
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if kind in OTHER:
        raise TypeError("it takes other inputs than text")
    config_class, name = CONFIG_MAPPING[kind], modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
    plain = config_class()
    parts = [part for part in ("text_config", "vision_config") if getattr(plain, part, None) is not None]
    if parts:
        name = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(kind, name)
        sizes = {part: small(type(getattr(plain, part))).to_dict() for part in parts}
        config = config_class(**sizes, **({"audio_config": None} if hasattr(plain, "audio_config") else {}))
    else:
        config = small(config_class)
    torch.manual_seed(0)
    network = getattr(transformers, name if isinstance(name, str) else name[0])(config).eval()
    for parameter in network.parameters():  # the defaults' small numbers would make all attention uniform
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return network


def outcome(kind: str, folder: Path) -> Outcome:
    """Saves a tiny random network of a type, and loads it as anybody would."""
    tiny(kind).save_pretrained(folder)
    try:
        model = ss.load(folder, device="cpu", dtype="float32")
    except ss.SinkscopeError as error:
        reason = str(error).removeprefix(f"{folder}: ").removeprefix(f"{folder} ")
        return Outcome(kind, reason=re.sub(r"^is a \S+ model whose", "its", reason))
    attending = model.attending
    generates = generated(model)
    return Outcome(
        kind,
        model.layers,
        model.shape.layers,
        bool(attending and attending.gates),
        bool(attending and attending.learned),
        generates=generates,
    )


def generated(model: ss.Model) -> str:
    """What is wrong with traced generation, against transformers' own with its own attention; empty: nothing."""
    draw = torch.Generator().manual_seed(1)
    prompt = torch.randint(3, 90, (2, 9), generator=draw)
    try:
        run = ss.generate(model, prompt, ss.GreedyDecoding(5, eos=None), capture=ss.Capture())
        again = ss.generate(model, prompt, ss.GreedyDecoding(5, eos=None), policy="top:1", capture=ss.Capture())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    model.network.set_attn_implementation("eager")
    options = {
        "max_new_tokens": 5,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
        "forced_eos_token_id": None,
    }
    theirs = model.network.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    if not torch.equal(theirs, run.sequences):
        return "other tokens"
    if run.trace is None or tuple(run.trace.dataset.layer.values) != model.layers or len(again) != 5:
        return "other layers"
    return ""


def table() -> str:
    """The table in Markdown."""
    from transformers import __version__
    from transformers.models.auto import modeling_auto

    found, apart = [], []
    for kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found.append(outcome(kind, Path(folder)))
            except Exception as error:  # transformers raises anything for sizes that do not go together
                apart.append((kind, error))
                print(kind, type(error).__name__, str(error)[:150], flush=True)
    lines = [
        f"transformers {__version__}: {sum(not one.reason for one in found)} of {len(found)} types load.",
        "",
        "| types | attention |",
        "|---|---|",
    ]
    groups: dict[str, list[str]] = {}
    for one in found:
        groups.setdefault(said(one), []).append(f"`{one.kind}`")
    for words, kinds in sorted(groups.items(), key=lambda group: (group[0].startswith("refused"), -len(group[1]))):
        lines.append(f"| {', '.join(kinds)} | {words} |")
    lines += ["", f"Not tried here: {', '.join(f'`{kind}`' for kind, _ in apart)} (they take other inputs than text, or no tiny "
              "network of them could be made)."]  # fmt: skip
    return "\n".join(lines)


def said(one: Outcome) -> str:
    """A type's outcome in words."""
    if one.generates:
        raise RuntimeError(f"{one.kind}: {one.generates}")
    if one.reason:
        plain = re.sub(r"transformers' (?!attention|own)\w+", "the network", one.reason)
        plain = re.sub(r"\w+Attention passes", "it passes", plain)
        plain = re.sub(
            r" \(layer \d+\)| \(off by [^)]*\)| \([A-Z]\w+Attention[^)]*\)| \((?:MultiHead)?Attention\)", "", plain
        )
        return "refused: " + plain.split("; ")[0].replace("|", "\\|")
    words = [
        "measured in every layer"
        if len(one.measured) == one.layers
        else "measured in the layers that have softmax attention"
    ]
    words += ["with a learned sink"] * one.learned + ["before its gate"] * one.gated
    return ", ".join(words)


def main() -> None:
    """Write the table into the page."""
    warnings.filterwarnings("ignore")
    made = table()
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
