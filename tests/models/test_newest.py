"""Nemotron-Labs-Diffusion in both modes, A2D in blocks, DiffusionGemma: what the official code computed, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import golden

import sinkscope as ss

LOGITS = {"atol": 2e-4, "rtol": 1e-4}
ATTENTION = {"atol": 2e-5, "rtol": 0.0}


def nemotron(name: str) -> tuple[Any, dict[str, Any]]:
    """The mode of the model that a forward was made with, and what says so to `logits`."""
    about = golden.manifest("nemotron_diffusion")["forward"][name]
    model = golden.model("nemotron_diffusion").mode(causal=about["attention"] == "causal")
    if "prefix" not in about:
        return model, {}
    return model, {"prompt": about["prefix"], "block": about.get("after_block", "model")}


def check(family: str, name: str, logits: torch.Tensor, maps: torch.Tensor, real: Any = None) -> None:
    """Against the stored rows; of padded queries nothing is defined."""
    official = golden.tensor(family, name, "logits")
    rows = len(official)
    if real is None:
        real = torch.ones(logits.shape[:2], dtype=torch.bool)
    torch.testing.assert_close(logits[:rows][real[:rows]], official[real[:rows]], **LOGITS)
    seen = real[None, :rows, None, :, None]
    official = golden.tensor(family, name, "attn") * seen
    torch.testing.assert_close(maps[:, :rows].nan_to_num() * seen, official, **ATTENTION)


@pytest.mark.parametrize("name", golden.names("nemotron_diffusion", "forward"))
def test_nemotron(name: str) -> None:
    (model, seen), stored = nemotron(name), golden.arrays("nemotron_diffusion", name)
    ids = golden.tensor("nemotron_diffusion", name, "input_ids")
    mask = golden.tensor("nemotron_diffusion", name, "attention_mask") if "attention_mask" in stored else None
    check(
        "nemotron_diffusion", name, model.logits(ids, mask, **seen), model.attention(ids, mask, **seen),
        None if mask is None else mask.bool(),
    )  # fmt: skip


@pytest.mark.parametrize("name", golden.names("nemotron_diffusion", "sinkmask"))
def test_nemotron_with_masked_columns(name: str) -> None:
    entry = golden.manifest("nemotron_diffusion")["sinkmask"][name]
    plain = entry["input"].split()[-1]
    model, seen = nemotron(plain)
    ids = golden.tensor("nemotron_diffusion", plain, "input_ids")
    policy = ss.MaskKeys({int(layer): columns for layer, columns in entry["columns_per_layer"].items()})
    check(
        "nemotron_diffusion", name, model.logits(ids, policy=policy, **seen), model.attention(ids, policy=policy, **seen),
    )  # fmt: skip


def test_the_modes_of_nemotron_are_one_network() -> None:
    model = golden.model("nemotron_diffusion")
    causal = model.mode(causal=True)
    assert (model.family, causal.family) == ("nemotron", "nemotron_causal")
    assert causal.network is model.network
    assert causal.mode(causal=False).family == "nemotron"
    assert model.mode(causal=False) is model
    ids = torch.arange(20)[None]
    loaded = ss.load(golden.checkpoint("nemotron_diffusion"), device="cpu", family="nemotron_causal")
    assert torch.equal(loaded.logits(ids), causal.logits(ids))
    for one in (model, causal, loaded):
        assert one.check().passed
    assert golden.model("llada").mode(causal=True) is golden.model("llada")
    with pytest.raises(ss.InputError, match="leave out prompt"):
        golden.model("llada").logits(ids, prompt=4)


@pytest.mark.parametrize("name", golden.names("a2d_bd3lm", "forward"))
def test_a2d_in_blocks(name: str) -> None:
    """Padding on the left and in the middle: positions count the real tokens."""
    about, stored = golden.manifest("a2d_bd3lm")["forward"][name], golden.arrays("a2d_bd3lm", name)
    model, block = golden.model("a2d_bd3lm"), about.get("block")
    ids = golden.tensor("a2d_bd3lm", name, "input_ids")
    mask = golden.tensor("a2d_bd3lm", name, "attention_mask") if "attention_mask" in stored else None
    check(
        "a2d_bd3lm", name, model.logits(ids, mask, block=block), model.attention(ids, mask, block=block),
        None if mask is None else mask.bool(),
    )  # fmt: skip


@pytest.mark.parametrize("name", golden.names("a2d_bd3lm", "sinkmask"))
def test_a2d_in_blocks_with_masked_columns(name: str) -> None:
    entry = golden.manifest("a2d_bd3lm")["sinkmask"][name]
    model, plain = golden.model("a2d_bd3lm"), "forward_T16.npz"
    ids, block = golden.tensor("a2d_bd3lm", plain, "input_ids"), golden.block("a2d_bd3lm", plain)
    policy = ss.MaskKeys({int(layer): columns for layer, columns in entry["columns_per_layer"].items()})
    logits = model.logits(ids, policy=policy, block=block)
    check("a2d_bd3lm", name, logits, model.attention(ids, policy=policy, block=block))


def canvas(name: str, forward: str, policy: Any = None) -> None:
    """A forward of DiffusionGemma: encoder rows, then those of the canvas."""
    model, stored = golden.model("diffusion_gemma"), golden.arrays("diffusion_gemma", forward)
    prompt, written = (golden.tensor("diffusion_gemma", forward, key) for key in ("input_ids", "canvas_ids"))
    ids, end, mask = torch.cat([prompt, written], 1), prompt.shape[1], None
    if "attention_mask" in stored:
        given = golden.tensor("diffusion_gemma", forward, "attention_mask")
        mask = torch.nn.functional.pad(given, (0, written.shape[1]), value=1)
    soft = None
    if "self_conditioning_logits" in stored:
        soft = golden.tensor("diffusion_gemma", forward, "self_conditioning_logits")
    logits = model.logits(ids, mask, policy=policy, soft=soft)
    torch.testing.assert_close(logits, golden.tensor("diffusion_gemma", name, "logits"), **LOGITS)
    if soft is not None:
        return
    maps = model.attention(ids, mask, policy=policy)
    real = torch.ones_like(prompt) if mask is None else mask[:, :end]
    encoder = maps[:, :, :, :end, :end] * real[None, :, None, :, None]
    official = golden.tensor("diffusion_gemma", name, "encoder_attn") * real[None, :, None, :, None]
    torch.testing.assert_close(encoder, official, **ATTENTION)
    official = golden.tensor("diffusion_gemma", name, "attn")
    torch.testing.assert_close(maps[:, :, :, end:], official, **ATTENTION)


@pytest.mark.parametrize("name", golden.names("diffusion_gemma", "forward"))
def test_diffusion_gemma(name: str) -> None:
    canvas(name, name)


@pytest.mark.parametrize(
    ("name", "forward"), [("sinkmask_bos.npz", "forward_T7.npz"), ("sinkmask_perlayer.npz", "forward_T23.npz")]
)
def test_diffusion_gemma_with_masked_columns(name: str, forward: str) -> None:
    columns = golden.manifest("diffusion_gemma")["sinkmask"][name]["columns_per_layer"]
    canvas(name, forward, ss.MaskKeys({int(layer): chosen for layer, chosen in columns.items()}))


def test_diffusion_gemma_has_no_mask_token_and_passes_its_check() -> None:
    model = golden.model("diffusion_gemma")
    assert model.ids.mask is None
    assert (model.ids.eos, model.ids.bos, model.ids.pad) == ((1,), 2, 0)
    assert model.check().passed


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [("nemotron_diffusion", "dlm_paradigm", "block_diff"), ("nemotron_diffusion", "sliding_window", 8)],
)
def test_settings_that_no_released_model_has(family: str, key: str, value: object, tmp_path: Path) -> None:
    shutil.copytree(golden.checkpoint(family), tmp_path / "checkpoint")
    path = tmp_path / "checkpoint" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(ss.CheckpointError, match=key):
        ss.load(tmp_path / "checkpoint", device="cpu")
