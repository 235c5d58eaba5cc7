"""The limits that a device sets: how fast it is on plain work, and how much of that a step is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sinkscope.generation.timing import Clock, Timing
from sinkscope.models.model import Model


@dataclass(frozen=True)
class Device:
    """Speeds of a device on plain work: FLOP/s of a large matrix product, bytes/s of a large copy."""

    flops: float
    bandwidth: float


def timed(device: torch.device, step: Callable[[], object], steps: int) -> Timing:
    """Times a step that is repeated."""
    clock = Clock(device)
    for _ in range(steps):
        step()
        clock.tick()
    return clock.timing()


def limits(device: torch.device, dtype: torch.dtype) -> Device:
    """Measures the device on large random inputs."""
    size, copied = (8192, 1 << 30) if device.type == "cuda" else (1536, 1 << 26)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    source = torch.randn(copied // 4, device=device)
    target = torch.empty_like(source)
    product = timed(device, lambda: left @ right, 12).seconds
    copy = timed(device, lambda: target.copy_(source), 12).seconds
    return Device(2 * size**3 / product, 2 * copied / copy)


def forward_flops(model: Model, batch: int, length: int, answered: int) -> float:
    """Floating-point operations of one step: matrices, attention, and the head at `answered` positions of each row."""
    shape = model.shape
    embedding = shape.vocabulary * shape.width
    matrices = shape.parameters - 2 * embedding
    attention = 4 * shape.layers * shape.heads * shape.head_dim * length * length
    return batch * (2.0 * matrices * length + attention + 2.0 * embedding * answered)


def weight_bytes(model: Model) -> float:
    """Bytes that one step has to read at least: all weights but the input embedding."""
    embedding = model.shape.vocabulary * model.shape.width
    return float((model.shape.parameters - embedding) * model.dtype.itemsize)
