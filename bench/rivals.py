"""The rivals: the official style of a denoising step, attention maps kept the eager way, transformers' own `generate`.

All run the same network and weights as ours; only the attention function and the loop around it differ.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.device import timed
from sinkscope.attention.interface import NAME
from sinkscope.generation.timing import Timing, synchronize
from sinkscope.models.model import Model

SHORT = 8
"""New tokens of the shorter of two runs whose difference times transformers' steps without the prefill."""

_kept: list[Tensor] = []


def _plain_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float | None = None, **_: Any
) -> tuple[Tensor, None]:
    """The attention of the official modelling code: torch's own choice of kernel, both directions, no mask."""
    query, key = query.to(value.dtype), key.to(value.dtype)
    out = functional.scaled_dot_product_attention(
        query, key, value, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return out.transpose(1, 2).contiguous(), None


def _eager_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float | None = None, **_: Any
) -> tuple[Tensor, Tensor]:
    """transformers' eager attention, whose maps `output_attentions` keeps until the forward is over."""
    groups = query.shape[1] // key.shape[1]
    query, key = query.to(value.dtype), key.to(value.dtype).repeat_interleave(groups, 1)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    _kept.append(weights)
    out = weights @ value.repeat_interleave(groups, 1)
    return out.transpose(1, 2).contiguous(), weights


@contextmanager
def attention(model: Model, name: str) -> Iterator[None]:
    """Runs what is inside with another attention function: "official" or "eager"."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    chosen = {"official": _plain_attention, "eager": _eager_attention}[name]
    AttentionInterface.register(f"sinkscope_bench_{name}", chosen)
    AttentionMaskInterface.register(f"sinkscope_bench_{name}", lambda *_, **__: None)
    config = model.network.config
    config._attn_implementation = f"sinkscope_bench_{name}"
    try:
        yield
    finally:
        config._attn_implementation = NAME
        _kept.clear()


def official(model: Model, x: Tensor, prompt: int, block: int, steps: int) -> Timing:
    """LLaDA's current loop: logits of all positions, their softmax in their own dtype, a choice row by row."""
    mask, x = int(model.ids.mask or 0), x.clone()

    def step() -> None:
        logits = model.head(model.hidden(x))
        candidates = logits.argmax(-1)
        confidence = logits.softmax(-1).gather(-1, candidates[..., None])[..., 0]
        confidence[:, prompt + block :] = float("-inf")
        masked = x == mask
        candidates = torch.where(masked, candidates, x)
        confidence = torch.where(masked, confidence, float("-inf"))
        for row in range(len(x)):
            _, chosen = torch.topk(confidence[row], 1)
            x[row, chosen] = candidates[row, chosen]

    with attention(model, "official"), torch.no_grad():
        return timed(model.device, step, steps)


def eager(model: Model, x: Tensor, steps: int) -> Timing:
    """Forwards that keep every map and then reduce them to column sums, as one would with output_attentions."""

    def step() -> None:
        _kept.clear()
        model.hidden(x)
        sums = [weights.float().sum(-2) for weights in _kept]
        torch.stack(sums, 1).cpu()

    with attention(model, "eager"), torch.no_grad():
        return timed(model.device, step, steps)


def transformers_generate(model: Model, prompt: Tensor, steps: int, compiled: bool) -> Timing:
    """transformers' generate with its own attention: the time that `steps` more tokens take."""
    ids = prompt.to(model.device)

    def run(tokens: int) -> float:
        synchronize(model.device)
        begun = time.perf_counter()
        model.network.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
            pad_token_id=0, cache_implementation="static" if compiled else None, disable_compile=not compiled,
        )  # fmt: skip
        synchronize(model.device)
        return time.perf_counter() - begun

    try:
        model.network.set_attn_implementation("sdpa")
        run(SHORT + steps)  # kernels are chosen, and with a static cache compiled
        run(SHORT + steps)
        seconds = (run(SHORT + steps) - run(SHORT)) / steps
    finally:
        model.network.set_attn_implementation(NAME)
    return Timing(seconds, steps, None)
