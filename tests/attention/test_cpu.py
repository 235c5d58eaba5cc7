"""Attention on a CPU: the output's softmax is what is recorded, against the naive definition and bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from tests.helpers import golden, naive
from tests.helpers.calls import LargestTensor, Masks, Recorder, module
from tests.helpers.naive import Case, cases
from torch import Tensor

import sinkscope as ss
from sinkscope.attention import context, cpu, interface
from sinkscope.attention.context import ALL, NEWEST, AttentionCall, ForwardContext, forward
from sinkscope.attention.cpu import Attended
from sinkscope.attention.fused import attend
from sinkscope.attention.interface import attend_and_sum, sinkscope_attention
from sinkscope.attention.key_mask import Band, KeyMask
from sinkscope.attention.visibility import Scores, Visibility

KINDS = ["short", "newest"]
"""Short inputs, and one query over a cache."""


def run(case: Case, key_mask: KeyMask | None, recorder: Recorder | None = None) -> Tensor:
    """Output [B, H, Q, D] of one call as transformers would make it."""
    q, k, v, scale = case.tensors()
    queries = {} if case.causal else {"classes": case.weights()}
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
        masked = case.taken(silence)
        recorder = Recorder("classes", ALL)
        out = run(case, masked, recorder)
        assert torch.equal(out, run(case, masked)), "counting changed the output"
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


@given(cases(taken=("none", "columns")))
def test_output_and_attention_of_the_newest_query(case: Case) -> None:
    """What acted, what would have without the policy, and the log-sum-exps: all from one pass over the keys."""
    case = replace(case, Q=1, right=False, causal=True, window=None, dense=False, block=None)
    q, k, v, scale = case.tensors()
    scored, visible = naive.scores(q, k, scale), case.visible()
    values = v.repeat_interleave(q.shape[1] // v.shape[1], 1).double()
    for silence in (False, True):
        masked = case.taken(silence)
        recorder = Recorder()
        out = run(case, masked, recorder)
        assert torch.equal(out, run(case, masked)), "listening changed the output"
        (call,) = recorder.calls
        assert set(call.sums) == {(NEWEST, False), (NEWEST, True)}
        acted = naive.softmax(scored, visible if silence else case.allowed())
        used = torch.where(case.allowed(), acted, 0.0)
        torch.testing.assert_close(out.double(), used @ values, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(call.newest().double(), acted[:, :, 0], atol=1e-6, rtol=1e-4)
        for raw, allowed in ((False, case.allowed()), (True, visible)):
            attention = naive.softmax(scored, visible if silence else allowed)
            expected, _ = naive.received(attention, visible, torch.ones(len(q), 1, 1))
            received = call.received(NEWEST, raw).double()
            torch.testing.assert_close(received, expected, atol=1e-5, rtol=1e-4, equal_nan=True)
        total = torch.where(visible if silence else case.allowed(), scored, float("-inf")).logsumexp(-1)
        torch.testing.assert_close(call.lse.double(), total, atol=1e-5, rtol=1e-5)


@given(cases(taken=("none",)))
def test_log_sum_exp_for_those_who_ask_later(case: Case) -> None:
    if not short_enough(case):
        return
    q, k, v, scale = case.tensors()
    recorder = Recorder()
    run(case, None, recorder)
    (call,) = recorder.calls
    assert call.known_lse is None
    assert torch.equal(call.lse, attend(Scores(q, k, case.visibility(), scale), v)[1])


def long_case(kind: str, keys: int | None = None) -> tuple[Scores, Tensor]:
    """Three rows and their values, in the layout of a model (heads inside), with grouped heads that lose unequally many keys.

    Short inputs are three tiles long and not a whole number of them. The last row loses no key.
    """
    keys = keys or {"short": 2 * cpu.ROWS + 37, "newest": 700}[kind]
    draw = torch.Generator().manual_seed(0)
    queries = 1 if kind == "newest" else keys
    q, k, v = (
        torch.randn(3, many, heads, 8, generator=draw).transpose(1, 2) * 1.5
        for many, heads in ((queries, 6), (keys, 3), (keys, 3))
    )
    masked = torch.rand(3, 6, keys, generator=draw) < 0.4
    masked[2] = False
    return Scores(q, k, Visibility(queries, keys, causal=kind == "newest"), 0.4, KeyMask(masked)), v


def raw_of(attended: Attended) -> tuple[Tensor | None, Tensor | None]:
    """Sums and log-sum-exp over all keys, also where nothing was masked."""
    sums = attended.acted if attended.raw is None else attended.raw
    return sums, attended.lse if attended.lse_raw is None else attended.lse_raw


def test_seams_between_tiles_do_not_show() -> None:
    scores, v = long_case("short")
    size = scores.visibility.queries
    weights = (torch.arange(size) % 3 == torch.arange(3)[:, None]).float().expand(3, 3, -1)
    attended = attend_and_sum(scores, v, weights)
    scored, masked = naive.scores(scores.query, scores.key, 0.4), scores.masked()
    assert masked is not None
    used, whole = (naive.softmax(scored, allowed) for allowed in (~masked[:, :, None], torch.tensor(True)))
    assert attended.acted is not None
    assert attended.raw is not None
    torch.testing.assert_close(
        attended.output.double(), used @ v.repeat_interleave(2, 1).double(), atol=1e-5, rtol=1e-4
    )
    sums = weights[:, None].double()
    torch.testing.assert_close(attended.acted.double(), sums @ used, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(attended.raw.double(), sums @ whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_in_a_batch_is_the_row_alone_bit_for_bit(kind: str) -> None:
    """Also the row that loses nothing while others do: alone it runs without a policy."""
    scores, v = long_case(kind)
    weights = torch.ones(3, 1, scores.visibility.queries)
    together = attend_and_sum(scores, v, weights)
    masked = scores.masked()
    assert masked is not None
    for row in range(3):
        one = slice(row, row + 1)
        key_mask = KeyMask(masked[one]) if bool(masked[row].any()) else None
        of_row = Scores(scores.query[one], scores.key[one], scores.visibility, 0.4, key_mask)
        alone = attend_and_sum(of_row, v[one], weights[one], lse=True)
        for ours, theirs in (
            (together.output, alone.output),
            (together.acted, alone.acted),
            (together.lse, alone.lse),
            *zip(raw_of(together), raw_of(alone), strict=True),
        ):
            assert ours is not None
            assert theirs is not None
            assert torch.equal(ours[one], theirs), row


def test_padding_changes_nothing_but_rounding() -> None:
    scores, v = long_case("newest", keys=90)
    real = (torch.arange(90) >= torch.tensor([[0], [7], [40]])).expand(3, 90)
    padded = replace(scores, visibility=Visibility(1, 90, real, causal=True), key_mask=None)
    attended = attend_and_sum(padded, v)
    assert attended.acted is not None
    for row, first in enumerate((0, 7, 40)):
        one = slice(row, row + 1)
        visibility = Visibility(1, 90 - first, causal=True)
        of_row = Scores(scores.query[one], scores.key[one, :, first:], visibility, 0.4)
        alone = attend_and_sum(of_row, v[one, :, first:])
        torch.testing.assert_close(attended.output[one], alone.output, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(attended.acted[one, ..., first:], alone.acted, atol=1e-6, rtol=1e-5)
        assert not attended.acted[one, ..., :first].any(), "padding received attention"


def test_a_row_of_padding_stays_finite() -> None:
    scores, v = long_case("newest", keys=12)
    real = torch.ones(3, 12, dtype=torch.bool)
    real[1] = False
    visibility = Visibility(1, 12, real, causal=True)
    attended = attend_and_sum(replace(scores, visibility=visibility, key_mask=None), v, lse=True)
    assert not attended.output[1].any()
    for tensor in (attended.output, attended.lse, attended.acted):
        assert tensor is not None
        assert bool(tensor.isfinite().all())


@pytest.mark.parametrize("kind", KINDS)
def test_a_masked_sink_that_took_everything(kind: str) -> None:
    """Its score is so high that the others' weights would be 0 in the softmax over all keys; masked, they must be right."""
    scores, v = long_case(kind, keys=40)
    scores.query[..., 0], scores.key[..., 0] = 1.0, 0.0
    scores.key[:, :, 3, 0] = 500.0
    masked = (torch.arange(40) == 3)[None, None]
    scores = replace(scores, scale=1.0, key_mask=KeyMask(masked))
    attended = attend_and_sum(scores, v, torch.ones(3, 1, scores.visibility.queries))
    scored = naive.scores(scores.query, scores.key, 1.0)
    attention = naive.softmax(scored, ~masked[:, :, None])
    assert attended.acted is not None
    assert attended.raw is not None
    values = v.repeat_interleave(2, 1).double()
    torch.testing.assert_close(attended.output.double(), attention @ values, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(attended.acted.double(), attention.sum(2, keepdim=True), atol=1e-5, rtol=1e-4)
    whole = naive.softmax(scored, torch.tensor(True)).sum(2, keepdim=True)
    torch.testing.assert_close(attended.raw.double(), whole)


NOTHING = KeyMask(torch.ones(1, 1, 16) > 1)
REAL = torch.ones(1, 16, dtype=torch.bool)


@pytest.mark.parametrize(
    ("visibility", "key_mask", "where"),
    [
        (Visibility(16, 16), None, "short"),
        (Visibility(16, 16, REAL), None, "short"),
        (Visibility(16, 16, causal=True), None, None),
        (Visibility(16, 16, window=4), None, None),
        (Visibility(16, 16), KeyMask(None, Band(3)), None),
        (Visibility(16, 16, block=4), None, "short"),
        (Visibility(4, 16, block=4), NOTHING, "short"),
        (Visibility(16, 16, block=4), NOTHING, None),
        (Visibility(16, 16, torch.arange(16)[None] < 9, block=4), None, None),
        (Visibility(cpu.KEYS + 1, cpu.KEYS + 1), None, None),
        (Visibility(1, 16, causal=True), None, "newest"),
        (Visibility(1, 16, REAL, causal=True), None, "newest"),
        (Visibility(1, 16, causal=True), NOTHING, "newest"),
        (Visibility(1, 16, causal=True, window=16), None, "newest"),
        (Visibility(1, 16, causal=True, window=4), None, None),
        (Visibility(1, 16), None, "short"),
        (Visibility(1, 16, causal=True), KeyMask(None, Band(3)), None),
    ],
)
def test_where_it_runs(visibility: Visibility, key_mask: KeyMask | None, where: str | None) -> None:
    def path(scores: Scores) -> str | None:
        short, newest = cpu.is_short(scores, scores.key), cpu.is_newest(scores, scores.key)
        assert not (short and newest)
        return "short" if short else "newest" if newest else None

    q, k = torch.randn(1, 2, visibility.queries, 8), torch.randn(1, 2, visibility.keys, 8)
    assert path(Scores(q, k, visibility, 1.0, key_mask)) == where
    for dtype in (torch.float64, torch.bfloat16):
        assert path(Scores(q.to(dtype), k.to(dtype), visibility, 1.0, key_mask)) is None
    learning = Scores(q, k.clone().requires_grad_(), visibility, 1.0, key_mask)
    assert path(learning) is None
    with torch.no_grad():
        assert path(learning) == where
    attend(learning, k)[0].sum().backward()


def test_memory_is_one_tile_whatever_the_batch() -> None:
    batch, heads, size = 6, 4, cpu.KEYS
    q = torch.randn(batch, heads, size, 8)
    with LargestTensor() as seen:
        attend_and_sum(Scores(q, q, Visibility(size, size), 0.3), q, torch.ones(batch, 1, size))
    assert seen.largest == heads * cpu.ROWS * size


@pytest.mark.parametrize("policy", [None, "top:2"])
@pytest.mark.parametrize("family", ["llada", "llama"])
def test_attention_is_never_computed_twice(family: str, policy: str | None, monkeypatch: Any) -> None:
    """With and without a policy the sums come with the output; a causal prompt's columns are the only second pass."""
    plain, asked = AttentionCall.mass, []

    def mass(call: AttentionCall, *options: Any) -> Tensor:
        asked.append(call.query.shape[2])
        return plain(call, *options)

    def refuse(*_: Any) -> Tensor:
        raise AssertionError("a second pass over q and k")

    model, prompt = golden.model(family), torch.arange(5, 21)[None]
    rule = None if policy is None else ss.parse_policy(policy)
    decoding = {
        "llada": ss.LladaDecoding(length=8, steps=4, block=8), "llama": ss.GreedyDecoding(length=6, eos=None)
    }[family]  # fmt: skip
    options: dict[str, Any] = {"policy": rule, "capture": ss.Capture(by_query=True)}
    before = ss.generate(model, prompt, decoding, **options)
    monkeypatch.setattr(AttentionCall, "mass", mass)
    prefill = context.received

    def only_prefill(scores: Scores, *rest: Any) -> Tensor:
        step = family == "llada" or scores.visibility.queries == 1
        return refuse() if step else prefill(scores, *rest)

    monkeypatch.setattr(context, "received", only_prefill)
    monkeypatch.setattr(interface.fused, "raw_lse", refuse)
    after = ss.generate(model, prompt, decoding, **options)
    assert after.trace.dataset.equals(before.trace.dataset)
    assert set(asked) == ({prompt.shape[1]} if family == "llama" else set())


@pytest.mark.parametrize("policy", [None, "top:2"])
def test_recording_changes_no_bit_of_a_causal_model(policy: str | None) -> None:
    model = golden.model("llama")
    prompts = torch.arange(3 * 9).view(3, 9) + 5
    decoding = ss.SamplingDecoding(length=10, temperature=2.0, eos=None)
    rule = None if policy is None else ss.parse_policy(policy)
    runs: list[list[Tensor]] = []
    for capture in (None, ss.Capture(by_query=True)):
        outputs: list[Tensor] = []
        hook = model.network.register_forward_hook(
            lambda _, __, output, into=outputs: into.append(output.logits.clone())
        )
        try:
            ss.generate(model, prompts, decoding, seed=3, policy=rule, capture=capture)
        finally:
            hook.remove()
        runs.append(outputs)
    assert len(runs[0]) == len(runs[1]) > 0
    assert all(torch.equal(plain, recorded) for plain, recorded in zip(*runs, strict=True))
