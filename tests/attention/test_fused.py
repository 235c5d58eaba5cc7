"""The fused output with keys taken away, against a naive softmax; and that nothing S×S is ever allocated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from tests.helpers import naive
from tests.helpers.calls import LargestTensor
from tests.helpers.naive import Case, cases

from sinkscope.attention import fused, kernels
from sinkscope.attention.fused import attend, raw_lse
from sinkscope.attention.key_mask import TILE, Band, KeyMask
from sinkscope.attention.received import TILE_BYTES, received, tiled_mass
from sinkscope.attention.visibility import Scores, Visibility, query_weights


def expected_output(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """[B, H, Q, D], float64; padded queries by the rule of the case."""
    values = v.repeat_interleave(case.H // case.G, 1).double()
    out = naive.softmax(naive.scores(q, k, scale), case.allowed()) @ values
    real = case.real_queries()[:, None, :, None]
    if case.padded == "none":
        return torch.where(real, out, 0.0)
    if case.padded == "uniform":
        return torch.where(real, out, values.mean(2, keepdim=True))
    return out


@pytest.mark.slow
@given(cases())
def test_output_is_the_softmax_over_the_kept_keys(case: Case) -> None:
    q, k, v, scale = case.tensors()
    out, _ = attend(Scores(q, k, case.visibility(), scale, case.taken()), v)
    torch.testing.assert_close(out.double(), expected_output(case, q, k, v, scale), atol=2e-5, rtol=1e-4)


@pytest.mark.slow
@given(cases())
def test_log_sum_exp_is_over_the_kept_keys(case: Case) -> None:
    q, k, v, scale = case.tensors()
    _, lse = attend(Scores(q, k, case.visibility(), scale, case.taken()), v)
    allowed = case.allowed()
    expected = naive.scores(q, k, scale).masked_fill(~allowed, float("-inf")).logsumexp(-1)
    counts = case.real_queries()[:, None].expand_as(lse)
    torch.testing.assert_close(lse[counts].double(), expected[counts], atol=1e-5, rtol=1e-5)


@given(cases(taken=("columns", "band", "both")))
def test_raw_log_sum_exp_is_over_all_visible_keys(case: Case) -> None:
    q, k, v, scale = case.tensors()
    taken = case.taken()
    assert taken is not None
    visibility = case.visibility()
    _, lse = attend(Scores(q, k, visibility, scale, taken), v)
    found = raw_lse(Scores(q, k, visibility, scale, taken), lse)
    expected = naive.scores(q, k, scale).masked_fill(~case.visible(), float("-inf")).logsumexp(-1)
    counts = case.real_queries()[:, None].expand_as(found)
    torch.testing.assert_close(found[counts].double(), expected[counts], atol=1e-5, rtol=1e-5)
    everything = received(Scores(q, k, visibility, scale), found)
    _, plain = attend(Scores(q, k, visibility, scale), v)
    torch.testing.assert_close(
        everything, received(Scores(q, k, visibility, scale), plain), atol=1e-5, rtol=1e-4, equal_nan=True
    )


@given(cases(taken=("none",)))
def test_plain_kernel_is_the_fused_one(case: Case) -> None:
    """The fallback for devices without a fused kernel."""
    if case.window is not None or case.dense or (case.causal and case.Q != case.K):
        return
    q, k, v, scale = case.tensors()
    bias = None if (real := case.real()) is None else torch.where(real, 0.0, float("-inf"))[:, None, None, :]
    ours, theirs = (run(q, k, v, bias, case.causal, scale) for run in (kernels.plain, kernels.kernel))
    rows = case.real_queries()[:, None]
    torch.testing.assert_close(ours[0] * rows[..., None], theirs[0] * rows[..., None], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours[1] * rows, theirs[1] * rows, atol=1e-5, rtol=1e-5)


def test_values_may_be_wider_than_keys() -> None:
    """Some architectures have value heads of another width; there is no fused kernel for them."""
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 300, 8), torch.randn(1, 2, 300, 8), torch.randn(1, 2, 300, 12)
    visibility = Visibility(300, 300, causal=True)
    out, lse = attend(Scores(q, k, visibility, 0.3), v)
    scored, allowed = naive.scores(q, k, 0.3), torch.ones(300, 300, dtype=torch.bool).tril()
    expected = naive.softmax(scored, allowed) @ v.repeat_interleave(2, 1).double()
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        lse.double(), scored.masked_fill(~allowed, float("-inf")).logsumexp(-1), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("effect", ["columns", "band"])
@pytest.mark.parametrize("causal", [False, True])
def test_sequences_longer_than_a_tile(effect: str, causal: bool) -> None:
    """Queries come in tiles of 256 where the pattern differs between them: the seams must not show."""
    torch.manual_seed(0)
    size = 2 * TILE + 37
    q, k, v = torch.randn(1, 2, size, 8), torch.randn(1, 1, size, 8), torch.randn(1, 1, size, 8)
    real = torch.arange(size)[None] >= 5
    visibility = Visibility(size, size, real, causal)
    columns = torch.rand(1, 2, size) < 0.2
    columns[:, 0, :12] = True  # strands the first queries of a causal call
    here = torch.arange(size)
    if effect == "columns":
        taken, kept = KeyMask(columns), ~columns[:, :, None, :]
    else:
        taken = KeyMask(None, Band(40, first=3))
        kept = ((here[:, None] - here).abs() < 40) | ((here >= 5) & (here < 8))
        kept = kept[None, None]
    visible = real[:, None, None] & (here[:, None] >= here if causal else torch.ones(size, size, dtype=torch.bool))
    visible = visible.expand(1, 2, size, size)
    left = visible & kept
    allowed = torch.where(left.any(-1, keepdim=True), left, visible)
    attention = naive.softmax(naive.scores(q, k, 0.4), allowed)
    out, lse = attend(Scores(q, k, visibility, 0.4, taken), v)
    expected = attention @ v.repeat_interleave(2, 1).double()
    torch.testing.assert_close(out[:, :, 5:].double(), expected[:, :, 5:], atol=1e-5, rtol=1e-4)
    found = received(Scores(q, k, visibility, 0.4, taken), lse)[:, :, 0]
    wanted, _ = naive.received(attention, visible, real[:, None].float())
    torch.testing.assert_close(found.double(), wanted[:, :, 0], atol=1e-5, rtol=1e-5, equal_nan=True)


def test_a_stranded_query_keeps_its_scores() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 3, 4) for _ in range(3))
    columns = torch.tensor([[[True, True, False]]])
    out, _ = attend(Scores(q, k, Visibility(3, 3, causal=True), 0.5, KeyMask(columns)), v)
    plain, _ = attend(Scores(q, k, Visibility(3, 3, causal=True), 0.5), v)
    torch.testing.assert_close(out[:, :, :2], plain[:, :, :2])
    torch.testing.assert_close(out[:, :, 2], v[:, :, 2])
    everything = torch.ones(1, 1, 3, dtype=torch.bool)
    out, _ = attend(Scores(q, k, Visibility(3, 3), 0.5, KeyMask(everything)), v)
    torch.testing.assert_close(out, attend(Scores(q, k, Visibility(3, 3), 0.5), v)[0])


S = 1024
PATTERNS = {
    "bidirectional": Visibility(S, S),
    "padded": Visibility(S, S, torch.arange(S)[None] >= 100),
    "causal": Visibility(S, S, causal=True),
    "padded causal": Visibility(S, S, torch.arange(S)[None] >= 100, causal=True),
    "sliding": Visibility(S, S, causal=True, window=64),
    "padded sliding": Visibility(S, S, torch.arange(S)[None] >= 100, causal=True, window=64),
    "cached": Visibility(S // 2, S, causal=True),
}
FEW, MOST = torch.zeros(1, 1, S, dtype=torch.bool), torch.ones(1, 1, S, dtype=torch.bool)
FEW[..., [0, 7, 900]] = True
MOST[..., ::50] = False
TAKEN = {
    "nothing": None, "few columns": KeyMask(FEW), "most columns": KeyMask(MOST), "a window": KeyMask(None, Band(32, first=4)),
    "a window and columns": KeyMask(FEW, Band(32)),
}  # fmt: skip


LIMIT = S * S // 4
"""Elements of the largest tensor allowed, and bytes of a tile: a quarter of S×S."""


@pytest.mark.slow
@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_nothing_of_the_size_of_a_map_is_allocated(pattern: str, taken: str, monkeypatch: Any) -> None:
    visibility, gone = PATTERNS[pattern], TAKEN[taken]
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, visibility.queries, 4), torch.randn(1, 1, S, 4)
    weights = query_weights(visibility, None, q)
    monkeypatch.setattr(fused, "TILE_BYTES", LIMIT)
    with LargestTensor() as seen:
        _, lse = attend(Scores(q, k, visibility, 0.5, gone), k)
        tiled_mass(Scores(q, k, visibility, 0.5, gone), lse, weights, tile_bytes=LIMIT)
        if gone is not None:
            raw_lse(Scores(q, k, visibility, 0.5, gone), lse)
    assert seen.largest > 0
    assert seen.largest <= LIMIT, f"{seen.operation} allocated {seen.largest} elements"


@pytest.mark.slow
@pytest.mark.parametrize("columns", [0, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_many_heads_and_the_real_tile_size(causal: bool, columns: int) -> None:
    """With the tiles that a model really gets: no tensor is larger than a tile."""
    heads, size = 8, 2048
    torch.manual_seed(0)
    q, k = torch.randn(1, heads, size, 4), torch.randn(1, heads, size, 4)
    visibility = Visibility(size, size, causal=causal)
    taken = None
    if columns:
        taken = KeyMask(torch.zeros(1, heads, size, dtype=torch.bool))
        taken.keys[..., :columns] = True
    with LargestTensor() as seen:
        _, lse = attend(Scores(q, k, visibility, 0.5, taken), k)
        received(Scores(q, k, visibility, 0.5, taken), lse)
        if taken is not None:
            raw_lse(Scores(q, k, visibility, 0.5, taken), lse)
    assert seen.largest <= TILE_BYTES // 4, f"{seen.operation} allocated {seen.largest} elements"
    assert seen.largest < heads * size * size // 2


def test_the_watcher_of_allocations_sees_a_map() -> None:
    q = torch.randn(1, 1, S, 4)
    with LargestTensor() as seen:
        q @ q.transpose(-1, -2)
    assert seen.largest == S * S
