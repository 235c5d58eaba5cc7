"""More than two: groups that may all be alike, tests that are made together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from sinkscope.base.errors import InputError
from sinkscope.statistics.interval import Scores, checked_scores, quantile
from sinkscope.statistics.paired import checked_pair

SHRUNK = 2
"""So many values of the pooled variance are added to each group's in `equal_means`."""


def equal_means(groups: Sequence[ArrayLike], draws: int = 2_000, seed: int = 0) -> float:
    """Permutation test of one mean for all groups: p. Groups are different documents; their sizes and variances may differ.

    The statistic is Welch's, the sum of squared distances from the common mean, each group weighted by 1 / its squared error.
    Studentised so, the test keeps its level for unequal variances too where groups are not tiny (Chung and Romano 2013, Ann.
    Statist. 41:484). A group's variance is shrunk by `SHRUNK` values towards that of all: scores of 0 and 1 may all agree. The
    observed value counts as one of the draws.
    """
    values = [checked_scores(group) for group in groups]
    if len(values) < 2 or min(map(len, values)) < 2:
        raise InputError(
            f"groups of {[len(group) for group in values]} documents: at least two of at least 2 are needed"
        )
    together, sizes = np.concatenate(values), np.array([len(group) for group in values])
    if np.ptp(together) <= 1e-12:
        return 1.0
    starts, pooled = np.concatenate([[0], np.cumsum(sizes)[:-1]]), float(together.var())

    def statistic(rows: Scores) -> Scores:
        """rows [draws, documents] → [draws]."""
        means = np.add.reduceat(rows, starts, axis=1) / sizes
        spread = np.add.reduceat(rows**2, starts, axis=1) - sizes * means**2
        weights = sizes * (sizes - 1 + SHRUNK) / (np.maximum(spread, 0.0) + SHRUNK * pooled)
        centre = (weights * means).sum(1, keepdims=True) / weights.sum(1, keepdims=True)
        scores: Scores = (weights * (means - centre) ** 2).sum(1)
        return scores

    # Sums in another order differ in the last bits.
    observed = float(statistic(together[None])[0]) * (1 - 1e-9)
    rng = np.random.default_rng(seed)
    as_large = 0
    rows = max(1, 2_000_000 // len(together))  # bounded memory
    for left in range(draws, 0, -rows):
        drawn = rng.permuted(np.broadcast_to(together, (min(rows, left), len(together))), axis=1)
        as_large += int(np.sum(statistic(drawn) >= observed))
    return (as_large + 1) / (draws + 1)


def equal_shifts(groups: Sequence[Sequence[tuple[ArrayLike, ArrayLike]]]) -> float:
    """Test of one difference of probits, Φ⁻¹(mean(first)) − Φ⁻¹(mean(second)), for all groups of paired scores: p.

    If being right is a margin above a threshold, and the second run lowers every margin by the same amount, this difference is
    the same at every accuracy, where a difference of accuracies is not. A group is one or more strata of documents of equal
    difficulty; its difference is their mean, weighted by documents, because a mixture of accuracies has none. Cochran's Q.
    """
    if len(groups) < 2:
        raise InputError(f"{len(groups)} groups: at least two are needed")
    values, variances = [], []
    for group in groups:
        sizes = np.array([len(checked_scores(first)) for first, _ in group])
        shifts = np.array([_shift(*checked_pair(*stratum)) for stratum in group])
        weights = sizes / sizes.sum()
        values.append(float((weights * shifts[:, 0]).sum()))
        variances.append(float((weights**2 * shifts[:, 1]).sum()))
    from scipy import special

    each, weight = np.array(values), 1 / np.array(variances)
    apart = each - (weight * each).sum() / weight.sum()
    return float(special.chdtrc(len(each) - 1, (weight * apart**2).sum()))


def equal_ratios(groups: Sequence[tuple[ArrayLike, ArrayLike]]) -> float:
    """Test of one ratio mean(first) / mean(second) of paired losses for all groups: p; 1 where a group has no second loss.

    Documents that nothing can break lower both losses of a group by the same factor, and leave their ratio as it is. Cochran's Q
    on logarithms, with half a loss added to each.
    """
    if len(groups) < 2:
        raise InputError(f"{len(groups)} groups: at least two are needed")
    values, weights = [], []
    for group in groups:
        first, second = checked_pair(*group)
        if not second.sum() > 0:
            return 1.0
        mean, other = ((each.sum() + 0.5) / (len(each) + 1) for each in (first, second))
        apart = first / mean - second / other
        error = float(apart.var(ddof=1)) / len(first) + (0.0 if first.sum() > 0 else 1 / 0.5)
        values.append(math.log(mean / other))
        weights.append(1 / max(error, 1e-12))
    from scipy import special

    each, weight = np.array(values), np.array(weights)
    around = each - (weight * each).sum() / weight.sum()
    return float(special.chdtrc(len(each) - 1, (weight * around**2).sum()))


def _shift(first: Scores, second: Scores) -> tuple[float, float]:
    """The difference of probits of two paired means, and its variance by the delta method.

    Half a document of each of the four outcomes is added (Agresti and Min 2005, Biometrics 61:515), so that shares of 0 and 1
    have a probit and an error.
    """
    weights = np.append(np.ones(len(first)), [0.5] * 4)
    n = float(weights.sum())
    value, each = 0.0, np.zeros(len(weights))
    for sign, scores in ((1, np.append(first, [1, 1, 0, 0])), (-1, np.append(second, [1, 0, 1, 0]))):
        mean = float((weights * scores).sum() / n)
        probit = quantile(mean)
        value += sign * probit
        each += sign * (scores - mean) * math.sqrt(2 * math.pi) * math.exp(probit**2 / 2)
    return value, float((weights * each**2).sum() / n / (n - 1))


def holm(p: ArrayLike) -> Scores:
    """p-values adjusted by Holm's step-down rule over one family of tests. NaN stays out of the family.

    Holm 1979, Scand. J. Statist. 6:65. By hand, because scipy has no step-down rule.
    """
    values = np.asarray(p, dtype=np.float64)
    adjusted = np.full(values.shape, np.nan)
    finite = np.flatnonzero(~np.isnan(values))
    if np.any((values[finite] < 0) | (values[finite] > 1)):
        raise InputError(
            f"p-values between 0 and 1 are expected, and {values[finite].min()} to {values[finite].max()} came"
        )
    order = finite[np.argsort(values[finite], kind="stable")]
    steps = values[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return adjusted
