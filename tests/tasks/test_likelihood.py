"""Likelihoods: exact for causal models, a bound with the right expectation for diffusion models."""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import combinations
from typing import Any

import pytest
import torch
from tests.helpers import golden

import sinkscope as ss
from sinkscope.base.errors import InputError
from sinkscope.tasks.likelihood import Likelihood, denoised, likelihoods, masked, masks

CONTEXT, CONTINUATION = [3, 14, 15, 92], [65, 35, 89]


def one_of(model: ss.Model, pair: Any, *arguments: Any, **options: Any) -> Likelihood:
    return likelihoods(model, [pair], *arguments, **options)[0]


def test_causal_values_are_those_of_the_logits() -> None:
    model = golden.model("llama")
    pairs = [(CONTEXT, CONTINUATION), ([1, 2], [3, 4]), (CONTEXT, [7, 7, 7])]
    for (context, continuation), found in zip(pairs, likelihoods(model, pairs, rows=2), strict=True):
        spread = model.logits(torch.tensor([[*context, *continuation]]))[0].double().log_softmax(-1)
        each = [float(spread[len(context) - 1 + i, token]) for i, token in enumerate(continuation)]
        assert found.value == pytest.approx(sum(each), abs=1e-4)
        assert found.error is None
    greedy = ss.generate(model, torch.tensor([CONTEXT]), ss.GreedyDecoding(3, eos=None)).sequences[0, 4:].tolist()
    assert one_of(model, (CONTEXT, greedy)).greedy
    assert not one_of(model, (CONTEXT, CONTINUATION)).greedy


def test_causal_policies_act_as_in_generation() -> None:
    """Under a policy that looks at the token before, what generation writes is what is most likely."""
    model = golden.model("llama")
    written = {}
    for policy in (None, ss.MaskTop(2), ss.MaskRandom(like=ss.MaskTop(2)), ss.MaskFirst(1)):
        run = ss.generate(model, torch.tensor([CONTEXT]), ss.GreedyDecoding(6, eos=None), policy=policy, seed=[0])
        written[policy] = run.sequences[0, 4:].tolist()
        if not isinstance(policy, ss.MaskRandom):  # whose draws have keys of their own
            assert one_of(model, (CONTEXT, written[policy]), policy).greedy
    assert written[None] != written[ss.MaskTop(2)]
    assert not one_of(model, (CONTEXT, written[None]), ss.MaskTop(2)).greedy
    one = one_of(model, (CONTEXT, CONTINUATION), ss.MaskTop(2))
    beside, _ = likelihoods(model, [(CONTEXT, CONTINUATION), ([9] * 4, CONTINUATION)], ss.MaskTop(2))
    assert beside.value == pytest.approx(one.value)
    # a policy that looks at nothing: one forward, and token by token, are the same
    fixed, stepwise = (one_of(model, (CONTEXT, CONTINUATION), p) for p in (ss.MaskFirst(1), _with_region(1)))
    assert fixed.value == pytest.approx(stepwise.value, abs=1e-4)


def _with_region(k: int) -> ss.Policy:
    return ss.MaskFirst(k, regions="prompt")  # the same keys, but known to be so only in generation


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llada", "dream", "mmada"])
def test_the_bound_has_the_right_expectation(family: str) -> None:
    model = golden.model(family)
    policy = ss.MaskTop(1, when="same")
    for acting in (None, policy):
        expected = _expectation(model, acting)
        found = one_of(model, (CONTEXT, CONTINUATION), acting, draws=600, rows=200)
        assert found.error is not None
        assert 0 < found.error < 1
        assert abs(found.value - expected) < 4 * found.error
    single = one_of(model, (CONTEXT, CONTINUATION[:1]), draws=4)
    assert single.error == pytest.approx(0, abs=1e-6)
    assert single.value == pytest.approx(_log_p(model, (0,), CONTINUATION[:1], None), abs=1e-4)


def _expectation(model: ss.Model, policy: ss.Policy | None) -> float:
    """Every mask of every size, by hand: mean over l of L/l times the mean over masks of the sum."""
    length, total = len(CONTINUATION), 0.0
    for size in range(1, length + 1):
        sets = list(combinations(range(length), size))
        total += length / size * sum(_log_p(model, one, CONTINUATION, policy) for one in sets) / len(sets) / length
    return total


def _log_p(model: ss.Model, hidden: tuple[int, ...], continuation: list[int], policy: ss.Policy | None) -> float:
    ids = [*CONTEXT, *continuation]
    x = [model.ids.mask if i - len(CONTEXT) in hidden else token for i, token in enumerate(ids)]
    logits = model.logits(torch.tensor([x]), policy=policy)[0].double()
    shift = 1 if model.family == "dream" else 0
    spread = logits.log_softmax(-1)
    return sum(float(spread[len(CONTEXT) + i - shift, continuation[i]]) for i in hidden)


def test_masks_are_common_and_uniform() -> None:
    many = masks(CONTEXT, 5, 20_000)
    sizes = torch.bincount(many.sum(1), minlength=6)[1:] / 20_000
    assert sizes.tolist() == pytest.approx([0.2] * 5, abs=0.015)
    for size in range(1, 5):  # every position equally often
        share = many[many.sum(1) == size].double().mean(0)
        assert share.tolist() == pytest.approx([size / 5] * 5, abs=0.03)
    assert torch.equal(masks(CONTEXT, 5, 64), masks(tuple(CONTEXT), 5, 64))
    assert not torch.equal(masks(CONTEXT, 5, 64), masks([1], 5, 64))
    assert not torch.equal(masks(CONTEXT, 5, 64), masks(CONTEXT, 5, 64, seed=1))
    # choices of different length: draws that hide more of one hide more of the other
    short, long = (masks(CONTEXT, length, 4000).double().mean(1) for length in (4, 8))
    assert float(torch.corrcoef(torch.stack([short, long]))[0, 1]) > 0.9


@pytest.mark.slow
def test_common_masks_make_differences_sharper() -> None:
    model = golden.model("llada")
    policy = ss.MaskFirst(1)
    pair = (CONTEXT, [65, 35, 89, 79, 32])
    same = [one_of(model, pair, policy, 16, s).value - one_of(model, pair, None, 16, s).value for s in range(8)]
    other = [one_of(model, pair, policy, 16, s).value - one_of(model, pair, None, 16, s + 50).value for s in range(8)]
    assert torch.tensor(same).std() < 0.7 * torch.tensor(other).std()


def test_batches_do_not_matter() -> None:
    model = golden.model("dream")
    values = {rows: one_of(model, (CONTEXT, CONTINUATION), draws=20, rows=rows) for rows in (1, 7, 20)}
    assert values[1].value == pytest.approx(values[7].value, abs=1e-4)
    assert values[1].value == pytest.approx(values[20].value, abs=1e-4)
    assert math.isfinite(values[1].value)


@pytest.mark.parametrize("policy", ["none", "top:1", "random(top:1)"])
def test_pairs_of_a_batch_are_as_alone(policy: str) -> None:
    """Pairs of equal lengths share forwards, those of others do not; controls are drawn for each as when it is alone."""
    model, acting = golden.model("dream"), ss.parse_policy(policy)
    other = [*CONTINUATION[1:], CONTINUATION[0]]
    pairs = [(CONTEXT, CONTINUATION), (CONTEXT, CONTINUATION[:2]), (CONTEXT[::-1], other), (CONTEXT, other)]
    together = likelihoods(model, pairs, acting, 6, rows=8, greedy=False)
    for pair, one in zip(pairs, together, strict=True):
        alone = one_of(model, pair, acting, 6, greedy=False)
        assert _numbers(one) == pytest.approx(_numbers(alone), abs=1e-4, nan_ok=True)


def test_what_has_no_likelihood_is_refused() -> None:
    with pytest.raises(InputError, match="draws should be"):
        one_of(golden.model("llada"), (CONTEXT, CONTINUATION), draws=1)
    with pytest.raises(InputError, match="passes the context"):
        likelihoods(golden.model("llama"), [([1], [2] * 600)])


def test_a_policy_that_looks_at_the_step_before_sees_the_masked_text_twice() -> None:
    """So it hides what the same policy with when="same" hides in the first layer, and later what an unmasked pass shows."""
    model, pair = golden.model("llada"), (CONTEXT, CONTINUATION)
    plain, waiting = (one_of(model, pair, policy, 16) for policy in (None, ss.MaskTop(1)))
    assert waiting.forwards == 2 * plain.forwards == 32
    assert 0 < waiting.account["hidden_share"] < 1
    early = [
        one_of(model, pair, ss.MaskTop(1, when=when, layers=(0,)), 16, greedy=False).value
        for when in ("previous", "same")
    ]
    assert early[0] == pytest.approx(early[1], abs=1e-5)


def test_a_long_context_loses_its_beginning() -> None:
    model = golden.model("llama")
    limit = model.shape.context
    long = [(7 * i) % 400 for i in range(limit + 50)]
    assert one_of(model, (long, [5])).value == pytest.approx(one_of(model, (long[-(limit - 1) :], [5])).value)


@pytest.mark.parametrize(
    ("family", "block"),
    [("llada_moe", None), ("llada2", 32), ("sdar", 4), ("fast_dllm_v2", 32), ("a2d_qwen3", None), ("rnd1", None),
     ("open_dcoder", None)],
)  # fmt: skip
def test_masked_tokens_of_the_later_families(family: str, block: int | None) -> None:
    """From logits with the attention of the family's loop, one position earlier where they are shifted."""
    model = golden.model(family)
    ids = torch.randint(0, 200, (2, 40), generator=torch.Generator().manual_seed(1))
    where = torch.rand(ids.shape, generator=torch.Generator().manual_seed(2)) < 0.4
    where[:, :3] = False
    x = torch.where(where, model.ids.mask, ids)
    logits = model.logits(x) if block is None else model.logits(x, block=block)
    if model.spec.shifted:
        logits = torch.cat([logits[:, :1], logits[:, :-1]], 1)
    expected = -logits.double().log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    found = masked(model, ids, where, 3, None, [0, 1])
    torch.testing.assert_close(found.values, expected[where], atol=1e-4, rtol=1e-4)
    under = masked(model, ids, where, 3, ss.MaskTop(2), [0, 1])
    assert under.forwards == 2
    assert bool((under.account["hidden_share"] > 0).all())
    assert not torch.allclose(under.values, found.values, atol=1e-3)


@pytest.mark.parametrize("family", ["llada2", "sdar", "fast_dllm_v2"])
def test_blocks_have_no_order_of_a_whole_text(family: str) -> None:
    with pytest.raises(InputError, match="block after block"):
        denoised(golden.model(family), torch.arange(12)[None], 4, 8, None, [0])


def _numbers(one: Likelihood) -> dict[str, Any]:
    numbers = asdict(one)
    return numbers | numbers.pop("account")
