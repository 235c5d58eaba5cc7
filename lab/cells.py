"""Files of cells, NAME.jsonl.gz: one gzip member per cell, appended as it is answered, readable after a kill."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError

VERSION = "masking/1"


def append(path: Path, cell: dict[str, Any]) -> None:
    """Adds one line as a gzip member of its own, in one write: a kill cuts at most the last member short."""
    line = json.dumps(cell, ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n"
    packed = gzip.compress(line.encode(), 6, mtime=0)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(target, packed)
    finally:
        os.close(target)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """All complete cells of a file; a last one that a kill cut short is left out."""
    data = path.read_bytes() if path.exists() else b""
    while data:
        member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            text = member.decompress(data)
        except zlib.error:
            return
        if not member.eof:
            return
        data = member.unused_data
        yield json.load(io.BytesIO(text))


def trimmed(path: Path) -> list[dict[str, Any]]:
    """The complete cells of a file, which afterwards holds nothing else, so that it can be appended to."""
    cells = list(read(path))
    if cells:
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)
        for cell in cells:
            append(part, cell)
        part.replace(path)
    else:
        path.unlink(missing_ok=True)
    return cells


def refuse_others(path: Path, cells: Sequence[dict[str, Any]], digest: str) -> None:
    """Only cells of this version, answered by the weights of this digest, may stand in one file."""
    for cell in cells:
        if cell.get("version") != VERSION:
            raise InputError(
                f"{path} holds {cell.get('version', 'no version')}, and {VERSION} is expected: answer again into another folder"
            )
        if cell["digest"] != digest:
            raise InputError(
                f"{path} was answered by weights {cell['digest'][:12]}, and those here are {digest[:12]}: answer again with "
                "these, into another folder"
            )
