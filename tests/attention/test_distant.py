"""The tables of the causal sink rule against its sentence, query by query."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.helpers.naive_sinks import block_margins, distant_queries, gap_of, least_queries

from sinkscope.attention.distant import block_sinks, in_blocks
from sinkscope.attention.visibility import Visibility
from sinkscope.base import sink_rule


def test_gaps_and_least_queries() -> None:
    for length in range(1, 700):
        assert sink_rule.gap_of(length) == gap_of(length)
        assert int(sink_rule.least_queries(np.array(length))) == least_queries(length)


@pytest.mark.parametrize("window", [None, 1, 4, 5, 9, 16, 40])
def test_what_distant_queries_could_give(window: int | None) -> None:
    for length in (1, 4, 5, 7, 8, 15, 16, 31, 33, 70):
        found = sink_rule.distant(np.array([length]), np.arange(-1, length + 2), window)
        same = sink_rule.distant(torch.tensor([length]), torch.arange(-1, length + 2), window)
        for name in ("count", "uniform", "local", "known", "noise"):
            np.testing.assert_array_equal(getattr(same, name).numpy(), getattr(found, name))
        assert not found.known[[0, -2, -1]].any(), "there is no key"
        for key in range(length):
            far = distant_queries(length, key, window)
            assert bool(found.known[key + 1]) == bool(far)
            if far:
                seen = [i + 1 if window is None else min(i + 1, window) for i in far]
                assert found.count[key + 1] == len(far)
                assert found.uniform[key + 1] == pytest.approx(sum(1 / many for many in seen))
                assert found.local[key + 1] == pytest.approx(sum(1 / (i - key + 1) for i in far))


def test_a_head_that_looks_at_distance_alone_has_no_sink() -> None:
    """The theorem: uniform attention, power laws and windows, at any length, with ε as small as 0."""
    for length in (5, 12, 40, 150):
        behind = np.arange(length)[:, None] - np.arange(length)
        for weights in (
            behind >= 0,
            np.where(behind >= 0, (behind + 1.0).clip(1) ** -0.7, 0),
            (behind >= 0) & (behind < 30),
        ):
            rows = weights / weights.sum(-1, keepdims=True)
            expected = sink_rule.distant(np.array([length]), np.arange(length))
            far = (rows * (behind >= expected.gap)).sum(0)
            assert not ((far > expected.limit(0.0)) & expected.known).any()


@pytest.mark.parametrize("padded", [False, True])
def test_sinks_of_a_block(padded: bool) -> None:
    """The last four of 40 queries see every key; padding stands before the first real one."""
    begin = 6 if padded else 0
    real = torch.arange(40)[None] >= begin if padded else None
    draw = torch.Generator().manual_seed(4)
    received = torch.empty(1, 30, 40).exponential_(0.15, generator=draw)
    received[..., :begin] = float("nan")
    expected = in_blocks(Visibility(4, 40, real), 4, torch.device("cpu"))
    for epsilon in (-2.0, 3.0):
        found = block_sinks(received, expected, epsilon)
        for head in range(30):
            scores = {j - begin: float(received[0, head, j]) for j in range(begin, 40)}
            margins = block_margins(scores, 40 - begin, range(36 - begin, 40 - begin))
            sinks = [j + begin for j, margin in margins.items() if margin > epsilon]
            assert found[0, head].nonzero()[:, 0].tolist() == sinks
        assert found.any()
