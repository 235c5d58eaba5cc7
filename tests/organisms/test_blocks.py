"""Block diffusion: one pass trains every block as it is decoded, behind finished text, by the network that `load` reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sinkscope as ss
from sinkscope.errors import InputError
from sinkscope.organisms.emergence import measure, probe
from sinkscope.organisms.layout import DTYPE, save
from sinkscope.organisms.network import Loss, rotation, two_copy_pairs
from sinkscope.organisms.recipe import BLOCK, recipe
from sinkscope.organisms.start import start
from sinkscope.organisms.vocabulary import shipped

CPU = torch.device("cpu")


def test_the_loss_is_that_of_each_block_behind_the_finished_ones(tmp_path: Path) -> None:
    chosen, words = recipe("block", size="smoke", seed=2), shipped("sdar")
    network = start(chosen).network
    assert network.config.block_size == BLOCK
    network.config.block_size = 5
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "self_attn" in name and weight.dim() == 2:
                weight.mul_(12)
            weight.copy_(weight.to(DTYPE))
    save(network, "sdar", words, tmp_path)
    model = ss.load(tmp_path, device="cpu", dtype="float32")
    assert (model.family, model.block) == ("sdar", 5)
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(20, 900, (2, 23), generator=random)
    masked = torch.rand(2, 23, generator=random) < 0.5
    seen, weight = torch.where(masked, int(words.mask or 0), ids), masked.float() * 3
    expected = torch.zeros(())
    for first in range(0, 23, 5):
        here = slice(first, first + 5)
        behind = torch.cat((ids[:, :first], seen[:, here]), 1)
        logits = model.logits(behind)[:, here]
        each = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), ids[:, here].flatten(), reduction="none"
        )
        expected = expected + (each * weight[:, here].flatten()).sum()
    loss = Loss(network, "block", block=5)
    with torch.no_grad():
        found = loss(seen, ids, weight, None, *rotation(network, 40, CPU))
        padded = torch.nn.functional.pad(torch.stack((seen, ids)), (0, 4))
        real = torch.arange(27)[None].expand(2, -1) < 23
        weights = torch.nn.functional.pad(weight, (0, 4))
        with_padding = loss(padded[0], padded[1], weights, real, *rotation(network, 40, CPU))
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-5)
    torch.testing.assert_close(with_padding, found, atol=1e-3, rtol=1e-5)


def test_no_masked_token_sees_its_own_answer() -> None:
    pairs = two_copy_pairs(7, 3, CPU)
    assert pairs[0].tolist() == [True] * 3 + [False] * 11
    assert pairs[4].tolist() == [False] * 3 + [True] * 3 + [False] + [True] * 3 + [False] * 4
    assert not pairs[7:, :7].any()
    assert pairs[8, 7:].tolist() == [True] * 3 + [False] * 4


def test_the_probe_looks_in_blocks() -> None:
    chosen = recipe("block", size="smoke")
    begin = start(chosen)
    levels = measure(begin.network, probe(chosen, begin.vocabulary, CPU, each=1))
    assert all(level["max_received"] > 0 for level in levels.values())


def test_blocks_start_from_random_weights_with_the_attention_of_their_family() -> None:
    with pytest.raises(InputError, match="starts from random weights only"):
        start(recipe("block", size="smoke"), "organism/causal")
    with pytest.raises(InputError, match="attention of their families only"):
        recipe("block", gate=True)
