"""Confidence against right tokens: a masked model that is unsure where it is wrong, and one that does not know it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from tests.sinks import synthetic

from sinkscope.sinks import calibration, compare_traces, mechanisms
from sinkscope.sinks.calibration import by_thirds
from sinkscope.sinks.measures import Measure


def pair(wrong: float, fall: float) -> tuple[xr.Dataset, xr.Dataset]:
    """A run that is right wherever it is .9 sure, and a masked one of the same states: a share is wrong, confidence falls."""
    rng = np.random.default_rng(0)
    plain = synthetic.trace("none", lengths=(9, 12, 15), answer=16)
    written = plain["tokens"].values.copy()
    last = written[:, -1].copy()
    # What was decided in the last step is nowhere else.
    last[plain["masked"].values[:, -1]] = 20
    candidate = np.where(plain["masked"].values, last[:, None], -1)
    sure = np.where(plain["masked"].values, 0.9, np.nan)
    dims = ("sample", "step", "key")
    plain = plain.assign(candidate=(dims, candidate), confidence=(dims, sure))
    changed = np.where(rng.random(candidate.shape) < wrong, 59, candidate)
    return plain, plain.assign(candidate=(dims, changed), confidence=(dims, sure - fall))


def test_wrong_and_unsure_are_told_apart() -> None:
    for wrong, fall, over in ((0.4, 0.4, 0.0), (0.4, 0.05, 0.35), (0.0, 0.0, 0.0)):
        compared = compare_traces(*pair(wrong, fall))
        rows = mechanisms(compared).set_index("measure")
        assert rows.loc[Measure.RIGHT_CHANGE.named(), "value"] == pytest.approx(-wrong, abs=0.06)
        assert rows.loc[Measure.OVERCONFIDENCE.named(), "value"] == pytest.approx(over, abs=0.06)
    compared = compare_traces(*pair(0.4, 0.05))
    every = calibration(compared)
    pd.testing.assert_frame_equal(every, calibration(by_thirds(compared)))
    course = every[every["third"].notna()]
    assert [*course["third"], *course["run"]] == [1, 2, 3] * 2 + ["without"] * 3 + ["masked"] * 3
    whole = every[every["third"].isna() & every["low_edge"].isna()]
    assert list(course.groupby("run", sort=False)["positions"].sum()) == list(whole["positions"])
    table = every[every["third"].isna()].set_index(["run", "low_edge"])
    assert table.loc[("without", 0.9), "right"] == 1.0
    assert table.loc[("masked", 0.8), "confidence"] == pytest.approx(0.85)
    assert 0.5 < table.loc[("masked", 0.8), "right_low"] < 0.6 < table.loc[("masked", 0.8), "right_high"] < 0.75


def test_a_confidence_that_is_no_probability_is_not_compared_with_right_tokens() -> None:
    plain, masked = pair(0.4, 0.05)
    for each in (plain, masked):
        each.attrs["decoding"] = '{"kind": "dream", "algorithm": "entropy"}'
    compared = compare_traces(plain, masked)
    rows = mechanisms(compared).set_index("measure")
    assert np.isnan(rows.loc[Measure.RIGHT_CHANGE.named(), "value"])
    assert rows.loc[Measure.CONFIDENCE_CHANGE.named(), "unit"] == "negative entropy in nats, b − a"
    assert len(calibration(compared)) == 0
