"""Losses, compared with what the definitions say; block diffusion, one pass of which trains every block behind finished text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sinkscope as ss
from sinkscope.attention.visibility import Visibility
from sinkscope.base.errors import InputError
from sinkscope_train.emergence import measure, probe
from sinkscope_train.layout import DTYPE, save
from sinkscope_train.network import (
    SMALLEST_TIME,
    Loss,
    build,
    drawn_masks,
    hidden_states,
    masked_at,
    rotation,
    two_copy_pairs,
)
from sinkscope_train.recipe import BLOCK, SIZES, Objective, recipe
from sinkscope_train.rows import Batch
from sinkscope_train.start import start
from sinkscope_train.vocabulary import shipped

CPU = torch.device("cpu")
MASK = 63


def a_batch(rows: int = 6, length: int = 20) -> Batch:
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 60, (rows, length), generator=random)
    start = torch.tensor([1, 5, 7, 1, 9, 3])[:rows]
    content = start + 4
    stop = start + 8
    return Batch(ids, start, content, stop, stop, start)


def corrupted(batch: Batch, seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return masked_at(batch, MASK, *drawn_masks(batch.ids.shape, random, CPU))


def network(layout: str = "llada") -> Any:
    return build(SIZES["smoke"], 64, layout, seed=1)


def log_probabilities(net: Any, seen: Tensor, causal: bool, real: Tensor) -> Tensor:
    S = seen.shape[1]
    hidden = hidden_states(net, seen, rotation(net, S, CPU), Visibility(S, S, real, causal))
    found: Tensor = net.lm_head(hidden).log_softmax(-1)
    return found


@pytest.mark.parametrize("objective", ["next", "masked", "shifted"])
def test_loss_is_the_weighted_sum_of_its_definition(objective: Objective) -> None:
    net, batch = network("dream" if objective == "shifted" else "llada"), a_batch()
    if objective == "next":
        seen, weight = batch.ids, batch.targets(causal=True).float()
    else:
        seen, weight = corrupted(batch, 1)
    loss = Loss(net, objective)(seen, batch.ids, weight, batch.real, *rotation(net, 20, CPU))
    each = log_probabilities(net, seen, objective == "next", batch.real)
    total = 0.0
    for row in range(6):
        for place in range(20):
            says = place if objective == "masked" else place - 1
            if weight[row, place] > 0:
                total -= float(weight[row, place] * each[row, says, batch.ids[row, place]].detach())
    assert math.isclose(float(loss.detach()), total, rel_tol=1e-4)


def test_only_targets_are_masked_and_weighted_by_one_over_t() -> None:
    batch = a_batch()
    times = torch.tensor([[0.25], [0.5], [1.0], [0.1], [0.9], [0.7]])
    seen, weight = masked_at(batch, MASK, torch.ones(6, 20, dtype=torch.bool), times)
    targets = batch.targets(causal=False)
    assert (seen == MASK).equal(targets)
    assert seen[~targets].equal(batch.ids[~targets])
    assert weight.equal(torch.where(targets, 1 / times, 0.0))


def test_times_are_uniform_and_masks_follow_them() -> None:
    rows = 400
    ids = torch.zeros(rows, 60, dtype=torch.long)
    ones, ends = torch.ones(rows, dtype=torch.long), torch.full((rows,), 60)
    batch = Batch(ids, ones, ends, ends, ends, ones)
    seen, weight = corrupted(batch, 2)
    masked = seen == MASK
    assert not masked[:, 0].any(), "BOS is never masked"
    times = 1 / weight.max(1).values[masked.any(1)]
    counts = torch.histc(times, 10, 0.0, 1.0)
    assert times.min() >= SMALLEST_TIME * 0.999
    assert ((counts > 30) & (counts <= 41)).all(), counts
    assert ((masked[masked.any(1)].float().mean(1) - times).abs().mean()) < 0.06
    # Weighted by 1/t every target counts once on average, whatever t is.
    assert abs(float(weight[:, 1:].mean()) - 1.0) < 0.1


@pytest.mark.parametrize("objective", ["next", "masked", "shifted"])
def test_padding_changes_nothing(objective: Objective) -> None:
    net, batch = network("dream" if objective == "shifted" else "llada"), a_batch()
    other = batch.ids.clone()
    other[~batch.real] = 61
    weight = batch.targets(causal=False).float()
    rotary = rotation(net, 20, CPU)
    losses = [Loss(net, objective)(ids, ids, weight, batch.real, *rotary) for ids in (batch.ids, other)]
    assert torch.allclose(losses[0], losses[1], rtol=1e-6)


def test_diffusion_sees_what_comes_after_and_causal_does_not() -> None:
    net, batch = network(), a_batch()
    changed = batch.ids.clone()
    changed[0, 8] = 62
    real = torch.ones_like(batch.real)
    for causal in (True, False):
        before, after = (log_probabilities(net, ids, causal, real)[0, :8] for ids in (batch.ids, changed))
        assert torch.allclose(before, after, atol=1e-6) == causal


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
        each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, here].flatten(), reduction="none")
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
