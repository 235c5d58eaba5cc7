"""A look at a trace on disk before zarr opens it: traces come from strangers.

Only zarr format 3 with the two codecs that our own traces use is read (older formats can name codecs that unpickle), and what an
array declares is compared with the bytes that are there, so that a file of a few kilobytes cannot ask for gigabytes.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError

CODECS = frozenset({"bytes", "zstd"})
ITEM_SIZES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
OLD_FORMAT = (".zarray", ".zgroup", ".zattrs", ".zmetadata")
METADATA = "zarr.json"

MOST_METADATA = 64 << 20
"""Bytes of one zarr.json: a trace keeps the texts of its tokens there."""
MOST_ARRAYS = 256
EMPTY_BYTES = 64 << 20
"""An array whose chunks are not all there is filled up by zarr; none of ours that does so is larger than this."""
RATIO = 50_000
"""zstd makes at most 128 KiB out of 3 bytes, so that a chunk is at most this many times its file."""


def check_store(path: Path) -> None:
    """Raise InputError unless a `.zarr.zip` or a folder holds what a trace can hold."""
    sizes, read = _entries(path)
    old = [name for name in sizes if name.rpartition("/")[2] in OLD_FORMAT]
    if old:
        raise InputError(
            f"{path} is not a trace: it holds zarr format 2 ({old[0]}), which is not read; traces are format 3"
        )
    names = [name for name in sizes if name.rpartition("/")[2] == METADATA]
    if METADATA not in names:
        raise InputError(f"{path} is not a trace: it holds no zarr group")
    if len(names) > MOST_ARRAYS:
        raise InputError(f"{path} is not a trace: it declares {len(names)} arrays, {MOST_ARRAYS} are allowed")
    for name in names:
        if sizes[name] > MOST_METADATA:
            raise InputError(f"{path} is not a trace: its {name} has {sizes[name]} bytes")
        try:
            about = json.loads(read(name))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is not a trace: its {name} is not readable JSON") from error
        if not isinstance(about, dict) or about.get("zarr_format") != 3:
            raise InputError(f"{path} is not a trace: its {name} is not of zarr format 3")
        if about.get("node_type") == "array":
            folder = name.removesuffix(METADATA)
            chunks = [size for other, size in sizes.items() if other.startswith(folder) and other != name]
            _check_array(path, folder.rstrip("/") or "root", about, chunks)


def _entries(path: Path) -> tuple[dict[str, int], Any]:
    """Name → bytes of every file inside, and a function that reads one."""
    if path.is_dir():
        files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
        return {name: file.stat().st_size for name, file in files.items()}, lambda name: files[
            name
        ].read_bytes()
    try:
        with zipfile.ZipFile(path) as archive:
            infos = {info.filename: info for info in archive.infolist() if not info.is_dir()}
            texts = {
                name: archive.read(info)
                for name, info in infos.items()
                if name.rpartition("/")[2] == METADATA and info.file_size <= MOST_METADATA
            }
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
        raise InputError(f"{path} is not a trace: it is not a readable zip file ({error})") from error
    packed = [name for name, info in infos.items() if info.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise InputError(
            f"{path} is not a trace: {packed[0]} is compressed by zip; traces store their files as they are"
        )
    return {name: info.file_size for name, info in infos.items()}, texts.__getitem__


def _check_array(path: Path, name: str, about: Mapping[str, Any], chunks: list[int]) -> None:
    codecs = about.get("codecs")
    known = [{"name": name} for name in CODECS]
    strange = (
        [
            str(codec)
            for codec in codecs
            if not isinstance(codec, dict) or {"name": codec.get("name")} not in known
        ]
        if isinstance(codecs, list)
        else ["none"]
    )
    if strange or about.get("storage_transformers"):
        raise InputError(
            f"{path}: the array {name} is stored with the codec {(strange or ['a storage transformer'])[0]!r}; traces use "
            f"{' and '.join(sorted(CODECS))} only"
        )
    kind = about.get("data_type")
    if not isinstance(kind, str) or kind not in ITEM_SIZES:
        raise InputError(f"{path}: the array {name} holds {kind!r}; traces hold numbers and truth values")
    grid = about.get("chunk_grid")
    shape = about.get("shape")
    chunk = grid.get("configuration", {}).get("chunk_shape") if isinstance(grid, dict) else None
    if not _sizes(shape) or not _sizes(chunk) or len(shape) != len(chunk):  # type: ignore[arg-type]
        raise InputError(f"{path}: the array {name} declares no readable shape")
    each = math.prod(chunk) * ITEM_SIZES[kind]  # type: ignore[arg-type]
    wanted = math.prod(-(-size // max(1, step)) for size, step in zip(shape, chunk, strict=True))  # type: ignore[arg-type]
    largest = max(chunks, default=0)
    if each > max(largest * RATIO, EMPTY_BYTES) or (
        len(chunks) < wanted and wanted * each > EMPTY_BYTES + largest * RATIO
    ):
        raise InputError(
            f"{path}: the array {name} declares {wanted} chunks of {each} bytes and holds {len(chunks)} of at most {largest}; "
            "the file is damaged, or made to fill the memory"
        )


def _sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**40 for size in value)
