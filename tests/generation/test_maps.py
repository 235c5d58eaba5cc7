"""Maps of single steps that are added to a finished trace equal those that are recorded while it runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.helpers import golden
from typer.testing import CliRunner

import sinkscope as ss
from sinkscope.cli import app
from sinkscope.generation.maps import with_maps
from sinkscope.report.payload import views

IDS = torch.tensor([[0, 0, 5, 9, 2, 30], [7, 3, 5, 8, 2, 30]])
MASK = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])


def generated(family: str, level: str, policy: ss.Policy | None = None):
    model = golden.model(family)
    decoding = ss.GreedyDecoding(6, eos=None) if family == "llama" else ss.LladaDecoding(8, 4, 4)
    run = ss.generate(
        model, IDS, decoding, policy=policy, capture=ss.Capture(level=level), seed=[0, 1], attention_mask=MASK
    )
    assert run.trace is not None
    return model, run.trace


@pytest.mark.parametrize("policy", [None, ss.MaskFirst(1)])
def test_they_equal_recorded_maps(policy):
    model, trace = generated("llada", "heads", policy)
    _, whole = generated("llada", "maps", policy)
    added = with_maps(model, trace, [1, 3]).dataset["attention_at"]
    assert added.dims == ("sample", "map_step", "layer", "head", "query", "key")
    assert list(added["map_step"].values) == [1, 3]
    real = trace.dataset["region"].values != "padding"
    for sample in range(2):
        at = {"sample": sample, "query": real[sample], "key": real[sample]}
        wanted = whole.dataset["attention"].sel(step=[1, 3]).isel(at)
        assert np.allclose(added.isel(at).values, wanted.values, atol=1e-5)


def test_more_steps_join_those_that_are_there():
    model, trace = generated("llada", "heads")
    twice = with_maps(model, with_maps(model, trace, [2]), [0, 2])
    assert list(twice.dataset["map_step"].values) == [0, 2]
    view = views(twice)[0]
    assert view["maps"]["steps"] == [0, 2]


def test_a_causal_model_has_maps_of_the_keys_so_far():
    model, trace = generated("llama", "heads")
    added = with_maps(model, trace, [2]).dataset["attention_at"].isel(sample=1, map_step=0)
    count = int((trace.dataset["tokens"].sel(step=2).values >= 0).any(axis=0).sum())
    wanted = model.attention(torch.as_tensor(trace.dataset["tokens"].sel(step=2).values[1:, :count]))
    assert np.allclose(added.values[..., :count, :count], wanted[:, 0].numpy(), atol=1e-5)
    assert np.isnan(added.values[..., count:, :]).all()


def test_what_cannot_be_computed_again_is_explained():
    model, trace = generated("llada", "heads")
    with pytest.raises(ss.InputError, match=r"step \[9\] was not recorded; this trace has 0 to 3"):
        with_maps(model, trace, [9])
    _, masked = generated("llada", "heads", ss.MaskTop(1))
    with pytest.raises(ss.InputError):
        with_maps(model, masked, [1])
    trace.dataset.attrs["weights_digest"] = "0" * 64
    with pytest.raises(ss.InputError, match="other weights"):
        with_maps(model, trace, [1])


@pytest.mark.slow
def test_the_command_adds_them_in_place(tmp_path: Path):
    out = tmp_path / "run.zarr.zip"
    invoke = CliRunner().invoke
    asked = [
        "trace", "organism/scratch", "--prompt", "What is 2 + 3?", "--decoding", "length=8,block=8", "--out", str(out),
    ]  # fmt: skip
    done = invoke(app, [*asked, "--maps-at", "3", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    assert list(ss.Trace.open(out).dataset["map_step"].values) == [3]
    done = invoke(app, ["trace", str(out), "--maps-at", "5,3", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    opened = ss.Trace.open(out).dataset
    assert list(opened["map_step"].values) == [3, 5]
    assert np.allclose(opened["attention_at"].sum("key").values, 1, atol=2e-3)
    assert [path.name for path in tmp_path.iterdir()] == ["run.zarr.zip"]
    for arguments, message in (
        ([str(out)], "say of which steps"),
        (["organism/scratch", "--prompt", "a"], "--out is missing"),
    ):
        assert message in str(invoke(app, ["trace", *arguments]).exception)
