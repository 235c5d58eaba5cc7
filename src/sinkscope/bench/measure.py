"""The measurements: ours untraced, traced and masked, beside the official style and eager maps, for every batch and length.

Everything that enters a ratio is measured in one process, one after the other, on the same network and prompt.
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sinkscope.bench import job, reuse, rivals
from sinkscope.bench.clock import Clock, Device, Timing, forward_flops, limits, pooled, weight_bytes
from sinkscope.bench.shapes import model_of, random_tokens, with_masks
from sinkscope.decoding import (
    Decoding,
    DreamDecoding,
    GreedyDecoding,
    Llada2Decoding,
    LladaDecoding,
    MmadaDecoding,
    SdarDecoding,
)
from sinkscope.errors import InputError
from sinkscope.generation.generate import generate
from sinkscope.models.load import resolve_device
from sinkscope.models.model import Model
from sinkscope.policies import parse_policy
from sinkscope.trace.capture import Capture
from sinkscope.version import __version__

STEPS = 16
JOB, REUSE = "job", "reuse"
"""The shapes that stand for a whole cell of a study, and for steps under reuse rules."""
ANSWER, BLOCK = 256, 32
TURNS = 3
"""Repetitions of every measurement on a CPU."""
MASKED = "top:5"
Grid = tuple[tuple[int, int], ...]
"""Rows, and tokens in a row (answer included), of every case."""
GRIDS: dict[tuple[bool, bool], Grid] = {
    (False, True): (
        (1, 384), (8, 384), (16, 384), (1, 512), (8, 512), (16, 512), (1, 1024), (8, 1024), (1, 4096), (1, 16384),
    ),
    (False, False): ((1, 128), (8, 128), (1, 512)),
    (True, True): ((1, 256), (16, 256), (1, 2048)),
    (True, False): ((1, 128), (8, 128)),
}  # fmt: skip
"""By whether the model is causal, and whether it is on a GPU."""


def run(
    shape: str,
    device: str,
    dtype: str,
    grid: Grid | None,
    steps: int = STEPS,
    rivalry: bool = True,
    say: Callable[[str], None] = lambda _: None,
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Builds the network and measures every case.

    Args:
        shape: see `command.bench_command`; "job" for a whole cell of a study, "reuse" for steps under reuse rules.
        rivalry: measure the official style and eager maps too.
        say: called with a line about every case as it is measured.
        keep: called with the result so far after every case, so that nothing is lost when a run is stopped.

    Returns:
        JSON data: what was measured, on what, when; `cases` hold batch, length, limits in seconds, and timings: name →
        {seconds, steps, peak} or why there is none.
    """
    on_gpu = resolve_device(device).type == "cuda"
    if shape == JOB:
        model = model_of("llada-8b" if on_gpu else "llada-small", device, dtype)
        whole = partial(_result, shape, model, steps, limits(model.device, model.dtype))
        decoding = LladaDecoding(length=ANSWER, steps=steps, block=BLOCK)
        return whole(job.cases(model, decoding, say, lambda cases: keep(whole(cases))))
    if shape == REUSE:
        model = model_of("llada-8b" if on_gpu else "llada-small", device, dtype)
        whole = partial(_result, shape, model, steps, limits(model.device, model.dtype))
        sizes = grid or reuse.GRIDS[on_gpu]
        return whole(reuse.cases(model, sizes, ANSWER, BLOCK, steps, say, lambda cases: keep(whole(cases))))
    model = model_of(shape, device, dtype)
    grid = grid or GRIDS[model.spec.causal, on_gpu]
    for batch, length in grid:
        if batch < 1 or length <= 2 * BLOCK:
            raise InputError(
                f"{batch}x{length}: a batch of at least 1 and more than {2 * BLOCK} tokens are needed"
            )
    best = limits(model.device, model.dtype)
    cases: list[dict[str, Any]] = []
    for batch, length in grid:
        timings = _timings(model, batch, length, steps, rivalry, turns=1 if on_gpu else TURNS)
        case = {
            "batch": batch,
            "length": length,
            "timings": {
                name: timing if isinstance(timing, str) else vars(timing) for name, timing in timings.items()
            },
        }
        if not model.spec.blocks:  # a step there reads some of the experts, or asks a few queries of a cache
            step = (1, 1) if model.spec.causal else (length, BLOCK)  # one new token, or all positions
            case["compute_limit"] = forward_flops(model, batch, *step) / best.flops
            case["bandwidth_limit"] = weight_bytes(model) / best.bandwidth
        cases.append(case)
        parts = (f"{name} {timing}" for name, timing in timings.items())
        say(f"{batch} × {length}: {', '.join(parts)}")
        keep(_result(shape, model, steps, best, cases))
    return _result(shape, model, steps, best, cases)


def _result(
    shape: str, model: Model, steps: int, best: Device, cases: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "shape": shape,
        "family": model.family,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": _device_name(model.device),
        "parameters": model.shape.parameters,
        "settings": {
            "steps": steps, "answer": ANSWER, "block": BLOCK, "capture": "heads", "policy": MASKED,
            "turns": 1 if model.device.type == "cuda" else TURNS,
        },
        "versions": {
            "sinkscope": __version__, "torch": torch.__version__, "python": platform.python_version(),
        },
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **vars(best),
        "cases": cases,
    }  # fmt: skip


def _timings(
    model: Model, batch: int, length: int, steps: int, rivalry: bool, turns: int
) -> dict[str, Timing | str]:
    """Name → timing of one batch and length, or the reason why there is none."""
    causal = model.spec.causal
    answer = min(2 * steps, length // 2) if causal else min(ANSWER, length // 2 // BLOCK * BLOCK)
    decoding = decoding_of(model, answer, steps)
    answer = decoding.new_tokens
    prompt = random_tokens(model, batch, length - answer)
    ours = partial(_ours, model, prompt, decoding)
    measurements: dict[str, Callable[[], Timing]] = {
        "untraced": ours,
        "traced": partial(ours, capture=Capture()),
        "masked": partial(ours, capture=Capture(), policy=parse_policy(MASKED)),
    }
    if rivalry and causal:
        theirs = partial(rivals.transformers_generate, model, prompt, answer)
        measurements["transformers"] = partial(theirs, compiled=False)
        if model.device.type == "cuda":
            measurements["transformers, compiled"] = partial(theirs, compiled=True)
    elif rivalry and not model.spec.blocks:
        x = with_masks(model, prompt, answer)
        measurements["official"] = partial(rivals.official, model, x[:1], length - answer, BLOCK, steps)
        measurements["eager"] = partial(rivals.eager, model, x, steps)
    if model.device.type == "cuda":
        # Once without a clock: in a virtual machine the first touch of the memory for a trace takes longer than the copy into it.
        _tried(measurements["masked"])
    # One after the other, several times: a slow minute of a shared processor then falls on all of them.
    timings = [{name: _tried(measure) for name, measure in measurements.items()} for _ in range(turns)]
    return {name: pooled([turn[name] for turn in timings]) for name in measurements}


def decoding_of(model: Model, answer: int, steps: int) -> Decoding:
    """A deterministic decoding of the model's family with about `steps` steps; of a causal model with `answer` new tokens."""
    if model.spec.causal:
        return GreedyDecoding(answer, eos=None)
    if model.family == "sdar":  # no probability passes a threshold of 1, so that all steps are run
        return SdarDecoding(length=max(4, steps // 4 * 4), top_k=1, scoring="raw", threshold=1.0)
    if model.family == "llada2":
        # Many steps in each of two blocks: one in a block also stores it, and must not be what the median shows.
        return Llada2Decoding(length=2 * BLOCK, block=BLOCK, steps=max(4, steps // 2), threshold=1.0)
    if model.family == "dream":
        return DreamDecoding(length=answer, steps=steps, temperature=0.0, top_p=None)
    kind = LladaDecoding if model.family == "llada" else MmadaDecoding
    blocks = answer // BLOCK
    return kind(length=answer, steps=max(1, steps // blocks) * blocks, block=BLOCK)


def _ours(model: Model, prompt: Tensor, decoding: Decoding, **options: Any) -> Timing:
    clock = Clock(model.device)
    generate(model, prompt, decoding, progress=clock.tick, **options)
    return clock.timing()


def _tried(measurement: Callable[[], Timing]) -> Timing | None:
    """The timing, or None when memory ran out: that is a result too."""
    try:
        return measurement()
    except torch.OutOfMemoryError:
        pass
    torch.cuda.empty_cache()
    return None


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads, {platform.machine()}"
