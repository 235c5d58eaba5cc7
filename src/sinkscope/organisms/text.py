"""Running text as packed rows of tokens, for adapting a model that speaks already.

Documents stand one after the other, each opened by a separator (the token that the source was pretrained with, such as
`<|endoftext|>`), and are cut into rows; every row begins with a separator too, and what stands in a row sees all of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sinkscope.errors import InputError
from sinkscope.organisms.batches import Batch
from sinkscope.organisms.documents import hub_texts, read_text
from sinkscope.organisms.layout import write_json
from sinkscope.tasks.text import split_text

HELD_OUT = 100
"""One document in so many is held out, by its hash, where the text does not come with held-out files."""
CHUNK = 2000
"""Documents tokenised at a time."""

Array = NDArray[Any]


def read_documents(source: str) -> tuple[list[str], list[str]]:
    """Documents to learn from, and held-out ones.

    Args:
        source: a folder with train-*.txt and valid-*.txt; a UTF-8 text file, whose documents end at a line with a form feed (a
            file without any: every paragraph is one); or a hub data set `owner/name` with a column `text`.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        train, valid = (_of_files(sorted(path.glob(f"{part}-*.txt"))) for part in ("train", "valid"))
        if not train or not valid:
            raise InputError(
                f"{source} should hold train-*.txt and valid-*.txt, and one of them is missing or empty"
            )
        return train, valid
    if path.is_file():
        documents = _of_files([path])
    elif source.count("/") == 1 and not path.exists():
        documents = [text.strip() for text in hub_texts(source) if text.strip()]
    else:
        raise InputError(
            f"there is no text {source!r}; give a folder, a UTF-8 text file, or a hub data set owner/name"
        )
    parts: tuple[list[str], list[str]] = ([], [])
    for document in documents:
        number = int.from_bytes(hashlib.sha256(document.encode()).digest()[:4], "big")
        parts[number % HELD_OUT == 0].append(document)
    if not all(parts):
        raise InputError(
            f"{source} has {len(documents)} documents, too few to hold one in {HELD_OUT} out; give more text"
        )
    return parts


def _of_files(paths: Sequence[Path]) -> list[str]:
    documents = []
    for path in paths:
        documents += split_text(read_text(path))
    return documents


class TextRows:
    """Tokenised text, cut into rows.

    Attributes:
        stream: [N] token ids, every document opened by the separator.
        length: tokens of a row, its first separator included.
    """

    def __init__(self, stream: Array, length: int, separator: int) -> None:
        self.stream, self.length, self.separator = stream, length, separator

    def __len__(self) -> int:
        return len(self.stream) // (self.length - 1)

    def batch(self, rows: Sequence[int], device: torch.device) -> Batch:
        """These rows; everything but separators is a target of diffusion models."""
        wide = self.length - 1
        tokens = np.stack([self.stream[row * wide : (row + 1) * wide] for row in rows]).astype(np.int64)
        ids = torch.from_numpy(tokens).to(device)
        ids = torch.cat([torch.full_like(ids[:, :1], self.separator), ids], 1)
        start = ids.new_ones(len(ids))
        end = torch.full_like(start, self.length)
        return Batch(ids, start, end, end, end, ids != self.separator)


def tokenise(source: str, tokenizer: Any, separator: int, mask: int | None, folder: Path) -> dict[str, Any]:
    """Writes train.npy, held_out.npy and text.json, which is returned; what is there for the same text stays."""
    path = folder / "text.json"
    vocabulary = hashlib.sha256(json.dumps(tokenizer.get_vocab(), sort_keys=True).encode()).hexdigest()[:16]
    # A path says nothing elsewhere; its last name may.
    known = Path(source).expanduser()
    name = known.resolve().name if known.exists() else source
    wanted = {"source": name, "tokenizer": vocabulary, "separator": separator}
    if path.is_file():
        about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if any(about.get(name) != value for name, value in wanted.items()):
            raise InputError(
                f"{folder} holds another text, or that of another tokenizer; choose another folder"
            )
        return about
    folder.mkdir(parents=True, exist_ok=True)
    dtype = np.uint16 if len(tokenizer) < 1 << 16 else np.int32
    about, digest = dict(wanted), hashlib.sha256()
    for name, documents in zip(("train", "held_out"), read_documents(source), strict=True):
        stream = np.fromiter(_ids(documents, tokenizer.backend_tokenizer, separator), dtype=dtype)
        if mask is not None and (stream == mask).any():
            raise InputError(
                f"the text holds the mask token ({int((stream == mask).sum())}×); choose another one with --mask-token"
            )
        np.save(folder / f"{name}.npy", stream)
        digest.update(stream.tobytes())
        about |= {f"{name}_documents": len(documents), f"{name}_tokens": len(stream)}
    about["digest"] = digest.hexdigest()[:16]
    write_json(path, about)
    return about


def _ids(documents: Sequence[str], backend: Any, separator: int) -> Iterator[int]:
    for first in range(0, len(documents), CHUNK):
        for encoded in backend.encode_batch(list(documents[first : first + CHUNK]), add_special_tokens=False):
            yield separator
            yield from encoded.ids


def open_rows(folder: Path, name: str, length: int, separator: int) -> TextRows:
    """The rows of train.npy or held_out.npy, mapped into memory."""
    rows = TextRows(np.load(folder / f"{name}.npy", mmap_mode="r"), length, separator)
    if not len(rows):
        raise InputError(
            f"{name} has {len(rows.stream)} tokens, too few for one row of {length}; give more text or shorter rows"
        )
    return rows
