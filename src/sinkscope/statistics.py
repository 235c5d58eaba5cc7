"""Statistics of graded answers: pure functions of arrays with one value for each document.

Scores are 1 (right) or 0 (wrong), or a share between them where several seeds were averaged. Comparisons are
paired: both runs answered the same documents, and documents are what is resampled. All functions are
deterministic; the random ones take a seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sinkscope.errors import InputError

Scores = NDArray[np.float64]

LEAST_SEEDS = 3  # fewer control seeds say too little about how much a control varies


class Interval(NamedTuple):
    """A two-sided interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """Two runs over the same documents. `difference` is `first − second`."""

    n: int
    first: float  # mean score
    second: float
    difference: float
    interval: Interval  # bootstrap over documents
    p: float  # McNemar's exact test where scores are 0 or 1, else a sign-flip test
    only_first: int  # documents that only the first got right
    only_second: int


@dataclass(frozen=True)
class Effect:
    """What a policy does beyond its control.

    The mean over documents of `policy − mean of the control's seeds`.
    """

    n: int
    seeds: int
    policy: float  # mean score
    control: float
    effect: float
    interval: Interval  # bootstrap over documents
    p: float  # sign-flip test
    control_spread: float  # standard deviation of the control's mean score over its seeds


# ---- one run -------------------------------------------------------------------------------------


def accuracy(scores: ArrayLike) -> float:
    """The mean score."""
    return float(_scores(scores).mean())


def standard_error(scores: ArrayLike) -> float:
    """lm-eval's standard error of the mean: the sample deviation (n − 1) over √n. NaN for one document."""
    values = _scores(scores)
    if len(values) < 2:
        return math.nan
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def wilson(right: float, n: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a share, `right` out of `n`; sensible at 0 and 1, where the standard error
    is 0.

    Wilson 1927, JASA 22:209.
    """
    if n < 1 or not 0 <= right <= n:
        raise InputError(f"{right} right out of {n}: expected 0 ≤ right ≤ n and n ≥ 1")
    z = _quantile(confidence)
    share = right / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # exact at the ends, where rounding would leave 1e-18 instead of 0
    return Interval(
        0.0 if right == 0 else max(0.0, centre - half), 1.0 if right == n else min(1.0, centre + half)
    )


# ---- two runs ------------------------------------------------------------------------------------


def bootstrap(
    differences: ArrayLike, draws: int = 10_000, seed: int = 0, confidence: float = 0.95
) -> Interval:
    """Percentile bootstrap of the mean of per-document differences, resampling documents.

    Equal differences are drawn together (a multinomial over the distinct values): exact, and fast for large
    n.
    """
    values, counts = np.unique(_scores(differences), return_counts=True)
    n = int(counts.sum())
    tail = (1 - _share("confidence", confidence)) / 2
    drawn = np.random.default_rng(seed).multinomial(n, counts / n, size=draws)
    low, high = np.quantile(drawn @ values / n, [tail, 1 - tail])
    return Interval(float(low), float(high))


def mcnemar(first: ArrayLike, second: ArrayLike) -> float:
    """McNemar's exact test, two-sided: could it be chance that one run is right where the other is wrong?

    Under the null, documents on which the runs disagree fall to either side with probability ½. Scores must
    be 0 or 1.
    """
    a, b = _pair(first, second)
    if not (_binary(a) and _binary(b)):
        raise InputError("McNemar's test needs scores of 0 and 1: use sign_flip for averages over seeds")
    only_a, only_b = int(np.sum(a > b)), int(np.sum(b > a))
    n, k = only_a + only_b, min(only_a, only_b)
    return min(1.0, 2 * (sum(math.comb(n, i) for i in range(k + 1)) / (1 << n)))


def sign_flip(differences: ArrayLike, draws: int = 10_000, seed: int = 0) -> float:
    """Two-sided randomisation test of a mean difference of 0: signs of the per-document differences are
    flipped.

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


def compare(first: ArrayLike, second: ArrayLike, draws: int = 10_000, seed: int = 0) -> Comparison:
    """Two runs over the same documents, in the same order (see `align`)."""
    a, b = _pair(first, second)
    binary = _binary(a) and _binary(b)
    return Comparison(
        n=len(a),
        first=float(a.mean()),
        second=float(b.mean()),
        difference=float((a - b).mean()),
        interval=bootstrap(a - b, draws, seed),
        p=mcnemar(a, b) if binary else sign_flip(a - b, draws, seed),
        only_first=int(np.sum(a > b)),
        only_second=int(np.sum(b > a)),
    )


def effect_over_control(policy: ArrayLike, controls: ArrayLike, draws: int = 10_000, seed: int = 0) -> Effect:
    """`policy`: scores [n]. `controls`: scores [seeds, n] of the same documents, at least 3 seeds.

    Documents are resampled, seeds are not: the interval is about these control draws; `control_spread` says
    how much the draws themselves vary.
    """
    each = np.asarray(controls, dtype=np.float64)
    if each.ndim != 2 or each.shape[0] < LEAST_SEEDS:
        raise InputError(
            f"the control has shape {each.shape}: expected [seeds, documents], at least {LEAST_SEEDS} seeds"
        )
    a, b = _pair(policy, each.mean(axis=0))
    _scores(each.ravel())
    return Effect(
        n=len(a),
        seeds=each.shape[0],
        policy=float(a.mean()),
        control=float(b.mean()),
        effect=float((a - b).mean()),
        interval=bootstrap(a - b, draws, seed),
        p=sign_flip(a - b, draws, seed),
        control_spread=float(each.mean(axis=1).std(ddof=1)),
    )


def over_seeds(scores: ArrayLike) -> Scores:
    """Scores [seeds, n] of a sampled decoding, at least 3 seeds, averaged for each document: [n]."""
    each = np.asarray(scores, dtype=np.float64)
    if each.ndim != 2 or each.shape[0] < LEAST_SEEDS:
        raise InputError(
            f"scores of shape {each.shape}: a sampled decoding needs [seeds, documents] with at least "
            f"{LEAST_SEEDS} seeds"
        )
    _scores(each.ravel())
    mean: Scores = each.mean(axis=0)
    return mean


def align(
    first: Mapping[str, float], second: Mapping[str, float], names: tuple[str, str] = ("first", "second")
) -> tuple[Scores, Scores]:
    """Scores by document id of two runs, as two arrays in one order.

    Refuses runs over different documents.
    """
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
    found = [name for name in _differences(first, second) if not _below(name, may_differ)]
    if found:
        raise InputError(
            f"the runs differ in {', '.join(found[:5])}{' and more' if len(found) > 5 else ''}: compare runs "
            f"that differ only in {', '.join(may_differ) or 'nothing'}"
        )


# ---- tables and plans ----------------------------------------------------------------------------


def holm(p: ArrayLike) -> Scores:
    """p-values adjusted by Holm's step-down rule, for the family of all tests of one table. NaN stays out of
    the family.

    Holm 1979, Scand. J. Statist. 6:65.
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
    confidence: float = 0.95,
    power: float = 0.8,
) -> float:
    """The smallest difference of two runs' accuracies that n paired documents detect with this power (normal
    theory).

    `deviation`: standard deviation of the per-document differences, where it was measured. Else it follows
    from the accuracy and from how strongly the two runs agree document by document:
    √(2·p·(1−p)·(1−correlation)). The default is the worst case of two unrelated runs; real pairs do better.
    """
    if n < 2:
        raise InputError(f"n is {n}: at least 2 documents are needed")
    if deviation is None:
        if not (0 <= accuracy <= 1 and -1 <= correlation <= 1):
            raise InputError(
                f"accuracy {accuracy} and correlation {correlation}: expected [0, 1] and [−1, 1]"
            )
        deviation = math.sqrt(2 * accuracy * (1 - accuracy) * (1 - correlation))
    z = _quantile(confidence) + NormalDist().inv_cdf(_share("power", power))
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


def _quantile(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + _share("confidence", confidence) / 2)


def _differences(a: Any, b: Any, name: str = "") -> list[str]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        keys = sorted({*a, *b})
        return [
            path
            for key in keys
            for path in _differences(a.get(key), b.get(key), f"{name}.{key}" if name else key)
        ]
    return [] if a == b else [name or "everything"]


def _below(name: str, allowed: Sequence[str]) -> bool:
    return any(name == item or name.startswith(f"{item}.") for item in allowed)
