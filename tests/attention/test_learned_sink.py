"""A learned sink (gpt-oss): one more score in the softmax, without a value. Against attention written out in full."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from tests.helpers import naive
from tests.helpers.calls import Masks, Recorder, module
from tests.helpers.naive import Case, cases
from torch import Tensor

from sinkscope.attention.context import AttentionCall, ForwardContext, forward
from sinkscope.attention.interface import sinkscope_attention
from sinkscope.attention.key_mask import KeyMask


def run(case: Case, sink: Tensor, taken: KeyMask | None, listen: bool = True) -> tuple[Tensor, list[AttentionCall]]:
    q, k, v, scale = case.tensors()
    recorder = Recorder()
    masks, records = Masks(taken), recorder if listen else None
    with forward(ForwardContext(case.real(), case.causal, case.padded, {}, masks, records, block=case.block)):
        out, _ = sinkscope_attention(
            module(case.causal), q, k, v, case.dense_mask(), scaling=scale, sliding_window=case.window, s_aux=sink,
        )  # fmt: skip
    return out.transpose(1, 2), recorder.calls


def scores_of(case: Case) -> Tensor:
    """Float [H], some of them far above every score of a key."""
    return torch.randn(case.H, generator=torch.Generator().manual_seed(case.seed + 4)) * 3


def softmax(scored: Tensor, allowed: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the allowed keys, and what the sink took: float64 [B, H, Q, K] and [B, H, Q]."""
    level = sink.double()[None, :, None, None].expand(*scored.shape[:-1], 1)
    whole = torch.cat((scored.masked_fill(~allowed, float("-inf")), level), -1).softmax(-1)
    return whole[..., :-1], whole[..., -1]


@pytest.mark.slow
@pytest.mark.parametrize("silence", [False, True])
@given(case=cases())
def test_output_map_received_and_shares(silence: bool, case: Case) -> None:
    q, k, v, scale = case.tensors()
    sink, taken = scores_of(case), case.taken(silence)
    out, (call,) = run(case, sink, taken)
    assert torch.equal(out, run(case, sink, taken, listen=False)[0]), "listening changed the output"
    scored, visible, allowed = naive.scores(q, k, scale), case.visible(), case.allowed()
    plain, _ = softmax(scored, visible, sink)
    acting, absorbed = softmax(scored, visible if silence else allowed, sink)
    values = v.repeat_interleave(case.H // case.G, 1).double()
    rows = case.real_queries()[:, None].expand(case.B, case.H, case.Q)
    expected = (acting * allowed if silence else acting) @ values
    torch.testing.assert_close(out[rows].double(), expected[rows], atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(call.map()[rows].double(), acting[rows], atol=1e-6, rtol=1e-5)
    assert call.absorbed is not None
    torch.testing.assert_close(call.absorbed[rows].double(), absorbed[rows], atol=1e-5, rtol=1e-4)
    weights = case.real_queries()[:, None].float()
    for raw, attention in ((False, acting), (True, plain)):
        wanted, _ = naive.received(attention, visible, weights)
        torch.testing.assert_close(call.received(raw=raw).double(), wanted, atol=1e-5, rtol=1e-4, equal_nan=True)
    if taken is not None:
        assert call.kept is not None
        gone = (plain * ~allowed).sum(-1)
        torch.testing.assert_close(1 - call.kept[rows].double(), gone[rows], atol=1e-5, rtol=1e-4)


@given(cases(taken=("none",)))
def test_a_sink_that_nobody_looks_at_changes_nothing(case: Case) -> None:
    out, (call,) = run(case, torch.full((case.H,), -1e4), None)
    q, k, v, scale = case.tensors()
    with forward(ForwardContext(case.real(), case.causal, case.padded, block=case.block)):
        without, _ = sinkscope_attention(
            module(case.causal), q, k, v, case.dense_mask(), scaling=scale, sliding_window=case.window
        )
    rows = case.real_queries()[:, None].expand(case.B, case.H, case.Q)
    torch.testing.assert_close(out[rows], without.transpose(1, 2)[rows], atol=1e-6, rtol=1e-5)
    assert call.absorbed is not None
    assert float(call.absorbed[rows].max()) == 0.0
