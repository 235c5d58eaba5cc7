"""Anatomy: norms at sinks, drains by grouped heads, massive activations, secondary sinks."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sinks import synthetic

from sinkscope.base.errors import InputError
from sinkscope.sinks import anatomy, sink_table
from sinkscope.sinks.anatomy import massive_keys
from sinkscope.sinks.scan import drain_keys, key_median, per_query_head


def with_anatomy(*, value: float = 0.2, key: float = 1.0, hidden: float = 15.0, largest: float = 400.0):
    """A static sink whose norms at position 0 are these multiples of the rest."""
    data = synthetic.trace("static", lengths=(9, 12), answer=8, layers=2, heads=4)
    first = (data["position"] == 0).values[:, None, None]
    N, T, L, K = data.sizes["sample"], data.sizes["step"], data.sizes["layer"], data.sizes["key"]
    one = np.broadcast_to(first, (N, T, L, K))
    heads = np.broadcast_to(first[:, :, :, None], (N, T, L, 2, K))
    per_head, per_layer = ("sample", "step", "layer", "kv_head", "key"), ("sample", "step", "layer", "key")
    return data.assign(
        value_norm=(per_head, np.where(heads, value, 1.0)),
        key_norm=(per_head, np.where(heads, key, 1.0)),
        hidden_norm=(per_layer, np.where(one, hidden, 1.0)),
        largest_activation=(per_layer, np.where(one, largest, 3.0)),
        median_activation=(("sample", "step", "layer"), np.full((N, T, L), 0.1)),
    )


def test_ratios_at_sinks():
    table = anatomy(with_anatomy())
    assert table["value_ratio"].tolist() == pytest.approx([0.2, 0.2])
    assert table["key_ratio"].tolist() == pytest.approx([1.0, 1.0])
    assert table["hidden_ratio"].tolist() == pytest.approx([15.0, 15.0])
    assert table["drains"].tolist() == [1.0, 1.0]
    assert table["hubs"].tolist() == [0.0, 0.0]
    assert table["massive"].tolist() == [1.0, 1.0]
    assert anatomy(with_anatomy(value=0.8))["hubs"].tolist() == [1.0, 1.0]
    with pytest.raises(InputError, match="anatomy=True"):
        anatomy(synthetic.trace())


@pytest.mark.parametrize(("value", "kind"), [(0.49, "drain"), (0.51, "hub")])
def test_half_the_median_is_the_border(value, kind):
    table = sink_table(with_anatomy(value=value))
    assert set(table["kind"]) == {kind}
    assert table["value_ratio"].to_numpy() == pytest.approx(value)


def test_drains_follow_the_grouped_head():
    """Four query heads share two key-value heads: only the first group's values are small."""
    data = with_anatomy()
    norms = data["value_norm"].values.copy()
    norms[:, :, :, 1] = 1.0
    table = sink_table(data.assign(value_norm=(data["value_norm"].dims, norms)))
    kinds = table.groupby("head", observed=True)["kind"].agg(lambda x: set(x))
    assert kinds.tolist() == [{"drain"}, {"drain"}, {"hub"}, {"hub"}]
    numbered = np.arange(4.0)[None, :, None]
    assert per_query_head(numbered, np.arange(28), None, False).ravel().tolist() == np.repeat(np.arange(4), 7).tolist()
    assert per_query_head(numbered, np.array([0, 20]), 28, False).ravel().tolist() == [0, 2]
    assert per_query_head(numbered, np.arange(1), 28, True).ravel().tolist() == [1.5]


def test_medians_leave_padding_out():
    values = np.array([[3.0, 1.0, np.nan, 2.0], [np.nan] * 4, [1.0, 2.0, 3.0, 4.0]])
    np.testing.assert_allclose(key_median(values)[:, 0], [2.0, np.nan, 2.5])
    assert drain_keys(np.array([0.4, 1.0, 1.0, np.nan])).tolist() == [True, False, False, False]


def test_massive_needs_both_size_and_ratio():
    largest = np.array([150.0, 150.0, 90.0])
    assert massive_keys(largest, np.array(0.1)).tolist() == [True, True, False]
    assert not massive_keys(largest, np.array(0.2)).any()
