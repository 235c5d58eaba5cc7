"""The documents of published tasks, from a file in the original format or from the hub; and few-shot examples."""

from __future__ import annotations

import gzip
import json
import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from sinkscope.base.errors import InputError
from sinkscope.base.files import one_line
from sinkscope.tasks.task import Document

ANSWERS_WITHIN = 5.0
"""Seconds that the hub gets for a first answer."""


@dataclass(frozen=True)
class HubData:
    """A data set on the hub, and the file that holds the same rows."""

    name: str  # "openai/gsm8k"
    configuration: str
    split: str
    file: str  # what to give instead, in words
    rows: int  # how many it has
    fields: tuple[str, ...]  # what each row must have
    revision: str  # the commit that is read, so that a data set cannot change under its name


def read_rows(hub: HubData, data: str | Path | None) -> list[dict[str, Any]]:
    """All rows: from the file `data` (JSON lines, gzipped or not), or without one from the hub."""
    if data is None:
        return _from_hub(hub)
    path = Path(data).expanduser()
    rows = dict(json_lines(text_of(path, f"give {hub.file}"), path))
    for where, row in rows.items():
        if missing := [name for name in hub.fields if name not in row]:
            raise InputError(f"{where}: {', '.join(missing)} is missing: expected {', '.join(hub.fields)}")
    return list(rows.values())


def own_file(data: str | Path | None, instead: str) -> Path | None:
    """The file of documents that somebody names; it must be there. `instead`: what to give, for messages."""
    path = None if data is None else Path(data).expanduser()
    if path is not None and not path.is_file():
        raise InputError(f"no file at {path}: {instead}")
    return path


Reader = Callable[[Path], Iterable[tuple[str, Document]]]


def from_file(read: Reader) -> Callable[[Path], tuple[Document, ...]]:
    """A reader of files that gives where each document stands, as one that remembers them while the file does not change.

    Two documents with one id are refused, and a file without any.
    """

    @lru_cache(maxsize=8)
    def remembered(path: Path, _modified: int) -> tuple[Document, ...]:
        documents: dict[str, Document] = {}
        for where, document in read(path):
            if document.id in documents:
                raise InputError(f"{where}: the id {document.id!r} is there twice: give each one of its own")
            documents[document.id] = document
        if not documents:
            raise InputError(f"{path} holds no questions")
        return tuple(documents.values())

    return lambda path: remembered(path, path.stat().st_mtime_ns if path.is_file() else 0)


def text_of(path: Path, instead: str) -> str:
    """The text of a UTF-8 file, gzipped or not; `instead`: what to give, for messages."""
    own_file(path, instead)
    try:
        text = _unpacked(path.read_bytes()).decode("utf-8-sig")
    except (UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        what = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "cannot be read"
        raise InputError(f"{path} {what} ({one_line(error)}): {instead}") from error
    if not text.strip():
        raise InputError(f"{path} is empty: {instead}")
    return text


def _unpacked(raw: bytes) -> bytes:
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


def json_lines(text: str, name: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where it stands, for messages, and the object of every line that is not empty."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name}, line {number}: not JSON ({one_line(error)}): give a JSON-lines file") from error
        if not isinstance(row, dict):
            raise InputError(f"{name}, line {number}: expected an object: {line[:80]}")
        yield f"{name}, line {number}", row


def shipped(file: str) -> str:
    """The text of a data file of this package, gzipped or not."""
    return _unpacked(files("sinkscope.tasks").joinpath("data", file).read_bytes()).decode()


def shipped_rows(file: str) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file of this package, without the first, which says where they come from."""
    _, *lines = shipped(file).splitlines()
    return [json.loads(line) for line in lines]


def shipped_words(name: str) -> dict[str, Any]:
    """The words that a generated task is made of: a TOML file of this package, in which a text is a list of words."""
    table = tomllib.loads(shipped(f"{name}.toml"))
    return {name: value.split() if isinstance(value, str) else value for name, value in table.items()}


def _from_hub(hub: HubData) -> list[dict[str, Any]]:
    instead = f"give {hub.file} as data=PATH (`--data PATH`)"
    try:
        import datasets
        from huggingface_hub import constants, get_session
    except ImportError as error:
        raise InputError(
            f"{hub.name} comes from the hub through `datasets`, which is not installed: "
            f"`pip install 'sinkscope[eval]'`, or {instead}"
        ) from error
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    try:
        get_session().head(constants.ENDPOINT, timeout=ANSWERS_WITHIN)
    except Exception:  # without a network only its cache is read: `datasets` would ask again for half a minute
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        loaded = datasets.load_dataset(hub.name, hub.configuration, split=hub.split, revision=hub.revision)
    except Exception as error:  # offline, not cached, gated: whatever it is, a file helps
        raise InputError(
            f"{hub.name} could not be read from the hub ({type(error).__name__}: {error}): {instead}"
        ) from error
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
    return [dict(row) for row in loaded]


class Example(NamedTuple):
    """A question with a worked answer, shown before the real one."""

    question: str
    answer: str


@lru_cache(maxsize=8)
def read_examples(name: str) -> tuple[Example, ...]:
    """The few-shot examples of a data file of this package; the file names its source and licence."""
    return tuple(Example(item["question"], item["answer"]) for item in json.loads(shipped(f"{name}.json"))["examples"])
