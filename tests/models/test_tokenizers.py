"""Tokenizers: the official ones where they are at hand, and a small byte-level one beside golden checkpoints."""

from __future__ import annotations

import json
import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import golden
from tests.helpers.checkpoints import dream_config, llada_config, llama_config, write
from tests.helpers.tokenizers import golden_with_tokenizer

import sinkscope as ss
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.load import FAMILIES
from sinkscope.models.tokenizer import read_tokenizer

TEXTS = (
    "Natalia sold clips to 48 of her friends in April.",
    "def add(a, b):\n    return a + b\n",
    "naïve café — 数学 🙂\t\ttabs   and spaces",
    " leading and trailing ",
)


def official(name: str) -> Path:
    """A folder with the tokenizer files of a released model."""
    shared = os.environ.get("SINKSCOPE_SHARED")
    if not shared:
        pytest.skip("needs the official tokenizers: set SINKSCOPE_SHARED to a folder that has tokenizers/")
    folder = Path(shared) / "tokenizers" / name
    if not folder.is_dir():
        pytest.skip(f"needs the official tokenizers: SINKSCOPE_SHARED is {shared}, which has no tokenizers/{name}")
    return folder


@cache
def loaded(name: str, template: str | None = None) -> Any:
    """An official tokenizer, read once."""
    return read_tokenizer(official(name), template)


def chat(tokenizer: Any, *turns: tuple[str, str], **options: Any) -> str:
    messages = [{"role": role, "content": content} for role, content in turns]
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
    return text


def special(name: str, family: str, config: dict[str, Any], tmp_path: Path) -> Any:
    """Special ids of a checkpoint whose config says nothing about them, with an official tokenizer."""
    silent = {key: value for key, value in config.items() if not key.endswith("_token_id")}
    (tmp_path / "config.json").write_text(json.dumps(silent))
    kind = FAMILIES[family]
    return kind.special_ids(Checkpoint(tmp_path, "here"), loaded(name, kind.chat_template))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "dream", "llama3"])
def test_official_tokenizers_round_trip(name: str) -> None:
    tokenizer = loaded(name)
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
        assert len(ids) < len(text.encode())
    assert tokenizer.padding_side == "left"


def test_nothing_is_printed_about_a_long_text(capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer = loaded("llada")
    tokenizer.model_max_length = 4
    assert len(tokenizer("one two three four five six").input_ids) > 4
    assert "indexing errors" not in capfd.readouterr().err


def test_llada_tokenizer() -> None:
    tokenizer = loaded("llada")
    assert len(tokenizer) == 126349
    known = {
        "<|startoftext|>": 126080, "<|endoftext|>": 126081, "<|mdm_mask|>": 126336, "<|start_header_id|>": 126346,
        "<|end_header_id|>": 126347, "<|eot_id|>": 126348,
    }  # fmt: skip
    for text, number in known.items():
        assert tokenizer.convert_tokens_to_ids(text) == number
        assert tokenizer(text, add_special_tokens=False).input_ids == [number], "special tokens are never split"
    assert tokenizer("hello").input_ids == tokenizer("hello", add_special_tokens=False).input_ids, "no bos is added"
    assert chat(tokenizer, ("user", " hi \n"), ("assistant", "yes"), ("user", "ok")) == (
        "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nyes<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nok<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_mmada_template_has_a_single_newline() -> None:
    """MMaDA ships LLaDA's tokenizer, but its own code writes the turns another way."""
    tokenizer = loaded("llada", FAMILIES["mmada"].chat_template)
    assert chat(tokenizer, ("user", "hi ")) == (
        "<|startoftext|><|start_header_id|>user<|end_header_id|>\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n"
    )
    assert len(tokenizer) == 126349, "image tokens begin behind it"


def test_dream_tokenizer() -> None:
    tokenizer = loaded("dream")
    known = {
        "<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645, "<|beginoftext|>": 151665, "<|mask|>": 151666,
    }  # fmt: skip
    for text, number in known.items():
        assert tokenizer.convert_tokens_to_ids(text) == number
        assert tokenizer(text, add_special_tokens=False).input_ids == [number]
    assert tokenizer.mask_token_id == 151666
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 151643
    assert tokenizer.bos_token_id == 151665
    assert chat(tokenizer, ("user", "hi")) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert chat(tokenizer, ("system", "Be brief."), ("user", "hi")).startswith(
        "<|im_start|>system\nBe brief.<|im_end|>"
    )


def test_llama3_tokenizer() -> None:
    tokenizer = loaded("llama3")
    assert tokenizer.convert_tokens_to_ids("<|begin_of_text|>") == 128000
    assert tokenizer.convert_tokens_to_ids("<|eot_id|>") == 128009
    assert chat(tokenizer, ("user", "hi")) == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


@pytest.mark.slow
def test_special_ids_come_from_the_official_tokenizers(tmp_path: Path) -> None:
    llada = llada_config(vocab_size=126464, embedding_size=126464)
    found = special("llada", "llada", llada, tmp_path)
    assert (found.mask, found.eos, found.bos, found.eot) == (126336, (126081,), 126080, 126348)
    assert found.pad == 126081
    found = special("llada", "mmada", {**llada, "model_type": "mmada"}, tmp_path)
    assert (found.mask, found.eos, found.eot) == (126336, (126081,), 126348)
    found = special("dream", "dream", dream_config(vocab_size=152064), tmp_path)
    assert (found.mask, found.eos, found.bos, found.pad) == (151666, (151643,), 151665, 151643)


def test_official_ids_without_a_tokenizer(tmp_path: Path) -> None:
    """A full-sized checkpoint without tokenizer files still has its mask."""
    config = llada_config(vocab_size=126464, embedding_size=126464)
    for key in ("mask_token_id", "eos_token_id", "pad_token_id"):
        del config[key]
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = FAMILIES["llada"].special_ids(Checkpoint(tmp_path, "here"), None)
    assert (found.mask, found.eos, found.pad, found.bos, found.eot) == (126336, (126081,), 126081, 126080, 126348)


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_byte_tokenizer_beside_a_golden_checkpoint(family: str, tmp_path: Path) -> None:
    model = ss.load(golden_with_tokenizer(family, tmp_path / "checkpoint"), device="cpu")
    for text in TEXTS:
        ids = model.tokenizer(text, add_special_tokens=False).input_ids
        assert ids == list(text.encode())
        assert model.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    stated = golden.manifest(family)["special_ids"]
    assert model.ids.mask == stated.get("mask")
    assert model.ids.eos == (stated["eos"],)
    prompt = chat(model.tokenizer, ("user", "hi"))
    ids = model.tokenizer(prompt, add_special_tokens=False).input_ids
    assert model.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == prompt
    newline = {"llada": "\n\n", "llama": "\n\n", "mmada": "\n", "dream": "\n"}[family]
    assert prompt.endswith(("<|end_header_id|>" if family != "dream" else "assistant") + newline)
    if family == "mmada":
        assert "\n\n" not in prompt
        assert len(model.tokenizer) == golden.manifest("mmada")["len_text_tokenizer"]


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_without_tokenizer_files_ids_work_and_text_is_an_error(family: str) -> None:
    model = golden.model(family)
    assert model.tokenizer is None
    decoding = {
        "llada": ss.LladaDecoding(length=4, steps=2, block=4),
        "mmada": ss.MmadaDecoding(length=4, steps=2, block=4),
        "dream": ss.DreamDecoding(length=4, steps=2),
        "llama": ss.GreedyDecoding(length=2),
    }[family]
    with pytest.raises(ss.InputError, match=r"no tokenizer.*prompt-ids"):
        ss.generate(model, "hello", decoding)
    run = ss.generate(model, golden.tensor(family, "forward_T24.npz", "input_ids")[:1], decoding)
    assert run.sequences.shape[1] > 24


def test_templates_in_files_of_their_own(tmp_path: Path) -> None:
    folder = golden_with_tokenizer("llama", tmp_path / "checkpoint")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "{{ messages[0]['content'] }}!"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": named}))
    assert chat(read_tokenizer(folder), ("user", "hi")) == "hi!"
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert read_tokenizer(folder).chat_template is None
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}?")
    assert chat(read_tokenizer(folder), ("user", "hi")) == "hi?"
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "{{ messages[0]['content'] }};"}))
    assert chat(read_tokenizer(folder), ("user", "hi")) == "hi;"


def test_special_tokens_written_as_objects(tmp_path: Path) -> None:
    folder = golden_with_tokenizer("llama", tmp_path / "checkpoint")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["eos_token"] = {"content": "<|eot_id|>", "lstrip": False, "special": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert read_tokenizer(folder).eos_token_id == 485


@pytest.mark.parametrize("damage", ["{", "[]", '{"model": {"type": "nothing"}}'])
def test_damaged_tokenizer_files_are_a_clear_error(damage: str, tmp_path: Path) -> None:
    write(tmp_path, llama_config())
    (tmp_path / "tokenizer.json").write_text(damage)
    with pytest.raises(ss.CheckpointError, match="tokenizer") as caught:
        ss.load(tmp_path, device="cpu")
    assert "\n" not in str(caught.value)


def test_a_truncated_vocabulary_is_noticed(tmp_path: Path) -> None:
    """A mirror of Dream ships a vocab.json that was cut: every special id would silently be another."""
    folder = official("dream")
    vocabulary = json.loads((folder / "vocab.json").read_text())
    for name in ("merges.txt", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path)
    cut = {token: number for token, number in vocabulary.items() if number < 100_000}
    (tmp_path / "vocab.json").write_text(json.dumps(cut))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(ss.CheckpointError, match=r"vocab\.json"):
        read_tokenizer(tmp_path)
