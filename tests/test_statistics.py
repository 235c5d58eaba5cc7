"""Statistics against known values, other implementations, and simulations."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.base.errors import InputError
from sinkscope.statistics import (
    SKEW_RAISED,
    Estimate,
    accuracy,
    align,
    compare,
    difference,
    effect_over_control,
    equal_ratios,
    holm,
    kept_share,
    mcnemar,
    mean_difference,
    mean_interval,
    minimal_detectable_effect,
    over_seeds,
    paired_interval,
    ratio_interval,
    share_interval,
    sign_flip,
    standard_error,
    wilson,
)

bits = st.lists(st.integers(0, 1), min_size=1, max_size=60)


def _run(right: int, n: int) -> np.ndarray:
    return np.array([1.0] * right + [0.0] * (n - right))


# ---- one run -------------------------------------------------------------------------------------


def test_standard_error_is_that_of_lm_eval() -> None:
    """sqrt(p(1−p)/(n−1)): the paper's ± for GSM8K at .82 and HumanEval at .60 and .16."""
    assert standard_error(_run(1082, 1319)) == pytest.approx(0.0106, abs=5e-5)
    assert standard_error(_run(98, 164)) == pytest.approx(0.0384, abs=5e-5)
    assert standard_error(_run(26, 164)) == pytest.approx(0.0287, abs=2e-4)
    p = 26 / 164
    assert standard_error(_run(26, 164)) == pytest.approx(math.sqrt(p * (1 - p) / 163), rel=1e-12)
    assert math.isnan(standard_error([1]))
    assert standard_error([1, 1, 1]) == 0
    assert accuracy(_run(26, 164)) == p


def test_wilson_known_values() -> None:
    """Newcombe 1998, Statistics in Medicine 17:857, table I, method 3: 81/263, 15/148, 0/20, 1/29."""
    for right, n, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        found = wilson(right, n)
        assert found.low == pytest.approx(low, abs=5e-5)
        assert found.high == pytest.approx(high, abs=5e-5)
    assert wilson(20, 20).high == 1.0
    assert wilson(5, 10, 0.99).low < wilson(5, 10, 0.95).low


@pytest.mark.slow
def test_wilson_agrees_with_scipy() -> None:
    scipy_stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    for right, n in [(0, 1), (1, 1), (3, 7), (82, 164), (1100, 1319)]:
        for level in (0.8, 0.95, 0.99):
            wanted = scipy_stats.binomtest(right, n).proportion_ci(level, method="wilson")
            assert wilson(right, n, level) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


@given(right=st.integers(0, 200), more=st.integers(0, 200))
def test_wilson_holds_the_share_and_is_symmetric(right: int, more: int) -> None:
    n = right + more
    if n == 0:
        return
    found = wilson(right, n)
    assert 0 <= found.low <= right / n <= found.high <= 1
    mirrored = wilson(more, n)
    assert found.low == pytest.approx(1 - mirrored.high, abs=1e-12)


def test_wilson_covers() -> None:
    """Exactly, from the binomial distribution: near 95 % at every share."""
    n = 50
    for p in (0.02, 0.05, 0.2, 0.5, 0.8, 0.95, 0.98):
        inside = [k for k in range(n + 1) if wilson(k, n).low <= p <= wilson(k, n).high]
        coverage = sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in inside)
        assert 0.91 <= coverage <= 0.99, p


def test_an_interval_of_scores_in_clusters_covers() -> None:
    """Pairs of a paradigm are right together; as if each of them stood alone, the interval would be too narrow."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(67), 15)
    covered = Counter[str]()
    for _ in range(400):
        shares = rng.beta(4 * 0.8, 4 * 0.2, 67)  # 15 pairs of each: a design effect of 1 + 14 / 5
        scores = rng.random(len(groups)) < shares[groups]
        for name, clusters in (("together", groups), ("alone", None)):
            low, high = share_interval(scores, clusters)
            covered[name] += low <= 0.8 <= high
    assert covered["together"] > 0.92 * 400
    assert covered["alone"] < 0.8 * 400
    even = [1, 0, 1, 0, 1, 0]  # groups that hardly vary make nothing surer
    assert share_interval(even, list("aabbcc")) == share_interval(even, list("aaaaaa")) == wilson(3, 6)


# ---- two runs ------------------------------------------------------------------------------------


def test_mcnemar_known_values() -> None:
    # 10 discordant, 1 against 9: 2 · (C(10,0) + C(10,1)) / 2^10
    a, b = [1] * 9 + [0] * 1 + [1] * 30, [0] * 9 + [1] * 1 + [1] * 30
    assert mcnemar(a, b) == pytest.approx(22 / 1024)
    assert mcnemar(b, a) == mcnemar(a, b)
    assert mcnemar([1, 0], [1, 0]) == 1.0
    assert mcnemar([1, 0], [0, 1]) == 1.0
    assert mcnemar([1] * 2000, [0] * 2000) < 1e-300  # no overflow at the size of a real test set


@given(pairs=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=80))
@settings(max_examples=40, deadline=None)
def test_mcnemar_agrees_with_scipy(pairs: list[tuple[int, int]]) -> None:
    scipy_stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    a, b = zip(*pairs, strict=True)
    only_a = sum(x > y for x, y in pairs)
    n = only_a + sum(x < y for x, y in pairs)
    wanted = scipy_stats.binomtest(only_a, n).pvalue if n else 1.0
    assert mcnemar(a, b) == pytest.approx(wanted, abs=1e-9)


def runs(n: int, base: float, lost: float, won: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two paired runs: of the right answers a share is lost, of the wrong ones a share is won."""
    before = rng.random(n) < base
    after = np.where(before, rng.random(n) >= lost, rng.random(n) < won)
    return before.astype(float), after.astype(float)


GRID = [
    (share, other) for share in (0.0, 0.02, 0.05, 0.1, 0.3, 0.5, 0.9) for other in (0.0, 0.05, 0.2) if share + other < 1
]


@pytest.mark.parametrize("n", [16, 40, 64])
def test_the_interval_of_paired_losses_covers_exactly(n: int) -> None:
    """From the multinomial distribution, edges included: never far under 95 %, and about that on average."""
    cache: dict[tuple[int, int], tuple[float, float]] = {}
    log = np.array([math.lgamma(i + 1) for i in range(n + 1)])
    coverages = []
    for lost, won in GRID:
        total = 0.0
        for b in range(n + 1):
            for c in range(n + 1 - b):
                if (b and not lost) or (c and not won):
                    continue
                rest = 1 - lost - won
                weight = log[n] - log[b] - log[c] - log[n - b - c] + (n - b - c) * math.log(rest)
                weight += (b * math.log(lost) if b else 0.0) + (c * math.log(won) if c else 0.0)
                if weight < -23:
                    continue
                if (b, c) not in cache:
                    before = np.r_[np.ones(b), np.zeros(n - b)]
                    after = np.r_[np.zeros(b), np.ones(c), np.zeros(n - b - c)]
                    found = paired_interval(before, after)
                    cache[b, c] = (found.low, found.high)
                low, high = cache[b, c]
                if low - 1e-9 <= lost - won <= high + 1e-9:
                    total += math.exp(weight)
        coverages.append(total)
    assert min(coverages) >= 0.92
    assert 0.945 <= np.mean(coverages) <= 0.99


def test_a_bootstrap_does_not_cover_where_this_interval_does() -> None:
    """One in twenty lost, 16 documents: resampling has no width when none is lost in the sample."""
    rng = np.random.default_rng(0)
    bootstrap = score = 0
    for _ in range(300):
        before, after = runs(16, 0.95, 0.05, 0.0, rng)
        change = before - after
        low, high = np.quantile(rng.choice(change, (400, 16)).mean(axis=1), [0.025, 0.975])
        bootstrap += low <= 0.05 * 0.95 <= high
        found = paired_interval(before, after)
        score += found.low <= 0.05 * 0.95 <= found.high
    assert bootstrap / 300 < 0.6
    assert score / 300 >= 0.95


def test_paired_intervals_by_hand() -> None:
    """Tango 1998, Statistics in Medicine 17:891: the score interval of 9 lost and 2 won of 40 documents, and its edges."""
    before, after = np.r_[np.ones(9), np.zeros(31)], np.r_[np.zeros(9), np.ones(2), np.zeros(29)]
    assert paired_interval(before, after) == pytest.approx((0.175, 0.01443, 0.33902), abs=1e-4)
    z = 1.959964
    for n in (16, 72, 73, 500):
        same = paired_interval(np.ones(n), np.ones(n))
        assert same.high == pytest.approx(z * z / (n + z * z), abs=1e-6)
        assert same.low == pytest.approx(-same.high)
    all_lost = paired_interval(np.ones(16), np.zeros(16))
    assert (all_lost.value, all_lost.high) == (1.0, 1.0)
    assert 0.6 < all_lost.low < 0.7
    shares = paired_interval(np.array([1.0, 0.5, 1.0, 0.5]), np.array([0.5, 0.5, 0.5, 0.5]))
    assert shares.value == pytest.approx(0.25)
    assert shares.low < 0.25 < shares.high
    with pytest.raises(InputError, match="same documents"):
        paired_interval(np.ones(3), np.ones(4))


@given(first=bits, seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_paired_intervals_are_antisymmetric_and_hold_the_loss(first: list[int], seed: int) -> None:
    second = np.random.default_rng(seed).integers(0, 2, len(first))
    one, two = paired_interval(first, second), paired_interval(second, first)
    assert one.low - 1e-9 <= one.value <= one.high + 1e-9
    assert (one.low, one.high) == pytest.approx((-two.high, -two.low), abs=1e-6)


@pytest.mark.parametrize(
    ("base", "lost", "won"), [(0.95, 0.05, 0.0), (0.95, 0.9, 0.0), (0.3, 0.5, 0.05), (0.9, 0.1, 0.5), (0.3, 1.0, 0.0)]
)
def test_the_share_that_is_kept_covers(base: float, lost: float, won: float) -> None:
    rng = np.random.default_rng(1)
    truth = 1 - lost + won * (1 - base) / base
    covered = drawn = 0
    for _ in range(400):
        before, after = runs(64, base, lost, won, rng)
        found = kept_share(before, after)
        drawn += found.known
        covered += found.known and found.low - 1e-9 <= truth <= found.high + 1e-9
    assert covered / drawn >= 0.93
    assert math.isnan(kept_share([0, 0], [1, 0]).value)


@pytest.mark.parametrize(("guess", "base", "kept"), [(0.5, 0.8, 0.5), (0.5, 0.75, 0.0), (0.25, 0.9, 0.8)])
def test_the_share_that_is_kept_above_guessing_covers(guess: float, base: float, kept: float) -> None:
    """Of answers between choices: a model knows some and guesses the others; what it no longer knows it guesses."""
    rng, covered, drawn = np.random.default_rng(2), 0, 0
    for _ in range(200):
        knows = rng.random(400) < (base - guess) / (1 - guess)
        before = knows | (rng.random(400) < guess)
        lost = knows & (rng.random(400) >= kept)
        found = kept_share(before, np.where(lost, rng.random(400) < guess, before), guess=guess)
        drawn += found.known
        covered += found.known and found.low - 1e-9 <= kept <= found.high + 1e-9
    assert drawn > 190
    assert covered / drawn >= 0.92
    assert math.isnan(kept_share([0, 1] * 8, [0, 1] * 8, guess=0.5).value)


def test_ratios_of_losses_are_the_same_where_some_documents_cannot_be_broken() -> None:
    rng = np.random.default_rng(0)

    def group(easy: float, lost: float, control: float) -> tuple[Any, Any]:
        hard = rng.random(400) >= easy
        return hard & (rng.random(400) < lost), hard & (rng.random(400) < control)

    assert np.mean([equal_ratios([group(e, 0.6, 0.3) for e in (0.0, 0.4, 0.7)]) < 0.05 for _ in range(200)]) <= 0.08
    assert equal_ratios([group(0.0, 0.6, 0.3), group(0.0, 0.1, 0.3)]) < 0.001
    assert equal_ratios([group(0.0, 0.0, 0.3), group(0.0, 0.6, 0.3)]) < 0.01
    assert equal_ratios([group(0.0, 0.6, 0.0), group(0.0, 0.6, 0.3)]) == 1.0  # the control says nothing


@pytest.mark.slow
@pytest.mark.parametrize("n", [16, 64])
@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, n: rng.normal(1.0, 1.0, n),
        lambda rng, n: rng.gamma(1.0, 1.0, n),
        lambda rng, n: 2 - rng.lognormal(-0.5, 1.0, n),
        lambda rng, n: rng.lognormal(-0.5, 1.0, n),
    ],
    ids=["normal", "gamma", "left tail", "long tail"],
)
def test_the_interval_of_differences_of_nats_takes_a_long_tail(draw: Any, n: int) -> None:
    """At a mean exactly on the limit, both wrong verdicts together stay under 5 %; Student's t alone gives 9 % at n = 16."""
    rng = np.random.default_rng(3)
    found = [mean_difference(draw(rng, n), np.zeros(n)) for _ in range(2000)]
    wrong = sum(one.above(1.0) or one.below(1.0) for one in found)
    assert wrong / 2000 <= 0.04


def test_a_loss_that_falls_on_few_texts_is_beyond_any_interval() -> None:
    """One text in ten loses anything: sixteen texts often hold none of them. A limit of the interval, stated in the docs."""
    rng = np.random.default_rng(3)

    def wrong(n: int) -> float:
        drawn = 10 * (rng.random((1000, n)) < 0.1) * rng.gamma(1.0, 1.0, (1000, n)) + rng.normal(0, 0.05, (1000, n))
        found = [mean_difference(values, np.zeros(n)) for values in drawn]
        return sum(one.above(1.0) or one.below(1.0) for one in found) / 1000

    assert 0.2 < wrong(16) < 0.35
    assert wrong(64) < 0.05


def test_the_interval_of_differences_of_nats_by_hand() -> None:
    """Without skewness it is Student's t; with it, Hall's formula on the tail's side and Student's on the other."""
    even = mean_difference([1.0, 2.0, 3.0, 4.0], [0.0] * 4)
    assert even == pytest.approx(mean_interval([1.0, 2.0, 3.0, 4.0]), rel=1e-4)
    values = np.array([0.0, 0.0, 1.0, 5.0])
    skew = SKEW_RAISED * 4 * np.sum((values - 1.5) ** 3) / (3 * 2 * np.std(values, ddof=1) ** 3)
    t, plain = 3.182446 / 2, mean_interval(values)
    hall = 3 / skew * (np.cbrt(1 + skew * (-t - skew / 24)) - 1)
    found = mean_difference(values, np.zeros(4))
    assert found.low == plain.low
    assert found.high == pytest.approx(1.5 - np.std(values, ddof=1) * hall, rel=1e-5)
    assert found.high > plain.high
    mirrored = mean_difference(np.zeros(4), values)
    assert mirrored == pytest.approx((-found.value, -found.high, -found.low))
    assert math.isnan(mean_difference([1.0], [0.0]).low)
    assert mean_difference([1.0, 1.0, 1.0], [0.0, 0.0, 0.0]) == (1.0, 1.0, 1.0)


def test_a_difference_of_estimates_keeps_its_edges() -> None:
    found = difference(Estimate(1.0, 0.8, 1.0), Estimate(0.0, 0.0, 0.1))
    assert found.value == 1.0
    assert found.low == pytest.approx(1 - math.hypot(0.2, 0.1))
    assert found.high == 1.0


# ---- prompts -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["plain", "positive", "share"])
@pytest.mark.parametrize("prompts", [3, 8, 30])
def test_intervals_over_prompts_cover_however_few_they_are(prompts: int, scale: str) -> None:
    """A bootstrap over three prompts covers about 75 %."""
    rng = np.random.default_rng(0)
    values = rng.beta(0.9, 8.1, (1500, prompts)) if scale == "share" else rng.gamma(4.0, 0.025, (1500, prompts))
    size = rng.uniform(0.5, 1.5, (1500, prompts))
    covered = 0
    for value, weight in zip(values, size, strict=True):
        found = ratio_interval(value * weight, weight, scale=scale)
        covered += found.low <= 0.1 <= found.high
        assert scale == "plain" or found.low >= 0
        assert scale != "share" or found.high <= 1
    assert 0.91 <= covered / 1500 <= 0.98


def test_ratios_leave_missing_samples_out_and_count_prompts_once() -> None:
    found = ratio_interval(np.array([1.0, np.nan, 3.0]), np.array([2.0, 5.0, 2.0]))
    assert found.value == 1.0
    assert np.isnan(ratio_interval(np.array([1.0]), np.array([2.0])).low)
    with pytest.raises(InputError, match="at least one sample"):
        ratio_interval(np.zeros(0), np.zeros(0))
    once = mean_interval([1.0, 2.0, 4.0])
    twice = mean_interval([1.0, 2.0, 4.0] * 2, groups=["a", "b", "c"] * 2)
    assert twice == pytest.approx(once)
    weighted = ratio_interval([2.0, 9.0, 3.0], [1.0, 3.0, 2.0])
    left_out = [(14 - a) / (6 - b) for a, b in ((2, 1), (9, 3), (3, 2))]
    jackknife = math.sqrt(2 / 3 * sum((ratio - weighted.value) ** 2 for ratio in left_out))
    assert weighted.high - weighted.value == pytest.approx(4.302653 * jackknife, rel=1e-5)
    columns = ratio_interval(np.array([[1.0, 2.0], [3.0, 2.0]]), np.array([2.0, 2.0]))
    assert columns.value.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("prompts", "low"), [(3, 0.368), (16, 0.829), (64, 0.954)])
def test_a_share_of_one_in_every_prompt_is_not_certain(prompts: int, low: float) -> None:
    """1 − 0.05^(1/n): the bound of n draws without an exception; and shares never leave [0, 1]."""
    assert mean_interval(np.ones(prompts), scale="share") == pytest.approx((1.0, low, 1.0), abs=1e-3)
    assert mean_interval(np.zeros(prompts), scale="share") == pytest.approx((0.0, 0.0, 1 - low), abs=1e-3)
    near = mean_interval(np.r_[np.ones(prompts - 1), 0.9], scale="share")
    assert 0 < near.low < near.value < near.high < 1
    assert mean_interval(np.full(prompts, 7.0)) == (7.0, 7.0, 7.0)


def test_a_ratio_of_nothing_has_no_interval() -> None:
    """On the log scale 0 has no bound above, and half an interval is none: the report drew a line to "nan"."""
    found = ratio_interval(np.zeros(3), np.array([1.0, 2.0, 3.0]), scale="positive")
    assert found.value == 0
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    mixed = ratio_interval(np.array([[0.0, 1.0], [0.0, 2.0]]), np.array([1.0, 2.0]), scale="positive")
    assert np.isnan(mixed.low).tolist() == np.isnan(mixed.high).tolist() == [True, False]


def test_a_verdict_needs_clearance() -> None:
    """A quarter of the half width beyond the limit; without an interval nothing is certain."""
    found = Estimate(1.0, 0.6, 1.2)
    assert found.above(0.49)
    assert not found.above(0.51)
    assert found.below(1.26)
    assert not found.below(1.24)
    assert not Estimate(1.0, math.nan, math.nan).above(0.0)
    assert not Estimate(1.0, 0.0, math.nan).below(2.0)


# ---- tests ---------------------------------------------------------------------------------------


def test_sign_flip_matches_the_exact_distribution() -> None:
    values = np.array([3.0, -1.0, 2.0, 2.0, 4.0])
    flips = np.array([[1 if code >> i & 1 else -1 for i in range(5)] for code in range(32)])
    exact = float(np.mean(np.abs(flips @ values) >= abs(values.sum()) - 1e-9))
    assert sign_flip(values, draws=40_000) == pytest.approx(exact, abs=0.01)
    assert sign_flip([0, 0, 0]) == 1.0
    assert 0 < sign_flip([1.0] * 50, draws=1000) < 0.002  # never 0


def test_sign_flip_agrees_with_mcnemar_on_binary_scores() -> None:
    a, b = _run(60, 100), np.roll(_run(45, 100), 10)
    assert sign_flip(a - b, draws=40_000) == pytest.approx(mcnemar(a, b), abs=0.01)


def test_tests_keep_their_level() -> None:
    """Without an effect, p < 0.05 in about one run of twenty."""
    rng = np.random.default_rng(0)
    exact = flipped = 0
    for trial in range(300):
        easy = rng.random(120)
        a, b = (rng.random(120) < easy).astype(float), (rng.random(120) < easy).astype(float)
        exact += mcnemar(a, b) < 0.05
        flipped += sign_flip(a - b, draws=400, seed=trial) < 0.05
    assert exact / 300 <= 0.075
    assert flipped / 300 <= 0.085


@given(first=bits, seed=st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_compare_is_antisymmetric(first: list[int], seed: int) -> None:
    second = [(value + index) % 2 for index, value in enumerate(first)]
    one, two = compare(first, second, draws=200, seed=seed), compare(second, first, draws=200, seed=seed)
    assert one.difference.value == pytest.approx(-two.difference.value)
    assert one.p == two.p
    assert one.difference.value == pytest.approx(np.mean(np.array(first) - second))


def test_compare_averages_over_seeds() -> None:
    sampled = over_seeds([[1, 0, 1, 1], [1, 0, 0, 1], [1, 1, 0, 1]])
    assert sampled == pytest.approx([1, 1 / 3, 1 / 3, 1])
    found = compare(sampled, [0, 0, 0, 0], draws=500)
    assert found.difference.value == pytest.approx(2 / 3)
    assert found.p == sign_flip(sampled, draws=500)
    with pytest.raises(InputError, match="at least 3 seeds"):
        over_seeds([[1, 0], [0, 1]])


# ---- effect over control -------------------------------------------------------------------------


def test_effect_over_control_is_paired() -> None:
    """A drop is seen where the control keeps its accuracy, and not where the control drops as much."""
    rng = np.random.default_rng(0)
    controls = (rng.random((4, 200)) < 0.8).astype(float)
    policy = controls[0] * (rng.random(200) < 0.5)
    found = effect_over_control(policy, controls)
    value, low, high = found.difference
    assert value == pytest.approx(policy.mean() - controls.mean())
    assert low < value < high < 0
    assert found.p < 0.001
    nothing = effect_over_control((rng.random(200) < 0.8).astype(float), controls)
    assert nothing.difference.low < 0 < nothing.difference.high
    assert nothing.p > 0.05


# ---- tables and plans ----------------------------------------------------------------------------


def test_holm_known_values() -> None:
    # by hand: sorted .005 .01 .03 .04 × 4 3 2 1 = .02 .03 .06 .04, made monotone
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert holm([0.02]) == pytest.approx([0.02])
    with_gap = holm([0.01, math.nan, 0.04])
    assert with_gap[[0, 2]] == pytest.approx([0.02, 0.04])
    assert math.isnan(with_gap[1])
    assert holm([]).shape == (0,)
    with pytest.raises(InputError, match="between 0 and 1"):
        holm([0.5, 1.5])


@given(p=st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_keeps_the_order_and_only_grows(p: list[float]) -> None:
    adjusted = holm(p)
    assert np.all(adjusted >= np.array(p) - 1e-15)
    assert np.all(adjusted <= np.minimum(1.0, np.array(p) * len(p)) + 1e-12)
    order = np.argsort(p, kind="stable")
    assert np.all(np.diff(adjusted[order]) >= 0)


def test_minimal_detectable_effect_by_simulation() -> None:
    n, p = 400, 0.7
    effect = minimal_detectable_effect(n, accuracy=p)
    assert effect == pytest.approx((1.959964 + 0.841621) * math.sqrt(2 * p * (1 - p)) / 20, rel=1e-5)
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(600):
        a = rng.random(n) < p - effect / 2
        b = rng.random(n) < p + effect / 2
        d = a.astype(float) - b
        seen += abs(d.mean()) > 1.96 * d.std(ddof=1) / 20
    assert 0.76 <= seen / 600 <= 0.86
    assert minimal_detectable_effect(16) > minimal_detectable_effect(500)
    assert minimal_detectable_effect(100) == pytest.approx(2.801585 * 0.5**0.5 / 10, rel=1e-5)
    assert minimal_detectable_effect(2) == 1.0
    with pytest.raises(InputError, match="at least 2"):
        minimal_detectable_effect(1)
    with pytest.raises(InputError, match="from 0 to 1"):
        minimal_detectable_effect(10, accuracy=1.5)


# ---- refusing what does not belong together ------------------------------------------------------


def test_align_pairs_by_document() -> None:
    a, b = align({"x": 1, "y": 0}, {"y": 1, "x": 0})
    assert (a.tolist(), b.tolist()) == ([1.0, 0.0], [0.0, 1.0])
    with pytest.raises(InputError, match=r"B lacks 1, such as y"):
        align({"x": 1, "y": 0}, {"x": 1}, names=("A", "B"))
    with pytest.raises(InputError, match=r"A lacks 1, such as z; B lacks 1, such as y"):
        align({"x": 1, "y": 0}, {"x": 1, "z": 0}, names=("A", "B"))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: accuracy([]), "at least one"), (lambda: standard_error([[1, 0]]), "shape"),
        (lambda: compare([1, 0], [1, 0, 1]), "2 and 3 documents"), (lambda: mcnemar([0.5, 1], [1, 0]), "scores of 0 and 1"),
        (lambda: wilson(3, 2), "expected 0"), (lambda: wilson(1, 2, 95), "confidence is 95"),
        (lambda: effect_over_control([1, 0], [[1, 0], [0, 1]]), "at least 3 seeds"),
        (lambda: effect_over_control([1, 0], [1, 0]), "at least 3 seeds"),
        (lambda: effect_over_control([1, 0, 1], [[1, 0], [0, 1], [1, 1]]), "same documents"),
        (lambda: effect_over_control([1, 0], [[1, 0], [0, 1], [1, math.nan]]), "not finite"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(call: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        call()
