"""The measurements: ours untraced, traced and masked, beside the official style and eager maps, for every batch and length.

Everything that enters a ratio is measured in one process, one after the other, on the same network and prompt.
"""

from __future__ import annotations

import dataclasses
import datetime
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sinkscope.bench import rivals
from sinkscope.bench.clock import Clock, Timing, forward_flops, limits, pooled, timed, weight_bytes
from sinkscope.bench.shapes import model_of
from sinkscope.decoding import Decoding, DreamDecoding, LladaDecoding, MmadaDecoding
from sinkscope.errors import InputError
from sinkscope.generation.generate import generate
from sinkscope.models.model import Model
from sinkscope.policies import parse_policy
from sinkscope.trace.capture import Capture
from sinkscope.version import __version__

STEPS = 16
ANSWER, BLOCK = 256, 32
TURNS = 3
"""How often everything is measured on a CPU."""
MASKED = "top:5"
GRID = (
    (1, 384),
    (8, 384),
    (16, 384),
    (1, 512),
    (8, 512),
    (16, 512),
    (1, 1024),
    (8, 1024),
    (1, 4096),
    (1, 16384),
)
QUICK = ((1, 128), (8, 128), (1, 512))


@dataclass(frozen=True)
class Case:
    """Rows, tokens in a row (answer included), and what was measured: name → Timing, or why there is none."""

    batch: int
    length: int
    timings: dict[str, Timing | str]
    compute_limit: float
    bandwidth_limit: float

    def ratio(self, what: str, to: str) -> float | None:
        """How many times longer `what` takes than `to`."""
        first, second = self.timings.get(what), self.timings.get(to)
        if isinstance(first, Timing) and isinstance(second, Timing):
            return first.seconds / second.seconds
        return None


@dataclass(frozen=True)
class Result:
    """One run of the benchmark."""

    shape: str
    family: str
    dtype: str
    device: str
    parameters: int
    settings: dict[str, Any]
    versions: dict[str, str]
    date: str
    flops: float
    bandwidth: float
    cases: tuple[Case, ...]


def run(
    shape: str,
    device: str,
    dtype: str,
    grid: tuple[tuple[int, int], ...] | None,
    steps: int = STEPS,
    rivalry: bool = True,
    said: Callable[[str], None] = lambda _: None,
) -> Result:
    """Builds the network and measures every case; `said` hears about each as it comes."""
    model = model_of(shape, device, dtype)
    if model.spec.causal:
        raise InputError(
            f"{shape} is a causal model; the benchmark measures denoising steps: give llada-8b, dream-7b or a diffusion model"
        )
    chosen = grid or (GRID if model.device.type == "cuda" else QUICK)
    for batch, length in chosen:
        if batch < 1 or length <= 2 * BLOCK:
            raise InputError(
                f"{batch}x{length}: a batch of at least 1 and more than {2 * BLOCK} tokens are needed"
            )
    best = limits(model.device, model.dtype)
    cases = []
    for batch, length in chosen:
        case = measure(model, batch, length, steps, rivalry, best.flops, best.bandwidth)
        cases.append(case)
        said(_line(case))
    return Result(
        shape=shape,
        family=model.family,
        dtype=str(model.dtype).removeprefix("torch."),
        device=_device_name(model.device),
        parameters=model.shape.parameters,
        settings={
            "steps": steps,
            "answer": ANSWER,
            "block": BLOCK,
            "capture": "heads",
            "policy": MASKED,
            "turns": 1 if model.device.type == "cuda" else TURNS,
        },
        versions={"sinkscope": __version__, "torch": torch.__version__, "python": platform.python_version()},
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        flops=best.flops,
        bandwidth=best.bandwidth,
        cases=tuple(cases),
    )


def measure(
    model: Model, batch: int, length: int, steps: int, rivalry: bool, flops: float, bandwidth: float
) -> Case:
    """One batch and length."""
    answer = min(ANSWER, length // 2 // BLOCK * BLOCK)
    draw = torch.Generator().manual_seed(0)
    prompt = torch.randint(
        0, min(1000, model.shape.vocabulary // 2), (batch, length - answer), generator=draw
    )
    asked: dict[str, Callable[[], Timing]] = {
        name: partial(_ours, model, prompt, answer, steps, **options)
        for name, options in (
            ("untraced", {}),
            ("traced", {"capture": Capture()}),
            ("masked", {"capture": Capture(), "policy": parse_policy(MASKED)}),
        )
    }
    if rivalry:
        mask = torch.full((batch, answer), int(model.ids.mask or 0))
        x, start = torch.cat([prompt, mask], 1).to(model.device), length - answer
        asked["official"] = partial(_official, model, x[:1], start, steps)
        asked["eager"] = partial(_eager, model, x, steps)
    # Taken in turns: on a processor that others use too, a slow minute then falls on all of them.
    turns = [
        {name: _tried(model, measured) for name, measured in asked.items()}
        for _ in range(1 if model.device.type == "cuda" else TURNS)
    ]
    timings: dict[str, Timing | str] = {}
    for name in asked:
        found = [turn[name] for turn in turns]
        good = [one for one in found if isinstance(one, Timing)]
        timings[name] = pooled(good) if len(good) == len(found) else "out of memory"
    least = forward_flops(model, batch, length, BLOCK) / flops
    return Case(batch, length, timings, least, weight_bytes(model) / bandwidth)


def decoding_of(model: Model, answer: int, steps: int) -> Decoding:
    """A deterministic decoding of the model's family with `steps` steps."""
    if model.family == "dream":
        return DreamDecoding(length=answer, steps=steps, temperature=0.0, top_p=None)
    kind = LladaDecoding if model.family == "llada" else MmadaDecoding
    blocks = answer // BLOCK
    return kind(length=answer, steps=max(1, steps // blocks) * blocks, block=BLOCK)


def _ours(model: Model, prompt: Tensor, answer: int, steps: int, **options: Any) -> Timing:
    clock = Clock(model.device)
    generate(model, prompt, decoding_of(model, answer, steps), progress=clock.tick, **options)
    return clock.timing()


def _official(model: Model, x: Tensor, start: int, steps: int) -> Timing:
    with rivals.attention(model, "official"):
        return timed(model.device, rivals.official_steps(model, x, start, BLOCK, steps))


def _eager(model: Model, x: Tensor, steps: int) -> Timing:
    with rivals.attention(model, "eager"):
        return timed(model.device, rivals.eager_steps(model, x, steps))


def _tried(model: Model, measured: Callable[[], Timing]) -> Timing | str:
    """The timing, or the reason why there is none: running out of memory is a result."""
    try:
        return measured()
    except torch.OutOfMemoryError:
        pass
    torch.cuda.empty_cache()
    return "out of memory"


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads, {platform.machine()}"


def _line(case: Case) -> str:
    parts = [
        f"{name} {found.milliseconds:.1f} ms" if isinstance(found, Timing) else f"{name}: {found}"
        for name, found in case.timings.items()
    ]
    return f"{case.batch} × {case.length}: " + ", ".join(parts)


def as_json(result: Result) -> dict[str, Any]:
    """The result as JSON data."""
    return dataclasses.asdict(result)
