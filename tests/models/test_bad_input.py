"""Bad input to ss.load and to a model: each a one-line error that says what was given and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import golden
from tests.helpers.checkpoints import dream_config, llada_config, llama_config, tensors_for, write

import sinkscope as ss
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.load import resolve_device, resolve_dtype

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU, so asking for one is no error")


def refusal(source: Any, **options: Any) -> str:
    with pytest.raises(ss.SinkscopeError) as caught:
        ss.load(source, **{"device": "cpu", **options})
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 800
    return message


@pytest.mark.parametrize(
    "source", ["/no/such/folder", "./nothing/here", "~/nothing-at-all", "a/b/c", "C:\\models", "", "{empty}", "{file}"]
)
def test_no_such_folder(source: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    source = source.format(empty=tmp_path / "empty", file=tmp_path / "file")
    message = refusal(source)
    assert source in message or repr(source) in message
    assert "config.json" in message


def test_an_unknown_hub_id_and_a_revision_of_a_folder() -> None:
    message = refusal("nobody/nothing-of-that-name")
    assert "nobody/nothing-of-that-name" in message
    assert "hub cannot be reached" in message
    assert "revision" in refusal(golden.checkpoint("llada"), revision="main")


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("lada", "llada"), ("dreem", "Dream"), ("mmad", "mmada"), ("LLaMa3", "llama"), ("qwen22", "qwen2")],
)
def test_an_unknown_type_names_the_nearest(wrong: str, near: str, tmp_path: Path) -> None:
    write(tmp_path, {**llama_config(), "model_type": wrong}, tensors_for(llama_config()))
    message = refusal(tmp_path)
    assert repr(wrong) in message
    assert near in message.split(";")[-1]


@pytest.mark.parametrize("wrong", ["xyzzy-q", "", None, 7])
def test_a_type_that_is_like_nothing(wrong: Any, tmp_path: Path) -> None:
    write(tmp_path, {**llama_config(), "model_type": wrong}, tensors_for(llama_config()))
    assert "model_type" in refusal(tmp_path)


SIZES = ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "vocab_size")
REQUIRED = [
    *((llada_config(), key) for key in ("d_model", "n_heads", "n_layers", "rope_theta")),
    *((config, key) for config in (dream_config(), llama_config()) for key in SIZES),
]


@pytest.mark.parametrize(("config", "key"), REQUIRED, ids=[f"{c['model_type']}-{k}" for c, k in REQUIRED])
def test_a_config_that_misses_a_key(config: dict[str, Any], key: str, tmp_path: Path) -> None:
    write(tmp_path, {name: value for name, value in config.items() if name != key}, tensors_for(config))
    message = refusal(tmp_path)
    assert "config.json" in message
    if key != "intermediate_size" or config["model_type"] != "llama":
        assert repr(key) in message


def test_a_config_without_any_size_of_vocabulary_or_mlp(tmp_path: Path) -> None:
    for key, other in (("vocab_size", "embedding_size"), ("mlp_ratio", "mlp_hidden_size")):
        config = {name: value for name, value in llada_config().items() if name not in (key, other)}
        write(tmp_path / key, config, tensors_for(llada_config()))
        assert repr(key) in refusal(tmp_path / key)


DEEP = "[" * 200_000 + "]" * 200_000


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"model_type": "llada"}', "\xff\xfe", pytest.param(DEEP, id="deep")]
)
def test_a_damaged_config(content: str, tmp_path: Path) -> None:
    write(tmp_path, llada_config())
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    assert "config.json" in refusal(tmp_path)


@pytest.mark.parametrize(("wrong", "near"), [("float23", "float32"), ("bf16", "bfloat16"), ("half", "float16")])
def test_a_wrong_dtype_name(wrong: str, near: str) -> None:
    message = refusal(golden.checkpoint("llada"), dtype=wrong)
    assert repr(wrong) in message
    assert near in message


@no_gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7"])
def test_cuda_asked_for_and_absent(device: str) -> None:
    message = refusal(golden.checkpoint("llada"), device=device)
    assert "cuda" in message
    assert "cpu" in message


@pytest.mark.parametrize("device", ["gpu", "quantum", "cpu:x", "meta"])
def test_unknown_devices(device: str) -> None:
    assert device in refusal(golden.checkpoint("llada"), device=device)


def test_auto_rules(tmp_path: Path) -> None:
    """On a GPU the checkpoint's dtype; float32 on a CPU, whatever the checkpoint says."""
    config = llada_config(torch_dtype="bfloat16")
    weights = {name: tensor.bfloat16() for name, tensor in tensors_for(config).items()}
    write(tmp_path / "stated", config, weights)
    stated = Checkpoint(tmp_path / "stated", "stated")
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    assert resolve_dtype("auto", cpu, stated) == torch.float32
    assert resolve_dtype("auto", cuda, stated) == torch.bfloat16
    assert resolve_dtype("float16", cuda, stated) == torch.float16
    assert resolve_dtype(torch.float16, cpu, stated) == torch.float16
    new_key = {**{key: value for key, value in config.items() if key != "torch_dtype"}, "dtype": "bfloat16"}
    write(tmp_path / "new key", new_key, weights)
    assert resolve_dtype("auto", cuda, Checkpoint(tmp_path / "new key", "")) == torch.bfloat16
    silent = {key: value for key, value in config.items() if key != "torch_dtype"}
    write(tmp_path / "silent", silent, weights)
    assert resolve_dtype("auto", cuda, Checkpoint(tmp_path / "silent", "")) == torch.bfloat16, (
        "then that of the weights"
    )
    if not torch.cuda.is_available():
        assert resolve_device("auto") == cpu
        assert ss.load(tmp_path / "stated").dtype == torch.float32
    assert resolve_device("cpu") == cpu


@pytest.mark.gpu
def test_auto_takes_the_gpu_and_the_dtype_of_the_checkpoint(tmp_path: Path) -> None:
    config = llada_config(torch_dtype="bfloat16")
    write(tmp_path, config, {name: tensor.bfloat16() for name, tensor in tensors_for(config).items()})
    model = ss.load(tmp_path)
    assert model.device.type == "cuda"
    assert model.dtype == torch.bfloat16
    assert model.check().passed


@pytest.mark.gpu
@pytest.mark.parametrize("family", golden.FAMILIES)
def test_golden_on_a_gpu(family: str) -> None:
    model = ss.load(golden.checkpoint(family), device="cuda", dtype="float32")
    ids = golden.tensor(family, "forward_T49.npz", "input_ids")
    torch.testing.assert_close(
        model.logits(ids).cpu(), golden.tensor(family, "forward_T49.npz", "logits"), atol=2e-3, rtol=1e-3
    )
    torch.testing.assert_close(
        model.attention(ids), golden.tensor(family, "forward_T49.npz", "attn"), atol=2e-4, rtol=0
    )
    assert model.check().passed


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2, 3], [[]], torch.zeros(1, 2, 3, dtype=torch.long), torch.zeros(1, 4), torch.zeros(1, 4, dtype=torch.bool),
        [[0, -1]], [[0, 512]],
    ],
    ids=["one row without a batch", "empty", "3-D", "floats", "bools", "negative", "too large"],
)  # fmt: skip
def test_ids_that_are_none(ids: Any) -> None:
    with pytest.raises(ss.InputError, match="ids"):
        golden.model("llada").logits(ids)


@pytest.mark.parametrize("mask", [[[1, 1]], [[1, 1, 0]], [[1, 0, 1]], [[0, 0, 0]]])
def test_masks_that_do_not_pad_on_the_left(mask: list[list[int]]) -> None:
    with pytest.raises(ss.InputError, match="attention_mask"):
        golden.model("llada").logits([[1, 2, 3]], mask)


def test_policies_that_do_not_fit() -> None:
    model = golden.model("llada")
    ids = [[1, 2, 3]]
    with pytest.raises(ss.InputError, match="layer 9"):
        model.logits(ids, policy=ss.MaskKeys({9: [0]}))
    with pytest.raises(ss.InputError, match="column 3"):
        model.logits(ids, policy=ss.MaskKeys({0: [3]}))
    with pytest.raises(ss.InputError, match="previous step"):
        model.logits(ids, policy=ss.MaskTop(1))
    with pytest.raises(ss.InputError, match="policy"):
        model.attention(ids, policy={0: [1]})  # type: ignore[arg-type]
    for wrong in ({0: 1}, {0: "1"}, {-1: [0]}, {0: [-1]}, {0: [True]}, [0], {0: [0.5]}):
        with pytest.raises(ss.InputError, match="MaskKeys"):
            ss.MaskKeys(wrong)  # type: ignore[arg-type]


def test_representation_names_what_it_is() -> None:
    model = golden.model("dream")
    text = repr(model)
    for part in ("dream", "3 layers", "4 heads", "float32", "cpu"):
        assert part in text
    stored = json.loads((golden.checkpoint("dream") / "config.json").read_text())
    assert model.shape.kv_heads == stored["num_key_value_heads"] == 2
    assert model.shape.vocabulary == 512
    assert len(model.digest) == 64


@pytest.mark.parametrize("family", [None, "llada"])
def test_a_causal_mode_that_is_not_there_is_refused_whatever_names_the_family(family: str | None) -> None:
    with pytest.raises(ss.SinkscopeError, match="has one mode; leave out @causal"):
        ss.load("organism/scratch@causal", family=family)
