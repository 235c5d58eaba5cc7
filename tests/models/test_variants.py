"""Config variants of released checkpoints, against reference forwards in plain torch (helpers/reference.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import golden, reference
from tests.helpers.calls import Recorder
from tests.helpers.checkpoints import dream_config, llada_config, llama_config, tensors_for, write

import sinkscope as ss

LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    "rope_type": "llama3",
}  # fmt: skip

VARIANTS: dict[str, dict[str, Any]] = {
    "llada": llada_config(),
    "llada, grouped heads": llada_config(n_kv_heads=2),
    "llada, one key head": llada_config(n_kv_heads=1),
    "llada, multi query": llada_config(multi_query_attention=True, n_kv_heads=None),
    "llada, n_kv_heads null": llada_config(n_kv_heads=None),
    "llada, tied": llada_config(weight_tying=True),
    "llada, qkv bias": llada_config(include_qkv_bias=True),
    "llada, bias everywhere": llada_config(include_bias=True),
    "llada, bias everywhere and tied": llada_config(include_bias=True, weight_tying=True),
    "llada, mlp_hidden_size null": llada_config(mlp_hidden_size=None, mlp_ratio=3),
    "llada, fractional mlp_ratio": llada_config(mlp_hidden_size=None, mlp_ratio=2.5),
    "llada, embedding_size > vocab_size": llada_config(vocab_size=93, embedding_size=128),
    "llada, embedding_size null": llada_config(embedding_size=None),
    "llada, scale_logits": llada_config(scale_logits=True),
    "llada, other theta and eps": llada_config(rope_theta=10000.0, rms_norm_eps=1e-3),
    "dream": dream_config(),
    "dream, tied": dream_config(tie_word_embeddings=True),
    "dream, no grouping": dream_config(num_key_value_heads=4),
    "dream, one key head": dream_config(num_key_value_heads=1),
    "dream, other theta": dream_config(rope_theta=500.0),
    "llama": llama_config(),
    "llama, tied": llama_config(tie_word_embeddings=True),
    "llama, bias": llama_config(attention_bias=True, mlp_bias=True),
    "llama, head_dim ≠ d/h": llama_config(head_dim=20),
    "llama, llama3 rope": llama_config(rope_scaling=LLAMA3, rope_theta=500000.0),
}

TOLERANCE = {"atol": 2e-4, "rtol": 1e-4}


def inputs(config: dict[str, Any], length: int = 21, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [2, S] over the whole embedding, and a mask that pads the second row by four."""
    draw = torch.Generator().manual_seed(seed)
    size = config.get("embedding_size") or config["vocab_size"]
    ids = torch.randint(0, size, (2, length), generator=draw)
    ids[0, 0] = size - 1
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    return ids, mask


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant(variant: str, tmp_path: Path) -> None:
    config = VARIANTS[variant]
    weights = write(tmp_path / "checkpoint", config)
    model = ss.load(tmp_path / "checkpoint", device="cpu")
    ids, mask = inputs(config)
    for padding in (None, mask):
        logits, maps = reference.forward(config, weights, ids, padding)
        found, found_maps = model.logits(ids, padding), model.attention(ids, padding)
        assert found.shape == logits.shape
        rows = torch.ones_like(ids, dtype=torch.bool)
        if padding is not None and config["model_type"] != "llada":
            rows = padding.bool()
        torch.testing.assert_close(found[rows], logits[rows], **TOLERANCE)
        counted = rows[None, :, None, :, None]
        torch.testing.assert_close(found_maps * counted, maps * counted, atol=2e-5, rtol=1e-4)
    assert model.shape.parameters == sum(tensor.numel() for tensor in weights.values())


@pytest.mark.parametrize("variant", ["llada, grouped heads", "dream", "llama"])
def test_sequences_past_the_stated_length(variant: str, tmp_path: Path) -> None:
    config = VARIANTS[variant]
    weights = write(tmp_path / "checkpoint", config)
    model = ss.load(tmp_path / "checkpoint", device="cpu")
    length = 150
    assert model.shape.context is not None
    assert length > model.shape.context
    ids, mask = inputs(config, length)
    logits, _ = reference.forward(config, weights, ids, mask)
    rows = mask.bool()
    torch.testing.assert_close(model.logits(ids, mask)[rows], logits[rows], **TOLERANCE)


def test_mmada_layout_is_llada_with_its_own_padding(tmp_path: Path) -> None:
    config = llada_config(
        model_type="mmada", codebook_size=8, new_vocab_size=96, llm_vocab_size=88, num_vq_tokens=4, n_kv_heads=2,
    )  # fmt: skip
    weights = write(tmp_path / "checkpoint", config)
    model = ss.load(tmp_path / "checkpoint", device="cpu")
    ids, mask = inputs(config)
    logits, maps = reference.llada(config, weights, ids)
    assert model.family == "mmada"
    torch.testing.assert_close(model.logits(ids), logits, **TOLERANCE)
    torch.testing.assert_close(model.attention(ids), maps, atol=2e-5, rtol=1e-4)
    padded = model.attention(ids, mask)
    uniform = torch.full_like(padded[:, 1, :, :4], 1 / ids.shape[1])
    torch.testing.assert_close(padded[:, 1, :, :4], uniform, msg="padded queries attend to everything alike")


@pytest.mark.parametrize("config", [llada_config(), dream_config(), llama_config()], ids=lambda c: c["model_type"])
@pytest.mark.parametrize("shards", [1, 3])
def test_sharded_or_not(config: dict[str, Any], shards: int, tmp_path: Path) -> None:
    weights = write(tmp_path / "checkpoint", config, shards=shards)
    model = ss.load(tmp_path / "checkpoint", device="cpu")
    ids, _ = inputs(config)
    torch.testing.assert_close(model.logits(ids), reference.forward(config, weights, ids)[0], **TOLERANCE)


@pytest.mark.parametrize("saved", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("config", [llada_config(), dream_config(), llama_config()], ids=lambda c: c["model_type"])
def test_weights_saved_in_another_dtype(config: dict[str, Any], saved: torch.dtype, tmp_path: Path) -> None:
    weights = {name: tensor.to(saved) for name, tensor in tensors_for(config).items()}
    write(tmp_path / "checkpoint", {**config, "torch_dtype": str(saved).removeprefix("torch.")}, weights)
    model = ss.load(tmp_path / "checkpoint", device="cpu")
    assert model.dtype == torch.float32
    assert {parameter.dtype for parameter in model.network.parameters()} == {torch.float32}
    ids, _ = inputs(config)
    full = {name: tensor.float() for name, tensor in weights.items()}
    torch.testing.assert_close(model.logits(ids), reference.forward(config, full, ids)[0], **TOLERANCE)


@pytest.mark.parametrize("tied", ["weight_tying", "tie_word_embeddings"])
def test_tied_embeddings_share_their_memory(tied: str, tmp_path: Path) -> None:
    config = llada_config(weight_tying=True) if tied == "weight_tying" else dream_config(tie_word_embeddings=True)
    write(tmp_path / "checkpoint", config)
    network = ss.load(tmp_path / "checkpoint", device="cpu").network
    assert network.lm_head.weight.data_ptr() == network.model.embed_tokens.weight.data_ptr()


def test_networks_come_in_eval_mode_and_without_gradients() -> None:
    for family in golden.FAMILIES:
        model = golden.model(family)
        assert not model.network.training
        assert not any(parameter.requires_grad for parameter in model.network.parameters())
        ids = torch.tensor([[1, 2, 3]])
        assert not model.logits(ids).requires_grad


@pytest.mark.parametrize("variant", ["llada", "dream", "llama"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_frequencies_of_rotation_stay_in_float32(variant: str, dtype: str, tmp_path: Path) -> None:
    """Casting them with the weights is the classic mistake: long sequences would drift."""
    write(tmp_path / "checkpoint", VARIANTS[variant])
    model = ss.load(tmp_path / "checkpoint", device="cpu", dtype=dtype)
    plain = ss.load(tmp_path / "checkpoint", device="cpu", dtype="float32")
    frequencies = model.network.model.rotary_emb.inv_freq
    assert frequencies.dtype == torch.float32
    assert torch.equal(frequencies, plain.network.model.rotary_emb.inv_freq)
    assert model.logits(torch.tensor([[1, 2, 3, 4]])).dtype == model.dtype


@pytest.mark.parametrize("family", ["llada", "mmada", "dream", "llama"])
def test_bfloat16_rotation_is_as_precise_as_the_official_one(family: str) -> None:
    """LLaDA and MMaDA rotate q and k in float32 and round once; Dream and Llama rotate in bfloat16, angles rounded."""
    model = golden.model(family, "bfloat16")
    ids = golden.tensor(family, "forward_T49.npz", "input_ids")
    recorder = Recorder()
    model.forward(ids, model.context(recorder=recorder))
    call = next(call for call in recorder.calls if call.layer == 0)
    layer = model.network.model.layers[0]
    states = layer.input_layernorm(model.network.model.embed_tokens(ids))
    frequencies = model.network.model.rotary_emb.inv_freq
    angles = torch.arange(ids.shape[1]).float()[:, None] * frequencies
    angles = torch.cat((angles, angles), -1)[None, None]
    for projection, seen in ((layer.self_attn.q_proj, call.query), (layer.self_attn.k_proj, call.key)):
        projected = projection(states).unflatten(-1, (-1, model.shape.head_dim)).transpose(1, 2)
        left, right = projected.chunk(2, -1)
        turned = torch.cat((-right, left), -1)
        in_float32 = (projected.float() * angles.cos() + turned.float() * angles.sin()).to(torch.bfloat16)
        in_bfloat16 = projected * angles.cos().to(torch.bfloat16) + turned * angles.sin().to(torch.bfloat16)
        assert not torch.equal(in_float32, in_bfloat16), "the test could not tell them apart"
        assert seen.dtype == torch.bfloat16
        assert torch.equal(seen, in_float32 if family in ("llada", "mmada") else in_bfloat16)


def test_llama3_frequencies_are_those_of_the_manifest() -> None:
    found = golden.model("llama").network.model.rotary_emb.inv_freq
    expected = torch.tensor(golden.manifest("llama")["inv_freq_after_llama3_scaling"])
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-6)


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_special_ids_of_the_golden_checkpoints(family: str) -> None:
    stated, found = golden.manifest(family)["special_ids"], golden.model(family).ids
    assert found.mask == stated.get("mask")
    assert found.eos == (stated["eos"],)
    if family in ("llada", "llama"):
        assert found.bos == stated["bos"]
    if family in ("llada", "dream"):
        assert found.pad == stated["pad"]


def test_several_end_ids(tmp_path: Path) -> None:
    write(tmp_path / "a", llama_config(eos_token_id=[81, 85]))
    assert ss.load(tmp_path / "a", device="cpu").ids.eos == (81, 85)
    write(tmp_path / "b", llama_config(), generation_config={"eos_token_id": [70, 71, 72], "pad_token_id": 9})
    found = ss.load(tmp_path / "b", device="cpu").ids
    assert found.eos == (70, 71, 72), "generation_config.json goes before config.json, as in transformers"
    assert found.pad == 9
    assert found.mask is None
    write(tmp_path / "c", llada_config(eos_token_id=[80, 82]))
    assert ss.load(tmp_path / "c", device="cpu").ids.eos == (80, 82)


@pytest.mark.parametrize("key", ["block_type", "layer_norm_type", "activation_type", "alibi", "rope", "input_emb_norm"])
def test_networks_that_we_would_compute_wrongly_are_refused(key: str, tmp_path: Path) -> None:
    wrong = {"block_type": "sequential", "layer_norm_type": "default", "activation_type": "gelu", "alibi": True,
             "rope": False, "input_emb_norm": True}[key]  # fmt: skip
    write(tmp_path / "checkpoint", llada_config(**{key: wrong}), tensors_for(llada_config()))
    with pytest.raises(ss.CheckpointError, match=key):
        ss.load(tmp_path / "checkpoint", device="cpu")


def test_dream_with_a_sliding_window_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint", dream_config(use_sliding_window=True, sliding_window=8))
    with pytest.raises(ss.CheckpointError, match="use_sliding_window"):
        ss.load(tmp_path / "checkpoint", device="cpu")
