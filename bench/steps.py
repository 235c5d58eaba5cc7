"""Steps untraced, traced and masked, beside the official style, eager maps or transformers' own `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from bench import rivals
from bench.device import Device, forward_flops, weight_bytes
from bench.shapes import with_masks
from sinkscope.cli.bench import TURNS, Grid
from sinkscope.generation.timing import BLOCK, decoding_for, random_tokens, timings
from sinkscope.models.model import Model

GRIDS: dict[tuple[bool, bool], Grid] = {
    (False, True): (
        (1, 384), (8, 384), (16, 384), (1, 512), (8, 512), (16, 512), (1, 1024), (8, 1024), (1, 4096), (1, 16384),
    ),
    (False, False): ((1, 128), (8, 128), (1, 512)),
    (True, True): ((1, 256), (16, 256), (1, 2048)),
    (True, False): ((1, 128), (8, 128)),
}  # fmt: skip
"""By whether the model is causal, and whether it is on a GPU."""


def cases(model: Model, grid: Grid | None, steps: int, rivalry: bool, best: Device) -> Iterator[dict[str, Any]]:
    """Batch, length, limits in seconds, and timings: name → {seconds, steps, peak}, or that memory ran out."""
    on_gpu, causal = model.device.type == "cuda", model.spec.causal
    for batch, length in grid or GRIDS[causal, on_gpu]:
        decoding = decoding_for(model, length, steps)
        answer = decoding.new_tokens
        prompt = random_tokens(model, batch, length - answer)
        others: dict[str, Any] = {}
        if rivalry and causal:
            theirs = partial(rivals.transformers_generate, model, prompt, answer)
            others["transformers"] = partial(theirs, compiled=False)
            if on_gpu:
                others["transformers, compiled"] = partial(theirs, compiled=True)
        elif rivalry and not model.spec.blocks:
            x = with_masks(model, prompt, answer)
            others["official"] = partial(rivals.official, model, x[:1], length - answer, BLOCK, steps)
            others["eager"] = partial(rivals.eager, model, x, steps)
        measured = timings(model, prompt, decoding, 1 if on_gpu else TURNS, others)
        each = {name: "out of memory" if timing is None else vars(timing) for name, timing in measured.items()}
        case: dict[str, Any] = {"batch": batch, "length": length, "timings": each}
        if not model.spec.blocks:  # a step there reads some of the experts, or asks a few queries of a cache
            step = (1, 1) if causal else (length, BLOCK)  # one new token, or all positions
            case["compute_limit"] = forward_flops(model, batch, *step) / best.flops
            case["bandwidth_limit"] = weight_bytes(model) / best.bandwidth
        yield case
