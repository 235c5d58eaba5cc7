"""The rules that decide on the paper's claims: noise is never support, missing controls decide nothing."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from sinkscope.report.study import rules
from sinkscope.report.study.claims import CLAIMS, judge
from sinkscope.report.study.evidence import Evidence, Span, more_lost, padded, paired, widened
from sinkscope.report.study.rules import CONTRADICTED, OPEN, SUPPORTED
from sinkscope.sinks.intervals import paired_interval

N = 100


def scores(right: int, n: int = N) -> dict[str, float]:
    """The first `right` of n documents are right: easy ones stay easy."""
    return {f"d{i}": float(i < right) for i in range(n)}


def evidence(family: str = "llada", **changes: object) -> Evidence:
    return Evidence(model="m", family=family, **changes)  # type: ignore[arg-type]


def masked(hits: float = 0.9, n: int = N, **right: int) -> Evidence:
    """Accuracies by policy, in documents. Names: none, top, count, mass, silence."""
    names = {
        "none": "none", "top": "top:1", "count": "random(top:1)", "mass": "random(top:1),match=mass",
        "silence": "top:1,effect=silence",
    }  # fmt: skip
    return evidence(
        scores={names[key]: scores(value, n) for key, value in right.items()}, hits={"top:1": hits}
    )


@pytest.mark.parametrize(
    ("low", "high", "status"), [(0.55, 0.7, SUPPORTED), (0.2, 0.45, CONTRADICTED), (0.4, 0.6, OPEN)]
)
def test_the_whole_interval_decides(low, high, status):
    found = rules.side(Span((low + high) / 2, low, high), 0.5, True, "said")
    assert found.status == status
    opposite = {SUPPORTED: CONTRADICTED, CONTRADICTED: SUPPORTED, OPEN: OPEN}
    assert rules.side(Span((low + high) / 2, low, high), 0.5, False, "said").status == opposite[status]


def test_what_was_not_measured_or_has_no_interval_decides_nothing():
    assert rules.side(None, 0.5, True, "") == (OPEN, "not measured in this study")
    assert rules.side(Span(0.9, math.nan, math.nan), 0.5, True, "0.9").status == OPEN
    for found in (one for row in judge([evidence()]).values() for one in row.values() if one is not None):
        assert found.status == OPEN


@pytest.mark.parametrize(
    ("right", "status"),
    [
        ({"none": 95, "top": 95, "count": 95}, SUPPORTED),
        ({"none": 95, "top": 40, "count": 94}, CONTRADICTED),
        ({"none": 95, "top": 40, "count": 42}, OPEN),  # random keys cost as much
        ({"none": 95, "top": 40}, OPEN),  # no control
        ({"none": 95, "top": 88, "count": 95}, OPEN),  # around the limit
        ({"none": 15, "top": 15, "count": 15}, OPEN),  # nothing to lose
    ],
)
def test_robustness(right, status):
    assert rules.keeps("top:1")(masked(**right)).status == status


def test_an_effect_within_noise_is_never_support():
    same = {"none": 16, "top": 16, "count": 16}
    found = rules.keeps("top:1")(masked(n=16, **same))
    assert found.status == OPEN
    assert "not testable at n = 16" in found.evidence
    assert rules.keeps("top:1")(masked(n=400, none=400, top=400)).status == SUPPORTED


def test_robustness_needs_a_mask_that_hit_the_sinks():
    right = {"none": 95, "top": 95}
    assert rules.keeps("top:1")(masked(hits=0.9, **right)).status == SUPPORTED
    missed = rules.keeps("top:1")(masked(hits=0.1, **right))
    assert missed.status == OPEN
    assert "only 10% of the sinks were hidden" in missed.evidence
    unknown = evidence(scores={"none": scores(95), "top:1": scores(95)})
    assert "unknown share" in rules.keeps("top:1")(unknown).evidence


@pytest.mark.parametrize(
    ("right", "status"),
    [
        ({"none": 95, "top": 3, "count": 90}, SUPPORTED),
        ({"none": 95, "top": 3, "count": 4}, OPEN),
        ({"none": 95, "top": 3}, OPEN),
        ({"none": 95, "top": 85, "count": 90}, CONTRADICTED),
        ({"none": 95, "top": 48, "count": 90}, OPEN),
    ],
)
def test_collapse(right, status):
    assert rules.collapses("top:1")(masked(**right)).status == status


@pytest.mark.parametrize(
    ("right", "status", "word"),
    [
        ({"none": 95, "top": 30, "count": 93, "mass": 80, "silence": 35}, SUPPORTED, "silence"),
        ({"none": 95, "top": 30, "count": 93, "silence": 35}, OPEN, "match=mass"),
        ({"none": 95, "top": 30, "count": 93, "mass": 31, "silence": 35}, CONTRADICTED, "loses as much"),
        ({"none": 95, "top": 30, "count": 93, "mass": 80, "silence": 95}, OPEN, "silence disagrees"),
        ({"none": 95, "top": 94, "count": 93, "mass": 93, "silence": 95}, OPEN, "no loss is certain"),
    ],
)
def test_a_loss_is_the_sinks_only_when_both_controls_and_silence_agree(right, status, word):
    found = rules.due_to_sinks("top:1")(masked(**right))
    assert found.status == status
    assert word in found.evidence


def test_ten_against_one():
    def ten(one: int, many: int, control: int) -> str:
        right = {"none": 95, "top:1": one, "top:10": many, "random(top:10)": control}
        return rules.worse("top:10", "top:1")(
            evidence(scores={k: scores(v) for k, v in right.items()})
        ).status

    assert ten(90, 40, 85) == SUPPORTED
    assert ten(90, 40, 41) == OPEN
    assert ten(90, 90, 90) == CONTRADICTED
    assert ten(90, 82, 90) == OPEN


def test_two_models_are_compared_on_the_same_documents():
    rival = {"none": scores(95), "top:1": scores(3)}
    own = evidence(scores={"none": scores(93), "top:1": scores(90)}, rival=rival)
    assert rules.loses_less_than_causal("top:1")(own).status == SUPPORTED
    robust = {"none": scores(95), "top:1": scores(93)}
    worse = evidence(scores={"none": scores(93), "top:1": scores(2)}, rival=robust)
    assert rules.loses_less_than_causal("top:1")(worse).status == CONTRADICTED
    few = {name: scores(right, 16) for name, right in (("none", 16), ("top:1", 3))}
    close = evidence(scores=few, rival={"none": scores(16, 16), "top:1": scores(0, 16)})
    assert rules.loses_less_than_causal("top:1")(close).status == OPEN
    assert rules.loses_less_than_causal("top:1")(evidence(scores=own.scores)).status == OPEN
    other = {"none": scores(9, 10), "top:1": scores(1, 10)}
    assert more_lost(other, own.scores, "top:1") is None


def test_drift_has_a_direction_a_size_and_no_ties():
    def drift(value: float, low: float, high: float, note: str = "") -> Evidence:
        name = "drift against position"
        return evidence(measures={name: Span(value, low, high)}, notes={name: note})

    left = rules.drifts(-1)
    assert left(drift(-0.3, -0.4, -0.2)).status == SUPPORTED
    assert left(drift(0.3, 0.2, 0.4)).status == CONTRADICTED
    assert left(drift(0.0, -0.05, 0.05)).status == CONTRADICTED
    assert left(drift(-0.12, -0.3, 0.06)).status == OPEN
    assert (
        left(drift(-0.3, -0.4, -0.2, "no verdict: 37% of the selections were ties; ties 37%")).status == OPEN
    )


def test_first_and_last_layer_must_be_apart():
    fewer = rules.deeper("sinks", True, "")
    layers = lambda first, last: evidence(layers={"sinks": (first, Span(2, 0, 9), last)})  # noqa: E731
    assert fewer(layers(Span(3, 2.5, 3.5), Span(1, 0.5, 1.5))).status == SUPPORTED
    assert fewer(layers(Span(1, 0.5, 1.5), Span(3, 2.5, 3.5))).status == CONTRADICTED
    assert fewer(layers(Span(2, 1, 3), Span(1.5, 0.5, 2.5))).status == OPEN


def test_intervals_of_few_prompts_are_widened_and_one_prompt_has_none():
    four = widened(0.5, 0.4, 0.6, 4)
    assert four.high - 0.5 == pytest.approx(0.1 * 3.182 / 1.959964 * math.sqrt(4 / 3))
    assert widened(0.5, 0.4, 0.6, 1000).high == pytest.approx(0.6, abs=1e-3)
    assert not widened(0.5, 0.5, 0.5, 1).known


def test_paired_intervals_never_have_width_zero():
    ones = np.ones(16)
    assert paired(ones, ones) == Span(*paired_interval(ones, ones))
    shares = paired(ones, np.full(16, 2 / 3))
    assert shares.high - shares.low > 0.2
    assert padded(np.zeros(16)).low < 0 < padded(np.zeros(16)).high


def test_every_claim_is_about_a_known_family_and_says_how_it_is_decided():
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert set(claim.families) <= {"llada", "dream", "mmada", "causal"}
        assert claim.rule
        assert claim.measured
        assert re.search(r"sec|tab|fig|app|abstract|paper", claim.where), claim.name
    found = judge([evidence("causal"), Evidence(model="n", family="dream")])
    assert found["collapse"]["m"] is not None
    assert found["collapse"]["n"] is None
    assert found["left"]["m"] is None
