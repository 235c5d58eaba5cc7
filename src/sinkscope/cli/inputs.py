"""What a user gives on the command line as text or files, read: prompts, texts, decodings, lists of numbers."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.base.errors import InputError, nearest
from sinkscope.base.files import reading

if TYPE_CHECKING:
    from sinkscope.decoding import Decoding
    from sinkscope.models.model import Model


def decoding_of(
    model: Model, text: str | None, length: int | None, steps: int | None, base: Mapping[str, Any] | None = None
) -> Decoding:
    """The decoding that `--decoding`, `--length` and `--steps` stand for, over the options in `base`."""
    from sinkscope.base.textform import read_options
    from sinkscope.decoding import decoding_from_options, default_decoding, option_fields
    from sinkscope.decoding.base import kinds

    text, fitting = text or "", {made.kind: made for made in kinds(model.family)}
    word, _, rest = text.partition(",")
    kind, options = ("", text) if "=" in word else (word, rest)
    if kind and kind not in fitting:
        has = f"{model.family} models such as {model.source} have {', '.join(fitting)}"
        raise InputError(f"--decoding begins with {kind!r}; {has}")
    fields = {item.name: item for item in dataclasses.fields(fitting[kind])} if kind else option_fields(model.family)
    written = read_options(options, fields) if options else {}
    shortcuts = {name: value for name, value in (("length", length), ("steps", steps)) if value is not None}
    if twice := written.keys() & shortcuts.keys():
        raise InputError(f"--{min(twice)} {shortcuts[min(twice)]} and --decoding {text}: give {min(twice)} once")
    values = dict(base or {}) | written | shortcuts
    if values.get("temperature") == 0 and not hasattr(default_decoding(model.family), "temperature"):
        del values["temperature"]  # the most likely token, as the default takes it
    if wrong := [name for name in values if name not in fields]:
        what = f"{wrong[0]!r} is not an option of {kind or model.family} models such as {model.source}"
        raise InputError(f"--decoding: {what}; {nearest(wrong[0], fields, listing=True)}")
    return fitting[kind](**values) if kind else decoding_from_options(model.family, values, "--decoding", model)


def given_prompts(
    prompt: list[str] | None, prompts: list[Path] | None, prompt_ids: Path | None, text: list[Path] | None
) -> list[Any]:
    """Turns, rows of ids or whole texts, which come in exactly one way."""
    from sinkscope.tasks.sources import text_of

    ways = {"--prompt": prompt, "--prompts": prompts, "--prompt-ids": prompt_ids, "--text": text}
    if sum(map(bool, ways.values())) != 1:
        raise InputError(f"give the prompt in exactly one way: {', '.join(ways)}")
    if prompt_ids:
        rows: list[Any] = read_ids(prompt_ids)
        return rows
    if text:
        return [text_of(path, "give a text file") for path in text]
    return [*(prompt or ()), *(each for path in prompts or () for each in prompts_in(path))]


def prompts_in(path: Path) -> list[Any]:
    """The prompts of a file: a text in each line, or JSON lines with prompt, text or messages; a .json file may be one list."""
    from sinkscope.tasks.sources import json_lines, text_of

    text = text_of(path, "give a text in each line, or JSON lines")
    named: Iterable[tuple[str, Any]]
    if path.suffix == ".json" and text.lstrip().startswith("["):
        with reading(path, "give a list of prompts"):
            named = [(f"{path}, entry {number}", entry) for number, entry in enumerate(json.loads(text), 1)]
        if not named:
            raise InputError(f"{path} is an empty list; give prompts")
    elif path.suffix in (".jsonl", ".json") or text.lstrip().startswith("{"):
        named = json_lines(text, path)
    else:
        return [line.strip() for line in text.splitlines() if line.strip()]
    prompts = []
    for where, entry in named:
        row = entry if isinstance(entry, dict) else {"prompt": entry}
        prompt = next((row[name] for name in ("messages", "prompt", "text") if name in row), None)
        if not prompt or not isinstance(prompt, list if "messages" in row else str):
            raise InputError(f"{where}: expected prompt or text, a text, or messages, a list of turns")
        prompts.append(prompt)
    return prompts


def read_ids(path: Path) -> Any:
    """Rows of ids: JSON (a list, or a list of lists), or one prompt per line, separated by spaces or commas."""
    from sinkscope.tasks.sources import text_of

    text = text_of(path, "give token ids")
    try:
        if text.lstrip().startswith("["):
            rows: Any = json.loads(text)
            rows = rows if rows and isinstance(rows[0], list) else [rows]
        else:
            lines = [line.replace(",", " ").split() for line in text.splitlines() if line.strip()]
            rows = [[int(word) for word in line] for line in lines]
        if not rows or not all(rows) or not all(type(number) is int for row in rows for number in row):
            raise ValueError
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path} should hold token ids, such as 12 7 430, or [[12, 7, 430]]") from error
    if len({len(row) for row in rows}) > 1:
        raise InputError(f"{path} holds rows of different lengths; give rows of one length, or one file per prompt")
    return rows


def numbers(text: str, flag: str, what: str, form: str = r"\d+") -> list[tuple[int, ...]]:
    """`12,13` → [(12,), (13,)]. form: of each word, of which the numbers are taken; what: the same for people."""
    words = [word for word in text.replace(" ", "").split(",") if word]
    if wrong := [word for word in words if not re.fullmatch(form, word)]:
        raise InputError(f"{flag} should be {what}, got {wrong[0]!r}")
    return [tuple(map(int, re.findall(r"\d+", word))) for word in words]
