"""Chance levels: noise that lasts, one prompt copied, moves that are frequent where a block ends, and other thresholds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from tests.sinks import synthetic

from sinkscope.sinks import merge, sink_statistics, summary
from sinkscope.sinks.dataset import ANSWER, SampleState
from sinkscope.sinks.events import align, alignment_table
from sinkscope.sinks.measures import Measure
from sinkscope.sinks.sink_statistics import OTHER_SETTINGS, PARTS, SETTINGS, by_setting
from sinkscope.sinks.summary_table import settings_table, table_of
from sinkscope.sinks.surrogates import surrogate
from sinkscope.verdicts import Reason
from sinkscope.verdicts.diagnosis import diagnose


def lasting(root: float, steps: int = 40, seed: int = 0) -> np.ndarray:
    """Scores [steps, 3 heads, 60 keys] of AR(1) noise, each key with a mean and a spread of its own."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(steps, 3, 60))
    for t in range(1, steps):
        noise[t] = root * noise[t - 1] + np.sqrt(1 - root**2) * noise[t]
    return np.exp(rng.normal(size=60) + rng.uniform(0.2, 0.8, 60) * noise)


def autocorrelation(scores: np.ndarray) -> float:
    apart = np.log(scores) - np.log(scores).mean(axis=0)
    return float((apart[1:] * apart[:-1]).sum() / (apart**2).sum())


@pytest.mark.parametrize("root", [0.0, 0.5, 0.9, 0.97])
def test_a_surrogate_keeps_means_spreads_sums_and_autocorrelation(root: float) -> None:
    scores = lasting(root)
    drawn = surrogate(scores, np.random.default_rng(1))
    logs = [np.log(each) - np.log(each).mean(axis=(1, 2), keepdims=True) for each in (scores, drawn)]
    assert np.corrcoef(*(each.mean(axis=0).ravel() for each in logs))[0, 1] > 0.99
    assert logs[1].std() == pytest.approx(logs[0].std(), rel=0.1)
    assert drawn.sum(axis=-1) == pytest.approx(scores.sum(axis=-1), rel=1e-5)
    assert autocorrelation(drawn) == pytest.approx(autocorrelation(scores), abs=0.06)


def test_keys_that_do_not_exist_have_no_surrogate() -> None:
    scores = lasting(0.5)
    scores[:10, :, -5:], scores[..., 0] = np.nan, np.nan
    assert np.array_equal(np.isnan(surrogate(scores, np.random.default_rng(0))), np.isnan(scores))


def test_copies_of_one_prompt_have_no_direction() -> None:
    one = synthetic.trace("flicker", lengths=(17,), layers=1, heads=2)
    copies = merge([sink_statistics(one)] * 8, relabel=True)
    assert diagnose(copies)["drift"].reason == Reason.NO_INTERVAL


def block_p(rate: np.ndarray, aligned: float, samples: int, seed: int) -> float:
    """p of moves at block ends: jumps of a sink at a rate [T], and a share of all block ends with a jump besides."""
    rng = np.random.default_rng(seed)
    steps, keys, block = 32, 40, 16
    found = []
    for _ in range(samples):
        region = np.array(["prompt"] * 8 + [ANSWER] * 32)
        left = np.arange(keys)[None] - 8 >= np.arange(steps)[:, None]
        decided = np.arange(keys)[None] - 8 == np.arange(steps)[:, None]
        state = SampleState(
            tokens=rng.integers(5, 50, (steps, keys)), masked=left, decided=decided, ties=np.zeros(steps, int), region=region,
            position=np.arange(keys), real=np.ones((steps, keys), bool), steps=np.arange(steps), active=np.zeros(steps, int),
        )  # fmt: skip
        jumps = rng.random(steps) < rate
        jumps[block] |= rng.random() < aligned
        held = np.maximum.accumulate(np.where(jumps, np.arange(steps), 0))
        found.append(align(state, rng.integers(0, keys, (steps, 1, 4))[held], block, seed=seed))
    parts = (np.stack([np.asarray(each[i]) for each in found]) for i in range(4))
    return float(alignment_table(*parts).set_index("event").loc["block", "p"])


@pytest.mark.parametrize("samples", [16, 64])
def test_moves_that_are_frequent_where_a_block_ends_do_not_follow_blocks(samples: int) -> None:
    steps = np.arange(32)
    peaked = 0.1 + 0.6 * np.exp(-(((steps - 16) / 6) ** 2))
    false = sum(block_p(peaked, 0.0, samples, seed) <= 0.05 for seed in range(25))
    assert false <= 2
    assert block_p(np.full(32, 0.1), 0.8, samples, 0) <= 0.05


def test_other_settings_are_what_a_pass_by_them_gives() -> None:
    data = synthetic.trace("moving", lengths=(9, 12), answer=8, layers=1, heads=2)
    whole = sink_statistics(data, parts=(*PARTS, SETTINGS))
    found = by_setting(whole)
    assert (*found, (3.0, "auto")) == (*OTHER_SETTINGS[:2], *OTHER_SETTINGS[3:], OTHER_SETTINGS[2])
    asked = sink_statistics(data, 2.0, parts=(*PARTS, SETTINGS), settings=OTHER_SETTINGS[:4])
    assert tuple(by_setting(asked)) == ((1.0, "auto"), (3.0, "auto"), (4.0, "auto"))  # the paper's ε beside another one
    alone = sink_statistics(data, 6.0, parts=PARTS[:-1])
    pd.testing.assert_frame_equal(table_of(found[6.0, "auto"]), table_of(alone))
    xr.testing.assert_equal(
        by_setting(merge([whole, whole], relabel=True))[6.0, "auto"].isel(sample=[0, 1]), found[6.0, "auto"]
    )
    table = settings_table(whole)
    assert set(zip(table["epsilon"], table["rule"], strict=True)) == {*found, (3.0, "sum")}
    assert table["measure"].isin([Measure.MOVING_BEYOND.named()]).sum() == len(OTHER_SETTINGS)
    assert settings_table(sink_statistics(data)).empty
    assert set(summary(whole)["measure"]) == set(summary(data)["measure"])
