"""Times and memory of steps on a device, and the limits that the device sets."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from sinkscope.models.model import Model

SKIPPED = 5
"""First steps that are not counted: kernels are compiled and graphs captured in them."""


@dataclass(frozen=True)
class Timing:
    """Median seconds of a step, how many steps it is of, and the peak memory beyond the weights, in bytes (GPU only)."""

    seconds: float
    steps: int
    peak: int | None

    def __str__(self) -> str:
        return f"{self.seconds * 1e3:.1f} ms"


@dataclass(frozen=True)
class Device:
    """Speeds of a device on plain work: FLOP/s of a large matrix product, bytes/s of a large copy."""

    flops: float
    bandwidth: float


def pooled(timings: Sequence[Timing | None]) -> Timing | str:
    """The median of several medians of the same; "out of memory" where one of them is missing."""
    complete = [timing for timing in timings if timing is not None]
    if len(complete) < len(timings):
        return "out of memory"
    peaks = [timing.peak for timing in complete if timing.peak is not None]
    return Timing(
        statistics.median(timing.seconds for timing in complete),
        sum(timing.steps for timing in complete),
        max(peaks, default=None),
    )


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Clock:
    """Stamps the steps of a generation."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stamps: list[float | torch.cuda.Event] = []
        self._before = 0
        synchronize(device)
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)

    def tick(self, *_: object) -> None:
        """The end of a step: on a GPU the moment at which the generation's own stream has done it.

        Nothing waits for that, because nothing does in a generation that is not timed. Copies to the host run beside the next
        step; if they cannot keep up, the steps wait for them (`trace.outbox.WAITING`), and that is in their time.
        """
        if self.device.type == "cuda":
            stamp = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            stamp.record(torch.cuda.current_stream(self.device))
            self._stamps.append(stamp)
        else:
            self._stamps.append(time.perf_counter())

    def timing(self) -> Timing:
        """The median of the steps after the first few."""
        synchronize(self.device)
        pairs = zip(self._stamps, self._stamps[1:], strict=False)
        lasted = [_between(before, after) for before, after in pairs]
        lasted = lasted[min(SKIPPED, len(lasted) - 1) :]
        peak = None
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device) - self._before
        return Timing(statistics.median(lasted), len(lasted), peak)


def _between(before: float | torch.cuda.Event, after: float | torch.cuda.Event) -> float:
    """Seconds between two stamps of one clock."""
    if isinstance(before, float) or isinstance(after, float):
        return after - before  # type: ignore[operator]
    return float(before.elapsed_time(after)) / 1e3


def timed(device: torch.device, steps: Iterable[object]) -> Timing:
    """Times every step of an iteration."""
    clock = Clock(device)
    for _ in steps:
        clock.tick()
    return clock.timing()


def limits(device: torch.device, dtype: torch.dtype) -> Device:
    """Measures the device on large random inputs."""
    size, copied = (8192, 1 << 30) if device.type == "cuda" else (1536, 1 << 26)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    source = torch.randn(copied // 4, device=device)
    target = torch.empty_like(source)
    product = timed(device, (left @ right for _ in range(12))).seconds
    copy = timed(device, (target.copy_(source) for _ in range(12))).seconds
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
