"""Losses, compared with what the definitions say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sinkscope.organisms.batches import Batch
from sinkscope.organisms.network import (
    SMALLEST_TIME,
    Loss,
    build,
    corrupt,
    hidden_states,
    masked_at,
    rotation,
    weights,
)
from sinkscope.organisms.recipe import SIZES, Objective

CPU = torch.device("cpu")
MASK = 63


def a_batch(rows: int = 6, length: int = 20) -> Batch:
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 60, (rows, length), generator=random)
    start = torch.tensor([1, 5, 7, 1, 9, 3])[:rows]
    content = start + 4
    stop = start + 8
    return Batch(ids, start, content, stop, stop)


def network(layout: str = "llada") -> Any:
    return build(SIZES["smoke"], 64, layout, seed=1)


def log_probabilities(net: Any, seen: Tensor, causal: bool, real: Tensor) -> Tensor:
    hidden = hidden_states(net, seen, rotation(net, seen.shape[1], CPU), causal, real)
    found: Tensor = net.lm_head(hidden).log_softmax(-1)
    return found


@pytest.mark.parametrize("objective", ["next", "masked", "shifted"])
def test_loss_is_the_weighted_sum_of_its_definition(objective: Objective) -> None:
    net, batch = network("dream" if objective == "shifted" else "llada"), a_batch()
    if objective == "next":
        seen, weight = batch.ids, weights(batch)
    else:
        seen, weight = corrupt(batch, MASK, torch.Generator().manual_seed(1))
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
    seen, weight = masked_at(batch, torch.ones(6, 20, dtype=torch.bool), MASK, times)
    targets = batch.targets(causal=False)
    assert (seen == MASK).equal(targets)
    assert seen[~targets].equal(batch.ids[~targets])
    assert weight.equal(torch.where(targets, 1 / times, 0.0))


def test_times_are_uniform_and_masks_follow_them() -> None:
    rows = 400
    ids = torch.zeros(rows, 60, dtype=torch.long)
    ones, ends = torch.ones(rows, dtype=torch.long), torch.full((rows,), 60)
    batch = Batch(ids, ones, ends, ends, ends)
    seen, weight = corrupt(batch, MASK, torch.Generator().manual_seed(2))
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
