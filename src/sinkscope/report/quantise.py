"""Scores in one byte each, and arrays as compressed text that a browser can read.

A score v ≥ 0 becomes the code round(log(1 + v) / scale), 0 … 253: small steps near uniform attention, wide ones at strong
sinks, so that the error is about the same share of 1 + v everywhere. 254 means "not embedded", 255 "no such key".
"""

from __future__ import annotations

import base64
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LEVELS = 253
LEFT_OUT, MISSING = 254, 255


class Coded(NamedTuple):
    """codes uint8 of the array's shape; value = exp(code · scale) − 1; error: the largest |decoded − v| / (1 + v) met."""

    codes: Array
    scale: float
    error: float


def quantise(values: Array) -> Coded:
    """One byte per score. values: float, any shape, ≥ 0, NaN where there is no key."""
    top = float(np.nanmax(values)) if np.isfinite(values).any() else 0.0
    scale = float(np.log1p(max(top, 1e-3)) / LEVELS)
    missing = np.isnan(values)
    logs = np.log1p(np.where(missing, 0.0, np.maximum(values, 0.0)), dtype=np.float64)
    codes = np.rint(logs / scale)
    error = float(np.abs(np.expm1(np.abs(codes * scale - logs))).max(initial=0.0))
    return Coded(np.where(missing, MISSING, codes).astype(np.uint8), scale, error)


def pack_coded(values: Array) -> dict[str, Any]:
    """Quantised and packed, with the scale and the error."""
    coded = quantise(values)
    return {**pack(coded.codes, "coded"), "scale": coded.scale, "error": coded.error}


def pack(values: Array, kind: str) -> dict[str, Any]:
    """An array as {kind, shape, data}: little endian, zlib, base64.

    kind: "u8", "u16", "i16", "f32" or "coded" (uint8). Sixteen-bit numbers are stored as all low bytes, then all high
    bytes: the high bytes hardly vary and compress to almost nothing.
    """
    dtype = {"u8": "u1", "coded": "u1", "u16": "<u2", "i16": "<i2", "f32": "<f4"}[kind]
    raw = np.ascontiguousarray(values, dtype=dtype)
    content = raw.tobytes()
    if raw.dtype.itemsize == 2:
        content = raw.reshape(-1).view(np.uint8).reshape(-1, 2).T.tobytes()
    return {
        "kind": kind,
        "shape": list(raw.shape),
        "data": base64.b64encode(zlib.compress(content, 6)).decode("ascii"),
    }
