"""Intervals and estimates, and the quantiles that they are made of."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sinkscope.errors import InputError

Scores = NDArray[np.float64]
Scale = Literal["plain", "positive", "share"]

CONFIDENCE = 0.95
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


def checked_share(name: str, value: float) -> float:
    """The value, if it lies between 0 and 1."""
    if not 0 < value < 1:
        raise InputError(f"{name} is {value}: expected a number between 0 and 1")
    return value


def normal_quantile(confidence: float) -> float:
    """The half-width of a two-sided interval in standard errors."""
    return quantile(0.5 + checked_share("confidence", confidence) / 2)


def quantile(share: float) -> float:
    """Of the standard normal distribution."""
    from scipy import special

    return float(special.ndtri(share))


def student(n: Any) -> Any:
    """The half-width of a 95 % interval in standard errors of a mean over n values: Student's t."""
    from scipy import special

    return special.stdtrit(np.maximum(n - 1, 1), 0.5 + CONFIDENCE / 2)
