"""Measures of traces: one value per prompt, because detections within a generation are copies of each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sinkscope.errors import InputError
from sinkscope.statistics.interval import CONFIDENCE, Estimate, Scale, student


def ratio_interval(
    numerator: ArrayLike, denominator: ArrayLike, groups: ArrayLike | None = None, scale: Scale = "plain"
) -> Estimate:
    """Ratio of sums over prompts, Σ numerator / Σ denominator, with a 95 % interval over prompts.

    numerator [N, …], denominator [N] or [N, …]; groups [N]: the prompt of each sample (default: each its own); samples of one
    prompt count together, NaN samples are left out, one prompt has no interval. A mean of x over prompts is
    `ratio_interval(x, ones)`.

    The interval is Student's t with the jackknife's error, √((n − 1) / n · Σ eᵢ²) / Σ bᵢ with eᵢ = (aᵢ − ratio · bᵢ) / (1 −
    bᵢ / Σ b). scale: "plain"; "positive" (log scale: no bound below 0, and no interval where the ratio is 0); "share" (logit
    scale: bounds in [0, 1]; where it is exactly 0 or 1 in all n prompts, the bound on the other side is that of n draws
    without an exception, 1 − 0.05^(1/n)).
    """
    top = np.asarray(numerator, dtype=np.float64)
    shape = top.shape
    if len(shape) == 0 or shape[0] == 0:
        raise InputError(
            "an interval over prompts needs at least one sample, got none; check the trace's sample axis"
        )
    bottom = np.asarray(denominator, dtype=np.float64)
    bottom = np.broadcast_to(bottom.reshape(bottom.shape + (1,) * (len(shape) - bottom.ndim)), shape)
    valid = np.isfinite(top) & np.isfinite(bottom)
    a, b, counted = (np.where(valid, x, 0.0).reshape(shape[0], -1) for x in (top, bottom, np.ones(shape)))
    if groups is not None:
        _, index = np.unique(np.asarray(groups), return_inverse=True)
        a, b, counted = (_summed(x, index) for x in (a, b, counted))
    n = np.count_nonzero((counted > 0) & (b != 0), axis=0)
    with np.errstate(all="ignore"):
        value = a.sum(0) / b.sum(0)
        apart = (a - value * b) / (1 - b / b.sum(0))
        error = np.sqrt((n - 1) / n * (apart**2).sum(0)) / np.abs(b.sum(0))
        half = np.where(n > 1, student(n) * error, np.nan)
        if scale == "plain":
            low, high = value - half, value + half
        elif scale == "positive":
            low, high = value * np.exp(-half / value), value * np.exp(half / value)
            low, high = (np.where(value == 0, np.nan, bound) for bound in (low, high))
        else:
            odds, factor = value / (1 - value), np.exp(half / (value * (1 - value)))
            low, high = odds / (odds + factor), odds / (odds + 1 / factor)
            exception = np.where(n > 1, 1 - (1 - CONFIDENCE) ** (1 / np.maximum(n, 1)), np.nan)
            none, all_ = value <= 1e-12, value >= 1 - 1e-12
            low = np.where(none, exception * 0, np.where(all_, 1 - exception, low))
            high = np.where(none, exception, np.where(all_, 1 + exception * 0, high))
    found = [x.reshape(shape[1:]) for x in (value, low, high)]
    return Estimate(*(float(x) if x.ndim == 0 else x for x in found))


def mean_interval(values: ArrayLike, groups: ArrayLike | None = None, scale: Scale = "plain") -> Estimate:
    """Mean over samples of values [N, …], with a 95 % interval over prompts (see `ratio_interval`)."""
    each = np.asarray(values, dtype=np.float64)
    return ratio_interval(each, np.ones(each.shape), groups, scale)


def _summed(values: NDArray[Any], index: NDArray[Any]) -> NDArray[Any]:
    out = np.zeros((int(index.max()) + 1, values.shape[1]))
    np.add.at(out, index, values)
    return out
