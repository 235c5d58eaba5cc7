"""One network over several devices: accelerate's hooks, weights on the disk, and the same numbers bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.helpers import golden

import sinkscope as ss

pytest.importorskip("accelerate", reason="accelerate is not installed (pip install accelerate)")

FAMILIES = ("llada", "dream", "llama", "sdar", "nemotron_diffusion", "diffusion_gemma")
DECODINGS: dict[str, Any] = {
    "llada": ss.LladaDecoding(length=8, steps=8, block=8, temperature=0.5),
    "llama": ss.SamplingDecoding(length=8, eos=None),
    "sdar": ss.SdarDecoding(length=8),
}


def pieces(network: torch.nn.Module, devices: list[Any]) -> dict[str, Any]:
    """Every layer of a network, and all else by itself, over devices in turn."""
    names = []
    for name, part in network.named_children():
        inner = part.named_children() if name == "model" else [("", part)]
        for child, module in inner:
            whole = ".".join(filter(None, (name, child)))
            if child in ("encoder", "decoder"):
                whole_names = [f"{whole}.{one}" for one, _ in module.named_children()]
                names += whole_names
            else:
                layered = isinstance(module, torch.nn.ModuleList)
                names += [f"{whole}.{i}" for i in range(len(module))] if layered else [whole]
    return {name: devices[number % len(devices)] for number, name in enumerate(names)}


def check(family: str, devices: list[Any]) -> None:
    plain = golden.model(family)
    options = {"dtype": "float32", "mask_token_id": plain.ids.mask}
    spread = ss.load(golden.checkpoint(family), device_map=pieces(plain.network, devices), **options)
    assert spread.home is not None
    ids = torch.randint(3, 180, (2, 30), generator=torch.Generator().manual_seed(0))
    assert torch.equal(spread.logits(ids), plain.logits(ids))
    assert torch.equal(spread.attention(ids), plain.attention(ids))
    policy = ss.MaskKeys({0: [1], 2: [0, 3]})
    assert torch.equal(spread.logits(ids, policy=policy), plain.logits(ids, policy=policy))
    if family in DECODINGS:
        one, two = (
            ss.generate(model, ids[:, :9], DECODINGS[family], policy="top:1", seed=1, capture=ss.Capture())
            for model in (spread, plain)
        )
        assert torch.equal(one.sequences, two.sequences)
        assert one.trace.dataset.equals(two.trace.dataset)


@pytest.mark.parametrize("family", FAMILIES)
def test_with_layers_on_the_disk(family: str) -> None:
    check(family, ["cpu", "disk"])


def test_one_device_needs_no_hooks() -> None:
    model = ss.load(golden.checkpoint("llama"), device_map="auto", dtype="float32")
    ids = torch.arange(12)[None]
    if not torch.cuda.is_available():
        assert model.home is None
        assert torch.equal(model.logits(ids), golden.model("llama").logits(ids))


@pytest.mark.parametrize("wrong", ["balanced?", 3, ["cpu"]])
def test_what_is_no_map_is_refused(wrong: Any) -> None:
    with pytest.raises(ss.InputError, match="device_map should be"):
        ss.load(golden.checkpoint("llama"), device_map=wrong)


def test_a_map_without_some_modules_is_refused() -> None:
    with pytest.raises(ss.SinkscopeError, match="spread the network"):
        ss.load(golden.checkpoint("llama"), device_map={"model.layers.0": "cpu"})


def test_a_device_beside_a_map_of_devices_is_refused() -> None:
    with pytest.raises(ss.InputError, match="leave out device"):
        ss.load(golden.checkpoint("llama"), device="cpu", device_map="auto")
