"""Detection: each rule against a loop that does what its sentence says, and what a person is told."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from tests.sinks import synthetic

from sinkscope.base.errors import InputError
from sinkscope.sinks import detect, filtered_share, score_histogram, sink_table, sinks_of, summary


def by_the_sentence(row: np.ndarray, epsilon: float, rule: str) -> list[bool]:
    """The definition, key by key, on the keys that exist."""
    keys = [j for j in range(len(row)) if not np.isnan(row[j])]
    n = len(keys)
    out = [False] * len(row)
    for j in keys:
        others = [float(row[k]) for k in keys if k != j]
        if not others:
            continue
        mean = sum(others) / len(others)
        score = float(row[j])
        if rule == "sum":
            out[j] = score > mean + epsilon
        elif rule == "mean":
            out[j] = score / n > mean / n + epsilon
        elif rule == "percent":
            out[j] = 100 * score / n > 100 * mean / n + epsilon
        else:
            every = [float(row[k]) for k in keys]
            centre = sum(every) / n
            spread = (sum((x - centre) ** 2 for x in every) / n) ** 0.5
            out[j] = score > centre + epsilon * spread
    return out


@pytest.mark.parametrize(
    ("rule", "epsilon"), [("sum", 3.0), ("sum", 0.0), ("mean", 0.02), ("percent", 3.0), ("zscore", 2.0)]
)
def test_every_rule_is_its_sentence(rule, epsilon):
    rng = np.random.default_rng(0)
    rows = rng.lognormal(0, 1.2, (40, 50)).astype(np.float64)
    rows[:, :7] = np.nan
    rows[3, 1:] = np.nan
    rows[4] = np.nan
    found = sinks_of(rows, epsilon, rule)
    expected = np.array([by_the_sentence(row, epsilon, rule) for row in rows])
    assert (found == expected).all()
    assert 0 < found.sum() < found.size / 2


def test_the_sum_rule_is_the_papers_column_sum():
    """ε = 3 on 64 keys: a column sum above 1 + 3·63/64 = 3.953, and nothing below."""
    row = np.ones(64)
    for score, expected in ((3.96, True), (3.94, False)):
        row[5] = score
        row[np.arange(64) != 5] = (64 - score) / 63
        assert sinks_of(row)[5] == expected
    assert not sinks_of(np.ones(64)).any()


def test_the_printed_formula_never_fires_and_says_so():
    data = synthetic.trace("static", lengths=(9, 12), answer=8)
    with pytest.warns(UserWarning, match="can never fire at ε = 3"):
        found = detect(data, rule="mean")
    assert not found.any()
    assert "rule='sum'" in found.attrs["note"]
    assert detect(data, epsilon=0.1, rule="mean").any()


def test_head_means_say_so():
    data = synthetic.trace("static", lengths=(9, 12), answer=8, heads=3)
    means = data.assign(received=data["received"].mean("head"))
    found = detect(means)
    assert found.dims == ("sample", "step", "layer", "key")
    assert found.attrs["scope"] == "head means"
    assert "mean over heads" in found.attrs["note"]
    assert detect(data).attrs["scope"] == "head"
    assert detect(data).attrs["note"] == ""


def test_padding_is_never_a_sink():
    data = synthetic.trace("flicker", sigma=1.5)
    padding = (data["region"] == "padding").values
    found = detect(data, epsilon=0.0).values
    assert found.any()
    assert not found.transpose(0, 4, 1, 2, 3)[padding].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": "summ"}, "did you mean sum"),
        ({"epsilon": float("nan")}, "finite"),
        ({"epsilon": -1.0}, "finite number ≥ 0"),
        ({"scores": "recieved"}, "did you mean received"),
    ],
)
def test_bad_input_names_the_fix(arguments, message):
    with pytest.raises(InputError, match=message):
        detect(synthetic.trace(lengths=(5,), answer=4, block=2), **arguments)


@pytest.mark.parametrize("thing", [None, 3, np.ones(3)])
def test_what_is_no_trace_is_refused(thing):
    with pytest.raises(InputError, match=r"trace or its xarray\.Dataset"):
        detect(thing)


def test_anything_with_a_dataset_is_a_trace():
    class Trace:
        dataset = synthetic.trace("static", lengths=(9,), answer=4, block=2)

    assert detect(Trace()).identical(detect(Trace.dataset))


def test_the_sweep_counts_what_detection_finds():
    data = synthetic.trace("newline", sigma=1.0)
    swept = filtered_share(data)
    assert (swept.diff("epsilon") >= 0).all()
    real = np.isfinite(data["received"]).sum(("step", "layer", "head", "key"))
    for epsilon in (0.0, 3.0):
        share = 1 - detect(data, epsilon).sum(("step", "layer", "head", "key")) / real
        np.testing.assert_allclose(swept.sel(epsilon=epsilon), share)
    assert swept.attrs["keys"] == 73
    assert filtered_share(synthetic.trace(lengths=(32,))).attrs["keys"] == 64


def test_the_histogram_counts_every_score_once():
    data = synthetic.trace("static", sigma=0.5, lengths=(9, 300), answer=8)
    counts = score_histogram(data)
    assert int(counts.sum()) == int(np.isfinite(data["received"]).sum())
    inside = data["received"].values[1]
    inside = inside[np.isfinite(inside)]
    np.testing.assert_array_equal(counts.isel(sample=1)[:-1], np.histogram(inside, counts["bin"].values)[0])
    assert int(counts.isel(bin=-1).sum()) == int((data["received"] >= 49.5).sum()) > 0


def test_a_value_on_padding_is_not_believed():
    """Also where the trace holds a finite number there, or on a key that does not exist yet."""
    data = synthetic.trace("static", lengths=(9, 12), answer=8)
    padding = (data["region"] == "padding").values
    received, tokens = data["received"].values.copy(), data["tokens"].values.copy()
    expected = detect(data)
    received = np.where(padding[:, None, None, None, :], np.float32(80.0), received)
    touched = data.assign(received=(data["received"].dims, received))
    assert (detect(touched) == expected).all()
    pd.testing.assert_frame_equal(summary(touched), summary(data))
    assert (sink_table(touched)["region"] != "padding").all()
    tokens[:, :, -1] = -1
    received[..., -1] = 90.0
    future = data.assign(received=(data["received"].dims, received), tokens=(data["tokens"].dims, tokens))
    assert not detect(future).values[..., -1].any()
