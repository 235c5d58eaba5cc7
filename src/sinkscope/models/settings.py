"""Settings of a config.json that nobody reads: harmless ones are listed here, and all others are errors.

A setting that changes what an official network computes, and that our network does not know, would silently make it another
model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import cache
from typing import Any

from sinkscope.models.checkpoint import ROTATION, Checkpoint

USUAL = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act", "attention_bias", "tie_word_embeddings", "rope_theta",
    "use_sliding_window", "use_mrope", "layer_types", *ROTATION,
)  # fmt: skip
"""What `backbone.read_settings` reads, or refuses where it is on."""
INERT = (
    # of files and of training
    "model_type", "auto_map", "trust_remote_code", "torch_dtype", "attn_implementation", "attn_config", "precision",
    "init_device", "init_fn", "init_std", "init_cutoff_factor", "flash_attention", "fuse_cross_entropy", "micro_forward",
    "skip_checkpoint", "debug", "ep_size", "use_deepep", "moe_backend", "router_dtype", "router_aux_loss_coef",
    "output_router_logits", "pretraining_tp", "dlm_loss_weight", "ar_loss_weight", "dp_varying_mask_ratio",
    "quantization_config", "gradient_checkpointing", "pretrained_model_path", "llm_model_path", "tokenizer_path",
    # of loops, which take them as options
    "block_size", "bd_size", "conplemenrary_mask", "num_diffusion_steps",
    # without effect while use_sliding_window is off, or in the attention that all families have
    "sliding_window", "max_window_layers", "is_causal", "use_cache",
)  # fmt: skip
"""Settings that change nothing in a forward pass."""
PARTS = ("dropout", "initializer", "token_id")
"""Parts of the names of more of them: of training, and ids, which are read elsewhere."""


@cache
def _of_any_model() -> frozenset[str]:
    """Settings that transformers writes for every model, generation included."""
    from transformers import GenerationConfig, PretrainedConfig

    return frozenset((*PretrainedConfig().to_dict(), *GenerationConfig().to_dict()))


def inert(name: str) -> bool:
    """Whether a setting changes nothing in a forward pass, whatever its value."""
    return name in INERT or name in _of_any_model() or name.startswith("_") or any(part in name for part in PARTS)


COMPUTING = re.compile(
    r"^sinkscope_|capacity|soft_?cap|clip_qkv|alibi|^sliding_window$|attention_chunk|no_rope|"
    r"(attention|attn|num|use)_sinks?(_tokens?)?$|(attention|attn|output)_gate|gated_att|qk_?(layer_?)?norm|(query|key|q|k)_norm|"
    r"(attention|residual|embedding|logits?|head|key)_multiplier|logits?_scal|(residual|attn|attention)_scale|scale_(emb|depth|logits)"
)
"""Names of settings by which some networks compute something else."""


def check_computing(checkpoint: Checkpoint, config_class: Any) -> None:
    """Refuse a setting that is on, has a name of COMPUTING, and is none of transformers' class, which would ignore it.

    Config files of causal and masked models hold much that is of no account, under names that nobody has listed; so a setting
    that the class lacks is not refused for that alone, as `check_settings` does it.
    """
    names = {*config_class().to_dict(), *dir(config_class), *config_class.attribute_map}
    if checkpoint.config.get("use_sliding_window") is False:
        names.add("sliding_window")
    _refuse(checkpoint, (name for name in checkpoint.config if COMPUTING.search(name) and name not in names))


def check_settings(checkpoint: Checkpoint, read: Collection[str]) -> None:
    """Refuse a config.json with a setting that is on and that neither the family reads nor is known to be harmless."""
    changed = () if checkpoint.change is None else checkpoint.change.settings
    _refuse(checkpoint, (name for name in checkpoint.config if name not in (*read, *changed) and not inert(name)))


def _refuse(checkpoint: Checkpoint, unknown: Iterable[str]) -> None:
    """Refuse the first of these settings that is on."""
    for name in unknown:
        if checkpoint.config[name] not in (None, False, "", [], {}):
            raise checkpoint.misfit(
                name,
                f"which sinkscope does not know of {checkpoint.model_type} models: it may change what the network computes. If "
                "it does not, take it out of config.json",
            )
