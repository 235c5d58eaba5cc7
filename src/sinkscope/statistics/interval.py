"""Intervals and estimates, and the quantiles that they are made of; of one run's accuracy, and of measures of traces.

Measures of traces have one value per prompt, because detections within a generation are copies of each other.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sinkscope.base.errors import InputError

Scores = NDArray[np.float64]
Scale = Literal["plain", "positive", "share"]

CONFIDENCE, POWER = 0.95, 0.8
CLEARANCE = 1.25
"""A verdict needs the 95 % interval, made this much wider, on one side of its limit. At a truth exactly on the limit both wrong
verdicts together then stay under 5 %, also with few and with skewed values (`python -m lab.verdict_simulation`)."""


class Interval(NamedTuple):
    """A two-sided interval."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A value with its 95 % interval: floats, or arrays of one shape. NaN bounds: there is no interval."""

    value: Any
    low: Any
    high: Any

    @property
    def known(self) -> bool:
        """Whether a single value has an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def above(self, limit: float) -> bool:
        """Whether it lies above a limit for certain: the whole interval, with its clearance."""
        return self.known and self.value - CLEARANCE * (self.value - self.low) > limit

    def below(self, limit: float) -> bool:
        """Whether it lies below a limit for certain: the whole interval, with its clearance."""
        return self.known and self.value + CLEARANCE * (self.high - self.value) < limit


def normal_quantile(confidence: float) -> float:
    """The half-width of a two-sided interval in standard errors."""
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence}: expected a number between 0 and 1")
    return quantile(0.5 + confidence / 2)


def quantile(share: float) -> float:
    """Of the standard normal distribution."""
    from scipy import special

    return float(special.ndtri(share))


def student(n: Any) -> Any:
    """The half-width of a 95 % interval in standard errors of a mean over n values: Student's t."""
    from scipy import special

    return special.stdtrit(np.maximum(n - 1, 1), 0.5 + CONFIDENCE / 2)


def bounded(stem: str, *numbers: Any) -> dict[str, Any]:
    """A value, the bounds of its interval, and perhaps p as columns STEM, STEM_low, STEM_high, STEM_p; of None without numbers.

    >>> bounded("loss", 0.5, 0.4)
    {'loss': 0.5, 'loss_low': 0.4}
    """
    names = [stem + end for end in ("", "_low", "_high", "_p")]
    return dict(zip(names, numbers, strict=False)) if numbers else dict.fromkeys(names[:3])


# ---- one run -------------------------------------------------------------------------------------


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


def share_interval(scores: ArrayLike, clusters: ArrayLike | None = None, confidence: float = CONFIDENCE) -> Interval:
    """Wilson's interval of a mean of scores between 0 and 1.

    clusters: the group of each score, where those of one group rise and fall together: the mean then varies as one over fewer
    scores. Their number is n / the design effect (Kish 1965, *Survey Sampling*), which is how much larger the variance of the
    mean is over groups than over scores, and counts as at least 1; scores of a single group are taken as they are.

    >>> share_interval([1, 0, 1, 0]) == share_interval([1, 0, 1, 0], list("abcd")) == wilson(2, 4)
    True
    """
    values = checked_scores(scores)
    n, right, effect = len(values), min(float(len(values)), float(values.sum())), 1.0
    _, index = np.unique(np.arange(n) if clusters is None else np.asarray(clusters), return_inverse=True)
    apart = values - values.mean()
    sums = np.bincount(index, apart)
    if len(sums) > 1 and apart.any():
        effect = max(1.0, (sums @ sums) * (n - 1) * len(sums) / ((apart @ apart) * n * (len(sums) - 1)))
    return wilson(right / effect, n / effect, confidence)


def score_interval(right: float, n: float, z: float) -> Interval:
    """Wilson's interval at a quantile z of the normal distribution."""
    share = right / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # Exact at the ends, where rounding would leave 1e-18 instead of 0.
    return Interval(0.0 if right == 0 else max(0.0, centre - half), 1.0 if right == n else min(1.0, centre + half))


def checked_scores(values: ArrayLike) -> Scores:
    """The scores as an array: one finite value for each document, and at least one."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise InputError(f"scores of shape {array.shape}: expected one value for each document, and at least one")
    if not np.all(np.isfinite(array)):
        raise InputError(f"{int(np.sum(~np.isfinite(array)))} scores are not finite: grade every document first")
    return array


def minimal_detectable_effect(n: int, accuracy: float = 0.5) -> float:
    """The smallest difference of two runs' accuracies that n paired documents detect with 80 % power (normal theory).

    The deviation of the differences is that of two unrelated runs, √(2·p·(1−p)), the worst case; real pairs do better.
    """
    if n < 2:
        raise InputError(f"n is {n}: at least 2 documents are needed")
    if not 0 <= accuracy <= 1:
        raise InputError(f"accuracy {accuracy}: expected a number from 0 to 1")
    z = normal_quantile(CONFIDENCE) + quantile(POWER)
    return min(1.0, z * math.sqrt(2 * accuracy * (1 - accuracy)) / math.sqrt(n))


# ---- prompts -------------------------------------------------------------------------------------


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
        raise InputError("an interval over prompts needs at least one sample, got none; check the trace's sample axis")
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
            # Times 0, not 0: where one prompt has no interval, NaN stays NaN.
            low = np.where(none, exception * 0, np.where(all_, 1 - exception, low))
            high = np.where(none, exception, np.where(all_, 1 + exception * 0, high))
    arrays = [x.reshape(shape[1:]) for x in (value, low, high)]
    return Estimate(*(float(x) if x.ndim == 0 else x for x in arrays))


def mean_interval(values: ArrayLike, groups: ArrayLike | None = None, scale: Scale = "plain") -> Estimate:
    """Mean over samples of values [N, …], with a 95 % interval over prompts (see `ratio_interval`)."""
    each = np.asarray(values, dtype=np.float64)
    return ratio_interval(each, np.ones(each.shape), groups, scale)


def slope_interval(x: ArrayLike, y: ArrayLike) -> Estimate:
    """The slope of the line of least squares through the points, with Student's 95 % interval; NaN for fewer than three points.

    >>> round(slope_interval([0, 1, 2, 3], [1.0, 2.9, 5.1, 7.0]).value, 2)
    2.02
    """
    first, second = (np.asarray(part, dtype=np.float64) for part in (x, y))
    around = first - first.mean()
    spread = float((around**2).sum())
    if len(first) < 3 or not spread:
        return Estimate(math.nan, math.nan, math.nan)
    slope = float((around * second).sum()) / spread
    rest = second - second.mean() - slope * around
    error = float(student(len(first) - 1) * np.sqrt((rest**2).sum() / (len(first) - 2) / spread))
    return Estimate(slope, slope - error, slope + error)


def _summed(values: NDArray[Any], index: NDArray[Any]) -> NDArray[Any]:
    out = np.zeros((int(index.max()) + 1, values.shape[1]))
    np.add.at(out, index, values)
    return out
