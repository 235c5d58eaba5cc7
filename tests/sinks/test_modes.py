"""A model with two modes: forwards that store a block causally are no part of what is said of its denoising steps."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from tests.sinks import synthetic

from sinkscope.sinks import sink_statistics, step_position_map, summary
from sinkscope.sinks.measures import Measure
from sinkscope.sinks.scan import scans
from sinkscope.sinks.sink_statistics import PARTS, SETTINGS

LENGTHS = (17, 23, 30, 41)


def alternating(stores: list[list[int]]) -> tuple[xr.Dataset, xr.Dataset]:
    """Denoising steps with a sink on the first key; and the same with causal forwards behind those of `stores`, of each sample,
    in which the sink is on the third key."""
    plain = synthetic.trace("static", lengths=LENGTHS[: len(stores)], sigma=0.3)
    decoding = json.loads(plain.attrs["decoding"]) | {"causal_context": True}
    plain = plain.assign_attrs(decoding=json.dumps(decoding))
    kinds = np.zeros((len(stores), plain.sizes["step"]), dtype=np.int8)
    for sample, steps in enumerate(stores):
        kinds[sample, steps] = 1
    received = plain["received"].transpose("sample", "step", ...).values.copy()
    where = plain["region"].transpose("sample", "key").values != "padding"
    for sample, step in zip(*np.nonzero(kinds), strict=True):
        third = np.flatnonzero(where[sample])[2]
        received[sample, step] = np.where(where[sample], 0.5, np.nan)
        received[sample, step, ..., third] = 40.0
    dims = ("sample", "step", "layer", "head", "key")
    mixed = plain.assign(received=(dims, received), forward_kind=(("sample", "step"), kinds))
    return plain.assign(forward_kind=(("sample", "step"), 0 * kinds)), mixed


def rows(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns="note").set_index("measure")


def test_statistics_of_a_model_with_two_modes_are_those_of_its_denoising_steps() -> None:
    """The same forwards in every sample: equal, number for number, to the trace without them."""
    plain, mixed = alternating([[5, 11], [5, 11], [5, 11]])
    use = np.setdiff1d(np.arange(plain.sizes["step"]), [5, 11])
    expected = sink_statistics(plain.isel(step=use), parts=(*PARTS, SETTINGS), settings=[(6.0, "auto")])
    found = sink_statistics(mixed, parts=(*PARTS, SETTINGS), settings=[(6.0, "auto")])
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name].values, values.values, err_msg=str(name))
    assert {str(name) for name in set(found) - set(expected)} == {
        f"store_{name}" for name in ("head_steps", "detections", "without", "absorbed")
    }
    pd.testing.assert_frame_equal(rows(summary(found)).loc[rows(summary(expected)).index], rows(summary(expected)))


def test_causal_forwards_have_rows_of_their_own_and_samples_steps_of_their_own() -> None:
    plain, mixed = alternating([[5], [2, 5, 8, 11, 14, 17], []])
    for scan, steps, place in zip(scans(mixed), (1, 6, 0), range(3), strict=True):
        assert (len(scan.state.steps), scan.place) == (plain.sizes["step"] - steps, place)
    table = summary(mixed)
    own = table[table["section"] == "causal forwards"].set_index("measure")["value"]
    assert own[Measure.STORES.named(Measure.SINKS.title)] == 1.0
    assert own[Measure.STORES.named(Measure.ABSORBED.title)] > 0.5
    blended = summary(mixed.assign_attrs(decoding="{}"))
    moves = [rows(each).loc[Measure.STRONGEST_MOVES.named(), "value"] for each in (table, blended)]
    assert moves[0] == 0.0 < 0.1 < moves[1]


@pytest.mark.parametrize("option", [{}, {"causal_context": False}])
def test_blocks_that_are_stored_with_attention_both_ways_count(option: dict[str, bool]) -> None:
    """Fast-dLLM v2, and Nemotron where its context is read both ways."""
    _, mixed = alternating([[5], [2, 9]])
    decoding = {name: value for name, value in json.loads(mixed.attrs["decoding"]).items() if name != "causal_context"}
    both = mixed.assign_attrs(decoding=json.dumps(decoding | option))
    assert {len(scan.state.steps) for scan in scans(both)} == {mixed.sizes["step"]}


def test_pictures_have_every_step_and_no_sinks_at_causal_forwards() -> None:
    plain, mixed = alternating([[5, 11], [3]])
    use = np.setdiff1d(np.arange(plain.sizes["step"]), [5, 11])
    picture, expected = step_position_map(mixed), step_position_map(plain)
    assert picture.sizes == expected.sizes
    np.testing.assert_array_equal(picture[0, use], expected[0, use])
    assert np.isnan(picture[0, [5, 11]]).all()
    assert np.isnan(picture[1, 3]).all()
