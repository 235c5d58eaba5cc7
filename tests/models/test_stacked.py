"""Weights side by side: views of one matrix that stay what they were, and a stack that notices when they are moved."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.checkpoints import dream_config, write
from torch import nn
from transformers import Qwen2ForCausalLM

from sinkscope.attention.interface import NAME, sinkscope_attention
from sinkscope.gpu.fused_forward import FusedForward
from sinkscope.gpu.stacked import GROUPS, likeness, room, stack
from sinkscope.models.backbone import empty_network
from sinkscope.models.checkpoint import Checkpoint, fill
from sinkscope.models.dream import FAMILY as DREAM

CPU = torch.device("cpu")


@pytest.fixture
def networks(tmp_path: Path) -> tuple[Any, Any]:
    """The same weights side by side, and each in its own memory."""
    write(tmp_path, dream_config())
    checkpoint = Checkpoint(tmp_path, "here")
    found = []
    for beside in (True, False):
        network = empty_network(checkpoint, Qwen2ForCausalLM, DREAM.config(checkpoint))
        names = {name: name for name, _ in network.named_parameters()}
        make_room = partial(room, network, CPU, torch.float32) if beside else None
        fill(network, checkpoint, names, CPU, torch.float32, make_room)
        found.append(network)
    return found[0], found[1]


def test_state_dict_is_the_same(networks: tuple[Any, Any]) -> None:
    together, apart = (network.state_dict() for network in networks)
    assert list(together) == list(apart)
    assert all(torch.equal(together[name], apart[name]) for name in together)


def test_one_product_is_all_of_them(networks: tuple[Any, Any]) -> None:
    x = torch.randn(2, 3, 48, generator=torch.Generator().manual_seed(0))
    layer = networks[0].model.layers[1]
    for owner, names in GROUPS.items():
        module = layer.get_submodule(owner)
        joined = stack(module, names)
        assert joined is not None
        assert (joined.bias is not None) == (owner == "self_attn")
        parts = torch.cat([module.get_submodule(name)(x) for name in names], -1)
        torch.testing.assert_close(joined(x), parts, atol=1e-5, rtol=0)


def test_nothing_is_held_twice(networks: tuple[Any, Any]) -> None:
    attention = networks[0].model.layers[0].self_attn
    storages = {getattr(attention, name).weight.untyped_storage().data_ptr() for name in GROUPS["self_attn"]}
    assert len(storages) == 1
    joined = stack(attention, GROUPS["self_attn"])
    assert joined is not None
    assert joined.weight.untyped_storage().data_ptr() in storages
    assert joined.weight.numel() == sum(getattr(attention, name).weight.numel() for name in GROUPS["self_attn"])


def test_separate_weights_are_no_stack(networks: tuple[Any, Any]) -> None:
    layer = networks[1].model.layers[0]
    assert all(stack(layer.get_submodule(owner), names) is None for owner, names in GROUPS.items())


def test_moved_and_replaced_weights_are_noticed(networks: tuple[Any, Any]) -> None:
    watched = tuple(networks[0].modules())
    mlp, first = networks[0].model.layers[0].mlp, likeness(watched)
    mlp.up_proj.weight.data.mul_(2)  # changed where it is: the stack sees it too
    assert likeness(watched) == first
    kept, mlp.up_proj = mlp.up_proj, nn.Linear(48, 80, bias=False)
    assert likeness(watched).modules != first.modules
    mlp.up_proj = kept
    assert likeness(watched) == first
    handle = mlp.register_forward_hook(lambda *_: None)
    assert likeness(watched).changes
    handle.remove()
    mlp.forward = lambda x: x
    assert likeness(watched).changes
    del mlp.forward
    networks[0].to(torch.bfloat16)
    assert likeness(watched).weights != first.weights
    assert likeness(watched)[:2] == first[:2]


def test_a_network_that_moved_away_leaves_no_stacked_weights_behind(networks: tuple[Any, Any]) -> None:
    """Also where the fused forward could not run anyway: the weights that were left would stay on the GPU."""
    together, _ = networks
    quick = FusedForward(together, NAME, sinkscope_attention)
    ids = torch.zeros(1, 4, dtype=torch.long)
    quick.applies(ids)
    assert quick._layers
    together.to(torch.float64)
    assert not quick.applies(ids)
    assert not quick._layers
