"""Causal architectures that none of us wrote: tiny random networks of each, against transformers' own eager attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import sinkscope as ss

SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip

SUPPORTED: dict[str, dict[str, Any]] = {
    "Mistral": {"sliding_window": 6},
    "Qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "Qwen3": {"head_dim": 16},
    "Gemma3": {"head_dim": 16, "sliding_window": 6, "sliding_window_pattern": 2},
    "Phi3": {"pad_token_id": 0, "sliding_window": 6},
    "GPTNeoX": {},
    "Granite": {"attention_multiplier": 0.3, "logits_scaling": 2.0},
    "Mixtral": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "SmolLM3": {"pad_token_id": 0},
    "GptOss": {"head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 6},
}
"""Name in transformers → settings beside SIZES: sliding windows in all or some layers, head_dim ≠ d/h, own scales, experts,
learned sinks."""

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Gemma2": ({"head_dim": 16}, "softcap"),
    "Bloom": ({}, "attention interface"),
}
"""Architectures whose scores we do not measure: refused by name instead of measured wrongly."""


def write(name: str, settings: dict[str, Any], folder: Path) -> None:
    """Saves a random network of the architecture."""
    torch.manual_seed(0)
    config_name = {"Gemma3": "Gemma3TextConfig"}.get(name, f"{name}Config")
    config = getattr(transformers, config_name)(**{**SIZES, **settings})
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", SUPPORTED)
def test_measured_and_generated_like_transformers(name: str, tmp_path: Path) -> None:
    write(name, SUPPORTED[name], tmp_path)
    model = ss.load(tmp_path)
    assert model.check().passed
    prompt = torch.randint(3, 90, (2, 13), generator=torch.Generator().manual_seed(1))
    run = ss.generate(model, prompt, ss.GreedyDecoding(8, eos=None), capture=ss.Capture())
    model.network.set_attn_implementation("eager")
    theirs = model.network.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    assert torch.equal(theirs, run.sequences)


def test_a_learned_sink_is_what_the_maps_leave_out_and_no_policy_takes(tmp_path: Path) -> None:
    write("GptOss", SUPPORTED["GptOss"], tmp_path)
    model = ss.load(tmp_path)
    sinks = torch.tensor([3.0, -3.0, 1.0, 0.0])
    for layer in model.network.model.layers:
        layer.self_attn.sinks.data.copy_(sinks)
    assert model.check().passed
    ids = torch.randint(3, 90, (1, 12), generator=torch.Generator().manual_seed(1))
    left_out = 1 - model.attention(ids).sum(-1).mean((0, 1, 3))
    assert left_out.argsort().tolist() == sinks.argsort().tolist()
    assert 0 < float(left_out.min()) < float(left_out.max()) < 1
    plain = model.logits(ids)
    assert torch.equal(model.logits(ids, policy=ss.MaskKeys({})), plain)
    masked = model.attention(ids, policy=ss.MaskKeys({0: [0]}))[0, 0, :, 1:]
    assert float(masked[..., 0].max()) == 0.0
    assert (1 - masked.sum(-1) > 0).all(), "the learned sink stays"


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    settings, reason = REFUSED[name]
    write(name, settings, tmp_path)
    with pytest.raises(ss.SinkscopeError, match=reason):
        ss.load(tmp_path).logits(torch.tensor([[5, 6, 7]]))
