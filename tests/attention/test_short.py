"""Short inputs on a CPU: one softmax for the output and for the column sums, against the naive definition and bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from tests.helpers import golden, naive
from tests.helpers.calls import LargestTensor, Masks, Recorder, module
from tests.helpers.naive import Case, cases
from torch import Tensor

import sinkscope as ss
from sinkscope.attention import context, interface, short
from sinkscope.attention.context import ALL, ForwardContext, forward
from sinkscope.attention.fused import attend, attend_and_sum
from sinkscope.attention.interface import sinkscope_attention
from sinkscope.attention.key_mask import Band, KeyMask
from sinkscope.attention.visibility import Visibility


def run(case: Case, key_mask: KeyMask | None, recorder: Recorder | None = None) -> Tensor:
    """Output [B, H, Q, D] of one call as transformers would make it."""
    q, k, v, scale = case.tensors()
    queries = {"classes": case.weights()}
    masks = Masks(key_mask)
    wanted = ForwardContext(case.real(), case.causal, case.padded, queries, masks, recorder, block=case.block)
    with forward(wanted):
        out, _ = sinkscope_attention(module(case.causal), q, k, v, None, scaling=scale)
    return out.transpose(1, 2)


def short_enough(case: Case) -> bool:
    """Whether the short path computes a case: all queries see the same keys, or blocks with nothing padded or masked."""
    if case.causal or case.dense or case.window is not None:
        return False
    return not case.visibility().blocked or (case.padding is None and case.taken_kind == "none")


@given(cases(taken=("none", "columns")))
def test_sums_that_come_with_the_output(case: Case) -> None:
    """What acted and what would have without the policy, for several classes of queries."""
    if not short_enough(case):
        return
    q, k, _, scale = case.tensors()
    classes = case.weights()
    for silence in (False, True):
        taken = case.taken(silence)
        recorder = Recorder("classes", ALL)
        out = run(case, taken, recorder)
        assert torch.equal(out, run(case, taken)), "counting changed the output"
        (call,) = recorder.calls
        assert set(call.sums) == {(name, raw) for name in ("classes", ALL) for raw in (False, True)}
        scored, visible = naive.scores(q, k, scale), case.visible()
        real = case.real_queries()[:, None].float()
        for raw in (False, True):
            attention = naive.softmax(scored, visible if raw or silence else case.allowed())
            for asked, weights in (("classes", classes * real), (ALL, real)):
                expected, _ = naive.received(attention, visible, weights)
                torch.testing.assert_close(
                    call.received(asked, raw).double(), expected, atol=1e-5, rtol=1e-4, equal_nan=True
                )


@given(cases(taken=("none",)))
def test_log_sum_exp_for_those_who_ask_later(case: Case) -> None:
    if not short_enough(case):
        return
    q, k, v, scale = case.tensors()
    listener = Recorder()
    run(case, None, listener)
    (call,) = listener.calls
    assert call.known_lse is None
    assert torch.equal(call.lse, attend(q, k, v, case.visibility(), None, scale)[1])


def long_case(rows: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v in the layout of a model (heads inside), three tiles long and not a whole number of them, and hidden columns."""
    size = 2 * short.ROWS + 37
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(rows, size, heads, 8, generator=draw).transpose(1, 2) * 1.5 for heads in (6, 3, 3))
    gone = torch.zeros(rows, 6, size, dtype=torch.bool)
    gone[0, :, :5] = (
        torch.rand(6, 5, generator=draw) < 0.6
    )  # the heads lose unequally many, the last row none
    gone[1, 2, 7] = True
    return q, k, v, gone


def test_seams_between_tiles_do_not_show() -> None:
    q, k, v, gone = long_case()
    weights = (torch.arange(q.shape[2]) % 3 == torch.arange(3)[:, None]).float().expand(3, 3, -1)
    visibility = Visibility(q.shape[2], q.shape[2])
    found = attend_and_sum(q, k, v, visibility, KeyMask(gone), 0.4, weights)
    scored = naive.scores(q, k, 0.4)
    kept, whole = (naive.softmax(scored, allowed) for allowed in (~gone[:, :, None], torch.tensor(True)))
    assert found.acted is not None
    assert found.raw is not None
    torch.testing.assert_close(
        found.output.double(), kept @ v.repeat_interleave(2, 1).double(), atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(found.acted.double(), weights[:, None].double() @ kept, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.raw.double(), weights[:, None].double() @ whole, atol=1e-5, rtol=1e-5)


def test_a_row_in_a_batch_is_the_row_alone_bit_for_bit() -> None:
    """Also the row that loses nothing while others do: alone it runs without a policy."""
    q, k, v, gone = long_case()
    weights = torch.ones(3, 1, q.shape[2])
    visibility = Visibility(q.shape[2], q.shape[2])
    together = attend_and_sum(q, k, v, visibility, KeyMask(gone), 0.4, weights)
    for row in range(3):
        one = slice(row, row + 1)
        taken = KeyMask(gone[one]) if bool(gone[row].any()) else None
        alone = attend_and_sum(q[one], k[one], v[one], visibility, taken, 0.4, weights[one])
        raw = alone.acted if alone.raw is None else alone.raw
        for ours, theirs in (
            (together.output, alone.output),
            (together.acted, alone.acted),
            (together.raw, raw),
        ):
            assert ours is not None
            assert theirs is not None
            assert torch.equal(ours[one], theirs), row


def test_a_hidden_sink_that_took_everything() -> None:
    """Its score is so high that the others' weights would be 0 in the softmax over all keys; hidden, they must be right."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 40, 8) for _ in range(3))
    q[..., 0], k[..., 0] = 1.0, 0.0
    k[:, :, 3, 0] = 500.0
    gone = torch.zeros(1, 1, 40, dtype=torch.bool)
    gone[..., 3] = True
    found = attend_and_sum(q, k, v, Visibility(40, 40), KeyMask(gone), 1.0, torch.ones(1, 1, 40))
    scored = naive.scores(q, k, 1.0)
    attention = naive.softmax(scored, ~gone[:, :, None])
    assert found.raw is not None
    torch.testing.assert_close(found.output.double(), attention @ v.double(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        found.raw.double(), naive.softmax(scored, torch.tensor(True)).sum(2)[:, :, None]
    )


def test_where_it_runs() -> None:
    q = torch.randn(1, 2, 16, 8)
    plain = Visibility(16, 16)
    assert short.suits(q, q, q, plain, None)
    assert short.suits(q, q, q, Visibility(16, 16, torch.ones(1, 16, dtype=torch.bool)), None)
    assert not short.suits(q, q, q, Visibility(16, 16, causal=True), None)
    assert not short.suits(q, q, q, Visibility(16, 16, window=4), None)
    assert not short.suits(q, q, q, plain, KeyMask(None, Band(3)))
    assert short.suits(q, q, q, Visibility(16, 16, block=4), None)
    assert short.suits(q[:, :, :4], q, q, Visibility(4, 16, block=4), KeyMask(torch.ones(1, 1, 16) > 1))
    assert not short.suits(q, q, q, Visibility(16, 16, block=4), KeyMask(torch.ones(1, 1, 16) > 1))
    padded = torch.arange(16)[None] < 9
    assert not short.suits(q, q, q, Visibility(16, 16, padded, block=4), None)
    assert not short.suits(q, q, q, Visibility(short.KEYS + 1, short.KEYS + 1), None)
    for dtype in (torch.float64, torch.bfloat16):
        assert not short.suits(*(q.to(dtype),) * 3, plain, None)
    learning = q.clone().requires_grad_()
    assert not short.suits(q, learning, q, plain, None)
    with torch.no_grad():
        assert short.suits(q, learning, q, plain, None)
    attend(q, learning, q, plain, None, 0.3)[0].sum().backward()
    assert learning.grad is not None


def test_memory_is_one_tile_whatever_the_batch() -> None:
    batch, heads, size = 6, 4, short.KEYS
    q = torch.randn(batch, heads, size, 8)
    with LargestTensor() as seen:
        attend_and_sum(q, q, q, Visibility(size, size), None, 0.3, torch.ones(batch, 1, size))
    assert seen.largest == heads * short.ROWS * size


@pytest.mark.parametrize("policy", [None, "top:2"])
def test_a_recorder_never_computes_attention_twice(policy: str | None, monkeypatch: Any) -> None:
    """With and without a policy the sums come with the output: the pass over q and k is never asked."""

    def refuse(*_: Any) -> Tensor:
        raise AssertionError("a second pass over q and k")

    model, prompt = golden.model("llada"), torch.arange(5, 21)[None]
    decoding = ss.LladaDecoding(length=8, steps=4, block=8)
    options = {
        "policy": None if policy is None else ss.parse_policy(policy),
        "capture": ss.Capture(by_query=True),
    }
    before = ss.generate(model, prompt, decoding, **options)
    monkeypatch.setattr(context, "received", refuse)
    monkeypatch.setattr(interface.fused, "raw_lse", refuse)
    after = ss.generate(model, prompt, decoding, **options)
    assert torch.equal(before.states, after.states)
    assert before.trace.dataset.equals(after.trace.dataset)
