"""Two runs over the same documents."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sinkscope.base.errors import InputError
from sinkscope.statistics.interval import (
    CONFIDENCE,
    Estimate,
    Scores,
    checked_scores,
    mean_interval,
    normal_quantile,
    score_interval,
    student,
    wilson,
)

SKEW_RAISED = 1.5
"""How much larger than the sample's the skewness of differences of nats is taken to be (`mean_difference`)."""


LEAST_SEEDS = 3
"""Fewer control seeds say too little about how much a control varies."""


class Comparison(NamedTuple):
    """Two runs over the same documents: the mean of first − second with its interval, and p of no difference."""

    difference: Estimate
    p: float


def paired_interval(before: ArrayLike, after: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """Accuracy lost, mean(before) − mean(after) in [−1, 1]: the interval of every paired loss, effect and difference.

    Tango's score interval (1998, Statistics in Medicine 17:891): the losses that a score test does not reject. It keeps its
    level where a bootstrap has no width ("all 16 agree") and where Agresti and Min's is too narrow (few documents, none
    lost). Of shares it needs only how much was lost and won in all, and is then too wide rather than too narrow.
    """
    from scipy.optimize import brentq

    first, second = checked_pair(before, after)
    change = first - second
    n, lost, won = len(change), float(change[change > 0].sum()), float(-change[change < 0].sum())
    z, value = normal_quantile(confidence), (lost - won) / n

    def score(loss: float) -> float:
        b = (2 * n - lost + won) * loss - lost - won
        both = (math.sqrt(b * b + 8 * n * won * loss * (1 - loss)) - b) / (4 * n)
        variance = n * (2 * both + loss * (1 - loss))
        return (lost - won - n * loss) / math.sqrt(variance) if variance > 1e-15 else 0.0

    edge = 1 - 1e-12
    low = brentq(lambda loss: score(loss) - z, -edge, value) if value > -edge and score(-edge) > z else -1.0
    high = brentq(lambda loss: score(loss) + z, value, edge) if value < edge and score(edge) < -z else 1.0
    return Estimate(float(change.mean()), float(low), float(high))


def kept_share(before: ArrayLike, after: ArrayLike, confidence: float = CONFIDENCE, guess: float = 0.0) -> Estimate:
    """The share of the accuracy that is left, mean(after) / mean(before), paired.

    Bonett and Price (2006, Statistics in Medicine 25:3039): two Wilson intervals, narrowed for what the runs have in common.
    It has a width where nothing or all is left. NaN with no bounds when nothing was right before. guess: only accuracy above it
    counts, in both runs; the interval is then that of a ratio of two estimates (`ratio`).
    """
    first, second = checked_pair(before, after)
    left, base = float(second.sum()), float(first.sum())
    if guess:
        count = len(first)
        bounds = ((right / count, *wilson(right, count, confidence)) for right in (left, base))
        return ratio(*(Estimate(*(share - guess for share in each)) for each in bounds))
    apart = float(np.abs(first - second).sum())
    n = (left + base + apart) / 2  # documents that either run got right; exact for 0 and 1
    if base == 0:
        return Estimate(math.nan, math.nan, math.nan)
    shares = [(right + 1) / (n + 2) for right in (left, base)]
    spread = math.sqrt((apart + 2) / ((left + 1) * (base + 1)))
    parts = [math.sqrt(max(0.0, 1 - share) / (right + 1)) for share, right in zip(shares, (left, base), strict=True)]
    z = normal_quantile(confidence) * spread / sum(parts)
    above, below = (score_interval(min(right, n), n, z) for right in (left, base))
    return Estimate(left / base, above.low / below.high, above.high / below.low if below.low > 0 else math.inf)


def difference(first: Estimate, second: Estimate) -> Estimate:
    """first − second of two estimates (Zou and Donner 2008, "MOVER"): bounds from their own, so edges are kept.

    They count as independent, which is careful where they rise and fall together.
    """
    value = first.value - second.value
    low = value - math.hypot(first.value - first.low, second.high - second.value)
    high = value + math.hypot(first.high - first.value, second.value - second.low)
    return Estimate(value, low, high)


def ratio(first: Estimate, second: Estimate) -> Estimate:
    """first / second of two estimates (Donner and Zou 2012, "MOVER-R"), counted as independent like those of `difference`.

    NaN where the second is not above 0; no bounds where its interval holds 0.
    """
    a, b = (each.value for each in (first, second))
    if not b > 0:
        return Estimate(math.nan, math.nan, math.nan)
    if not (second.low > 0 and second.high < 2 * b):
        return Estimate(a / b, -math.inf, math.inf)

    def bound(of_first: float, of_second: float, sign: int) -> float:
        under = max(0.0, (a * b) ** 2 - of_first * of_second * (2 * a - of_first) * (2 * b - of_second))
        return float((a * b + sign * math.sqrt(under)) / (of_second * (2 * b - of_second)))

    return Estimate(a / b, bound(first.low, second.high, -1), bound(first.high, second.low, 1))


def mcnemar(first: ArrayLike, second: ArrayLike) -> float:
    """McNemar's exact test, two-sided: could it be chance that one run is right where the other is wrong?

    Under the null, documents on which the runs disagree fall to either side with probability ½. Scores must be 0 or 1.
    """
    a, b = checked_pair(first, second)
    if not (_binary(a) and _binary(b)):
        raise InputError("McNemar's test needs scores of 0 and 1: use sign_flip for averages over seeds")
    from scipy import special

    only_a, only_b = int(np.sum(a > b)), int(np.sum(b > a))
    return min(1.0, 2 * float(special.bdtr(min(only_a, only_b), only_a + only_b, 0.5)))


def sign_flip(differences: ArrayLike, draws: int = 10_000, seed: int = 0) -> float:
    """Two-sided randomisation test of a mean difference of 0: signs of the per-document differences are flipped.

    The observed value counts as one of the draws, so that p is never 0.
    """
    values = checked_scores(differences)
    values = values[values != 0]  # their sign does not matter
    if len(values) == 0:
        return 1.0
    observed = abs(values.sum()) - 1e-9  # sums in another order may differ in the last bits
    rng = np.random.default_rng(seed)
    as_large, left = 0, draws
    rows = max(1, 2_000_000 // len(values))  # bounded memory
    while left > 0:
        signs = rng.integers(0, 2, size=(min(rows, left), len(values)), dtype=np.int8) * 2 - 1
        as_large += int(np.sum(np.abs(signs @ values) >= observed))
        left -= len(signs)
    return (as_large + 1) / (draws + 1)


def mean_difference(first: ArrayLike, second: ArrayLike) -> Estimate:
    """mean(first) − mean(second), paired, for scores without bounds: the interval of every difference of nats per token.

    Differences of nats have a long tail, where Student's t is too narrow on the tail's side. The interval is the wider one, on
    each side, of Student's t and of t after Hall's transformation (1992, J. R. Statist. Soc. B 54:221), which takes the
    skewness out of the mean. The sample's skewness counts `SKEW_RAISED` times, because a short sample of a long tail shows too
    little of it.
    """
    a, b = checked_pair(first, second)
    each = a - b
    plain, n = mean_interval(each), len(each)
    apart = each - each.mean()
    spread = math.sqrt(float((apart**2).mean()))
    if n < 3 or spread <= 1e-12:
        return plain
    # The usual sample skewness, adjusted for n; under 1e-6 the transformation is the identity, and its formula divides by 0.
    skew = float((apart**3).mean()) / spread**3 * math.sqrt(n * (n - 1)) / (n - 2) * SKEW_RAISED
    skew = skew if abs(skew) > 1e-6 else 1e-6
    half = float(plain.high - plain.value)
    t = student(n) / math.sqrt(n)

    def hall(t: float) -> float:
        """Half-widths of t from the mean, on the scale of the values."""
        return float(np.cbrt(1 + skew * (t - skew / (6 * n))) - 1) * 3 / skew

    low, high = (float(plain.value - half * hall(sign * t) / t) for sign in (1, -1))
    return Estimate(plain.value, min(plain.low, low), max(plain.high, high))


def compare(
    first: ArrayLike, second: ArrayLike, draws: int = 10_000, seed: int = 0, *, shares: bool = True
) -> Comparison:
    """Two runs over the same documents, in the same order (see `align`).

    The test is McNemar's where scores are 0 or 1, else one by flipped signs.

    Args:
        shares: scores lie between 0 and 1; else the interval is that of `mean_difference`.
    """
    a, b = checked_pair(first, second)
    p = mcnemar(a, b) if shares and _binary(a) and _binary(b) else sign_flip(a - b, draws, seed)
    return Comparison(paired_interval(a, b) if shares else mean_difference(a, b), p)


def effect_over_control(
    policy: ArrayLike, controls: ArrayLike, draws: int = 10_000, seed: int = 0, *, shares: bool = True
) -> Comparison:
    """The effect of a policy beyond its control: the mean over documents of policy − mean of the control's seeds.

    policy: scores [n]. controls: scores [seeds, n] of the same documents, at least 3 seeds. shares: as for `compare`. Documents
    vary, seeds do not: the interval is about these control draws.
    """
    a, b = checked_pair(policy, over_seeds(controls))
    return Comparison(paired_interval(a, b) if shares else mean_difference(a, b), sign_flip(a - b, draws, seed))


def over_seeds(scores: ArrayLike) -> Scores:
    """Scores [seeds, n], at least 3 seeds, averaged for each document: [n]."""
    each = np.asarray(scores, dtype=np.float64)
    if each.ndim != 2 or each.shape[0] < LEAST_SEEDS:
        raise InputError(f"scores of shape {each.shape}: expected [seeds, documents], at least {LEAST_SEEDS} seeds")
    checked_scores(each.ravel())
    mean: Scores = each.mean(axis=0)
    return mean


def align(
    first: Mapping[str, float], second: Mapping[str, float], names: tuple[str, str] = ("first", "second")
) -> tuple[Scores, Scores]:
    """Scores by document id of two runs, as two arrays in one order. Refuses runs over different documents."""
    if first.keys() != second.keys():
        missing = [sorted(b.keys() - a.keys()) for a, b in ((first, second), (second, first))]
        words = "; ".join(
            f"{name} lacks {len(ids)}, such as {ids[0]}" for name, ids in zip(names, missing, strict=True) if ids
        )
        raise InputError(f"the runs answered different documents ({words}): compare runs with the same limit")
    order = sorted(first)
    return checked_scores([first[i] for i in order]), checked_scores([second[i] for i in order])


def checked_pair(first: ArrayLike, second: ArrayLike) -> tuple[Scores, Scores]:
    """The scores of both runs, if they are of equally many documents."""
    a, b = checked_scores(first), checked_scores(second)
    if len(a) != len(b):
        raise InputError(f"{len(a)} and {len(b)} documents: a paired comparison needs the same documents")
    return a, b


def _binary(values: Scores) -> bool:
    return bool(np.all((values == 0) | (values == 1)))
