"""The one switch for everything in `sinkscope.gpu`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton was asked to interpret its kernels on the CPU; like Triton itself, we look once, when this is imported."""


def fast(device: torch.device) -> bool:
    """Whether what makes a GPU fast is used on a device: on a GPU and in Triton's interpreter, unless SINKSCOPE_FAST=0."""
    return (device.type == "cuda" or INTERPRETED) and os.environ.get("SINKSCOPE_FAST", "1") != "0"
