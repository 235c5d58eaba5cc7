"""Composition: frequency and enrichment on counts worked out by hand; attribution on what is known to
predict."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sinks import synthetic

from sinkscope.base.errors import InputError
from sinkscope.sinks import attribution, composition, logistic, summary
from sinkscope.sinks.attribution import LEADS, distance_bins
from sinkscope.sinks.composition import compose
from sinkscope.sinks.dataset import sample_state
from sinkscope.sinks.measures import Measure
from sinkscope.statistics import Estimate
from sinkscope.verdicts.diagnosis import diagnose
from sinkscope.verdicts.measures import Measures
from sinkscope.verdicts.trace_rules import semantic_or_positional


def on_masks_by_chance(state, rng):
    """One random key of the answer in every head and step: masks get their base rate and nothing more."""
    extra = state.empty()
    answer = np.flatnonzero(state.region == "answer")
    for layer in range(state.shape[0]):
        for head in range(state.shape[1]):
            extra[layer, head, rng.choice(answer)] = 40.0
    return extra


def test_base_rates_explain_masks_away():
    """The trap of table 2: masks are a third of all sinks because they are a third of all positions."""
    table = composition(synthetic.trace(on_masks_by_chance, sigma=0.2, layers=4, heads=8)).set_index("category")
    assert table.loc["mask", "frequency"] > 0.4
    assert table.loc["mask", "enrichment"] == pytest.approx(1.0, abs=0.1)
    assert table["frequency"].sum() == pytest.approx(1.0)
    assert table["expected"].sum() == pytest.approx(1.0)


def test_expected_counts_by_hand():
    """Step 0: 3 detections in an answer of 2 masks and 1 word; step 1: 1 detection, 1 mask, 2 words."""
    data = synthetic.trace(lengths=(3,), answer=3, block=3)
    run = sample_state(data.isel(step=slice(0, 2)), 0)
    codes = np.array([[2, 2, 2, 0, 0, 1], [2, 2, 2, 0, 1, 1]])
    counts = np.array([[0, 0, 5, 2, 0, 1], [0, 0, 0, 1, 0, 0]])
    found = compose(run, counts, codes, 3)
    np.testing.assert_allclose(found.detections, [[0, 0, 5], [3, 1, 0]])
    np.testing.assert_allclose(found.expected, [[0, 0, 5], [3 * 2 / 3 + 1 / 3, 3 * 1 / 3 + 2 / 3, 0]])
    np.testing.assert_allclose(found.cells, [[0, 0, 6], [3, 3, 0]])
    assert np.isnan(found.drains).all()


def test_by_token_gives_the_papers_table():
    data = synthetic.trace("newline", anatomy="drain")
    table = composition(data, by="token", top=3)
    assert table.loc[0, "token"] == synthetic.NEWLINE
    assert table.loc[0, "text"] == "\n"
    assert table.loc[0, "frequency"] > 0.95
    assert table.loc[0, "enrichment"] > 4
    assert table.loc[0, "drains"] == table.loc[0, "detections"]
    assert table.loc[0, "hubs"] == 0
    assert len(table) == 3
    with pytest.raises(InputError, match="known are category, token"):
        composition(data, by="kind")


def test_tokens_of_shards_with_other_vocabularies_still_add_up():
    data = synthetic.trace("flicker", sigma=0.5)
    table = composition(data, by="token")
    assert table["frequency"].sum() == pytest.approx(1.0)
    assert table["detections"].sum() == composition(data)["detections"].sum()


def test_logistic_regression_recovers_what_made_the_data():
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, 3, 40_000), rng.integers(0, 4, 40_000)], axis=1)
    first = np.concatenate([np.ones((3, 1)), np.eye(3)], axis=1)
    data = logistic.Codes(codes, (3, 4), first)
    effect = np.array([-2.0, 0.0, 1.0])[codes[:, 0]] + np.array([0.0, 0.5, -0.5, 1.5])[codes[:, 1]]
    y = (rng.random(40_000) < 1 / (1 + np.exp(-effect))).astype(float)
    beta = logistic.fit(data, y)
    assert np.abs(data.predict(beta) - effect).max() < 0.12
    dense = np.concatenate([first[codes[:, 0]], np.eye(4)[codes[:, 1]]], axis=1)
    np.testing.assert_allclose(dense @ beta, data.predict(beta))
    w = rng.random(40_000)
    np.testing.assert_allclose(data.gram(w, data.paired()), (dense * w[:, None]).T @ dense)
    np.testing.assert_allclose(data.sums(w), dense.T @ w)
    p = 1 / (1 + np.exp(-data.predict(beta)))
    gradient = data.sums(y - p) - np.r_[1e-6, np.ones(7)] * beta
    assert np.abs(gradient).max() < 1.0


def test_solving_in_halves_is_solving():
    rng = np.random.default_rng(0)
    for n in (3, 41, 108):
        factor = rng.normal(size=(n, n))
        matrix, right = factor @ factor.T + np.eye(n), rng.normal(size=n)
        np.testing.assert_allclose(matrix @ logistic._solve(matrix, right), right, atol=1e-8)


def test_distance_bins():
    bins = distance_bins(np.array([0, 1, 3, 4, 7, 8, 63, 64, 500, -1, -3, -4, -64, 10_000]))
    assert bins.tolist() == [0, 1, 3, 4, 4, 5, 7, 8, 8, 9, 11, 12, 16, 18]


def answered(found):
    """What `ss.diagnose` makes of an attribution; "" where it is undecided."""
    estimates = {
        LEADS.get(row["part"], Measure.GAIN).named(row["part"]): Estimate(row["gain"], row["low"], row["high"])
        for row in found.table.to_dict("records")
    }
    return semantic_or_positional(Measures(estimates=estimates)).answer


def on_some_mask(state, rng):
    extra = state.empty()
    masked = np.flatnonzero(state.masked)
    for layer in range(state.shape[0]):
        for head in range(state.shape[1]):
            extra[layer, head, rng.choice(masked)] = 40.0
    return extra


def test_state_is_its_own_part():
    """Any mask will do: the state explains it, and what kind of token it is adds nothing given the state."""
    found = attribution(synthetic.trace(on_some_mask, block=32, layers=4, heads=8))
    table = found.table.set_index("part")
    assert table.loc["state", "low"] > 0
    assert abs(table.loc["category", "gain"]) < 0.02 * table.loc["state", "gain"]
    assert answered(found) != "semantic"


def test_begin_of_text_is_shared_between_token_and_position():
    """A token that always stands first cannot be told from its place: neither may claim it."""
    data = synthetic.trace("static")
    tokens = data["tokens"].values.copy()
    for n in range(len(tokens)):
        tokens[n][:, data["position"].values[n] == 0] = synthetic.EOS
    found = attribution(data.assign(tokens=(data["tokens"].dims, tokens)))
    share = found.table.set_index("part")["share"]
    assert share["shared"] > 0.8
    assert answered(found) == "mixed"
    assert answered(attribution(data)) == "positional"


def test_too_little_is_not_identifiable():
    one = attribution(synthetic.trace("newline", lengths=(20, 20, 20, 20)))
    assert (answered(one), "one length" in one.note) == ("", True)
    few = attribution(synthetic.trace("newline", lengths=(20, 25)))
    assert (answered(few), "2 prompts" in few.note) == ("", True)
    none = attribution(synthetic.trace("none", sigma=0.1))
    assert (answered(none), none.note) == ("", "no sink was detected")
    assert none.table["gain"].isna().all()


@pytest.mark.slow
def test_a_mix_of_tokens_and_positions_is_not_decided_by_chance():
    """Half of the heads on line breaks, half on a place, 8 prompts: one side or the other came out in a third of such runs."""

    def mixed(state, rng):
        extra = synthetic.newline_bound(12.0)(state, rng)
        extra[:, ::2] = synthetic.static_first(25.0)(state, rng)[:, ::2]
        return extra

    found = [
        attribution(
            synthetic.trace(mixed, lengths=(17, 23, 30, 41, 26, 35, 20, 28), heads=4, answer=16, sigma=0.5, seed=seed)
        )
        for seed in range(12)
    ]
    assert not {"semantic", "positional"} & set(map(answered, found))


def test_an_empty_sample_takes_no_part():
    """A sample without a single score has no gain and no verdict, and does not spoil those of the others."""
    data = synthetic.trace("newline", lengths=(17, 23, 30, 41, 26))
    received = data["received"].values.copy()
    received[1] = np.nan
    empty = data.assign(received=(data["received"].dims, received))
    found = attribution(empty)
    assert answered(found) == "semantic"
    assert np.isfinite(found.table["gain"]).all()
    table = summary(empty).set_index("measure")
    assert table.loc["samples", "note"] == "1 could not be scored and count for nothing"
    assert np.isfinite(table.loc["gain: category", "low"])
    nothing = data.assign(received=(data["received"].dims, np.full_like(received, np.nan)))
    assert not any(verdict.decided for verdict in diagnose(nothing).verdicts)
