"""The attention function that transformers calls: what it hands to listeners, hiding, silencing, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from tests.helpers import golden, naive
from tests.helpers.calls import Masks, Recorder, module
from tests.helpers.naive import Case, cases
from torch import Tensor

import sinkscope as ss
from sinkscope.attention.context import NEWEST, NEWEST_AND_ALL, AttentionCall, ForwardContext, forward
from sinkscope.attention.fused import attend
from sinkscope.attention.interface import sinkscope_attention, sinkscope_mask
from sinkscope.attention.key_mask import KeyMask
from sinkscope.attention.visibility import Scores


def run(case: Case, taken: KeyMask | None, listen: bool = True) -> tuple[Tensor, list[AttentionCall]]:
    """Output [B, H, Q, D] of one call as transformers would make it, and what a listener got."""
    q, k, v, scale = case.tensors()
    recorder = Recorder()
    masks, records = Masks(taken), recorder if listen else None
    with forward(ForwardContext(case.real(), case.causal, case.padded, {}, masks, records, block=case.block)):
        out, weights = sinkscope_attention(
            module(case.causal), q, k, v, case.dense_mask(), scaling=scale, sliding_window=case.window
        )
    assert weights is None
    return out.transpose(1, 2), recorder.calls


@given(cases())
def test_a_listener_gets_the_call_as_it_happened(case: Case) -> None:
    q, k, v, scale = case.tensors()
    out, calls = run(case, case.taken())
    silent, nothing = run(case, case.taken(), listen=False)
    assert nothing == []
    assert torch.equal(out, silent), "listening changed the output"
    (call,) = calls
    assert call.layer == 2
    assert torch.equal(call.query, q)
    assert torch.equal(call.key, k)
    assert torch.equal(call.value, v)
    assert torch.equal(call.output, out)
    expected, _ = attend(Scores(q, k, case.visibility(), scale, case.taken()), v)
    assert torch.equal(out, expected)


@given(cases())
def test_the_newest_query_alone_is_what_its_mass_is(case: Case) -> None:
    case = replace(case, Q=1, right=False)
    _, (call,) = run(case, case.taken())
    for queries in (NEWEST, NEWEST_AND_ALL):
        newest, mass = call.newest(), call.mass(queries)[:, :, -1]
        if call.sums:  # the softmax of the output, which is rounded differently from exp(score − log-sum-exp)
            torch.testing.assert_close(newest, mass, atol=1e-6, rtol=1e-5)
        else:
            assert torch.equal(newest, mass)


@given(cases())
def test_received_acting_and_raw(case: Case) -> None:
    """`received()` is what acted; `received(raw=True)` is as if no policy did, with the same q and k."""
    q, k, _, scale = case.tensors()
    _, (call,) = run(case, case.taken())
    scored, visible = naive.scores(q, k, scale), case.visible()
    weights = case.real_queries()[:, None].float()
    for raw, allowed in ((False, case.allowed()), (True, visible)):
        expected, _ = naive.received(naive.softmax(scored, allowed), visible, weights)
        torch.testing.assert_close(call.received(raw=raw).double(), expected, atol=1e-5, rtol=1e-4, equal_nan=True)


@given(cases(taken=("columns", "band", "both")))
def test_silencing_keeps_attention_and_drops_values(case: Case) -> None:
    q, k, v, scale = case.tensors()
    taken = case.taken(silence=True)
    out, (call,) = run(case, taken)
    scored, visible, allowed = naive.scores(q, k, scale), case.visible(), case.allowed()
    attention = naive.softmax(scored, visible)
    values = v.repeat_interleave(case.H // case.G, 1).double()
    expected = (attention * allowed) @ values
    counts = case.real_queries()[:, None, :, None].expand_as(out)
    torch.testing.assert_close(out[counts].double(), expected[counts], atol=2e-5, rtol=1e-4)
    weights = case.real_queries()[:, None].float()
    plain, _ = naive.received(attention, visible, weights)
    torch.testing.assert_close(call.received().double(), plain, atol=1e-5, rtol=1e-4, equal_nan=True)
    assert call.kept is not None
    share = (attention * allowed).sum(-1)
    rows = case.real_queries()[:, None].expand_as(share)
    torch.testing.assert_close(call.kept[rows].double(), share[rows], atol=1e-5, rtol=1e-4)
    assert call.removed is None
    acting = torch.where(rows[..., None], call.map().double(), 0.0)
    torch.testing.assert_close(acting, torch.where(rows[..., None], attention, 0.0), atol=1e-6, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", golden.FAMILIES)
def test_hiding_no_key_is_plain_bit_for_bit(family: str) -> None:
    model = golden.model(family)
    ids = golden.tensor(family, "forward_T49.npz", "input_ids")
    plain, maps = model.logits(ids), model.attention(ids)
    nothing = (
        ss.MaskKeys({}), ss.MaskKeys({1: []}), ss.Window(10**6), ss.MaskKeys({}) & ss.MaskKeys({0: []}),
    )  # fmt: skip
    for policy in nothing:
        assert torch.equal(model.logits(ids, policy=policy), plain), policy
        assert torch.equal(model.attention(ids, policy=policy), maps), policy
    assert not torch.equal(model.logits(ids, policy=ss.MaskKeys({1: [5]})), plain)


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_hiding_padding_is_plain_bit_for_bit(family: str) -> None:
    model = golden.model(family)
    ids = golden.tensor(family, "forward_T24.npz", "input_ids")[:1]
    mask = torch.ones_like(ids)
    mask[:, :6] = 0
    policy = ss.MaskKeys({0: [0, 3], 1: [5]})
    assert torch.equal(model.logits(ids, mask, policy=policy), model.logits(ids, mask))


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_hidden_columns_are_those_of_the_tensor_as_passed(family: str) -> None:
    """Column 8 of a row with 6 padded tokens is its third real token."""
    model = golden.model(family)
    ids = golden.tensor(family, "forward_T24.npz", "input_ids")[:1]
    mask = torch.ones_like(ids)
    mask[:, :6] = 0
    maps = model.attention(ids, mask, policy=ss.MaskKeys({1: [8]}))
    assert float(maps[1, 0, :, 9:, 8].abs().max()) == 0.0
    assert float(maps[0, 0, :, 9:, 8].max()) > 0.0
    rows = maps[:, 0, :, 6:].sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows))


def test_the_plan_ends_with_its_block_even_on_errors() -> None:
    model = golden.model("llada")
    ids = golden.tensor("llada", "forward_T24.npz", "input_ids")
    plain = model.logits(ids)

    def breaks(call: AttentionCall) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.forward(
            ids,
            model.context(policy=Masks(KeyMask(torch.ones(1, 1, 24, dtype=torch.bool))), recorder=Recorder(see=breaks)),
        )
    assert torch.equal(model.logits(ids), plain)


def test_plans_nest() -> None:
    """An inner forward (a check inside a recording) does not disturb the outer one."""
    model = golden.model("llada")
    ids = golden.tensor("llada", "forward_T24.npz", "input_ids")
    seen: list[int] = []

    def listen(call: AttentionCall) -> None:
        seen.append(call.layer)
        model.forward(ids)

    recorded = model.forward(ids, model.context(recorder=Recorder(see=listen)))
    assert seen == [0, 1, 2]
    assert torch.equal(recorded, model.forward(ids))


def test_scores_that_are_changed_elsewhere_are_refused() -> None:
    q = torch.randn(1, 1, 4, 8)
    with pytest.raises(ss.InputError, match=r"softcap.*not supported"):
        sinkscope_attention(module(True), q, q, q, None, softcap=30.0)
    with pytest.raises(ss.InputError, match="position_bias"):
        sinkscope_attention(module(True), q, q, q, None, position_bias=torch.zeros(1))


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_mask_in_full_is_honoured(kind: str) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 6, 8) for _ in range(3))
    mask = torch.rand(2, 1, 6, 6) < 0.5
    mask |= torch.eye(6, dtype=torch.bool)
    given_mask = mask if kind == "bool" else torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    out, _ = sinkscope_attention(module(True), q, k, v, given_mask)
    expected = naive.softmax(naive.scores(q, k, 8**-0.5), mask.expand(2, 2, 6, 6)) @ v.double()
    torch.testing.assert_close(out.transpose(1, 2).double(), expected, atol=1e-5, rtol=1e-4)


def test_outside_of_a_plan_the_module_decides_causality() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 6, 8) for _ in range(3))
    for causal in (False, True):
        allowed = torch.ones(6, 6, dtype=torch.bool)
        allowed = allowed.tril() if causal else allowed
        expected = (naive.softmax(naive.scores(q, k, 8**-0.5), allowed) @ v.double()).transpose(1, 2)
        by_module, _ = sinkscope_attention(module(causal), q, k, v, None)
        by_keyword, _ = sinkscope_attention(module(not causal), q, k, v, None, is_causal=causal)
        torch.testing.assert_close(by_module.double(), expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(by_keyword.double(), expected, atol=1e-5, rtol=1e-4)


def test_mask_function_passes_padding_on_and_nothing_else() -> None:
    ones = torch.ones(2, 5, dtype=torch.long)
    assert sinkscope_mask(5, attention_mask=None) is None
    assert sinkscope_mask(5, attention_mask=ones) is None
    padded = ones.clone()
    padded[0, :2] = 0
    found = sinkscope_mask(5, attention_mask=padded)
    assert found is not None
    assert torch.equal(found, padded.bool())
    found = sinkscope_mask(3, kv_offset=1, attention_mask=padded)
    assert found is not None
    assert torch.equal(found, padded[:, 1:4].bool())
