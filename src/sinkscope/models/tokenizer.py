"""Tokenizers from their data files alone: no tokenizer class of a checkpoint is ever imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from sinkscope.base.errors import CheckpointError
from sinkscope.base.files import fit, reading
from sinkscope.models.checkpoint import read_table

KEPT = (
    "bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "additional_special_tokens",
    "model_max_length", "padding_side", "model_input_names",
)  # fmt: skip
"""Settings of tokenizer_config.json that a fast tokenizer takes as they are."""
MOST_GROWTH = 1000
"""Characters that replacements may make of one."""


class _Template(TypedDict):
    name: str
    template: str


class _Added(TypedDict):
    content: str


class _Settings(TypedDict, total=False):
    model_max_length: float | None
    padding_side: Literal["left", "right"] | None
    model_input_names: tuple[str, ...] | None
    chat_template: str | tuple[_Template, ...] | None
    added_tokens_decoder: Mapping[str, _Added] | None


def read_tokenizer(folder: Path, chat_template: str | None = None) -> Any:
    """The tokenizer beside a checkpoint, or None when there are no tokenizer files.

    Args:
        chat_template: replaces the one in the files (families whose official template is not in their tokenizer).
    """
    from transformers import AddedToken, AutoTokenizer, PreTrainedTokenizerFast

    path = folder / "tokenizer_config.json"
    settings = read_table(path) if path.exists() else {}
    with reading(f"the tokenizer in {folder}", "download its files again", CheckpointError):
        fit(_Settings, settings)
        if (folder / "tokenizer.json").exists():
            file = folder / "tokenizer.json"
            _check_growth(read_table(file))
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file), **_kept(settings))
        elif (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
            tokenizer = _byte_pairs(folder, settings)
        elif (folder / "tokenizer.model").exists():
            tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
        else:
            return None
        missing = [AddedToken(**entry) for _, entry in _added(settings) if entry["content"]]
        vocabulary = tokenizer.get_vocab()
        tokenizer.add_tokens([token for token in missing if token.content not in vocabulary])
        template = chat_template or settings.get("chat_template") or _template_file(folder)
        if isinstance(template, list):  # several named templates: the one for plain chat
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        tokenizer.chat_template = template
        tokenizer.padding_side = "left"
        # Whether a text is too long is for the model to say; this line of transformers' speaks of errors that do not come.
        tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
        tokenizer.decode(tokenizer("a b").input_ids)  # some that can be read break on every text
    return tokenizer


def _check_growth(data: Any) -> None:
    """Refuse replacements that make a text longer and longer: a few of them fill the memory. Those of real files do not."""
    growth, left = 1, [data.get("normalizer"), data.get("pre_tokenizer"), data.get("decoder")]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            written = node.get("content", node.get("prepend"))
            growth *= max(1, len(written)) if isinstance(written, str) else 1
            empty = node.get("pattern") in ({"String": ""}, {"Regex": ""}) or node.get("prepend") == ""
            if empty or growth > MOST_GROWTH:
                raise ValueError("tokenizer.json replaces nothing by something, or little by very much")
        left += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def _byte_pairs(folder: Path, settings: dict[str, Any]) -> Any:
    """Dream's layout: a Qwen2 byte-pair vocabulary, with special tokens listed apart."""
    from transformers import AddedToken, PreTrainedTokenizerFast, Qwen2TokenizerFast

    vocabulary = read_table(folder / "vocab.json")
    merges = [
        tuple(line.split(" "))
        for line in (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#version")
    ]
    backend = Qwen2TokenizerFast(vocab=vocabulary, merges=merges).backend_tokenizer
    # Special tokens must get the ids of the files, so they are added in the order of those ids.
    for number, entry in _added(settings):
        if backend.token_to_id(entry["content"]) is None:
            token = AddedToken(**entry)
            backend.add_special_tokens([token]) if entry.get("special") else backend.add_tokens([token])
        if backend.token_to_id(entry["content"]) != int(number):
            raise CheckpointError(
                f"the tokenizer files in {folder} do not fit together: {entry['content']!r} should have the id {number} but "
                f"gets {backend.token_to_id(entry['content'])}; is vocab.json complete?"
            )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **_kept(settings))


def _added(settings: dict[str, Any]) -> list[tuple[str, Any]]:
    """Id and settings of the added tokens, in the order of their ids."""
    return sorted((settings.get("added_tokens_decoder") or {}).items(), key=lambda pair: int(pair[0]))


def _kept(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings in KEPT that are there; special tokens written as objects become their text."""
    chosen = {key: settings[key] for key in KEPT if settings.get(key) is not None}
    return {
        key: value["content"] if isinstance(value, dict) and "content" in value else value
        for key, value in chosen.items()
    }


def _template_file(folder: Path) -> str | None:
    if (folder / "chat_template.jinja").exists():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if (folder / "chat_template.json").exists():
        template = read_table(folder / "chat_template.json").get("chat_template")
        return template if isinstance(template, str) else None
    return None
