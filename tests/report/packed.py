"""Reads back what a page embeds, as the viewer's script does."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

from sinkscope.report.payload import LEFT_OUT, Array


def values_of(codes: Array, scale: float) -> Array:
    """The scores that a reader gets back, float64, NaN where there is none."""
    return np.asarray(np.where(codes >= LEFT_OUT, np.nan, np.expm1(codes * scale)))


def unpack(packed: dict[str, Any]) -> Array:
    """The array back; coded arrays as codes."""
    content = zlib.decompress(base64.b64decode(packed["data"]))
    kind, shape = packed["kind"], packed["shape"]
    if kind in ("u16", "i16"):
        planes = np.frombuffer(content, np.uint8).reshape(2, -1)
        return np.ascontiguousarray(planes.T).view("<u2" if kind == "u16" else "<i2").reshape(shape)
    return np.frombuffer(content, "<f4" if kind == "f32" else "u1").reshape(shape)
