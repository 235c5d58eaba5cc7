"""Residences, paths, overlap, events, drift on arrays small enough to work out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.sinks import synthetic

from sinkscope.sinks import moves, paths
from sinkscope.sinks.dataset import sample_state
from sinkscope.sinks.drift import centroid_variance, decoding_rank, drift_of, layer_overlap_of, rank, set_overlap
from sinkscope.sinks.events import align, alignment_table, block_ends
from sinkscope.sinks.kinds import moves_of
from sinkscope.sinks.residence import FATES, bridged, residences_of
from sinkscope.sinks.scan import scans


def column(*steps: str) -> np.ndarray:
    """Steps as strings of keys: "x.." is a sink at key 0 → bool [T, 1, K]."""
    return np.array([[[c == "x" for c in step]] for step in steps])


def test_residences_by_hand():
    found = residences_of(column("x..", "xx.", ".x.", "...", "..x"))
    rows = sorted(zip(found.key, found.start, found.stop, found.left, found.right, found.fate, strict=True))
    assert [(k, a, b, bool(x), bool(y), FATES[f]) for k, a, b, x, y, f in rows] == [
        (0, 0, 1, True, False, "moved on"),
        (1, 1, 2, False, False, "vanished"),
        (2, 4, 4, False, True, "open"),
    ]


def test_a_key_that_loses_its_score_is_censored():
    sinks = column("x.", "x.", "..", "x.")
    real = np.ones((4, 2), dtype=bool)
    real[2, 0] = False
    found = residences_of(sinks, real)
    assert [FATES[f] for f in found.fate] == ["unscored", "open"]
    assert found.right.all()
    assert found.left.all()


def test_strength_is_the_mean_over_the_run():
    received = np.array([10.0, 20.0, 1.0]).reshape(3, 1, 1)
    found = residences_of(column("x", "x", "."), received=received)
    assert found.strength.tolist() == [15.0]
    found = residences_of(column("x", ".", "x"), received=received)
    assert found.strength.tolist() == [5.5], "a dip is not part of the strength"
    assert found.dips.tolist() == [1]


def test_a_residence_outlives_a_dip_of_two_steps_and_no_more():
    found = residences_of(column("x", ".", ".", "x", "x", ".", ".", ".", "x"))
    assert list(zip(found.start, found.stop, found.dips, strict=True)) == [(0, 4, 2), (8, 8, 0)]
    assert [FATES[f] for f in found.fate] == ["vanished", "open"]


@pytest.mark.parametrize(("length", "dip"), [(1, 2), (2, 2), (3, 1), (9, 2), (30, 2), (30, 3)])
def test_bridging_is_its_sentence(length, dip):
    """Every gap between two present steps, filled when it is short enough, against a loop."""
    present = np.random.default_rng(length).random((length, 40)) < 0.4
    expected = present.copy()
    for column in range(present.shape[1]):
        on = np.flatnonzero(present[:, column])
        for a, b in itertools.pairwise(on):
            if b - a - 1 <= dip:
                expected[a : b + 1, column] = True
    np.testing.assert_array_equal(bridged(present, dip=dip), expected)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([[10, 1], [10, 11.9], [10, 1]], [0, 0, 0]),  # a challenger under 1.2 times does not move it
        ([[10, 1], [10, 12], [10, 11]], [0, 1, 1]),  # at 1.2 times it does, and then holds
        ([[10, 1], [1, 1], [1, 9]], [0, -1, 1]),  # a step without a sink reads −1
        ([[10, 1], [3.9, 4.1], [10, 1]], [0, 0, 0]),  # the holder may dip below the threshold for a step
    ],
)
def test_the_path_moves_only_for_a_stronger_challenger(scores, expected):
    received = np.array(scores, dtype=float).reshape(3, 1, 1, 2)
    sinks = received > 4
    assert synthetic.path_of(received, sinks)[:, 0, 0].tolist() == expected


def test_a_gap_breaks_the_path():
    path = np.array([0, 0, 3, -1, 5, 5, 2]).reshape(-1, 1, 1)
    assert moves_of(path)[0].tolist() == [1, 5]


def test_overlap_by_hand():
    a = np.array([[True, True, False], [False, False, False]])
    b = np.array([[True, False, True], [False, False, False]])
    np.testing.assert_allclose(set_overlap(a, b), [1 / 3, np.nan])
    data = synthetic.trace("moving", lengths=(9,), answer=16, block=8, sigma=0.1)
    (scan,) = scans(data)
    over = scan.shared[:, 0, 0]
    assert np.isnan(over[0])
    assert np.flatnonzero(over == 0).tolist() == [8]
    assert (over[[1, 7, 9, 15]] == 1).all()
    np.testing.assert_allclose(layer_overlap_of(scan.counts > 0), np.ones((2, 2)))


def test_centroid_by_hand():
    """One sink that sits at 2, then at 6: Var of (2, 6) is 4; the mean profile has two equal peaks."""
    pooled = np.full((2, 20), 0.5)
    pooled[0, 2] = pooled[1, 6] = 10.0
    found = centroid_variance(pooled, np.arange(20))
    assert found.temporal == pytest.approx(4.0)
    assert found.temporal_relative == pytest.approx(4.0 / 400)
    assert found.spatial == pytest.approx(np.var(np.where(np.isin(np.arange(20), (2, 6)), 5.25, 0.5)))


def test_paths_and_moves_are_labelled():
    data = synthetic.trace("moving", lengths=(9, 12), answer=16, block=8, sigma=0.1)
    found = paths(data)
    assert found["position"].sel(sample=0, step=3, layer=0, head=0) == 9
    assert found["position"].sel(sample=1, step=12, layer=1, head=2) == 20
    table = moves(data)
    assert len(table) == 2 * 2 * 3
    assert (table["distance"] == 8).all()
    assert (table["step"] == 7).all()


def test_block_ends_and_decisions():
    data = synthetic.trace("none", lengths=(5,), answer=12, block=4)
    state = sample_state(data, 0)
    assert np.flatnonzero(block_ends(state, 4)).tolist() == [3, 7, 11]
    assert not block_ends(state, None).any()
    assert not block_ends(state, 12).any()
    assert (state.decisions() == data["decided"].values[0]).all()
    thinned = sample_state(data.isel(step=slice(0, None, 3)), 0)
    assert thinned.decisions()[:-1].sum(axis=1).tolist() == [3, 3, 3]


def test_alignment_under_permutation_is_a_fair_test():
    """Moves at random times: p is uniform enough not to reject; moves at events: always rejected."""
    data = synthetic.trace("none", lengths=(6,), answer=40, block=5)
    state = sample_state(data, 0)
    rng = np.random.default_rng(0)
    free = []
    for seed in range(40):
        path = np.repeat(rng.integers(0, 46, 40)[:, None, None], 1, axis=1)
        path[rng.random(40) < 0.8] = -1
        path = np.where(rng.random((40, 1, 1)) < 0.5, 3, np.maximum(path, 0))
        found = align(state, path, 5, seed=seed)
        table = alignment_table(np.array([found.moves]), found.observed[None], found.null[None], found.applies[None])
        free.append(float(table.set_index("event").loc["block", "p"]))
    assert np.mean(np.array(free) < 0.05) < 0.2
    block = np.cumsum(np.concatenate([[0], block_ends(state, 5)[:-1]]))
    found = align(state, (6 + 5 * block)[:, None, None].astype(int), 5)
    assert found.moves == found.observed[2] == 7
    assert (found.null[2] >= 7).mean() < 0.02


def test_ranks_share_ties():
    np.testing.assert_allclose(rank(np.array([3.0, np.nan, 1.0, 3.0, 9.0])), [0.5, np.nan, 0.0, 0.5, 1.0])


def test_drift_by_hand():
    data = synthetic.trace("none", lengths=(4,), answer=16, block=16, order="left")
    state = sample_state(data, 0)
    frontier = (4 + np.arange(16))[:, None, None]
    found = drift_of(state, frontier)
    assert found.position / found.position_weight == pytest.approx(15 / 20)
    assert found.order / found.order_weight == pytest.approx(1.0)
    assert found.decoding == pytest.approx(1.0)
    assert decoding_rank(state)[4:].tolist() == pytest.approx(np.linspace(0, 1, 16).tolist())
    still = drift_of(state, np.full((16, 1, 1), 2))
    assert still.position == 0
    assert still.order_weight == 0
