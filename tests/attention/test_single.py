"""One query over a cache on a CPU: the output's softmax is what is recorded, against the naive definition and bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from tests.helpers import golden, naive
from tests.helpers.calls import Masks, Recorder, module
from tests.helpers.naive import Case, cases
from torch import Tensor

import sinkscope as ss
from sinkscope.attention import context, interface, single
from sinkscope.attention.context import NEWEST, AttentionCall, ForwardContext, forward
from sinkscope.attention.fused import attend_and_sum
from sinkscope.attention.interface import sinkscope_attention
from sinkscope.attention.key_mask import Band, KeyMask
from sinkscope.attention.visibility import Visibility


def run(case: Case, key_mask: KeyMask | None, recorder: Recorder | None = None) -> Tensor:
    """Output [B, H, 1, D] of one call as transformers would make it."""
    q, k, v, scale = case.tensors()
    wanted = ForwardContext(case.real(), True, case.padded, {}, Masks(key_mask), recorder)
    with forward(wanted):
        out, _ = sinkscope_attention(module(True), q, k, v, None, scaling=scale)
    return out.transpose(1, 2)


@given(cases(taken=("none", "columns")))
def test_output_and_attention_of_the_newest_query(case: Case) -> None:
    """What acted, what would have without the policy, and the log-sum-exps: all from one pass over the keys."""
    case = replace(case, Q=1, right=False, causal=True, window=None, dense=False, block=None)
    q, k, v, scale = case.tensors()
    scored, visible = naive.scores(q, k, scale), case.visible()
    values = v.repeat_interleave(q.shape[1] // v.shape[1], 1).double()
    for silence in (False, True):
        taken = case.taken(silence)
        recorder = Recorder()
        out = run(case, taken, recorder)
        assert torch.equal(out, run(case, taken)), "listening changed the output"
        (call,) = recorder.calls
        assert set(call.sums) == {(NEWEST, False), (NEWEST, True)}
        acted = naive.softmax(scored, visible if silence else case.allowed())
        used = torch.where(case.allowed(), acted, 0.0)
        torch.testing.assert_close(out.double(), used @ values, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(call.newest().double(), acted[:, :, 0], atol=1e-6, rtol=1e-4)
        for raw, allowed in ((False, case.allowed()), (True, visible)):
            attention = naive.softmax(scored, visible if silence else allowed)
            expected, _ = naive.received(attention, visible, torch.ones(len(q), 1, 1))
            found = call.received(NEWEST, raw).double()
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4, equal_nan=True)
        total = torch.where(visible if silence else case.allowed(), scored, float("-inf")).logsumexp(-1)
        torch.testing.assert_close(call.lse.double(), total, atol=1e-5, rtol=1e-5)


def long_case(rows: int = 3, keys: int = 700) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v in the layout of a model (heads inside), grouped heads, and hidden columns; the last row loses none."""
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(rows, 1, 6, 16, generator=draw).transpose(1, 2) * 1.5
    k, v = (torch.randn(rows, 3, keys, 16, generator=draw) for _ in range(2))
    gone = torch.zeros(rows, 6, keys, dtype=torch.bool)
    gone[:-1] = torch.rand(rows - 1, 6, keys, generator=draw) < 0.7
    return q, k, v, gone


def test_a_row_in_a_batch_is_the_row_alone_bit_for_bit() -> None:
    """Also the row that loses nothing while others do: alone it runs without a policy."""
    q, k, v, gone = long_case()
    visibility = Visibility(1, k.shape[2], causal=True)
    together = attend_and_sum(q, k, v, visibility, KeyMask(gone), 0.4)
    for row in range(len(q)):
        one = slice(row, row + 1)
        taken = KeyMask(gone[one]) if bool(gone[row].any()) else None
        alone = attend_and_sum(q[one], k[one], v[one], visibility, taken, 0.4, lse=True)
        raw = alone.acted if alone.raw is None else alone.raw
        raw_lse = alone.lse if alone.lse_raw is None else alone.lse_raw
        for ours, theirs in (
            (together.output, alone.output),
            (together.acted, alone.acted),
            (together.raw, raw),
            (together.lse, alone.lse),
            (together.lse_raw, raw_lse),
        ):
            assert ours is not None
            assert theirs is not None
            assert torch.equal(ours[one], theirs), row


def test_padding_changes_nothing_but_rounding() -> None:
    q, k, v, _ = long_case(keys=90)
    real = (torch.arange(90) >= torch.tensor([[0], [7], [40]])).expand(3, 90)
    found = attend_and_sum(q, k, v, Visibility(1, 90, real, causal=True), None, 0.4)
    assert found.acted is not None
    for row, first in enumerate((0, 7, 40)):
        one = slice(row, row + 1)
        visibility = Visibility(1, 90 - first, causal=True)
        alone = attend_and_sum(q[one], k[one, :, first:], v[one, :, first:], visibility, None, 0.4)
        torch.testing.assert_close(found.output[one], alone.output, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(found.acted[one, ..., first:], alone.acted, atol=1e-6, rtol=1e-5)
        assert not found.acted[one, ..., :first].any(), "padding received attention"


def test_a_row_of_padding_stays_finite() -> None:
    q, k, v, _ = long_case(keys=12)
    real = torch.ones(3, 12, dtype=torch.bool)
    real[1] = False
    found = attend_and_sum(q, k, v, Visibility(1, 12, real, causal=True), None, 0.4, lse=True)
    assert not found.output[1].any()
    for part in (found.output, found.lse, found.acted):
        assert part is not None
        assert bool(part.isfinite().all())


def test_a_hidden_sink_that_took_everything() -> None:
    """Its score is so high that the others' weights would be 0 in the softmax over all keys; hidden, they must be right."""
    q, k, v, _ = long_case(keys=40)
    q[..., 0], k[..., 0] = 1.0, 0.0
    k[:, :, 3, 0] = 500.0
    gone = torch.zeros(1, 1, 40, dtype=torch.bool)
    gone[..., 3] = True
    found = attend_and_sum(q, k, v, Visibility(1, 40, causal=True), KeyMask(gone), 1.0)
    scored = naive.scores(q, k, 1.0)
    attention = naive.softmax(scored, ~gone[:, :, None])
    assert found.acted is not None
    assert found.raw is not None
    torch.testing.assert_close(found.acted.double(), attention, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.raw.double(), naive.softmax(scored, torch.tensor(True)))


def test_where_it_runs() -> None:
    q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 16, 8)
    newest = Visibility(1, 16, causal=True)
    assert single.suits(q, k, k, newest, None)
    assert single.suits(q, k, k, replace(newest, real=torch.ones(1, 16, dtype=torch.bool)), None)
    assert single.suits(q, k, k, newest, KeyMask(torch.ones(1, 1, 16) > 1))
    assert single.suits(q, k, k, replace(newest, window=16), None)
    assert not single.suits(q, k, k, replace(newest, window=4), None)
    assert not single.suits(q, k, k, replace(newest, causal=False), None)
    assert not single.suits(k, k, k, Visibility(16, 16, causal=True), None)
    assert not single.suits(q, k, k, newest, KeyMask(None, Band(3)))
    for dtype in (torch.float64, torch.bfloat16):
        assert not single.suits(q.to(dtype), k.to(dtype), k.to(dtype), newest, None)
    learning = k.clone().requires_grad_()
    assert not single.suits(q, learning, k, newest, None)
    with torch.no_grad():
        assert single.suits(q, learning, k, newest, None)


@pytest.mark.parametrize("policy", [None, "top:2"])
def test_a_step_never_computes_attention_twice(policy: str | None, monkeypatch: Any) -> None:
    """With and without a policy a step's attention comes with its output; the prompt's columns are the only second pass."""
    plain, asked = AttentionCall.mass, []

    def mass(call: AttentionCall, *options: Any) -> Tensor:
        asked.append(call.query.shape[2])
        return plain(call, *options)

    def refuse(*_: Any) -> Tensor:
        raise AssertionError("a second pass over q and k")

    model, prompt = golden.model("llama"), torch.arange(5, 21)[None]
    rule = None if policy is None else ss.parse_policy(policy)
    options: dict[str, Any] = {"policy": rule, "capture": ss.Capture(by_query=True)}
    monkeypatch.setattr(AttentionCall, "mass", mass)
    prefill = context.received

    def only_prefill(query: Tensor, *rest: Any) -> Tensor:
        return refuse() if query.shape[2] == 1 else prefill(query, *rest)

    monkeypatch.setattr(context, "received", only_prefill)
    monkeypatch.setattr(interface.fused, "raw_lse", refuse)
    ss.generate(model, prompt, ss.GreedyDecoding(length=6, eos=None), **options)
    assert set(asked) == {prompt.shape[1]}


@pytest.mark.parametrize("policy", [None, "top:2"])
def test_recording_changes_no_bit_of_a_causal_model(policy: str | None) -> None:
    model = golden.model("llama")
    prompts = torch.arange(3 * 9).view(3, 9) + 5
    decoding = ss.SamplingDecoding(length=10, temperature=2.0, eos=None)
    rule = None if policy is None else ss.parse_policy(policy)
    seen: list[list[Tensor]] = []
    for capture in (None, ss.Capture(by_query=True)):
        outputs: list[Tensor] = []
        hook = model.network.register_forward_hook(
            lambda _, __, output, kept=outputs: kept.append(output.logits.clone())
        )
        try:
            ss.generate(model, prompts, decoding, seed=3, policy=rule, capture=capture)
        finally:
            hook.remove()
        seen.append(outputs)
    assert len(seen[0]) == len(seen[1]) > 0
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))
