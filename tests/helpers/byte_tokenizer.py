"""A byte-level tokenizer beside a golden checkpoint, so that tasks and text prompts run on it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.helpers import golden

TURNS = (
    "{% for message in messages %}{{ message['role'][0] }}:{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


UTF8 = 245
"""Bytes from here on are in no text in UTF-8."""


def byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


def checkpoint_with_tokenizer(family: str, folder: Path, template: str | None = None) -> Path:
    """A copy of a golden checkpoint with tokenizer files: ids 0–244 are bytes (UTF-8 has no more), special ids special tokens."""
    shutil.copytree(golden.checkpoint(family), folder)
    config = json.loads((folder / "config.json").read_text())
    letters = byte_letters()
    names = [*letters[:UTF8], *(f"<|{number}|>" for number in range(UTF8, config["vocab_size"]))]
    special = {
        number
        for name, number in config.items()
        if name.endswith("_token_id") and isinstance(number, int) and number >= UTF8
    }
    added = [
        {"id": number, "content": names[number], "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for number in sorted(special)
    ]  # fmt: skip
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {name: number for number, name in enumerate(names)}, "merges": []},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    settings: dict[str, Any] = {
        f"{kind}_token": names[config[f"{kind}_token_id"]]
        for kind in ("bos", "eos", "pad")
        if isinstance(config.get(f"{kind}_token_id"), int)
    }
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder
