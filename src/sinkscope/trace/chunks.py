"""Zarr arrays that grow by one chunk per step, written as plain files.

zarr itself creates the arrays and reads them; only the chunks of a step are written here, because a step of a small model takes
a few milliseconds and zarr's own writing takes longer than that. A chunk is the array's bytes (C order, little endian), zstd.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.trace.capture import Array

LEVEL = 1
"""zstd's fastest level: received attention hardly gets smaller at higher ones."""


class ChunkedArray:
    """One array of a zarr group whose every step is one chunk.

    Args:
        shape: full shape, the step axis as long as it may get.
    """

    def __init__(
        self,
        group: Any,
        name: str,
        dims: tuple[str, ...],
        shape: tuple[int, ...],
        dtype: str,
        fill: Any,
        attributes: dict[str, Any],
    ) -> None:
        from numcodecs import Zstd
        from zarr.codecs import ZstdCodec

        self._axis = dims.index("step")
        self._chunk = tuple(1 if dim == "step" else size for dim, size in zip(dims, shape, strict=True))
        self._array = group.create_array(
            name, shape=shape, chunks=self._chunk, dtype=dtype, fill_value=np.asarray(fill, dtype=dtype)[()],
            dimension_names=dims, attributes=attributes, compressors=ZstdCodec(level=LEVEL),
            chunk_key_encoding={"name": "v2", "configuration": {"separator": "."}},
        )  # fmt: skip
        self._folder = Path(str(group.store.root)) / name
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._compress = Zstd(level=LEVEL).encode

    def write(self, index: int, value: Array) -> None:
        """Writes the chunk of one step; value has the array's shape without the step axis."""
        raw = np.ascontiguousarray(value, dtype=self._dtype)
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
