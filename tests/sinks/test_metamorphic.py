"""Properties that must hold whatever the numbers are."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.sinks import synthetic

from sinkscope.base.errors import InputError
from sinkscope.sinks import merge, sink_statistics, sinks_of, summary
from sinkscope.sinks.kinds import MOVERS
from sinkscope.sinks.measures import Measure
from sinkscope.sinks.residence import residences_of
from sinkscope.verdicts.diagnosis import diagnose

# Multiples of 1/8 add up exactly in any order, so that equality is equality and not luck with rounding.
scores = hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(2, 30)), elements=st.integers(0, 200)).map(
    lambda a: a / 8
)
rules = st.sampled_from(["sum", "mean", "percent"])


@given(scores, rules, st.integers(0, 2**32 - 1))
def test_permuting_positions_permutes_detections(rows, rule, seed):
    order = np.random.default_rng(seed).permutation(rows.shape[1])
    assert (sinks_of(rows[:, order], 0.5, rule) == sinks_of(rows, 0.5, rule)[:, order]).all()


@given(scores, st.sampled_from(["sum", "mean", "percent", "zscore"]), st.floats(0, 10), st.floats(0, 10))
def test_a_larger_epsilon_gives_a_subset(rows, rule, a, b):
    low, high = min(a, b), max(a, b)
    assert not (sinks_of(rows, high, rule) & ~sinks_of(rows, low, rule)).any()


@given(scores, st.integers(1, 5))
def test_padding_changes_nothing(rows, count):
    padded = np.concatenate([np.full((len(rows), count), np.nan), rows], axis=1)
    assert (sinks_of(padded)[:, count:] == sinks_of(rows)).all()


@given(hnp.arrays(bool, st.tuples(st.integers(1, 8), st.just(2), st.integers(1, 5))))
def test_residences_rebuild_the_detections(sinks):
    """Every detection is in exactly one residence, which ends before more than two steps without a sink."""
    found = residences_of(sinks)
    rebuilt = np.zeros(sinks.shape, dtype=int)
    for head, key, start, stop in zip(found.head, found.key, found.start, found.stop, strict=True):
        rebuilt[start : stop + 1, head, key] += 1
        assert sinks[start, head, key]
        assert sinks[stop, head, key]
        assert not sinks[max(0, start - 3) : start, head, key].any()
        assert not sinks[stop + 1 : stop + 4, head, key].any()
    assert (rebuilt[sinks] == 1).all()
    assert rebuilt.sum() == sinks.sum() + found.dips.sum()
    assert (found.left == (found.start == 0)).all()
    assert (found.right == (found.stop == len(sinks) - 1)).all()


@given(
    hnp.arrays(np.float64, (6, 1, 2, 7), elements=st.integers(1, 400)).map(lambda a: a / 8), st.permutations(range(7))
)
def test_permuting_positions_permutes_the_path(received, order):
    """Where the largest score is unique; a tie goes to the lower index by definition."""
    ordered = np.sort(received, axis=-1)
    if (ordered[..., -1] == ordered[..., -2]).any():
        return
    order = np.array(order)
    path = synthetic.path_of(received, sinks_of(received))
    moved = synthetic.path_of(received[..., order], sinks_of(received[..., order]))
    assert (np.where(moved >= 0, order[moved], -1) == path).all()


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(st.permutations(range(3)), st.permutations(range(2)), st.sampled_from(["static", "moving", "newline"]))
def test_the_order_of_heads_does_not_matter(heads, layers, plant):
    data = synthetic.trace(plant, sigma=0.8, lengths=(7, 12), answer=8, block=4)
    shuffled = data.isel(head=list(heads))
    kinds = synthetic.kinds_of_heads(data)[..., list(heads)]
    assert (synthetic.kinds_of_heads(shuffled.assign_coords(head=[0, 1, 2])) == kinds).all()
    ours, theirs = summary(data), summary(shuffled.assign_coords(head=[0, 1, 2]))
    # Noise is drawn head by head.
    drawn = {Measure.MOVING_CHANCE.named(), Measure.MOVING_BEYOND.named(), *map(Measure.KIND_BEYOND.named, MOVERS)}
    ours, theirs = (table[~table["measure"].isin(drawn)] for table in (ours, theirs))
    pd.testing.assert_frame_equal(ours, theirs, rtol=1e-6)
    # Layers are ordered, but what is counted over all of them is not.
    upside = summary(data.isel(layer=list(layers)).assign_coords(layer=[0, 1]))
    for measure in ("sinks per head", "absorbed", "strongest sink moves", "on the first 4 positions"):
        value = ours.set_index("measure").loc[measure, "value"]
        assert upside.set_index("measure").loc[measure, "value"] == pytest.approx(value)


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=6, max_size=6), st.sampled_from(["newline", "moving", "flicker"]))
def test_merged_shards_are_one_pass(shard_of, plant):
    data = SHARDED[plant]
    shards = [data.isel(sample=[i for i, s in enumerate(shard_of) if s == k]) for k in sorted(set(shard_of))]
    merged = merge([sink_statistics(shard) for shard in shards])
    whole = sink_statistics(data)
    xr.testing.assert_identical(merged, whole)
    assert repr(diagnose(merged).verdicts) == repr(diagnose(data).verdicts)


SHARDED = {
    plant: synthetic.trace(plant, sigma=0.6, lengths=(7, 9, 12, 8, 10, 11), answer=8, block=4)
    for plant in ("newline", "moving", "flicker")
}


def test_merge_refuses_what_does_not_belong_together():
    data = SHARDED["newline"]
    part = sink_statistics(data)
    with pytest.raises(InputError, match="more than one shard"):
        merge([part, part])
    assert merge([part, part], relabel=True).sizes["sample"] == 12
    with pytest.raises(InputError, match="differ in epsilon"):
        merge([part, sink_statistics(data, epsilon=2.0)])
    other = data.assign_attrs(policy="top:1")
    with pytest.raises(InputError, match="differ in policy"):
        merge([part, sink_statistics(other)])
    with pytest.raises(InputError, match="at least one result"):
        merge([data])


def test_samples_of_one_prompt_are_drawn_together():
    """The same prompts twice are not twice as many prompts: the interval must not shrink."""
    part = sink_statistics(SHARDED["newline"])
    twice = merge([part, part], relabel=True)
    once, doubled = (summary(p).set_index("measure") for p in (part, twice))
    assert doubled.loc["prompts", "value"] == once.loc["prompts", "value"] == 6
    assert doubled.loc["sinks per head", "low"] == pytest.approx(once.loc["sinks per head", "low"])
    assert once.loc["sinks per head", "low"] < once.loc["sinks per head", "value"]


@pytest.mark.parametrize("budget", [1, 20_000, 10**9])
def test_the_size_of_blocks_does_not_matter(budget):
    from sinkscope.sinks.scan import scans

    data = SHARDED["moving"]
    data["received"].encoding["preferred_chunks"] = {"sample": 2, "step": 3, "layer": 1}
    small = list(scans(data, budget=budget, keep_residences=True, sweep=True))
    data["received"].encoding.clear()
    whole = list(scans(data, keep_residences=True, sweep=True))
    assert [s.sample for s in small] == [s.sample for s in whole] == list(range(6))
    for a, b in zip(small, whole, strict=True):
        for name in ("sinks", "counts", "path", "shared", "bits", "histogram", "filtered", "kinds"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
        np.testing.assert_allclose(a.mean_map, b.mean_map)
        assert a.sink_mass == pytest.approx(b.sink_mass)
        rows = [sorted(zip(*(c.tolist() for c in s.residences[:8]), strict=True)) for s in (a, b)]
        assert rows[0] == rows[1]
