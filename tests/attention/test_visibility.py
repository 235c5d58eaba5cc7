"""What each query can see: counted and spread without a matrix, against the matrix."""

from __future__ import annotations

import torch
from hypothesis import given
from tests.helpers.naive import Case, cases

from sinkscope.attention.key_mask import KeyMask, first_real
from sinkscope.attention.visibility import Visibility

CPU = torch.device("cpu")


@given(cases())
def test_rows_are_the_pattern(case: Case) -> None:
    visibility, expected = case.visibility(), case.visible()
    found = visibility.rows(0, case.Q, CPU)
    if found is None:
        assert expected.all()
        assert visibility.everything
    else:
        assert torch.equal(found.expand_as(expected), expected)
    middle = case.Q // 2
    part = visibility.rows(middle, case.Q, CPU)
    if part is not None:
        wanted = expected[:, :, middle:]
        assert torch.equal(part.expand_as(wanted), wanted)


@given(cases())
def test_key_range_holds_everything_that_is_seen(case: Case) -> None:
    first, last = case.visibility().key_range(0, max(1, case.Q // 2))
    seen = case.visible()[:, :, : max(1, case.Q // 2)]
    assert not seen[..., :first].any()
    assert not seen[..., last:].any()
    assert 0 <= first <= last <= case.K


@given(cases())
def test_key_range_is_tight_without_padding(case: Case) -> None:
    if case.padding is not None or case.dense:
        return
    start, stop = case.Q // 2, case.Q
    first, last = case.visibility().key_range(start, stop)
    seen = case.visible()[0, 0, start:stop].any(0).nonzero()[:, 0]
    assert (first, last) == (int(seen[0]), int(seen[-1]) + 1)


@given(cases(taken=("columns",)))
def test_seen_counts_keys(case: Case) -> None:
    visibility, visible, taken = case.visibility(), case.visible(), case.taken()
    assert taken is not None
    assert taken.keys is not None
    everything = visibility.seen(None, CPU)
    assert torch.equal(everything.expand(case.B, case.H, case.Q), visible.sum(-1).double())
    among = visibility.seen(taken.keys, CPU)
    expected = (visible & taken.keys[:, :, None, :]).sum(-1).double()
    assert torch.equal(among.expand_as(expected), expected)


@given(cases(taken=("columns",)))
def test_uniform_is_the_sum_of_equal_shares(case: Case) -> None:
    visible = case.visible()[:, 0]
    weights = case.weights() * case.real_queries()[:, None]
    share = visible.double() / visible.sum(-1, keepdim=True).clamp(min=1)
    expected = torch.einsum("bcq,bqk->bck", weights.double(), share)
    found = case.visibility().uniform(weights)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
    assert torch.equal(found > 0, expected > 0), "a key that nobody sees must be exactly 0, or it is not NaN later"


@given(cases())
def test_stranded_queries_are_those_that_lose_all(case: Case) -> None:
    taken = case.taken()
    if taken is None:
        return
    visible = case.visible()
    left = visible.clone()
    if taken.keys is not None:
        left &= ~taken.keys[:, :, None, :]
    if taken.band is not None:
        left &= taken.band.rows(case.visibility(), 0, case.Q, CPU)
    expected = visible.any(-1) & ~left.any(-1)
    found = taken.stranded(case.visibility(), CPU)
    assert torch.equal(found.expand_as(expected), expected)


@given(cases(taken=("band",)))
def test_band_rows_and_reach(case: Case) -> None:
    taken, visibility = case.taken(), case.visibility()
    assert taken is not None
    assert taken.band is not None
    real = case.real()
    rows = taken.band.rows(visibility, 0, case.Q, CPU).expand(case.B, 1, case.Q, case.K)
    for b in range(case.B):
        begin = 0 if real is None else int(real[b].nonzero()[0])
        for i in range(case.Q):
            here = case.K - case.Q + i
            for j in range(case.K):
                near = abs(here - j) < case.width or j in range(begin, begin + case.first)
                assert bool(rows[b, 0, i, j]) == (near and (case.future is None or j <= here + case.future))
    reach = taken.band.reach(visibility, 0, case.Q, CPU)
    needed = (rows & case.visible()[:, :1]).any(0).any(0).any(0).nonzero()[:, 0]
    assert set(needed.tolist()) <= set(reach.tolist())
    assert reach.tolist() == sorted(set(reach.tolist()))
    masks = (case.visible()[:, :1] & ~rows).any()
    if taken.band.covers(visibility):
        assert not masks


@given(cases(taken=("columns",)))
def test_first_real(case: Case) -> None:
    real = case.real()
    expected = torch.zeros(1, dtype=torch.long)
    if real is not None:
        expected = torch.tensor([row.tolist().index(True) for row in real])
    assert torch.equal(first_real(case.visibility(), CPU), expected)


def test_a_query_that_sees_nothing_is_not_stranded() -> None:
    dense = torch.tensor([[True, False], [False, False]])[None, None]
    visibility = Visibility(2, 2, dense=dense)
    stranded = KeyMask(torch.tensor([[[True, True]]])).stranded(visibility, CPU)
    assert stranded.tolist() == [[[True, False]]]


def test_prefix_is_the_pattern_of_the_beginning() -> None:
    visibility = Visibility(6, 6, torch.tensor([[False, True, True, True, True, True]]), causal=True, window=3)
    whole, part = visibility.rows(0, 6, CPU), visibility.prefix(4).rows(0, 4, CPU)
    assert whole is not None
    assert part is not None
    assert torch.equal(part, whole[:, :, :4, :4])
