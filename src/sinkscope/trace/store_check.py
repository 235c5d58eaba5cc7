"""A look at a trace on disk before zarr opens it: traces come from strangers.

Only zarr format 3 with the two codecs that our own traces use is read (older formats can name codecs that unpickle), and what an
array declares is compared with the bytes that are there, so that a file of a few kilobytes cannot ask for gigabytes.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.base.files import MisfitError, fit

CODECS = frozenset({"bytes", "zstd"})
WHOLE = tuple(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
KINDS = ("bool", *WHOLE, "float16", "float32", "float64")
OLD_FORMAT = (".zarray", ".zgroup", ".zattrs", ".zmetadata")
METADATA = "zarr.json"

MOST_METADATA = 64 << 20
"""Bytes of one zarr.json: a trace keeps the texts of its tokens there."""
MOST_ARRAYS = 256
MOST_ITEMS = 2**40
"""Along one dimension."""
EMPTY_BYTES = 64 << 20
"""An array whose chunks are not all there is filled up by zarr; none of ours that does so is larger than this."""
RATIO = 50_000
"""zstd makes at most 128 KiB out of 3 bytes, so that a chunk is at most this many times its file."""


def check_store(path: Path) -> None:
    """Raise MisfitError, or what reading a broken file raises, unless a `.zarr.zip` or a folder holds what a trace can hold."""
    if path.is_dir():
        files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
        _check({name: file.stat().st_size for name, file in files.items()}, lambda name: files[name].read_bytes())
        return
    with zipfile.ZipFile(path) as archive:
        infos = {info.filename: info for info in archive.infolist() if not info.is_dir()}
        packed = [name for name, info in infos.items() if info.compress_type != zipfile.ZIP_STORED]
        if packed:
            raise MisfitError(f"{packed[0]} is compressed by zip; traces store their files as they are")
        _check({name: info.file_size for name, info in infos.items()}, archive.read)


def _check(sizes: Mapping[str, int], read: Callable[[str], bytes]) -> None:
    """The same of files, name → bytes, of which `read` gives one."""
    old = [name for name in sizes if name.rpartition("/")[2] in OLD_FORMAT]
    if old:
        raise MisfitError(f"it holds zarr format 2 ({old[0]}), which is not read; traces are format 3")
    names = [name for name in sizes if name.rpartition("/")[2] == METADATA]
    if METADATA not in names:
        raise MisfitError("it holds no zarr group")
    if len(names) > MOST_ARRAYS:
        raise MisfitError(f"it declares {len(names)} arrays, {MOST_ARRAYS} are allowed")
    for name in names:
        if sizes[name] > MOST_METADATA:
            raise MisfitError(f"its {name} has {sizes[name]} bytes")
        folder = name.removesuffix(METADATA)
        chunks = [size for other, size in sizes.items() if other.startswith(folder) and other != name]
        try:
            _check_node(json.loads(read(name)), chunks)
        except MisfitError as error:
            raise MisfitError(f"in its {name}, {error}") from error
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise MisfitError(f"its {name} is not readable JSON of zarr") from error


def _check_node(about: Any, chunks: list[int]) -> None:
    """Raise MisfitError unless a group or an array of zarr can be of a trace; chunks: sizes of its files."""
    if fit(Mapping[str, Any], about)["zarr_format"] != 3:
        raise MisfitError("the format of zarr should be 3")
    if about["node_type"] != "array":
        return
    shape = fit(tuple[int, ...], about["shape"], "shape")
    chunk = fit(tuple[int, ...], about["chunk_grid"]["configuration"]["chunk_shape"], "chunk_shape")
    kind, strange = about["data_type"], {codec["name"] for codec in about["codecs"]} - CODECS
    if strange or about.get("storage_transformers"):
        named = f"the codec {min(strange)!r}" if strange else "a storage transformer"
        raise MisfitError(f"an array is stored with {named}; traces use {' and '.join(sorted(CODECS))} only")
    if kind not in KINDS:
        raise MisfitError(f"an array holds {kind!r}; traces hold numbers and truth values")
    if len(shape) != len(chunk) or not all(0 <= size < MOST_ITEMS for size in (*shape, *chunk)):
        raise MisfitError(f"an array cannot have the shape {shape} and chunks of {chunk}")
    each = math.prod(chunk) * np.dtype(kind).itemsize
    count = math.prod(-(-size // max(1, step)) for size, step in zip(shape, chunk, strict=True))
    largest = max(chunks, default=0)
    too_few = len(chunks) < count and count * each > EMPTY_BYTES + largest * RATIO
    if too_few or each > max(largest * RATIO, EMPTY_BYTES):
        raise MisfitError(
            f"an array declares {count} chunks of {each} bytes and holds {len(chunks)} of at most {largest}; the file is "
            "damaged, or made to fill the memory"
        )
