"""Running text as packed rows of tokens, for adapting a model that speaks already.

Documents stand one after the other, each opened by a separator (the token that the source was pretrained with, such as
`<|endoftext|>`), and are cut into rows; every row begins with a separator too, and what stands in a row sees all of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sinkscope import InputError
from sinkscope.tasks.text import split_text
from sinkscope_train.layout import write_json
from sinkscope_train.rows import Batch

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
        train, valid = (
            [part for file in sorted(path.glob(f"{name}-*.txt")) for part in split_text(read_text(file))]
            for name in ("train", "valid")
        )
        if not train or not valid:
            raise InputError(f"{source} should hold train-*.txt and valid-*.txt, and one of them is missing or empty")
        return train, valid
    texts = own_texts(source)
    documents = split_text(texts[0]) if path.is_file() else [text.strip() for text in texts if text.strip()]
    parts: tuple[list[str], list[str]] = ([], [])
    for document in documents:
        number = int.from_bytes(hashlib.sha256(document.encode()).digest()[:4], "big")
        parts[number % HELD_OUT == 0].append(document)
    if not all(parts):
        raise InputError(
            f"{source} has {len(documents)} documents, too few to hold one in {HELD_OUT} out; give more text"
        )
    return parts


def own_texts(source: str) -> list[str]:
    """The text of a UTF-8 file, or the column `text` of a hub data set `owner/name`, row by row."""
    path = Path(source).expanduser()
    if path.is_file():
        return [read_text(path)]
    if path.exists() or source.count("/") != 1:
        raise InputError(f"there is no text {source!r}; give a UTF-8 text file, or a hub data set owner/name")
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError(f"{source} is a hub data set: install sinkscope[eval], or give a text file") from error
    rows = load_dataset(source, split="train")
    if "text" not in rows.column_names:
        raise InputError(
            f"the data set {source} has the columns {', '.join(rows.column_names)}; one called text is needed"
        )
    return list(rows["text"])


def read_text(path: Path) -> str:
    """The text of a UTF-8 file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}); convert it first") from error


@dataclass(frozen=True)
class TextRows:
    """Tokenised text, cut into rows.

    Attributes:
        stream: [N] token ids, every document opened by the separator.
        length: tokens of a row, its first separator included.
        causal: all tokens but a row's first are targets; else all but separators.
    """

    stream: Array
    length: int
    separator: int
    causal: bool

    def __len__(self) -> int:
        return len(self.stream) // (self.length - 1)

    def batch(self, rows: Sequence[int], device: torch.device) -> Batch:
        """These rows."""
        wide = self.length - 1
        tokens = np.stack([self.stream[row * wide : (row + 1) * wide] for row in rows]).astype(np.int64)
        ids = torch.from_numpy(tokens).to(device)
        ids = torch.cat([torch.full_like(ids[:, :1], self.separator), ids], 1)
        start = ids.new_ones(len(ids))
        end = torch.full_like(start, self.length)
        inside = torch.arange(self.length, device=device) > 0
        chosen = inside.expand_as(ids) if self.causal else ids != self.separator
        return Batch(ids, start, end, end, end, start, chosen)


def tokenise(source: str, tokenizer: Any, separator: int, mask: int | None, folder: Path) -> dict[str, Any]:
    """Writes train.npy, held_out.npy and text.json, which is returned; what is there for the same text stays."""
    path = folder / "text.json"
    vocabulary = hashlib.sha256(json.dumps(tokenizer.get_vocab(), sort_keys=True).encode()).hexdigest()[:16]
    # A path says nothing elsewhere; its last name may.
    local = Path(source).expanduser()
    name = local.resolve().name if local.exists() else source
    expected = {"source": name, "tokenizer": vocabulary, "separator": separator}
    if path.is_file():
        about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if any(about.get(name) != value for name, value in expected.items()):
            raise InputError(f"{folder} holds another text, or that of another tokenizer; choose another folder")
        return about
    folder.mkdir(parents=True, exist_ok=True)
    dtype = np.uint16 if len(tokenizer) < 1 << 16 else np.int32
    about, digest = dict(expected), hashlib.sha256()
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
            yield from (separator, *encoded.ids)


def open_rows(folder: Path, name: str, length: int, separator: int, causal: bool = False) -> TextRows:
    """The rows of train.npy or held_out.npy, mapped into memory."""
    rows = TextRows(np.load(folder / f"{name}.npy", mmap_mode="r"), length, separator, causal)
    if not len(rows):
        raise InputError(
            f"{name} has {len(rows.stream)} tokens, too few for one row of {length}; give more text or shorter rows"
        )
    return rows
