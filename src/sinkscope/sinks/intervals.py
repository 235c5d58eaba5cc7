"""Intervals over prompts.

Detections of one generation are copies of each other (thousands of heads and steps look at the same text),
so an interval over detections would be far too narrow. The unit that is drawn again is the prompt; samples
that share a prompt are drawn together. With one prompt there is no interval, and NaN says so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sinkscope.errors import InputError
from sinkscope.sinks.dataset import Array

DRAWS = 1000
LEVEL = 0.95
Z = 1.959964
"""The normal quantile of LEVEL."""


class Interval(NamedTuple):
    """A value with its 95 % interval; arrays of one shape, or floats. NaN where there is none."""

    value: Any
    low: Any
    high: Any


def ratio_interval(
    numerator: Array, denominator: Array, groups: Array | None = None, *, draws: int = DRAWS, seed: int = 0
) -> Interval:
    """Ratio of sums over prompts, Σ numerator / Σ denominator, with a percentile bootstrap over prompts.

    numerator [N, …], denominator [N] or [N, …]; groups [N]: the prompt of each sample (default: each its
    own). A mean of x over prompts is `ratio_interval(x, ones)`. NaN samples are left out. Limits:
    percentile intervals of few prompts (under about 10) are too narrow.
    """
    numerator = np.asarray(numerator, dtype=np.float64)
    shape = numerator.shape
    denominator = np.asarray(denominator, dtype=np.float64)
    denominator = denominator.reshape(denominator.shape + (1,) * (len(shape) - denominator.ndim))
    denominator = np.broadcast_to(denominator, shape)
    if len(shape) == 0 or shape[0] == 0:
        raise InputError(
            "an interval over prompts needs at least one sample, got none; check the trace's sample axis"
        )
    valid = np.isfinite(numerator) & np.isfinite(denominator)
    top = np.where(valid, numerator, 0.0).reshape(shape[0], -1)
    bottom = np.where(valid, denominator, 0.0).reshape(shape[0], -1)
    if groups is not None:
        _, index = np.unique(np.asarray(groups), return_inverse=True)
        top, bottom = _grouped(top, index), _grouped(bottom, index)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = (top.sum(0) / bottom.sum(0)).reshape(shape[1:])
        if len(top) < 2:
            nothing = np.full(shape[1:], np.nan)
            return Interval(_plain(value), _plain(nothing), _plain(nothing))
        rng = np.random.default_rng(seed)
        weights = rng.multinomial(len(top), np.full(len(top), 1.0 / len(top)), size=draws)
        drawn = (weights @ top) / (weights @ bottom)
    edge = (1 - LEVEL) / 2
    usable = np.isfinite(drawn)
    drawn = np.where(usable, drawn, np.nan)
    low = np.full(drawn.shape[1], np.nan)
    high = low.copy()
    some = usable.any(axis=0)
    if some.any():
        low[some], high[some] = np.nanquantile(drawn[:, some], [edge, 1 - edge], axis=0)
    return Interval(_plain(value), _plain(low.reshape(shape[1:])), _plain(high.reshape(shape[1:])))


def mean_interval(
    values: Array, groups: Array | None = None, *, draws: int = DRAWS, seed: int = 0
) -> Interval:
    """Mean over samples of values [N, …] with a bootstrap interval over prompts."""
    values = np.asarray(values, dtype=np.float64)
    return ratio_interval(values, np.ones(values.shape), groups, draws=draws, seed=seed)


def paired_interval(before: Array, after: Array) -> Interval:
    """Points lost, mean(before) − mean(after) in [−1, 1], of paired scores, with a 95 % interval.

    before, after float [N]: scores of the same documents in the same order, 0 or 1, or shares where seeds
    were averaged. Outcomes of 0 and 1 get the interval of Agresti and Min (2005), which adds half a
    document to each of the four cells, so that "all lost" of 16 documents does not get an interval of width
    zero, as a bootstrap would give. Shares get the normal interval of the mean difference.
    """
    before, after = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if before.shape != after.shape or before.ndim != 1 or len(before) == 0:
        raise InputError(
            f"paired outcomes need the same documents, got shapes {before.shape} and {after.shape}"
        )
    n, change = len(before), before - after
    if np.isin(before, (0, 1)).all() and np.isin(after, (0, 1)).all():
        b, c, m = float((change > 0).sum()) + 0.5, float((change < 0).sum()) + 0.5, n + 2.0
        centre = (b - c) / m
        spread = Z * np.sqrt(b + c - (b - c) ** 2 / m) / m
    else:
        centre = float(change.mean())
        spread = Z * float(change.std(ddof=1)) / np.sqrt(n) if n > 1 else 1.0
    return Interval(float(change.mean()), float(max(-1.0, centre - spread)), float(min(1.0, centre + spread)))


def _grouped(values: Array, index: Array) -> Array:
    out = np.zeros((int(index.max()) + 1, values.shape[1]))
    np.add.at(out, index, values)
    return out


def _plain(values: Array) -> Any:
    return float(values) if np.ndim(values) == 0 else values
