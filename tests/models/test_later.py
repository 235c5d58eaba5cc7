"""The later families: blocks, special ids, layouts, and settings that are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.helpers import golden

import sinkscope as ss
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.load import FAMILIES, family_of

LOGITS = {"atol": 2e-4, "rtol": 1e-4}
WITHOUT_A_MASK_TOKEN = ("llada_moe", "llada2", "fast_dllm_v2", "a2d_qwen3", "a2d_llama", "open_dcoder")


def test_the_blocks_of_a_plain_forward() -> None:
    """As the official forwards have them when nothing is said: SDAR's config, Fast-dLLM's 32, LLaDA2 none."""
    ids = torch.arange(40)[None]
    for family, block in (("sdar", 4), ("fast_dllm_v2", 32), ("llada2", None)):
        model = golden.model(family)
        assert torch.equal(model.logits(ids), model.logits(ids, block=block))
        other = 8 if block == 4 else 4
        assert (model.logits(ids) - model.logits(ids, block=other)).abs().max() > 0.1


def test_only_block_models_take_a_block_and_no_padding_on_the_left() -> None:
    with pytest.raises(ss.InputError, match="no blocks"):
        golden.model("rnd1").logits(torch.arange(8)[None], block=4)
    with pytest.raises(ss.InputError, match="block"):
        golden.model("sdar").logits(torch.arange(8)[None], block=0)
    with pytest.raises(ss.InputError, match="right"):
        golden.model("sdar").logits(torch.arange(8)[None], torch.tensor([[0, 1, 1, 1, 1, 1, 1, 1]]))


@pytest.mark.parametrize("family", ["sdar", "llada2", "fast_dllm_v2", "a2d_qwen3"])
def test_a_row_padded_on_the_right_is_the_row_alone(family: str) -> None:
    model = golden.model(family)
    ids = torch.randint(0, 200, (2, 19), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, 13:] = 0
    together = model.logits(ids, mask)
    torch.testing.assert_close(together[:1, :13], model.logits(ids[:1, :13]), **LOGITS)
    torch.testing.assert_close(together[1:], model.logits(ids[1:]), **LOGITS)


@pytest.mark.parametrize("family", golden.LATER)
def test_a_mask_token_in_the_config(family: str, tmp_path: Path) -> None:
    """Added to config.json, as the message about a missing one says; for Open-dCoder it also says what it is."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(golden.checkpoint(family), folder)
    config = json.loads((folder / "config.json").read_text())
    mask = golden.manifest(family)["special_ids"]["mask"]
    assert ("mask_token_id" not in config) == (family in WITHOUT_A_MASK_TOKEN)
    (folder / "config.json").chmod(0o644)
    (folder / "config.json").write_text(json.dumps({**config, "mask_token_id": mask}))
    model = ss.load(folder, device="cpu", dtype="float32")
    assert model.ids.mask == mask
    assert model.family == golden.model(family).family
    assert model.ids == golden.model(family).ids


def test_a_plain_qwen2_stays_causal(tmp_path: Path) -> None:
    folder = tmp_path / "qwen"
    shutil.copytree(golden.checkpoint("open_dcoder"), folder)
    assert ss.load(folder, device="cpu").family == "causal"
    shutil.copytree(folder, tmp_path / "open-dcoder-0.5B")
    assert ss.load(tmp_path / "open-dcoder-0.5B", device="cpu").family == "open_dcoder"


def test_dense_and_sparse_llada_are_told_apart(tmp_path: Path) -> None:
    """Their configs have the same model_type; architectures or experts tell."""
    for config, family in (
        ({"architectures": ["LLaDAModelLM"]}, "llada"),
        ({"architectures": ["LLaDAMoEModelLM"]}, "llada_moe"),
        ({"architectures": ["LLaDAMoEModel"]}, "llada_moe"),
        ({"num_experts": 64}, "llada_moe"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llada", **config}))
        assert family_of(Checkpoint(tmp_path, "here")).name == family


@pytest.mark.parametrize("wrong", [-1, 256, 1.5, True])
def test_a_wrong_mask_token_is_refused(wrong: object) -> None:
    with pytest.raises(ss.InputError, match="mask_token_id"):
        ss.load(golden.checkpoint("sdar"), device="cpu", mask_token_id=wrong)


def test_experts_that_were_merged_for_training(tmp_path: Path) -> None:
    """dFactory's layout: gate, up and down of all experts of a layer, one tensor each, under a model_type of its own."""
    stored = load_file(golden.checkpoint("llada2") / "model.safetensors")
    merged: dict[str, torch.Tensor] = {}
    experts: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in stored.items():
        owner, found, rest = name.partition(".experts.")
        if not found:
            merged[name] = tensor
            continue
        number, _, part = rest.partition(".")
        experts.setdefault(f"{owner}.experts.{part.removesuffix('.weight')}", {})[int(number)] = tensor
    merged |= {name: torch.stack([many[i] for i in range(len(many))]) for name, many in experts.items()}
    config = json.loads((golden.checkpoint("llada2") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "llada2_moe_veomni"}))
    save_file(merged, tmp_path / "model.safetensors")
    model = ss.load(tmp_path, device="cpu", dtype="float32")
    assert model.family == "llada2"
    ids = torch.arange(20)[None]
    assert torch.equal(model.logits(ids, block=8), golden.model("llada2").logits(ids, block=8))


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("llada_moe", "shared_expert_intermediate_size", 32), ("llada_moe", "clip_qkv", 8.0),
        ("llada_moe", "moe_router_enable_expert_bias", True), ("llada_moe", "partial_rotary_factor", 0.5),
        ("llada2", "use_qkv_bias", True), ("llada2", "score_function", "softmax"), ("sdar", "use_sliding_window", True),
    ],
)  # fmt: skip
def test_settings_that_no_released_model_has_are_refused(family: str, key: str, value: object, tmp_path: Path) -> None:
    shutil.copytree(golden.checkpoint(family), tmp_path / "checkpoint")
    path = tmp_path / "checkpoint" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(ss.CheckpointError, match=key):
        ss.load(tmp_path / "checkpoint", device="cpu")


def test_experts_of_sdar_are_not_normalised_where_the_config_does_not_say(tmp_path: Path) -> None:
    """The official config class takes it as false; RND1's released model does normalise."""
    config = {**json.loads((golden.checkpoint("sdar_moe") / "config.json").read_text())}
    del config["norm_topk_prob"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(golden.checkpoint("sdar_moe") / "model.safetensors")
    model = ss.load(tmp_path, device="cpu", dtype="float32")
    ids = golden.tensor("sdar_moe", "forward_T16.npz", "input_ids")
    official = golden.tensor("sdar_moe", "forward_default_routing.npz", "logits")
    torch.testing.assert_close(model.logits(ids, block=4)[:1], official, **LOGITS)
    rnd1 = Checkpoint(golden.checkpoint("rnd1"), "rnd1")
    rnd1.config.pop("norm_topk_prob")
    assert FAMILIES["rnd1"].config(rnd1).norm_topk_prob


def test_ids_of_a2d_are_the_tokenizers_first() -> None:
    """As in dllm's samplers, whatever config.json has kept of the causal model."""
    checkpoint = Checkpoint(golden.checkpoint("a2d_qwen3"), "a2d")
    checkpoint.config.update(eos_token_id=1, pad_token_id=2, mask_token_id=3)
    tokenizer = SimpleNamespace(
        eos_token_id=11, pad_token_id=12, mask_token_id=None, get_vocab=lambda: {"<|mask|>": 13}
    )
    ids = FAMILIES["a2d"].special_ids(checkpoint, tokenizer)
    assert (ids.eos, ids.pad, ids.mask) == ((11,), 12, 13)
    assert FAMILIES["a2d"].special_ids(checkpoint, None).eos == (1,)


def test_llada2_asks_for_a_transformers_that_routes_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.__version__", "5.5.4")
    with pytest.raises(ss.CheckpointError, match=r"5\.6 or newer"):
        ss.load(golden.checkpoint("llada2"), device="cpu")
