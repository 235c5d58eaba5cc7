"""Strength on traces whose numbers are known: by depth, by step, by head."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sinks import synthetic

from sinkscope.base.errors import InputError
from sinkscope.sinks import depth_profile, layer_head_map, sink_heads_share, step_position_map, summary
from sinkscope.sinks.scan import scans


def two_layers(state, rng):
    """Layer 0: both heads have the first and the sixth key; layer 1: head 0 the first key, head 1 nothing."""
    extra = state.empty()
    extra[0, :, [state.key_at(0), state.key_at(5)]] = 20.0
    extra[1, 0, state.key_at(0)] = 40.0
    return extra


DATA = synthetic.trace(two_layers, sigma=0.05, layers=2, heads=2, anatomy="drain")


def test_depth_profile_counts_by_layer():
    table = depth_profile(DATA)
    assert table["sinks_per_head"].tolist() == [2.0, 0.5]
    assert table["distinct_positions"].tolist() == [2.0, 1.0]
    assert table["heads_without"].tolist() == [0.0, 0.5]
    assert table["drains_per_head"].tolist() == [2.0, 0.5]
    assert table["hubs_per_head"].tolist() == [0.0, 0.0]
    assert depth_profile(DATA.drop_vars("value_norm"))["drains_per_head"].isna().all()
    share = np.mean([scan.absorbed for scan in scans(DATA)], axis=(0, 1, 3))
    np.testing.assert_allclose(table["absorbed"], share, rtol=1e-5)


def test_absorbed_share_is_a_share():
    share = np.stack([scan.absorbed for scan in scans(DATA)])
    received = DATA["received"].values
    n = np.isfinite(received).sum(axis=-1)
    np.testing.assert_allclose(np.nansum(received, axis=-1), n, rtol=1e-5)
    assert share[:, :, 1, 1].max() == 0
    expected = np.nanmax(received[:, :, 1, 0], axis=-1) / n[:, :, 1, 0]
    np.testing.assert_allclose(share[:, :, 1, 0], expected, rtol=1e-5)


def test_layer_head_map_is_the_maximum_averaged_over_steps():
    found = layer_head_map(DATA)
    np.testing.assert_allclose(found, np.nanmax(DATA["received"].values, axis=-1).mean(axis=1), rtol=1e-5)


def test_step_position_map_averages_what_was_asked_for():
    received = DATA["received"].values
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(step_position_map(DATA), received.mean(axis=(2, 3)), rtol=1e-5)
    one = step_position_map(DATA, layers=[1], heads=[0])
    np.testing.assert_allclose(one, received[:, :, 1, 0], rtol=1e-5)
    with pytest.raises(InputError, match="layer 7 is not in this trace"):
        step_position_map(DATA, layers=[7])


def test_the_bidirectional_form_of_gu():
    """α_k = received_k / n, in every step: head 0 of layer 1 gives its first key 41/(n+40) of all
    attention."""
    received = DATA["received"].values
    n = np.isfinite(received[..., :]).sum(axis=-1)
    first = np.stack([received[i, ..., np.flatnonzero(DATA["position"].values[i] == 0)[0]] for i in range(6)])
    expected = (first / n > 0.3).mean(axis=(1, 2, 3))
    found = sink_heads_share(DATA)
    np.testing.assert_allclose(found[:, 0], expected)
    assert 0 < float(found[:, 0].mean()) < 0.5
    assert float(found[:, 1].max()) == 0


def by_depth(strengths):
    """A static sink whose strength depends on the layer."""

    def plant(state, rng):
        extra = synthetic.static_first()(state, rng)
        extra[:] *= np.asarray(strengths)[:, None, None] / 30.0
        return extra

    data = synthetic.trace(plant, layers=len(strengths), lengths=(17, 23, 30, 26), answer=8)
    return summary(data).set_index("measure")


@pytest.mark.slow
def test_change_with_depth_is_over_all_layers():
    """First and last layer alike, and a rise in between, is no change; one strong last layer is not the whole story."""
    rising = by_depth((10, 20, 30, 40, 50, 60)).loc["main sink: change with depth"]
    assert rising["low"] > 5
    falling = by_depth((60, 50, 40, 30, 20, 10)).loc["main sink: change with depth"]
    assert falling["high"] < -5
    hill = by_depth((10, 30, 50, 50, 30, 10)).loc["main sink: change with depth"]
    assert abs(hill["value"]) < 0.2 * rising["value"]
    fewer = by_depth((40, 40, 40, 0, 0, 0))
    assert fewer.loc["sinks per head: change with depth", "high"] < 0
    assert fewer.loc["absorbed: change with depth", "high"] < 0
    assert fewer.loc["one or two positions in the deepest layers", "value"] == 0.0
    assert by_depth((40, 40, 40, 40)).loc["one or two positions in the deepest layers", "low"] > 0.4


def test_no_share_is_shown_outside_of_its_range():
    table = by_depth((40, 0, 0, 0))
    shares = table[table["unit"].str.startswith("share of") & ~table.index.str.contains("drift|beyond|change")]
    assert len(shares) > 20
    for column in ("value", "low", "high"):
        known = shares[column].dropna()
        assert ((known >= 0) & (known <= 1)).all(), shares[column]
