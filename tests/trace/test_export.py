"""One step of a trace for other tools: names, shapes, values, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tests.helpers import golden

import sinkscope as ss
from sinkscope.generation.maps import with_maps

IDS = torch.tensor([[5, 9, 2, 30, 41, 7], [8, 1, 77, 12, 300, 3]])


@pytest.fixture(scope="module")
def trace() -> ss.Trace:
    run = ss.generate(
        golden.model("llada"), IDS, ss.LladaDecoding(8, 4, 4), capture=ss.Capture(level="maps", anatomy=True)
    )
    assert run.trace is not None
    return run.trace


def test_patterns_are_the_models_attention(trace: ss.Trace) -> None:
    cache = trace.to_activation_cache(sample=1, step=2)
    tokens = torch.tensor(trace.dataset["tokens"].isel(sample=1).sel(step=2).values)[None]
    maps = golden.model("llada").attention(tokens)  # layer, batch, head, query, key
    for layer in range(3):
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"]
        assert pattern.shape == (1, 4, 14, 14)
        torch.testing.assert_close(pattern, maps[layer], atol=1e-5, rtol=1e-4)
        received = cache[f"blocks.{layer}.attn.hook_received"]
        torch.testing.assert_close(received, pattern.sum(2), atol=1e-4, rtol=1e-4)
    assert "blocks.0.attn.hook_v_norm" in cache


def test_without_maps_there_are_no_patterns() -> None:
    run = ss.generate(golden.model("llada"), IDS[:1], ss.LladaDecoding(8, 4, 4), capture=ss.Capture())
    assert run.trace is not None
    names = set(run.trace.to_activation_cache())
    assert names == {f"blocks.{layer}.attn.hook_received" for layer in range(3)}


def test_padding_is_left_out(tmp_path: Path) -> None:
    mask = torch.tensor([[1] * 6, [0, 0] + [1] * 4])
    run = ss.generate(
        golden.model("llada"), IDS, ss.LladaDecoding(8, 4, 4), capture=ss.Capture(level="maps"), attention_mask=mask,
    )  # fmt: skip
    assert run.trace is not None
    assert run.trace.to_activation_cache(1)["blocks.0.attn.hook_pattern"].shape == (1, 4, 12, 12)


def test_a_step_as_safetensors(trace: ss.Trace, tmp_path: Path) -> None:
    trace.save_step(tmp_path / "step.safetensors", sample=0, step=3)
    with safe_open(tmp_path / "step.safetensors", "numpy") as file:
        assert file.metadata()["axes.received"] == "layer,head,key"
        received = file.get_tensor("received")
    np.testing.assert_array_equal(received, trace.dataset["received"].isel(sample=0).sel(step=3).values)


def test_maps_that_were_added_later_are_patterns_of_their_step_alone(trace: ss.Trace, tmp_path: Path) -> None:
    run = ss.generate(golden.model("llada"), IDS, ss.LladaDecoding(8, 4, 4), capture=ss.Capture())
    assert run.trace is not None
    added = with_maps(golden.model("llada"), run.trace, [1, 3])
    pattern = "blocks.{}.attn.hook_pattern"
    for step in (1, 3):
        cache = added.to_activation_cache(sample=1, step=step)
        for layer in range(3):
            exact = trace.to_activation_cache(sample=1, step=step)[pattern.format(layer)]
            torch.testing.assert_close(cache[pattern.format(layer)], exact, atol=1e-5, rtol=1e-4)
    assert pattern.format(0) not in added.to_activation_cache(sample=1, step=2)
    added.save_step(tmp_path / "step.safetensors", sample=1, step=3)
    with safe_open(tmp_path / "step.safetensors", "numpy") as file:
        about = file.metadata()
        assert about["axes.attention"] == "layer,head,query,key"
        assert (about["labels.layer"], about["labels.head"]) == ("0,1,2", "0,1,2,3")
        assert "attention_at" not in file.keys()  # noqa: SIM118 (a file of tensors is no mapping)
        maps = file.get_tensor("attention")
    wanted = trace.dataset["attention"].isel(sample=1).sel(step=3).values
    np.testing.assert_allclose(maps, wanted, atol=1e-5, rtol=1e-4)
    added.save_step(tmp_path / "other.safetensors", sample=1, step=2)
    with safe_open(tmp_path / "other.safetensors", "numpy") as file:
        assert not [name for name in file.keys() if name.startswith("attention")]  # noqa: SIM118


@pytest.mark.parametrize(("sample", "step", "words"), [(5, 0, "0 to 1"), (0, 9, "0 to 3")])
def test_what_is_not_there(trace: ss.Trace, sample: int, step: int, words: str) -> None:
    with pytest.raises(ss.InputError, match=words):
        trace.to_activation_cache(sample, step)
