"""Strict reading: every tensor that does not fit is named, nothing but safetensors is opened, no code is imported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.helpers import golden
from tests.helpers.checkpoints import dream_config, llada_config, llama_config, tensors_for, write
from tests.helpers.tokenizers import golden_with_tokenizer

import sinkscope as ss

CONFIGS = [llada_config(), dream_config(), llama_config()]
NORM = {"llada": "model.transformer.ln_f.weight", "Dream": "model.norm.weight"}
HEAD = {"llada": "model.transformer.ff_out.weight", "Dream": "lm_head.weight"}
by_type = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["model_type"])


def names(table: dict[str, str], config: dict[str, Any]) -> str:
    return table.get(config["model_type"], table["Dream"])


def refusal(folder: Path) -> str:
    """The message of the one-line error that loading must end in."""
    with pytest.raises(ss.CheckpointError) as caught:
        ss.load(folder, device="cpu")
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1500
    return message


@by_type
@pytest.mark.parametrize("shards", [1, 2])
def test_missing_unexpected_and_misshapen_tensors_are_one_error(
    config: dict[str, Any], shards: int, tmp_path: Path
) -> None:
    tensors = tensors_for(config)
    norm, head = names(NORM, config), names(HEAD, config)
    del tensors[norm]
    tensors["model.something.else"] = torch.zeros(3)
    tensors[head] = torch.zeros(7, 5)
    write(tmp_path, config, tensors, shards)
    message = refusal(tmp_path)
    for part in (norm, "1 missing", "model.something.else", "1 unexpected", head, "1 of another shape", "7, 5"):
        assert part in message


def test_long_lists_are_cut_and_counted(tmp_path: Path) -> None:
    config = llada_config(n_layers=6)
    tensors = {name: t for name, t in tensors_for(config).items() if "blocks.5" not in name and "blocks.4" not in name}
    write(tmp_path, config, tensors)
    message = refusal(tmp_path)
    assert "18 missing" in message
    assert "and 11 more" in message


def test_more_layers_in_the_weights_than_in_the_config(tmp_path: Path) -> None:
    for config in (llada_config(n_layers=3), llama_config(num_hidden_layers=3), dream_config(num_hidden_layers=3)):
        folder = tmp_path / config["model_type"]
        key = "n_layers" if "n_layers" in config else "num_hidden_layers"
        write(folder, {**config, key: 2}, tensors_for(config))
        assert "unexpected" in refusal(folder)


@by_type
def test_biases_that_the_config_does_not_announce(config: dict[str, Any], tmp_path: Path) -> None:
    tensors = tensors_for(config)
    weight = next(name for name in tensors if name.endswith(("attn_out.weight", "o_proj.weight")))
    tensors[weight.replace("weight", "bias")] = torch.zeros(48)
    write(tmp_path, config, tensors)
    assert weight.replace("weight", "bias") in refusal(tmp_path)


@by_type
def test_weights_that_are_pickles_or_missing(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "no weights" in refusal(tmp_path)
    pickle = tmp_path / "pytorch_model.bin"
    torch.save(tensors_for(config), pickle)
    message = refusal(tmp_path)
    assert pickle.name in message
    assert "save_pretrained" in message
    write(tmp_path, config)
    pickle.write_bytes(b"not even a pickle")
    assert ss.load(tmp_path, device="cpu").shape.layers == 2, "beside safetensors it is never opened"


@by_type
def test_an_index_that_names_files_which_are_not_there(config: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, config, shards=3)
    shards = [tmp_path / f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    shards[0].unlink()
    shards[2].unlink()
    message = refusal(tmp_path)
    assert [path.name in message for path in shards] == [True, False, True]


@by_type
def test_index_and_shards_that_disagree(config: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, config, shards=2)
    shard = tmp_path / "model-00002-of-00002.safetensors"
    tensors = load_file(shard)
    lost = sorted(tensors)[0]
    del tensors[lost]
    save_file(tensors, shard, metadata={"format": "pt"})
    message = refusal(tmp_path)
    assert lost in message


@by_type
def test_an_index_that_points_outside_the_folder(config: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "inside", config, shards=2)
    shutil.move(tmp_path / "inside" / "model-00002-of-00002.safetensors", tmp_path / "outside.safetensors")
    path = tmp_path / "inside" / "model.safetensors.index.json"
    path.write_text(path.read_text().replace("model-00002-of-00002.safetensors", "../outside.safetensors"))
    assert "outside" in refusal(tmp_path / "inside")


@by_type
@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": []}'])
def test_a_broken_index(config: dict[str, Any], index: str, tmp_path: Path) -> None:
    write(tmp_path, config, shards=2)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert "model.safetensors.index.json" in refusal(tmp_path)


@by_type
@pytest.mark.parametrize("damage", ["garbage", "empty", "truncated header", "truncated data"])
@pytest.mark.parametrize("shards", [1, 2])
def test_damaged_safetensors(config: dict[str, Any], damage: str, shards: int, tmp_path: Path) -> None:
    write(tmp_path, config, shards=shards)
    path = sorted(tmp_path.glob("*.safetensors"))[-1]
    whole = path.read_bytes()
    damaged = {
        "garbage": b"this is not a safetensors file, but it is long enough to be one",
        "empty": b"",
        "truncated header": whole[:100],
        "truncated data": whole[:-40],
    }[damage]
    path.write_bytes(damaged)
    message = refusal(tmp_path)
    assert path.name in message
    assert "download it again" in message


PLANT = """
from pathlib import Path
Path({proof!r}).write_text("this code ran")
class Planted:
    def __init__(self, *args, **kwargs): pass
    @classmethod
    def from_pretrained(cls, *args, **kwargs): return cls()
"""


def plant(folder: Path, proof: Path) -> None:
    """Puts code beside the weights, points every auto_map at it, and fills all the names that loaders look for."""
    code = PLANT.format(proof=str(proof))
    for name in (
        "modeling_planted", "configuration_planted", "tokenization_planted", "modeling_llada", "configuration_llada",
        "modeling_dream", "tokenization_dream", "__init__", "conftest", "setup", "generation_utils", "custom_generate",
    ):  # fmt: skip
        (folder / f"{name}.py").write_text(code)
    (folder / "custom_generate").mkdir(exist_ok=True)
    (folder / "custom_generate" / "generate.py").write_text(code)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {
        "AutoConfig": "configuration_planted.Planted",
        "AutoModel": "modeling_planted.Planted",
        "AutoModelForCausalLM": "modeling_planted.Planted",
        "AutoTokenizer": ["tokenization_planted.Planted", "tokenization_planted.Planted"],
    }
    config["trust_remote_code"] = True
    (folder / "config.json").write_text(json.dumps(config))
    settings_file = folder / "tokenizer_config.json"
    settings = json.loads(settings_file.read_text()) if settings_file.exists() else {}
    settings["auto_map"] = {"AutoTokenizer": ["tokenization_planted.Planted", "tokenization_planted.Planted"]}
    settings["tokenizer_class"] = "Planted"
    settings_file.write_text(json.dumps(settings))


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_planted_code_never_runs(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    folder, proof = golden_with_tokenizer(family, tmp_path / "checkpoint"), tmp_path / "proof"
    plant(folder, proof)
    model = ss.load(folder, device="cpu", dtype="float32", check=True)
    ids = golden.tensor(family, "forward_T24.npz", "input_ids")
    assert torch.equal(model.logits(ids), golden.model(family).logits(ids))
    assert model.tokenizer.encode("a b", add_special_tokens=False) == [97, 32, 98]
    model.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert not proof.exists()


def test_the_plant_would_be_noticed(tmp_path: Path) -> None:
    import runpy

    proof = tmp_path / "proof"
    golden_with_tokenizer("llada", tmp_path / "checkpoint")
    plant(tmp_path / "checkpoint", proof)
    runpy.run_path(str(tmp_path / "checkpoint" / "modeling_planted.py"))
    assert proof.exists()


@pytest.mark.parametrize("family", ["llama", "dream"])
def test_planted_code_never_runs_without_a_fast_tokenizer(family: str, tmp_path: Path) -> None:
    """Only a SentencePiece-like file beside it: whatever comes of it, the code is not imported."""
    folder, proof = tmp_path / "checkpoint", tmp_path / "proof"
    shutil.copytree(golden.checkpoint(family), folder)
    (folder / "tokenizer.model").write_bytes(b"not a model")
    plant(folder, proof)
    with pytest.raises(ss.CheckpointError, match="tokenizer"):
        ss.load(folder, device="cpu")
    assert not proof.exists()


def test_an_unknown_type_with_auto_map_is_an_error_and_not_an_import(tmp_path: Path) -> None:
    folder, proof = golden_with_tokenizer("llama", tmp_path / "checkpoint"), tmp_path / "proof"
    plant(folder, proof)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "planted"}))
    with pytest.raises(ss.CheckpointError, match="planted"):
        ss.load(folder, device="cpu")
    assert not proof.exists()
