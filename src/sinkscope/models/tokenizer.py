"""Tokenizers from their data files alone: no tokenizer class of a checkpoint is ever imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sinkscope.errors import CheckpointError
from sinkscope.models.checkpoint import one_line, read_json

KEPT = (
    "bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "additional_special_tokens",
    "model_max_length", "padding_side", "model_input_names",
)  # fmt: skip
"""Settings of tokenizer_config.json that a fast tokenizer takes as they are."""


def read_tokenizer(folder: Path, chat_template: str | None = None) -> Any:
    """The tokenizer beside a checkpoint, or None when there are no tokenizer files.

    Args:
        chat_template: replaces the one in the files (families whose official template is not in their tokenizer).
    """
    from transformers import AddedToken, PreTrainedTokenizerFast

    path = folder / "tokenizer_config.json"
    settings = read_json(path, "") if path.exists() else {}
    try:
        if (folder / "tokenizer.json").exists():
            file = str(folder / "tokenizer.json")
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=file, **_kept(settings))
        elif (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
            tokenizer = _byte_pairs(folder, settings)
        elif (folder / "tokenizer.model").exists():
            tokenizer = _sentencepiece(folder)
        else:
            return None
        missing = [AddedToken(**entry) for _, entry in _added(settings) if entry["content"]]
        known = tokenizer.get_vocab()
        tokenizer.add_tokens([token for token in missing if token.content not in known])
    except CheckpointError:
        raise
    except Exception as error:  # the Rust tokenizers raise bare Exceptions
        raise CheckpointError(
            f"the tokenizer files in {folder} cannot be read ({one_line(error)})"
        ) from error
    template = chat_template or settings.get("chat_template") or _template_file(folder)
    if isinstance(template, list):  # several named templates: the one for plain chat
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    tokenizer.chat_template = template
    tokenizer.padding_side = "left"
    return tokenizer


def _byte_pairs(folder: Path, settings: dict[str, Any]) -> Any:
    """Dream's layout: a Qwen2 byte-pair vocabulary, with special tokens listed apart."""
    from transformers import AddedToken, PreTrainedTokenizerFast, Qwen2TokenizerFast

    vocabulary = read_json(folder / "vocab.json", "")
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


def _sentencepiece(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)


def _added(settings: dict[str, Any]) -> list[tuple[str, Any]]:
    """Id and settings of the added tokens, in the order of their ids."""
    return sorted((settings.get("added_tokens_decoder") or {}).items(), key=lambda pair: int(pair[0]))


def _kept(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings in KEPT that are there; special tokens written as objects become their text."""
    kept = {key: settings[key] for key in KEPT if settings.get(key) is not None}
    return {
        key: value["content"] if isinstance(value, dict) and "content" in value else value
        for key, value in kept.items()
    }


def _template_file(folder: Path) -> str | None:
    if (folder / "chat_template.jinja").exists():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if (folder / "chat_template.json").exists():
        found = read_json(folder / "chat_template.json", "").get("chat_template")
        return found if isinstance(found, str) else None
    return None
