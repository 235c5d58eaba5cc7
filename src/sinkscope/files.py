"""Files that are either absent or complete, and the differences between two JSON documents."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write a file so that a reader, a kill or a power cut finds either the old content or all of the new.

    The unfinished file is opened exclusively, so that a link planted in its place is refused and not followed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)
        with part.open("xb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(
            f"cannot write {path} ({error}): make room and run the same command again"
        ) from error


def differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """Sentences that name what differs between two JSON documents.

    >>> list(differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}}))
    ['b.c is 2 there and 3 here']
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key), new.get(key), f"{name}.{key}" if name else str(key))
    elif old != new:
        yield f"{name or 'everything'} is {_short(old)} there and {_short(new)} here"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
