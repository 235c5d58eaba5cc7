"""Means over models of one group: intervals over models, from three of them on."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from scipy import stats

from sinkscope.study.tables import replicates

PLACE = {"task": "text", "decoding_name": "reading", "policy": "top:1"}


def read(model: str, nll: float, difference: float | None) -> dict[str, object]:
    return {"model": model, **PLACE, "nll": nll, "difference": difference}


def test_means_and_intervals_over_models() -> None:
    values = {"a0": 3.0, "a1": 3.2, "a2": 3.7, "b0": 5.0, "b1": 5.5, "alone": 9.0}
    likelihood = pd.DataFrame([read(model, nll, nll / 10) for model, nll in values.items()])
    sinks = pd.DataFrame(
        [{"model": name, **PLACE, "measure": "drains", "value": float(name[1])} for name in ("a0", "a1", "a2")]
    )
    groups = {name: name[0] for name in values if name != "alone"}
    table = replicates(groups, {"likelihood": likelihood, "sinks": sinks}).set_index(["group", "measure"])
    row = table.loc[("a", "nll")]
    mine = [3.0, 3.2, 3.7]
    error = stats.sem(mine) * stats.t.ppf(0.975, 2)
    assert row["models"] == 3
    assert row["value"] == pytest.approx(3.3)
    assert (row["low"], row["high"]) == pytest.approx((3.3 - error, 3.3 + error))
    assert (row["least"], row["most"]) == (3.0, 3.7)
    assert table.loc[("a", "difference"), "value"] == pytest.approx(0.33)
    assert table.loc[("a", "drains"), "value"] == pytest.approx(1.0)
    two = table.loc[("b", "nll")]
    assert two["value"] == pytest.approx(5.25)
    assert math.isnan(two["low"])
    assert math.isnan(two["high"])
    assert set(table.index.get_level_values("group")) == {"a", "b"}


def test_a_measure_that_a_model_lacks_is_of_the_others() -> None:
    rows = [read("x", 1.0, None), read("y", 2.0, 0.5)]
    table = replicates({"x": "g", "y": "g"}, {"likelihood": pd.DataFrame(rows)}).set_index("measure")
    assert (table.loc["difference", "models"], table.loc["difference", "value"]) == (1, 0.5)
