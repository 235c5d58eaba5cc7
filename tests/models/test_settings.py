"""Every setting of the official config classes, changed: the network changes, or it is refused, or it is listed as harmless."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.causal_types import tiny
from tests.helpers import golden

import sinkscope as ss
from sinkscope.models.llada import IDLE
from sinkscope.models.settings import inert

FAMILIES = ("llada", "dream", "mmada", *golden.LATER, *golden.EXPERTS, "nemotron_diffusion", "a2d_bd3lm")
OTHERS = {
    "llada2": {"expert_capacity": 4, "rotary_dim": 4, "norm_head": True, "num_nextn_predict_layers": 1},
    "llada": {
        "rope_full_precision": False, "clip_qkv": 8.0, "layer_norm_with_affine": False, "attention_multiplier": 2.0,
    },
    "sdar": {
        "mlp_bias": True,
        "attention_sinks": 4,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    "llada_moe": {"routed_scaling_factor": 2.5, "router_topk_group": 2},
    "dream": {"logit_scale": 0.5},
    "nemotron_diffusion": {"use_qk_norm": True},
}  # fmt: skip
"""Settings that stand in no fixture's config.json, and would change what is computed."""
UNUSED = {
    "llada2": ("use_qk_norm",),  # the norm is always there; switched off it is refused
    "llada_moe": ("norm_topk_prob",),  # the official file never normalises
    "nemotron_diffusion": (
        "mlp_bias",
        "attention_bias",
        "dlm_paradigm",
    ),  # no biases; the paradigm says the default mode
}
"""Settings that the official file of a family ignores."""


SIZES = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim hidden_act "
    "max_position_embeddings initializer_range rms_norm_eps use_cache tie_word_embeddings attention_bias attention_dropout"
)
OFFICIAL = {
    "nemotron_diffusion": f"{SIZES} rope_parameters mlp_bias sliding_window attn_implementation mask_token_id dlm_paradigm "
    "block_size dlm_loss_weight ar_loss_weight dp_varying_mask_ratio bos_token_id eos_token_id",
    "sdar_moe": f"{SIZES} rope_theta rope_scaling use_sliding_window sliding_window max_window_layers decoder_sparse_step "
    "moe_intermediate_size num_experts_per_tok num_experts norm_topk_prob output_router_logits router_aux_loss_coef "
    "mlp_only_layers",
}
"""Fields of official config classes that are not part of transformers: all stand in the fixtures, and so are tried below."""


DECIDED_ELSEWHERE = (
    "mlp_ratio", "vocab_size", "max_sequence_length",  # by mlp_hidden_size and embedding_size; RoPE needs no length
    "n_kv_heads", "multi_query_attention", "tie_word_embeddings", "rope_scaling",  # by another setting, or off in another way
    "decoder_sparse_step", "mlp_only_layers", "moe_layer_freq", "dense_intermediate_size", "intermediate_size",  # no dense layer
)  # fmt: skip
"""Settings without effect in a network of these sizes."""


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value * 2
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, dict):
        return {name: value[name] * 3 if name == "rope_theta" else value[name] for name in value}
    if isinstance(value, list):
        return [changed(one) for one in value]
    return 7


def outcome(family: str, folder: Path, config: dict[str, Any]) -> torch.Tensor | str:
    """Logits, or why it is refused."""
    (folder / "config.json").write_text(json.dumps(config))
    mask = golden.manifest(family)["special_ids"]["mask"]
    named = family if family == "open_dcoder" else None
    try:
        model = ss.load(folder, device="cpu", dtype="float32", family=named, mask_token_id=mask)
        # Long enough for positions that only count beyond the original length.
        return model.logits(torch.arange(40)[None], block=None)
    except (ss.SinkscopeError, RuntimeError) as error:  # groups of experts that do not divide fail in the forward
        return str(error)


@pytest.mark.parametrize("family", OFFICIAL)
def test_fixtures_have_the_fields_of_the_official_classes(family: str) -> None:
    config = json.loads((golden.checkpoint(family) / "config.json").read_text())
    assert set(OFFICIAL[family].split()) <= set(config)


def copied(family: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """A golden checkpoint's copy that can be changed, and its config."""
    checkpoint = folder / "checkpoint"
    shutil.copytree(golden.checkpoint(family), checkpoint)
    for path in checkpoint.iterdir():
        path.chmod(0o644)
    return checkpoint, json.loads((checkpoint / "config.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_no_setting_is_silently_ignored(family: str, tmp_path: Path) -> None:
    folder, config = copied(family, tmp_path)
    plain = outcome(family, folder, config)
    assert isinstance(plain, torch.Tensor), plain
    silent = []
    for name in config:
        if inert(name) or name in IDLE or name in UNUSED.get(family, ()) or name == "max_position_embeddings":
            continue
        found = outcome(family, folder, {**config, name: changed(config[name])})
        if isinstance(found, torch.Tensor) and found.shape == plain.shape and torch.equal(found, plain):
            silent.append(name)
    assert set(silent) <= set(DECIDED_ELSEWHERE), silent


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family, settings in OTHERS.items() for name in settings]
)
def test_settings_that_are_not_known_are_refused_by_name(family: str, name: str, tmp_path: Path) -> None:
    folder, config = copied(family, tmp_path)
    found = outcome(family, folder, {**config, name: OTHERS[family][name]})
    assert isinstance(found, str)
    assert name in found


RELEASED = {
    # What the official training script merges into the file, beside LLaDA's settings.
    "mmada": {
        "pretrained_model_path": "GSAI-ML/LLaDA-8B-Instruct", "tokenizer_path": "GSAI-ML/LLaDA-8B-Instruct",
        "llm_model_path": "GSAI-ML/LLaDA-8B-Instruct", "gradient_checkpointing": True, "w_clip_vit": False,
    },
    "rnd1": {"rope_scaling": False, "sliding_window": False, "dtype": "bfloat16", "attn_implementation": "sdpa"},
    "llada2": {"use_qk_norm": True, "norm_head": False, "max_position_embeddings": 32768, "dtype": "bfloat16"},
    "fast_dllm_v2": {"sliding_window": 131072, "attention_bias": True, "use_mrope": False, "mask_token_id": 248},
    "a2d_qwen3": {"sliding_window": None, "max_window_layers": 28, "dtype": "bfloat16", "block_size": 4},
    "nemotron_diffusion": {"rope_theta": 1000000.0, "mlp_bias": False, "ar_loss_weight": 10000.0, "pad_token_id": None},
    "open_dcoder": {"sliding_window": 32768, "max_window_layers": 24, "_attn_implementation_autoset": True},
}  # fmt: skip
"""Fields of released files, and of those that the official code writes, that stand in no fixture or with another value."""


@pytest.mark.parametrize("family", RELEASED)
def test_what_released_files_say_besides_is_no_reason(family: str, tmp_path: Path) -> None:
    folder, config = copied(family, tmp_path)
    plain = outcome(family, folder, config)
    found = outcome(family, folder, {**config, **RELEASED[family]})
    assert isinstance(plain, torch.Tensor)
    assert isinstance(found, torch.Tensor), found
    assert torch.equal(found, plain)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["", "text_config"])
def test_every_field_of_the_official_classes_of_diffusion_gemma(part: str, tmp_path: Path) -> None:
    """Changed, it is refused by its name, or the logits are those of transformers' own network with it."""
    import transformers

    _, config = copied("diffusion_gemma", tmp_path)
    official = transformers.DiffusionGemmaTextConfig if part else transformers.DiffusionGemmaConfig
    ids, told = torch.arange(3, 23)[None], config[part] if part else config
    known = {**{name: value for name, value in official().to_dict().items() if name not in told}, **told}
    tried, refused = 0, {}
    for name, value in known.items():
        if name.endswith("_config") or inert(name) or name == "layer_types":  # sizes of layers go with their types
            continue
        other = "all" if name == "use_bidirectional_attention" else changed(value)
        settings = json.loads(json.dumps(config))
        (settings[part] if part else settings)[name] = other
        (tmp_path / "checkpoint" / "config.json").write_text(json.dumps(settings))
        try:
            model = ss.load(tmp_path / "checkpoint", device="cpu", dtype="float32")
        except ss.SinkscopeError as error:
            refused[name] = str(error)
            continue
        own = transformers.DiffusionGemmaForBlockDiffusion.from_pretrained(tmp_path / "checkpoint", dtype=torch.float32)
        canvas = own.config.canvas_length
        if ids.shape[1] <= canvas:
            continue
        theirs = own.eval()(input_ids=ids[:, :-canvas], decoder_input_ids=ids[:, -canvas:]).logits
        torch.testing.assert_close(model.logits(ids), theirs, atol=1e-4, rtol=1e-4, msg=name)
        tried += 1
    assert tried >= (6 if part else 1)
    for name, why in refused.items():
        assert name in why or "the weights do not fit config.json" in why, name


def test_what_the_released_file_of_diffusion_gemma_says_is_read(tmp_path: Path) -> None:
    """Its fields for pictures, the end ids beside the text network, and full layers as files have them that transformers did
    not write."""
    _, config = copied("diffusion_gemma", tmp_path)
    config |= {"vision_soft_tokens_per_image": 280, "eos_token_id": [1, 106], "dtype": "bfloat16"}
    config["vision_config"] |= {
        "default_output_length": 280,
        "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"},
    }
    full = config["text_config"].pop("per_layer_config")["2"]
    config["text_config"] |= {
        "global_head_dim": full["head_dim"], "num_global_key_value_heads": full["num_key_value_heads"],
    }  # fmt: skip
    (tmp_path / "checkpoint" / "config.json").write_text(json.dumps(config))
    model, ids = ss.load(tmp_path / "checkpoint", device="cpu", dtype="float32"), torch.arange(3, 23)[None]
    assert torch.equal(model.logits(ids), golden.model("diffusion_gemma").logits(ids))


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("", "canvas_lenght", 16),
        ("", "global_head_dim", 16),
        ("text_config", "vision_soft_tokens_per_image", 280),
        ("", "canvas_length", 0),
        ("", "canvas_length", "long"),
        ("", "text_config", 3),
        ("text_config", "attention_sinks", 4),
        ("text_config", "num_kv_shared_layers", 2),
        ("text_config", "top_k_experts", 40),
        ("text_config", "top_k_experts", None),
        ("text_config", "final_logit_softcapping", "x"),
        ("text_config", "hidden_activation", "gleu"),
        ("text_config", "per_layer_config", 2),
        ("text_config", "layer_types", "full_attention"),
        ("text_config", "num_experts", 0),
    ],
)
def test_wrong_settings_of_diffusion_gemma_are_named(part: str, name: str, value: Any, tmp_path: Path) -> None:
    _, config = copied("diffusion_gemma", tmp_path)
    (config[part] if part else config)[name] = value
    (tmp_path / "checkpoint" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ss.CheckpointError, match=name):
        ss.load(tmp_path / "checkpoint", device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("llada", "mmada")])
def test_no_field_of_the_networks_own_config_class_is_silently_ignored(family: str, tmp_path: Path) -> None:
    """Fields that stand in no fixture: the official classes have those of transformers' networks, which they were made from."""
    folder, config = copied(family, tmp_path)
    plain = outcome(family, folder, config)
    assert isinstance(plain, torch.Tensor), plain
    fields = type(golden.model(family).network.config)().to_dict()
    silent = []
    for name, value in fields.items():
        if name in config or inert(name) or name in (*DECIDED_ELSEWHERE, *UNUSED.get(family, ())):
            continue
        found = outcome(family, folder, {**config, name: changed(value)})
        if isinstance(found, torch.Tensor) and found.shape == plain.shape and torch.equal(found, plain):
            silent.append(name)
    assert set(silent) <= {"max_position_embeddings"}, silent


COMPUTED = {
    "llama": {
        "expert_capacity": 4, "use_qk_norm": True, "attention_multiplier": 0.5, "attn_logit_softcapping": 30.0,
        "logit_scale": 2.0, "attention_sinks": 4, "sliding_window": 8, "alibi": True,
    },
    "gpt2": {"attn_logit_softcapping": 30.0, "qk_layernorm": True},
    "bert": {"residual_multiplier": 0.5},
}  # fmt: skip
"""Settings that other networks have, and these would be computed without."""
HARMLESS = {
    "llama": {
        "is_llama_config": True, "rope_interleaved": True, "topk_method": "noaux_tc", "max_window_layers": 2, "auto_map": {},
        "use_sliding_window": False, "sliding_window": 4096, "attention_sinks": None, "logit_scale": False, "unsloth_fixed": True,
        "_name_or_path": "x", "torch_dtype": "bfloat16", "transformers_version": "4.40.0", "logits_scaling": None,
    },
    "gpt2": {"n_inner": None, "task_specific_params": {"a": 1}, "scale_attn_weights": True},
    "bert": {"pooler_type": "first_token_transform", "directionality": "bidi"},
}  # fmt: skip
"""Settings that real files carry, as they carry them."""


def small_network(kind: str, folder: Path) -> dict[str, Any]:
    """A tiny random network of transformers, and what its config.json says."""
    import transformers

    head = "MaskedLM" if kind == "bert" else "LMHeadModel" if kind == "gpt2" else "CausalLM"
    name = {"gpt2": "GPT2", "llama": "LlamaFor", "bert": "BertFor"}[kind]
    network_class = getattr(transformers, name + head)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4} if kind == "gpt2" else sizes
    network_class(network_class.config_class(vocab_size=96, **sizes)).save_pretrained(folder)
    return dict(json.loads((folder / "config.json").read_text()))


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, settings in COMPUTED.items() for name in settings])
def test_settings_that_compute_and_that_transformers_would_ignore_are_refused(
    kind: str, name: str, tmp_path: Path
) -> None:
    config = small_network(kind, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, name: COMPUTED[kind][name]}))
    with pytest.raises(ss.CheckpointError, match=f"sets {name} to"):
        ss.load(tmp_path, device="cpu")


@pytest.mark.parametrize("kind", HARMLESS)
def test_what_real_files_carry_besides_is_no_reason(kind: str, tmp_path: Path) -> None:
    config = small_network(kind, tmp_path)
    plain = ss.load(tmp_path, device="cpu").logits(torch.arange(9)[None])
    (tmp_path / "config.json").write_text(json.dumps({**config, **HARMLESS[kind]}))
    assert torch.equal(ss.load(tmp_path, device="cpu").logits(torch.arange(9)[None]), plain)


def test_settings_of_the_text_network_are_looked_at_too(tmp_path: Path) -> None:
    tiny("gemma3").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"]["expert_capacity"] = 4
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ss.CheckpointError, match="sets expert_capacity to 4"):
        ss.load(tmp_path, device="cpu")


def test_a_text_network_inside_one_that_has_none_is_refused(tmp_path: Path) -> None:
    config = small_network("llama", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "text_config": {}}))
    with pytest.raises(ss.CheckpointError, match="sets text_config to"):
        ss.load(tmp_path, device="cpu")
