"""Zarr arrays that grow by one chunk per step, written as plain files.

zarr itself creates the arrays and reads them; only the chunks of a step are written here, because a step of a small model takes
a few milliseconds and zarr's own writing takes longer than that. A chunk is the array's bytes (C order, little endian), zstd.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.trace.capture import Array, Variable

LEVEL = 1
"""zstd's fastest level: received attention hardly gets smaller at higher ones."""


def is_halved(name: str) -> bool:
    """Whether a variable is stored as float16."""
    return "received" in name or name in ("attention", "attention_at")


def stored(name: str, array: Array) -> Array:
    """A variable's values as they are stored: float16 for shares of attention, its largest where a value is past its range."""
    if not is_halved(name):
        return array
    half: Array = np.clip(array, -65504.0, 65504.0).astype(np.float16)
    return half


class ChunkedArray:
    """One array of a zarr group whose every step is one chunk.

    Args:
        sizes: dimension → length; of the step axis as long as it may get.
    """

    def __init__(self, group: Any, name: str, variable: Variable, sizes: Mapping[str, int]) -> None:
        from numcodecs import Zstd
        from zarr.codecs import ZstdCodec

        dims, dtype = variable.dims, "float16" if is_halved(name) else variable.dtype
        self._axis = dims.index("step")
        self._chunk = tuple(1 if dim == "step" else sizes[dim] for dim in dims)
        self._array = group.create_array(
            name, shape=tuple(sizes[dim] for dim in dims), chunks=self._chunk, dtype=dtype,
            fill_value=np.asarray(variable.empty, dtype=dtype)[()], dimension_names=dims, attributes={"units": variable.unit},
            compressors=ZstdCodec(level=LEVEL), chunk_key_encoding={"name": "v2", "configuration": {"separator": "."}},
        )  # fmt: skip
        self._folder = Path(str(group.store.root)) / name
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._compress = Zstd(level=LEVEL).encode

    def write(self, index: int, value: Array) -> None:
        """Writes the chunk of one step; value has the array's shape without the step axis."""
        raw = np.ascontiguousarray(stored(self._folder.name, value), dtype=self._dtype)
        if raw.size != int(np.prod(self._chunk)):
            raise ValueError(f"a step of {self._folder.name} has shape {self._chunk}, got {value.shape}")
        key = ".".join(str(index if axis == self._axis else 0) for axis in range(len(self._chunk)))
        (self._folder / key).write_bytes(self._compress(raw))

    def trim(self, steps: int) -> None:
        """Cuts the step axis to what was written."""
        shape = list(self._array.shape)
        shape[self._axis] = steps
        self._array.resize(tuple(shape))


def write_whole(
    group: Any, name: str, dims: tuple[str, ...], value: Array, attributes: dict[str, Any] | None = None
) -> None:
    """An array that does not grow, in one chunk."""
    created = group.create_array(
        name, shape=value.shape, chunks=value.shape, dtype=value.dtype, dimension_names=dims, attributes=attributes or {}
    )  # fmt: skip
    created[...] = value
