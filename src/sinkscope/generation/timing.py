"""How long the steps of a generation take: untraced, traced and masked, one after the other on the same machine.

Only steps are timed, not the loading. `sinkscope bench` shows ratios of them; the suite in the repository's `bench/` times the
same steps beside other programs.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sinkscope.base.version import __version__
from sinkscope.decoding.base import Decoding, decoding_from_options, default_decoding
from sinkscope.generation.generate import generate
from sinkscope.models.model import Model
from sinkscope.trace.capture import Capture

ANSWER, BLOCK, MASKED = 256, 32, "top:5"
SKIPPED = 5
"""First steps that are not counted: kernels are compiled and graphs captured in them."""


@dataclass(frozen=True)
class Timing:
    """Median seconds of a step, how many steps it is of, and the peak memory beyond the weights, in bytes (GPU only)."""

    seconds: float
    steps: int
    peak: int | None


class Clock:
    """Stamps the steps of a generation."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stamps: list[Any] = []  # seconds, or events of a GPU
        synchronize(device)
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)

    def tick(self, *_: object) -> None:
        """The end of a step: on a GPU the moment at which the generation's own stream has done it.

        Nothing waits for that, because nothing does in a generation that is not timed. Copies to the host run beside the next
        step; if they cannot keep up, the steps wait for them (`gpu.outbox.WAITING`), and that is in their time.
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
        pairs = list(zip(self._stamps, self._stamps[1:], strict=False))
        if self.device.type == "cuda":
            lasted = [before.elapsed_time(after) / 1e3 for before, after in pairs]
            peak = torch.cuda.max_memory_allocated(self.device) - self._before
        else:
            lasted, peak = [after - before for before, after in pairs], None
        lasted = lasted[min(SKIPPED, len(lasted) - 1) :]
        return Timing(statistics.median(lasted), len(lasted), peak)


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_tokens(model: Model, rows: int, length: int) -> Tensor:
    """Long [rows, length]: the same tokens in every call."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, min(1000, model.shape.vocabulary // 2), (rows, length), generator=draw)


def decoding_for(model: Model, length: int, steps: int) -> Decoding:
    """A decoding of about `steps` steps that runs all of them, for rows of `length` tokens with their answer."""
    answer = min(ANSWER, length // 2 // BLOCK * BLOCK)
    # No probability passes a threshold of 1. Of LLaDA2's blocks, one step also stores the block: it must not be the median.
    special: dict[str, dict[str, Any]] = {
        "causal": {"length": min(2 * steps, length // 2), "eos": None},
        "sdar": {"length": max(4, steps // 4 * 4), "top_k": 1, "scoring": "raw", "threshold": 1.0},
        "llada2": {"length": 2 * BLOCK, "steps": max(4, steps // 2), "threshold": 1.0},
        "fast_dllm_v2": {"length": BLOCK, "threshold": 1.0, "stop": None},
    }
    options = special.get(model.family)
    if options is None:
        blocks = answer // BLOCK if hasattr(default_decoding(model.family), "block") else 1
        options = {"length": answer, "steps": max(1, steps // blocks) * blocks}
    return decoding_from_options(model.family, options)


def timings(
    model: Model,
    prompt: Tensor,
    decoding: Decoding,
    turns: int,
    rivals: Mapping[str, Callable[[], Timing]] | None = None,
) -> dict[str, Timing | None]:
    """Name → what a step takes, untraced, traced and masked, and of `rivals`; None where memory ran out: a result too."""

    def ours(**options: Any) -> Timing:
        clock = Clock(model.device)
        generate(model, prompt, decoding, progress=clock.tick, **options)
        return clock.timing()

    measurements: dict[str, Callable[[], Timing]] = {
        "untraced": ours,
        "traced": partial(ours, capture=Capture()),
        "masked": partial(ours, capture=Capture(), policy=MASKED),
        **(rivals or {}),
    }
    if model.device.type == "cuda":
        # Once without a clock: in a virtual machine the first touch of the memory for a trace takes longer than the copy into it.
        _unless_full(measurements["masked"])
    # One after the other, several times: a slow minute of a shared processor then falls on all of them.
    runs = [{name: _unless_full(run) for name, run in measurements.items()} for _ in range(turns)]
    return {name: _pooled([run[name] for run in runs]) for name in measurements}


def _unless_full(measurement: Callable[[], Timing]) -> Timing | None:
    try:
        return measurement()
    except torch.OutOfMemoryError:
        pass  # outside of this block nothing holds on to the tensors of the failed run
    from sinkscope.gpu.graphs import drop_unused

    drop_unused()
    return None


def _pooled(turns: list[Timing | None]) -> Timing | None:
    """The median of several medians of the same."""
    complete = [timing for timing in turns if timing is not None]
    if len(complete) < len(turns):
        return None
    peaks = [timing.peak for timing in complete if timing.peak is not None]
    seconds = statistics.median(timing.seconds for timing in complete)
    return Timing(seconds, sum(timing.steps for timing in complete), max(peaks, default=None))


def about(model: Model) -> dict[str, Any]:
    """What is measured, and on what."""
    on_gpu = model.device.type == "cuda"
    cpu = f"CPU, {torch.get_num_threads()} threads, {platform.machine()}"
    return {
        "family": model.family, "dtype": str(model.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(model.device) if on_gpu else cpu,
        "parameters": model.shape.parameters,
        "versions": {"sinkscope": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }  # fmt: skip
