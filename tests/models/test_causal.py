"""Causal models of many architectures, against transformers' own eager attention: patterns, caches, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import golden
from tests.helpers.calls import Recorder
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

import sinkscope as ss

BASE: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": BASE,
    "mistral": {**BASE, "sliding_window": 6},
    "qwen2": {**BASE, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2},
    "qwen3": {**BASE, "head_dim": 16},
    "gemma3_text": {**BASE, "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 20},
    "granite": {**BASE, "attention_multiplier": 0.3},
    "smollm3": {**BASE, "no_rope_layers": [1, 1, 0, 1]},
    "llama4_text": {
        **BASE,
        "head_dim": 16,
        "attention_chunk_size": 8,
        "num_local_experts": 2,
        "intermediate_size_mlp": 64,
    },
    "gpt_oss": {
        **BASE,
        "head_dim": 16,
        "sliding_window": 6,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "gpt2": {"vocab_size": 96, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 128},
    "deepseek_v3": {
        **BASE, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
        "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
        "moe_intermediate_size": 32, "first_k_dense_replace": 4,
    },
}  # fmt: skip
"""Sliding windows, windows in some layers only, chunks, another scale, no rotation in a layer, learned sinks, wider values, …"""


def written(architecture: str, settings: dict[str, Any], folder: Path) -> Any:
    """transformers' model with random weights and eager attention, saved to a folder."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(architecture, **settings)
    config._attn_implementation = "eager"
    network = AutoModelForCausalLM.from_config(config).eval()
    for parameter in network.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    network.save_pretrained(folder)
    return network


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 96, (2, 19), generator=draw)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    return ids, mask


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_and_maps_are_those_of_eager_attention(architecture: str, tmp_path: Path) -> None:
    network = written(architecture, ARCHITECTURES[architecture], tmp_path)
    model = ss.load(tmp_path, device="cpu")
    assert model.family == "causal"
    ids, mask = inputs()
    for padding in (None, mask):
        options = {} if padding is None else {"position_ids": (padding.cumsum(-1) - 1).masked_fill(padding == 0, 1)}
        with torch.no_grad():
            expected = network(ids, attention_mask=padding, output_attentions=True, **options)
        rows = torch.ones_like(ids, dtype=torch.bool) if padding is None else padding.bool()
        torch.testing.assert_close(model.logits(ids, padding)[rows], expected.logits[rows], atol=2e-5, rtol=1e-4)
        counted = rows[None, :, None, :, None]
        maps = torch.stack(list(expected.attentions))
        torch.testing.assert_close(model.attention(ids, padding) * counted, maps * counted, atol=5e-6, rtol=1e-4)
    assert model.check().passed


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3_text", "llama4_text"])
def test_a_cache_gives_the_logits_and_rows_of_the_whole(architecture: str, tmp_path: Path) -> None:
    written(architecture, ARCHITECTURES[architecture], tmp_path)
    model = ss.load(tmp_path, device="cpu")
    ids, mask = inputs()
    real = mask.bool()
    whole, maps = model.logits(ids, mask), model.attention(ids, mask)
    cache = DynamicCache()
    model.forward(ids[:, :9], model.context(real[:, :9]), cache=cache)
    found = [model.forward(ids[:, 9:12], model.context(real[:, :12]), cache=cache)]  # several at once, then one by one
    for column in range(12, ids.shape[1]):
        recorder = Recorder()
        context = model.context(real[:, : column + 1], recorder=recorder)
        found.append(model.forward(ids[:, column : column + 1], context, cache=cache))
        calls = recorder.calls
        assert [call.layer for call in calls] == list(range(model.shape.layers))
        for call in calls:
            torch.testing.assert_close(
                call.map()[:, :, 0], maps[call.layer, :, :, column, : column + 1], atol=5e-6, rtol=1e-4
            )
    torch.testing.assert_close(torch.cat(found, 1), whole[:, 9:], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("architecture", ["mistral", "gemma3_text"])
def test_received_attention_under_a_sliding_window(architecture: str, tmp_path: Path) -> None:
    written(architecture, ARCHITECTURES[architecture], tmp_path)
    model = ss.load(tmp_path, device="cpu")
    ids, mask = inputs()
    maps = model.attention(ids, mask)
    recorder = Recorder()
    ids, real = model.real_tokens(ids, mask)
    model.forward(ids, model.context(real, recorder=recorder))
    calls = recorder.calls
    index = torch.arange(ids.shape[1])
    windows = set()
    for call in calls:
        windows.add(call.visibility.window)
        near = index[:, None] - index < (call.visibility.window or 10**6)
        seen = mask.bool()[:, None, :] & (index[:, None] >= index) & near & mask.bool()[:, :, None]
        uniform = (seen.double() / seen.sum(-1, keepdim=True).clamp(min=1)).sum(1)
        expected = maps[call.layer].double().sum(-2) / uniform[:, None]
        expected = expected.masked_fill((mask == 0)[:, None], float("nan"))
        torch.testing.assert_close(call.received()[:, :, 0].double(), expected, atol=1e-4, rtol=1e-4, equal_nan=True)
    assert 6 in windows


@pytest.mark.parametrize(
    ("architecture", "settings", "complaint"),
    [
        ("bloom", {"vocab_size": 96, "hidden_size": 48, "n_layer": 2, "n_head": 4}, "attention interface"),
        ("mamba", {"vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 2}, "softmax attention"),
        ("bert", {**BASE, "num_hidden_layers": 2}, "both ways"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_load(
    architecture: str, settings: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    written(architecture, settings, tmp_path)
    with pytest.raises(ss.CheckpointError, match=complaint):
        ss.load(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("architecture", "settings", "complaint"), [("gemma2", {**BASE, "head_dim": 16, "sliding_window": 6}, "softcap")]
)
def test_changed_scores_are_refused_rather_than_measured_wrongly(
    architecture: str, settings: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    written(architecture, settings, tmp_path)
    with pytest.raises(ss.SinkscopeError, match=complaint):
        ss.load(tmp_path, device="cpu").logits(inputs()[0])


def test_a_config_that_only_speaks_of_quantisation_is_plain(tmp_path: Path) -> None:
    network = written("llama", BASE, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gguf", "gguf_file": "model.Q4_1.gguf", "dequantize": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ids, _ = inputs()
    with torch.no_grad():
        expected = network(ids).logits
    found = ss.load(tmp_path, device="cpu").logits(ids)
    torch.testing.assert_close(found, expected, msg="saved again in full: only its config speaks of quantisation")


def say_quantised(folder: Path, settings: dict[str, Any] | None, stored: torch.dtype) -> None:
    """Writes a tiny Llama with one weight of another dtype, and what its config says of it."""
    from safetensors.torch import load_file, save_file

    written("llama", BASE, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | ({"quantization_config": settings} if settings else {})))
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    weights[name] = torch.zeros(weights[name].shape, dtype=stored)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("method", "settings", "package"),
    [
        ("gptq", {"bits": 4, "group_size": 8}, "optimum"),
        ("bitsandbytes", {"load_in_4bit": True}, "bitsandbytes"),
        ("bitsandbytes", {"load_in_8bit": True}, "bitsandbytes"),
        ("compressed-tensors", {"config_groups": {}, "format": "dense"}, "compressed-tensors"),
        ("awq", {"bits": 4, "group_size": 8, "version": "gemm"}, "gptqmodel"),
    ],
)
def test_quantised_checkpoints_are_refused_by_name_without_their_package(
    method: str, settings: dict[str, Any], package: str, tmp_path: Path
) -> None:
    say_quantised(tmp_path, {"quant_method": method, **settings}, torch.uint8)
    with pytest.raises(
        ss.CheckpointError, match=f"quantised with {method}, could not be loaded: .*pip install.*{package}"
    ):
        ss.load(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"quant_method": "nonsense"}, "nonsense"),
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),  # neither of its two kinds is switched on
        (None, "an unknown method"),
    ],
)
def test_quantised_weights_never_load_as_plain_numbers(
    settings: dict[str, Any] | None, name: str, tmp_path: Path
) -> None:
    """transformers warns and casts them to float32 where it makes nothing of the method."""
    say_quantised(tmp_path, settings, torch.int8)
    with pytest.raises(ss.CheckpointError, match=f"quantised with {name}, which transformers .* does not undo"):
        ss.load(tmp_path, device="cpu")


def test_quantised_weights_load_where_transformers_reads_them(tmp_path: Path) -> None:
    """FP8 with a scale for every block, which transformers turns into full precision without a GPU."""
    from safetensors.torch import load_file, save_file

    network = written("llama", BASE, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    settings = {"quant_method": "fp8", "weight_block_size": [8, 8], "activation_scheme": "dynamic"}
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    stored, full = {}, {}
    for name, weight in load_file(tmp_path / "model.safetensors").items():
        stored[name] = full[name] = weight
        if name.endswith("proj.weight"):
            rows, columns = weight.shape
            blocks = weight.view(rows // 8, 8, columns // 8, 8)
            scale = blocks.abs().amax((1, 3)) / 448
            wide = scale[:, None, :, None]
            stored[name] = (blocks / wide).view(rows, columns).to(torch.float8_e4m3fn)
            stored[f"{name}_scale_inv"] = scale
            full[name] = (stored[name].float().view_as(blocks) * wide).view(rows, columns)
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = ss.load(tmp_path, device="cpu", dtype="float32")
    assert model.checkpoint.quantised == "fp8"
    network.load_state_dict(full, strict=False)
    ids, _ = inputs()
    with torch.no_grad():
        torch.testing.assert_close(model.logits(ids), network(ids).logits, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_quantised_diffusion_models_are_refused_by_name(family: str, tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(golden.checkpoint(family), tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    for path in (tmp_path / "m").iterdir():
        path.chmod(0o644)
    config["quantization_config"] = {"quant_method": "bitsandbytes"}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    path = next((tmp_path / "m").glob("*.safetensors"))
    weights = load_file(path)
    weights[next(iter(weights))] = torch.zeros(4, dtype=torch.uint8)
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ss.CheckpointError, match="quantised with bitsandbytes"):
        ss.load(tmp_path / "m", device="cpu")
