"""Received attention against its definition, written out in full in helpers/naive.py."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from tests.helpers import naive
from tests.helpers.naive import Case, cases

from sinkscope.attention.fused import attend
from sinkscope.attention.received import dense_map, dense_received, received, tiled_mass
from sinkscope.attention.visibility import Scores, Visibility, query_weights


def both(case: Case, weights: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Received attention [B, H, C, K] as sinkscope finds it and by definition, and what uniform attention would bring."""
    q, k, v, scale = case.tensors()
    visibility, taken = case.visibility(), case.taken()
    _, lse = attend(Scores(q, k, visibility, scale, taken), v)
    found = received(Scores(q, k, visibility, scale, taken), lse, weights)
    counted = torch.ones(case.B, 1, case.Q) if weights is None else weights
    counted = counted * case.real_queries()[:, None]
    attention = naive.softmax(naive.scores(q, k, scale), case.allowed())
    expected, uniform = naive.received(attention, case.visible(), counted)
    return found, expected, uniform


@given(cases())
def test_received_is_its_definition(case: Case) -> None:
    found, expected, _ = both(case)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5, equal_nan=True)


@given(cases())
def test_received_by_class_of_query_is_its_definition(case: Case) -> None:
    found, expected, _ = both(case, case.weights())
    assert found.shape == (case.B, case.H, case.classes, case.K)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5, equal_nan=True)


@given(cases())
def test_attention_is_neither_lost_nor_made(case: Case) -> None:
    """Σ_j received_j · Σ_i u_ij = number of real queries, whatever is masked."""
    found, _, uniform = both(case)
    total = (found.double().nan_to_num(0.0) * uniform).sum(-1)[..., 0]
    expected = case.real_queries().sum(-1).double()[:, None].expand_as(total)
    torch.testing.assert_close(total, expected, atol=1e-4, rtol=1e-5)


@given(cases(taken=("none",)))
def test_uniform_attention_is_one_everywhere(case: Case) -> None:
    q, k, v, scale = case.tensors()
    q = torch.zeros_like(q)
    visibility = case.visibility()
    _, lse = attend(Scores(q, k, visibility, scale), v)
    for weights in (None, case.weights()):
        found = received(Scores(q, k, visibility, scale), lse, weights)
        there = ~found.isnan()
        torch.testing.assert_close(found[there], torch.ones_like(found[there]), atol=1e-5, rtol=0)
        if weights is None:
            seen = (case.visible() & case.real_queries()[:, None, :, None]).any(-2)
            assert torch.equal(there[:, :, 0], seen), "every key that a real query sees has a number, and no other"


@given(cases())
def test_tiles_are_the_dense_reference(case: Case) -> None:
    q, k, v, scale = case.tensors()
    visibility, taken = case.visibility(), case.taken()
    _, lse = attend(Scores(q, k, visibility, scale, taken), v)
    weights = query_weights(visibility, case.weights(), q)
    tiled = tiled_mass(Scores(q, k, visibility, scale, taken), lse, weights, tile_bytes=case.tile_bytes)
    attention = dense_map(Scores(q, k, visibility, scale, taken))
    torch.testing.assert_close(tiled, weights[:, None] @ attention, atol=1e-5, rtol=1e-5)
    whole = tiled_mass(Scores(q, k, visibility, scale, taken), lse, weights)
    torch.testing.assert_close(tiled, whole, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        received(Scores(q, k, visibility, scale, taken), lse, case.weights()), dense_received(attention, visibility, weights),
        atol=1e-5, rtol=1e-5, equal_nan=True,
    )  # fmt: skip


@given(cases())
def test_dense_map_is_the_softmax(case: Case) -> None:
    q, k, _, scale = case.tensors()
    found = dense_map(Scores(q, k, case.visibility(), scale, case.taken()))
    expected = naive.softmax(naive.scores(q, k, scale), case.allowed())
    padded_query = ~case.real_queries()[:, None, :, None]
    if case.padded != "keys":
        fill = 0.0 if case.padded == "none" else 1.0 / case.K
        expected = torch.where(padded_query, fill, expected)
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-5)


@given(cases(taken=("none",)))
def test_taking_no_column_measures_the_same(case: Case) -> None:
    from sinkscope.attention.key_mask import KeyMask

    q, k, v, scale = case.tensors()
    visibility = case.visibility()
    _, lse = attend(Scores(q, k, visibility, scale), v)
    nothing = KeyMask(torch.zeros(1, 1, case.K, dtype=torch.bool))
    plain = received(Scores(q, k, visibility, scale), lse)
    assert torch.equal(received(Scores(q, k, visibility, scale, nothing), lse).nan_to_num(-1), plain.nan_to_num(-1))


@given(cases(taken=("columns", "both")))
def test_hidden_keys_receive_nothing_from_queries_with_others(case: Case) -> None:
    found, _, _ = both(case)
    taken = case.taken()
    assert taken is not None
    assert taken.keys is not None
    stranded = taken.stranded(case.visibility(), torch.device("cpu")).any()
    masked = taken.keys.expand(case.B, case.H, -1)
    if not stranded:
        assert not (found[:, :, 0][masked].nan_to_num(0.0) > 0).any()


def test_grouped_heads_are_measured_per_query_head() -> None:
    """Two query heads share one key head and look at different keys: each has its own sink, of full height.

    Averaging over the group would give both keys half of it to both heads, and dividing a sum by the group a quarter
    less with four heads: the known mistake.
    """
    keys = 8
    k = torch.zeros(1, 1, keys, 4)
    k[0, 0, 2, 0] = k[0, 0, 5, 1] = 100.0
    q = torch.zeros(1, 4, keys, 4)
    q[0, 0, :, 0] = q[0, 1, :, 1] = q[0, 2, :, 0] = 1.0
    visibility = Visibility(keys, keys)
    _, lse = attend(Scores(q, k, visibility, 1.0), k)
    found = received(Scores(q, k, visibility, 1.0), lse)[0, :, 0]
    expected = torch.zeros(4, keys)
    expected[0, 2] = expected[1, 5] = expected[2, 2] = keys
    expected[3] = 1.0
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_bidirectional_without_padding_is_the_column_sum() -> None:
    case = Case(
        B=2, H=4, G=2, Q=12, K=12, D=8, causal=False, window=None, padding=None, dense=False, taken_kind="none",
        shared_rows=False, shared_heads=False, hide_share=0.0, width=1, first=0, future=None, classes=1,
        padded="none", tile_bytes=1 << 20, seed=5,
    )  # fmt: skip
    q, k, _, scale = case.tensors()
    found, _, _ = both(case)
    column_sum = (q @ k.repeat_interleave(2, 1).transpose(-1, -2) * scale).softmax(-1).sum(-2)
    torch.testing.assert_close(found[:, :, 0], column_sum, atol=1e-5, rtol=1e-5)


def test_padding_and_keys_that_nobody_sees_are_nan() -> None:
    q = torch.randn(1, 1, 4, 4)
    real = torch.tensor([[False, True, True, True]])
    visibility = Visibility(4, 4, real, causal=True)
    _, lse = attend(Scores(q, q, visibility, 0.5), q)
    found = received(Scores(q, q, visibility, 0.5), lse)[0, 0, 0]
    assert found.isnan().tolist() == [True, False, False, False]
    early = torch.tensor([[[0.0, 1.0, 0.0, 0.0]]])
    found = received(Scores(q, q, visibility, 0.5), lse, early)[0, 0, 0]
    assert found.isnan().tolist() == [True, False, True, True], "a later key does not exist yet for an early query"


def test_padded_queries_do_not_count() -> None:
    """Doubling what padded queries look for changes nothing."""
    torch.manual_seed(0)
    q, k = torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 4)
    real = torch.tensor([[False, False, True, True, True, True]])
    results = []
    for padded in ("keys", "none", "uniform"):
        for change in (1.0, 50.0):
            changed = q.clone()
            changed[:, :, :2] *= change
            visibility = Visibility(6, 6, real, padded=padded)
            _, lse = attend(Scores(changed, k, visibility, 0.5), k)
            results.append(received(Scores(changed, k, visibility, 0.5), lse))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], equal_nan=True)
    torch.testing.assert_close(results[0].nansum(-1), torch.full((1, 2, 1), 4.0))


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.02), (torch.float16, 5e-3), (torch.float64, 1e-6)])
def test_other_dtypes(dtype: torch.dtype, bound: float) -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 4, 50, 16).to(dtype) for _ in range(3))
    visibility = Visibility(50, 50, causal=True)
    _, lse = attend(Scores(q, k, visibility, 0.25), v)
    found = received(Scores(q, k, visibility, 0.25), lse)[:, :, 0]
    attention = naive.softmax(naive.scores(q, k, 0.25), torch.ones(50, 50, dtype=torch.bool).tril())
    expected = attention.sum(-2) / visibility.uniform(torch.ones(1, 1, 50))[:, 0]
    torch.testing.assert_close(found.double(), expected, atol=bound, rtol=bound)


def test_large_scores_stay_finite() -> None:
    """A sink with a score of hundreds: exp(score − lse) must not overflow where keys are masked or unseen."""
    torch.manual_seed(2)
    q, k = torch.randn(1, 2, 30, 8), torch.randn(1, 2, 30, 8)
    k[:, :, 7] *= 60
    q[:, :, :, :] += k[:, :, 7:8] / 10
    from sinkscope.attention.key_mask import KeyMask

    columns = torch.zeros(1, 1, 30, dtype=torch.bool)
    columns[..., 7] = True
    for visibility in (Visibility(30, 30), Visibility(30, 30, causal=True)):
        for taken in (None, KeyMask(columns)):
            _, lse = attend(Scores(q, k, visibility, 1.0, taken), k)
            found = received(Scores(q, k, visibility, 1.0, taken), lse)
            assert found.isfinite().all()
            sums = (found.double() * visibility.uniform(torch.ones(1, 1, 30))[:, None]).sum(-1)
            torch.testing.assert_close(sums, torch.full_like(sums, 30.0), atol=1e-3, rtol=0)
