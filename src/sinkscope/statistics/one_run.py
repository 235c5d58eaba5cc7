"""One run: its accuracy, with a standard error and an interval."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from sinkscope.errors import InputError
from sinkscope.statistics.interval import CONFIDENCE, Interval, Scores, normal_quantile


def accuracy(scores: ArrayLike) -> float:
    """The mean score."""
    return float(checked_scores(scores).mean())


def standard_error(scores: ArrayLike) -> float:
    """lm-eval's standard error of the mean: the sample deviation (n − 1) over √n. NaN for one document."""
    values = checked_scores(scores)
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def wilson(right: float, n: float, confidence: float = CONFIDENCE) -> Interval:
    """Wilson's score interval of a share, `right` out of `n`; sensible at 0 and 1, where the standard error is 0.

    Wilson 1927, JASA 22:209. By hand, because scipy's takes whole numbers only.
    """
    if n < 1 or not 0 <= right <= n:
        raise InputError(f"{right} right out of {n}: expected 0 ≤ right ≤ n and n ≥ 1")
    return score_interval(right, n, normal_quantile(confidence))


def score_interval(right: float, n: float, z: float) -> Interval:
    """Wilson's interval at a quantile z of the normal distribution."""
    share = right / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # Exact at the ends, where rounding would leave 1e-18 instead of 0.
    return Interval(
        0.0 if right == 0 else max(0.0, centre - half), 1.0 if right == n else min(1.0, centre + half)
    )


def checked_scores(values: ArrayLike) -> Scores:
    """The scores as an array: one finite value for each document, and at least one."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise InputError(
            f"scores of shape {array.shape}: expected one value for each document, and at least one"
        )
    if not np.all(np.isfinite(array)):
        raise InputError(
            f"{int(np.sum(~np.isfinite(array)))} scores are not finite: grade every document first"
        )
    return array
