"""Parallel unmasking (Fast-dLLM, arXiv 2505.22618): a step decides every mask that the model is sure of, and at least one."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from sinkscope.base.checks import at_least, share
from sinkscope.base.errors import InputError


def later_option(default: Any = None) -> Any:
    """A field that came after records were first written: its default is left out of JSON, so that those still match."""
    return dataclasses.field(default=default, kw_only=True, metadata={"later": True})


def check_parallel(threshold: object, factor: object, length: int, steps: int, confidence: str | None = None) -> None:
    """Raise InputError unless the options go together; confidence: why the loop's confidence is no probability, or None."""
    if threshold is None and factor is None:
        return
    if threshold is not None and factor is not None:
        raise InputError("threshold and factor are two rules for the same choice; give one of them")
    if threshold is not None:
        share("threshold", threshold, "; 0.9 is usual")
    else:
        at_least("factor", factor, 0.0)
    if steps != length:
        raise InputError(
            f"with a threshold or factor the model's confidence decides how many steps there are, got steps {steps}; leave it out"
        )
    if confidence is not None:
        raise InputError(f"a threshold or factor needs a probability as confidence, but {confidence}")


def confident(scores: Tensor, threshold: float | None, factor: float | None) -> tuple[Tensor, Tensor]:
    """The positions that are decided together, and ties.

    With a threshold: those whose confidence c reaches it. With a factor f: the n most confident, as long as
    (n + 1)(1 − c) < f holds for the n-th. In both cases the most confident one, also where it does not pass.

    Args:
        scores: Float [B, S], −inf where nothing can be chosen.

    Returns:
        Bool [B, S], and Long [B]: chosen positions with the same confidence as one that was not chosen.
    """
    ordered, order = scores.sort(dim=1, descending=True, stable=True)
    if threshold is not None:
        passes = ordered >= threshold
    else:
        ranks = torch.arange(1, scores.shape[1] + 1, device=scores.device)
        passes = (ranks + 1) * (1 - ordered) < float(factor or 0.0)
    passes[:, 0] = True
    passes = passes.cumprod(1).bool() & (ordered > float("-inf"))
    chosen = torch.zeros_like(passes).scatter(1, order, passes)
    rest = scores.masked_fill(chosen, float("-inf")).amax(-1, keepdim=True)
    return chosen, (chosen & (scores == rest) & (rest > float("-inf"))).sum(-1)
