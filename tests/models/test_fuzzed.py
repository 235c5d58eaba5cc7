"""Configs and tokenizer files of strangers: a model, or one line, before memory is taken."""

from __future__ import annotations

import json
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import golden
from tests.helpers.tokenizers import golden_with_tokenizer

import sinkscope as ss
from sinkscope.models.prompts import decode, encode

pytestmark = pytest.mark.slow

FAMILIES = ("llada", "dream", "llama")
KEYS = (
    "rope_scaling", "rope_parameters", "head_dim", "hidden_act", "max_position_embeddings", "tie_word_embeddings",
    "architectures", "attention_bias", "text_config", "quantization_config", "torch_dtype", "partial_rotary_factor",
    "sinkscope_variant",
)  # fmt: skip
"""Settings that a config may have besides those of the golden ones."""
WRONG = (
    None, True, -1, 0, 7, 0.5, 10**9, 10**12, 1e24, 10**400, 1e308, float("nan"), float("inf"), "", "x", "default", [], [1], {},
    {"x": 1}, {"rope_type": "yarn"}, {"rope_type": "linear", "factor": "x"}, {"partial_rotary_factor": 1e9},
)  # fmt: skip
MOST = 1 << 30
"""Bytes by which a refusal may make the process grow; the golden models have one megabyte."""


def try_to_load(folder: Path) -> str:
    """What is wrong with a checkpoint in one line; "" when it can be used."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = ""
    try:
        model = ss.load(folder, device="cpu")
        model.logits([[1, 2, 3]])  # what can be loaded can be run
        if model.tokenizer is not None:
            decode(model, encode(model, ["Hello there"]).ids[0])
    except ss.SinkscopeError as error:
        said = str(error)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST
    assert "\n" not in said
    assert len(said) < 800
    return said


def with_config(folder: Path, family: str, **changes: Any) -> Path:
    """A golden checkpoint with other settings; the weights are links to its own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path in golden.checkpoint(family).iterdir():
        os.symlink(path, folder / path.name)
    (folder / "config.json").unlink()
    config = json.loads((golden.checkpoint(family) / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def with_tokenizer(folder: Path, source: Path, file: str, change: Any) -> Path:
    """A checkpoint whose tokenizer file was changed."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    data = json.loads((folder / file).read_text())
    change(data)
    (folder / file).write_text(json.dumps(data))
    return folder


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("dream", {"rope_scaling": -1}, "rope_scaling should be a table"),
        ("dream", {"rope_scaling": "x"}, "rope_scaling should be a table"),
        ("dream", {"rope_parameters": True}, "rope_scaling should be a table"),
        ("dream", {"hidden_act": 7}, "hidden_act"),
        ("llada", {"embedding_size": 10**9}, "embedding_size"),
        ("dream", {"vocab_size": 1e24}, "vocab_size"),
        ("llama", {"head_dim": 1e24}, "head_dim"),
        ("llama", {"hidden_size": 10**400}, "hidden_size"),
        ("dream", {"intermediate_size": 10**12}, "intermediate_size"),
        ("llama", {"partial_rotary_factor": 1e9}, "partial_rotary_factor"),
        ("llama", {"partial_rotary_factor": 0.5}, "rotates whole heads"),
        ("llada", {"partial_rotary_factor": 0.5}, "rotates whole heads"),
        ("dream", {"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "rotates whole heads"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 1e9}}, "rotates whole heads"),
        ("llada2", {"partial_rotary_factor": 1.5}, "a share of each head"),
    ],
)
def test_a_config_that_cannot_be_is_refused(family: str, changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    message = try_to_load(with_config(tmp_path / "m", family, **changes))
    assert said in message
    assert "config.json" in message


NO_SIZE = (float("inf"), float("nan"), -1, 0, "many", [1], True)
IMPOSSIBLE = [
    *(("llada", name, value) for name in ("n_layers", "d_model", "n_heads") for value in NO_SIZE),
    # 0 stands for "not given" in official configs
    *(("llada", name, value) for name in ("mlp_hidden_size", "rope_theta", "rms_norm_eps") for value in NO_SIZE if value != 0),
    *(("llada", name, value) for name, value in (("n_heads", 5), ("n_kv_heads", 3))),
    *((family, f"num_{what}", value) for family in ("dream", "llama")
      for what, value in (("attention_heads", "four"), ("attention_heads", 0), ("hidden_layers", 0), ("key_value_heads", 3))),
]  # fmt: skip


@pytest.mark.parametrize(("family", "name", "value"), IMPOSSIBLE)
def test_sizes_that_cannot_be(family: str, name: str, value: Any, tmp_path: Path) -> None:
    assert try_to_load(with_config(tmp_path / "m", family, **{name: value}))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Golden checkpoints with tokenizers."""
    folder = tmp_path_factory.mktemp("tokenizers")
    for family in FAMILIES:
        golden_with_tokenizer(family, folder / family)
    return {family: folder / family for family in FAMILIES}


LONGER = {"type": "Replace", "pattern": {"String": "e"}, "content": "ee" * 1000}
TOKENIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "names of inputs": ("tokenizer_config.json", {"model_input_names": 5}),
    "a longest text": ("tokenizer_config.json", {"model_max_length": "x"}),
    "a side": ("tokenizer_config.json", {"padding_side": "up"}),
    "a list of templates": ("tokenizer_config.json", {"chat_template": ["a"]}),
    "added tokens": ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}),
    "texts that grow without end": (
        "tokenizer.json",
        {"normalizer": {"type": "Sequence", "normalizers": [LONGER] * 8}},
    ),
    "nothing is replaced": ("tokenizer.json", {"normalizer": {**LONGER, "pattern": {"Regex": ""}}}),
    "no model": ("tokenizer.json", {"model": {"type": "BPE"}}),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_that_cannot_work_is_refused(name: str, sources: dict[str, Path], tmp_path: Path) -> None:
    file, changes = TOKENIZERS[name]
    message = try_to_load(with_tokenizer(tmp_path / "m", sources["llada"], file, lambda data: data.update(changes)))
    assert "the tokenizer in" in message
    assert "Traceback" not in message


def test_the_checkpoints_are_whole(sources: dict[str, Path], tmp_path: Path) -> None:
    for family in FAMILIES:
        assert try_to_load(with_config(tmp_path / "m", family)) == ""
        assert try_to_load(sources[family]) == ""


def fuzz(draw: Any, sources: dict[str, Path], scratch: Path) -> None:
    """One checkpoint with a wrong setting or two, in its config or in a tokenizer file."""
    family = draw(st.sampled_from(FAMILIES))
    if draw(st.booleans()):
        config = json.loads((golden.checkpoint(family) / "config.json").read_text())
        names = st.sampled_from(sorted({*config, *KEYS}))
        changes = draw(st.dictionaries(names, st.sampled_from(WRONG), min_size=1, max_size=2))
        try_to_load(with_config(scratch / "m", family, **changes))
        return
    kinds = sorted(path.name for path in sources[family].glob("*token*.json"))

    def change(data: dict[str, Any]) -> None:
        inside: Any = data
        for _ in range(draw(st.integers(1, 4))):
            keys = sorted(inside) if isinstance(inside, dict) else list(range(len(inside)))[:20]
            key = draw(st.sampled_from(keys))
            if not isinstance(inside[key], (dict, list)) or not inside[key]:
                break
            holder, inside = inside, inside[key]
        else:
            inside = holder
        inside[key] = draw(st.sampled_from([*WRONG, LONGER]))

    try_to_load(with_tokenizer(scratch / "m", sources[family], draw(st.sampled_from(kinds)), change))


@settings(max_examples=120)
@given(data=st.data())
def test_fuzzed_checkpoints(
    data: st.DataObject, sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    fuzz(data.draw, sources, tmp_path_factory.mktemp("fuzzed"))


@pytest.mark.soak
@settings(max_examples=3000, derandomize=False)
@given(data=st.data())
def test_fuzzed_checkpoints_for_longer(
    data: st.DataObject, sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    fuzz(data.draw, sources, tmp_path_factory.mktemp("fuzzed"))
