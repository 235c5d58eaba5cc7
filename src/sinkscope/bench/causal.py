"""Causal models: milliseconds per token, untraced, traced and masked, beside transformers' own `generate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention.interface import NAME
from sinkscope.bench.clock import Clock, Timing
from sinkscope.decoding import GreedyDecoding
from sinkscope.generation.generate import generate
from sinkscope.models.model import Model
from sinkscope.policies import parse_policy
from sinkscope.trace.capture import Capture

GRID = ((1, 256), (16, 256), (1, 2048))
"""Rows, and tokens in a row (answer included), of every case on a GPU."""
SMALL_GRID = ((1, 128), (8, 128))
SHORT = 8
"""New tokens of the shorter of two runs whose difference times transformers' steps without the prefill."""


def measurements(
    model: Model, batch: int, length: int, steps: int, rivalry: bool, masked: str
) -> dict[str, Callable[[], Timing]]:
    """Name → what measures it.

    Args:
        steps: new tokens. rivalry: transformers' generate too, eager and compiled.
    """
    draw = torch.Generator().manual_seed(0)
    prompt = torch.randint(0, min(1000, model.shape.vocabulary // 2), (batch, length - steps), generator=draw)
    ours = partial(_ours, model, prompt, steps)
    found: dict[str, Callable[[], Timing]] = {
        "untraced": ours,
        "traced": partial(ours, capture=Capture()),
        "masked": partial(ours, capture=Capture(), policy=parse_policy(masked)),
    }
    if rivalry:
        found["transformers"] = partial(_theirs, model, prompt, steps, False)
        if model.device.type == "cuda":
            found["transformers, compiled"] = partial(_theirs, model, prompt, steps, True)
    return found


def _ours(model: Model, prompt: Tensor, steps: int, **options: Any) -> Timing:
    clock = Clock(model.device)
    generate(model, prompt, GreedyDecoding(steps, eos=None), progress=clock.tick, **options)
    return clock.timing()


def _theirs(model: Model, prompt: Tensor, steps: int, compiled: bool) -> Timing:
    """transformers' generate with its own attention: the time that `steps` more tokens take."""
    ids = prompt.to(model.device)

    def run(tokens: int) -> float:
        _wait(model.device)
        begun = time.perf_counter()
        model.network.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
            cache_implementation="static" if compiled else None,
            disable_compile=not compiled,
        )
        _wait(model.device)
        return time.perf_counter() - begun

    with _their_attention(model):
        run(SHORT + steps)  # kernels are chosen, and with a static cache compiled
        run(SHORT + steps)
        seconds = (run(SHORT + steps) - run(SHORT)) / steps
    return Timing(seconds, steps, None)


@contextmanager
def _their_attention(model: Model) -> Iterator[None]:
    try:
        model.network.set_attn_implementation("sdpa")
        yield
    finally:
        model.network.set_attn_implementation(NAME)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
