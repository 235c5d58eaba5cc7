"""Every interval and every test, once: pure functions of arrays.

Graded answers: one score per document, 1 (right) or 0 (wrong), or a share between them where seeds were averaged. Comparisons
are paired: both runs answered the same documents. Measures of traces: one value per prompt, because detections within a
generation are copies of each other. All functions are deterministic; the random ones take a seed. Quantiles are scipy's,
imported where they are used: a machine that only generates does not need it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sinkscope.errors import InputError

Scores = NDArray[np.float64]
Scale = Literal["plain", "positive", "share"]

CONFIDENCE = 0.95
CLEARANCE = 1.25
"""A verdict needs the 95 % interval, made this much wider, on one side of its limit. At a truth exactly on the limit both wrong
verdicts together then stay under 5 %, also with few and with skewed values (`python -m lab.verdict_simulation`)."""

SKEW_RAISED = 1.5
"""How much larger than the sample's the skewness of differences of nats is taken to be (`mean_difference`)."""

SHRUNK = 2
"""So many values of the pooled variance are added to each group's in `equal_means`."""

LEAST_SEEDS = 3
"""Fewer control seeds say too little about how much a control varies."""


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


@dataclass(frozen=True)
class Comparison:
    """Two runs over the same documents. `difference` is `first − second`."""

    n: int
    first: float  # mean score
    second: float
    difference: float
    interval: Interval  # of the difference, see `paired_interval`
    p: float  # McNemar's exact test where scores are 0 or 1, else a sign-flip test
    only_first: int  # documents that only the first got right
    only_second: int


@dataclass(frozen=True)
class Effect:
    """The effect of a policy beyond its control: the mean over documents of `policy − mean of the control's seeds`."""

    n: int
    seeds: int
    policy: float  # mean score
    control: float
    effect: float
    interval: Interval  # of the effect, see `paired_interval`
    p: float  # sign-flip test
    control_spread: float  # standard deviation of the control's mean score over its seeds


# ---- one run -------------------------------------------------------------------------------------


def accuracy(scores: ArrayLike) -> float:
    """The mean score."""
    return float(_scores(scores).mean())


def standard_error(scores: ArrayLike) -> float:
    """lm-eval's standard error of the mean: the sample deviation (n − 1) over √n. NaN for one document."""
    values = _scores(scores)
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def wilson(right: float, n: float, confidence: float = CONFIDENCE) -> Interval:
    """Wilson's score interval of a share, `right` out of `n`; sensible at 0 and 1, where the standard error is 0.

    Wilson 1927, JASA 22:209. By hand, because scipy's takes whole numbers only.
    """
    if n < 1 or not 0 <= right <= n:
        raise InputError(f"{right} right out of {n}: expected 0 ≤ right ≤ n and n ≥ 1")
    return _score_interval(right, n, _normal(confidence))


def _score_interval(right: float, n: float, z: float) -> Interval:
    share = right / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # Exact at the ends, where rounding would leave 1e-18 instead of 0.
    return Interval(
        0.0 if right == 0 else max(0.0, centre - half), 1.0 if right == n else min(1.0, centre + half)
    )


# ---- two runs over the same documents ------------------------------------------------------------


def paired_interval(before: ArrayLike, after: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """Accuracy lost, mean(before) − mean(after) in [−1, 1]: the interval of every paired loss, effect and difference.

    Tango's score interval (1998, Statistics in Medicine 17:891): the losses that a score test does not reject. It keeps its
    level where a bootstrap has no width ("all 16 agree") and where Agresti and Min's is too narrow (few documents, none
    lost). Of shares it needs only how much was lost and won in all, and is then too wide rather than too narrow.
    """
    from scipy.optimize import brentq

    first, second = _pair(before, after)
    change = first - second
    n, lost, won = len(change), float(change[change > 0].sum()), float(-change[change < 0].sum())
    z, value = _normal(confidence), (lost - won) / n

    def score(loss: float) -> float:
        b = (2 * n - lost + won) * loss - lost - won
        both = (math.sqrt(b * b + 8 * n * won * loss * (1 - loss)) - b) / (4 * n)
        variance = n * (2 * both + loss * (1 - loss))
        return (lost - won - n * loss) / math.sqrt(variance) if variance > 1e-15 else 0.0

    edge = 1 - 1e-12
    low = brentq(lambda loss: score(loss) - z, -edge, value) if value > -edge and score(-edge) > z else -1.0
    high = brentq(lambda loss: score(loss) + z, value, edge) if value < edge and score(edge) < -z else 1.0
    return Estimate(float(change.mean()), float(low), float(high))


def kept_share(before: ArrayLike, after: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """The share of the accuracy that is left, mean(after) / mean(before), paired.

    Bonett and Price (2006, Statistics in Medicine 25:3039): two Wilson intervals, narrowed for what the runs have in common.
    It has a width where nothing or all is left. NaN with no bounds when nothing was right before.
    """
    first, second = _pair(before, after)
    left, base = float(second.sum()), float(first.sum())
    apart = float(np.abs(first - second).sum())
    n = (left + base + apart) / 2  # documents that either run got right; exact for 0 and 1
    if base == 0:
        return Estimate(math.nan, math.nan, math.nan)
    shares = [(right + 1) / (n + 2) for right in (left, base)]
    spread = math.sqrt((apart + 2) / ((left + 1) * (base + 1)))
    parts = [
        math.sqrt(max(0.0, 1 - share) / (right + 1))
        for share, right in zip(shares, (left, base), strict=True)
    ]
    z = _normal(confidence) * spread / sum(parts)
    above, below = (_score_interval(min(right, n), n, z) for right in (left, base))
    return Estimate(
        left / base, above.low / below.high, above.high / below.low if below.low > 0 else math.inf
    )


def difference(first: Estimate, second: Estimate) -> Estimate:
    """first − second of two estimates (Zou and Donner 2008, "MOVER"): bounds from their own, so edges are kept.

    They count as independent, which is careful where they rise and fall together.
    """
    value = first.value - second.value
    low = value - math.hypot(first.value - first.low, second.high - second.value)
    high = value + math.hypot(first.high - first.value, second.value - second.low)
    return Estimate(value, low, high)


def mcnemar(first: ArrayLike, second: ArrayLike) -> float:
    """McNemar's exact test, two-sided: could it be chance that one run is right where the other is wrong?

    Under the null, documents on which the runs disagree fall to either side with probability ½. Scores must be 0 or 1.
    """
    a, b = _pair(first, second)
    if not (_binary(a) and _binary(b)):
        raise InputError("McNemar's test needs scores of 0 and 1: use sign_flip for averages over seeds")
    from scipy import special

    only_a, only_b = int(np.sum(a > b)), int(np.sum(b > a))
    return min(1.0, 2 * float(special.bdtr(min(only_a, only_b), only_a + only_b, 0.5)))


def sign_flip(differences: ArrayLike, draws: int = 10_000, seed: int = 0) -> float:
    """Two-sided randomisation test of a mean difference of 0: signs of the per-document differences are flipped.

    The observed value counts as one of the draws, so that p is never 0.
    """
    values = _scores(differences)
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
    a, b = _pair(first, second)
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
    t = _student(n) / math.sqrt(n)

    def hall(t: float) -> float:
        """Half-widths of t from the mean, on the scale of the values."""
        return float(np.cbrt(1 + skew * (t - skew / (6 * n))) - 1) * 3 / skew

    low, high = (float(plain.value - half * hall(sign * t) / t) for sign in (1, -1))
    return Estimate(plain.value, min(plain.low, low), max(plain.high, high))


def compare(
    first: ArrayLike, second: ArrayLike, draws: int = 10_000, seed: int = 0, *, shares: bool = True
) -> Comparison:
    """Two runs over the same documents, in the same order (see `align`).

    Args:
        shares: scores lie between 0 and 1; else the interval is that of `mean_difference`.
    """
    a, b = _pair(first, second)
    found = paired_interval(a, b) if shares else mean_difference(a, b)
    return Comparison(
        n=len(a),
        first=float(a.mean()),
        second=float(b.mean()),
        difference=found.value,
        interval=Interval(found.low, found.high),
        p=mcnemar(a, b) if shares and _binary(a) and _binary(b) else sign_flip(a - b, draws, seed),
        only_first=int(np.sum(a > b)),
        only_second=int(np.sum(b > a)),
    )


def effect_over_control(
    policy: ArrayLike, controls: ArrayLike, draws: int = 10_000, seed: int = 0, *, shares: bool = True
) -> Effect:
    """`policy`: scores [n]. `controls`: scores [seeds, n] of the same documents, at least 3 seeds. `shares`: as for `compare`.

    Documents vary, seeds do not: the interval is about these control draws; `control_spread` says how much the draws themselves
    vary.
    """
    a, b = _pair(policy, over_seeds(controls))
    found = paired_interval(a, b) if shares else mean_difference(a, b)
    each = np.asarray(controls, dtype=np.float64)
    return Effect(
        n=len(a),
        seeds=len(each),
        policy=float(a.mean()),
        control=float(b.mean()),
        effect=found.value,
        interval=Interval(found.low, found.high),
        p=sign_flip(a - b, draws, seed),
        control_spread=float(each.mean(axis=1).std(ddof=1)),
    )


def over_seeds(scores: ArrayLike) -> Scores:
    """Scores [seeds, n], at least 3 seeds, averaged for each document: [n]."""
    each = np.asarray(scores, dtype=np.float64)
    if each.ndim != 2 or each.shape[0] < LEAST_SEEDS:
        raise InputError(
            f"scores of shape {each.shape}: expected [seeds, documents], at least {LEAST_SEEDS} seeds"
        )
    _scores(each.ravel())
    mean: Scores = each.mean(axis=0)
    return mean


def align(
    first: Mapping[str, float], second: Mapping[str, float], names: tuple[str, str] = ("first", "second")
) -> tuple[Scores, Scores]:
    """Scores by document id of two runs, as two arrays in one order. Refuses runs over different documents."""
    if first.keys() != second.keys():
        missing = [sorted(b.keys() - a.keys()) for a, b in ((first, second), (second, first))]
        words = "; ".join(
            f"{name} lacks {len(ids)}, such as {ids[0]}"
            for name, ids in zip(names, missing, strict=True)
            if ids
        )
        raise InputError(f"the runs answered different documents ({words}): compare runs with the same limit")
    order = sorted(first)
    return _scores([first[i] for i in order]), _scores([second[i] for i in order])


def same_settings(first: Any, second: Any, may_differ: Sequence[str] = ()) -> None:
    """Refuse to compare runs whose settings (JSON data) differ outside `may_differ` (dotted names)."""
    found = [
        name
        for name in _differences(first, second)
        if not any(name == item or name.startswith(f"{item}.") for item in may_differ)
    ]
    if found:
        raise InputError(
            f"the runs differ in {', '.join(found[:5])}{' and more' if len(found) > 5 else ''}: compare runs "
            f"that differ only in {', '.join(may_differ) or 'nothing'}"
        )


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
        half = np.where(n > 1, _student(n) * error, np.nan)
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


# ---- several groups ------------------------------------------------------------------------------


def equal_means(groups: Sequence[ArrayLike], draws: int = 2_000, seed: int = 0) -> float:
    """Permutation test of one mean for all groups: p. Groups are different documents; their sizes and variances may differ.

    The statistic is Welch's, the sum of squared distances from the common mean, each group weighted by 1 / its squared error.
    Studentised so, the test keeps its level for unequal variances too where groups are not tiny (Chung and Romano 2013, Ann.
    Statist. 41:484). A group's variance is shrunk by `SHRUNK` values towards that of all: scores of 0 and 1 may all agree. The
    observed value counts as one of the draws.
    """
    values = [_scores(group) for group in groups]
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
        found: Scores = (weights * (means - centre) ** 2).sum(1)
        return found

    observed = float(statistic(together[None])[0]) * (
        1 - 1e-9
    )  # sums in another order differ in the last bits
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
        sizes = np.array([len(_scores(first)) for first, _ in group])
        shifts = np.array([_shift(*_pair(*stratum)) for stratum in group])
        weights = sizes / sizes.sum()
        values.append(float((weights * shifts[:, 0]).sum()))
        variances.append(float((weights**2 * shifts[:, 1]).sum()))
    from scipy import special

    each, weight = np.array(values), 1 / np.array(variances)
    apart = each - (weight * each).sum() / weight.sum()
    return float(special.chdtrc(len(each) - 1, (weight * apart**2).sum()))


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
        probit = _quantile(mean)
        value += sign * probit
        each += sign * (scores - mean) * math.sqrt(2 * math.pi) * math.exp(probit**2 / 2)
    return value, float((weights * each**2).sum() / n / (n - 1))


# ---- tables and plans ----------------------------------------------------------------------------


def holm(p: ArrayLike) -> Scores:
    """p-values adjusted by Holm's step-down rule over one family of tests. NaN stays out of the family.

    Holm 1979, Scand. J. Statist. 6:65. By hand, because scipy has no step-down rule.
    """
    values = np.asarray(p, dtype=np.float64)
    adjusted = np.full(values.shape, np.nan)
    known = np.flatnonzero(~np.isnan(values))
    if np.any((values[known] < 0) | (values[known] > 1)):
        raise InputError(
            f"p-values between 0 and 1 are expected, and {values[known].min()} to {values[known].max()} came"
        )
    order = known[np.argsort(values[known], kind="stable")]
    steps = values[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return adjusted


def minimal_detectable_effect(
    n: int,
    accuracy: float = 0.5,
    correlation: float = 0.0,
    deviation: float | None = None,
    confidence: float = CONFIDENCE,
    power: float = 0.8,
) -> float:
    """The smallest difference of two runs' accuracies that n paired documents detect with this power (normal theory).

    `deviation`: standard deviation of the per-document differences, where it was measured. Else it follows from the accuracy and
    from how strongly the two runs agree document by document: √(2·p·(1−p)·(1−correlation)). The default is the worst case of two
    unrelated runs; real pairs do better.
    """
    if n < 2:
        raise InputError(f"n is {n}: at least 2 documents are needed")
    if deviation is None:
        if not (0 <= accuracy <= 1 and -1 <= correlation <= 1):
            raise InputError(
                f"accuracy {accuracy} and correlation {correlation}: expected [0, 1] and [−1, 1]"
            )
        deviation = math.sqrt(2 * accuracy * (1 - accuracy) * (1 - correlation))
    z = _quantile(0.5 + _share("confidence", confidence) / 2) + _quantile(_share("power", power))
    return min(1.0, z * deviation / math.sqrt(n))


# ---- helpers -------------------------------------------------------------------------------------


def _scores(values: ArrayLike) -> Scores:
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


def _pair(first: ArrayLike, second: ArrayLike) -> tuple[Scores, Scores]:
    a, b = _scores(first), _scores(second)
    if len(a) != len(b):
        raise InputError(f"{len(a)} and {len(b)} documents: a paired comparison needs the same documents")
    return a, b


def _binary(values: Scores) -> bool:
    return bool(np.all((values == 0) | (values == 1)))


def _share(name: str, value: float) -> float:
    if not 0 < value < 1:
        raise InputError(f"{name} is {value}: expected a number between 0 and 1")
    return value


def _normal(confidence: float) -> float:
    return _quantile(0.5 + _share("confidence", confidence) / 2)


def _quantile(share: float) -> float:
    """Of the standard normal distribution."""
    from scipy import special

    return float(special.ndtri(share))


def _student(n: Any) -> Any:
    """The half-width of a 95 % interval in standard errors of a mean over n values: Student's t."""
    from scipy import special

    return special.stdtrit(np.maximum(n - 1, 1), 0.5 + CONFIDENCE / 2)


def _summed(values: NDArray[Any], index: NDArray[Any]) -> NDArray[Any]:
    out = np.zeros((int(index.max()) + 1, values.shape[1]))
    np.add.at(out, index, values)
    return out


def _differences(a: Any, b: Any, name: str = "") -> list[str]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        keys = sorted({*a, *b})
        return [
            path
            for key in keys
            for path in _differences(a.get(key), b.get(key), f"{name}.{key}" if name else key)
        ]
    return [] if a == b else [name or "everything"]
