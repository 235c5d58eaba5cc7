"""`MaskRandom`, the control: reproducible, of the row alone, beside its policy's set, of the same size or mass, uniform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import golden
from tests.policies.follow import DECODINGS, PLAIN, PROMPT, Setting, follow, prompts

import sinkscope as ss
from sinkscope.attention.context import AttentionCall, ForwardContext
from sinkscope.attention.fused import attend
from sinkscope.attention.visibility import Scores, Visibility
from sinkscope.policies.forward import Forward
from sinkscope.policies.runtime import PolicyRuntime

LIKES = [
    ss.MaskTop(3), ss.MaskTop(2, scope="model"), ss.MaskAbove(1.0, scope="layer"), ss.KeepTop(0.6), ss.MaskFirst(2),
]  # fmt: skip


def taken(family: str, policy: Any, ids: torch.Tensor, **options: Any) -> np.ndarray:
    """Bool [sample, step, layer, head, key]."""
    run = ss.generate(golden.model(family), ids, DECODINGS[family], policy=policy, capture=ss.Capture(), **options)
    return run.trace.masked_keys().values


@pytest.mark.slow
@pytest.mark.parametrize("match", ["count", "mass"])
@pytest.mark.parametrize("like", LIKES, ids=str)
def test_the_seed_decides(like: Any, match: str) -> None:
    ids = prompts("llada")
    once = taken("llada", ss.MaskRandom(like=like, match=match, seed=1), ids, seed=7)
    again = taken("llada", ss.MaskRandom(like=like, match=match, seed=1), ids, seed=7)
    assert once.any()
    assert np.array_equal(once, again)
    if match == "mass" and not isinstance(like, ss.MaskTop):
        return
    assert not np.array_equal(once, taken("llada", ss.MaskRandom(like=like, match=match, seed=2), ids, seed=7))
    assert not np.array_equal(once, taken("llada", ss.MaskRandom(like=like, match=match, seed=1), ids, seed=8))


@pytest.mark.parametrize("seed", [0, 2**31, 2**63, 10**30])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    assert taken("llada", ss.MaskRandom(like=ss.MaskFirst(1), seed=seed), prompts("llada")).any()


@pytest.mark.parametrize("seed", [2**62, [2**62, 5]])
def test_a_large_seed_of_the_run_keys_its_rows(seed: Any) -> None:
    assert taken("llada", ss.MaskRandom(like=ss.MaskFirst(1)), prompts("llada"), seed=seed).any()


@pytest.mark.parametrize(
    ("match", "family"),
    [
        # One kind of match for each family in `make test`, both in `make soak`.
        pytest.param(match, family, marks=pytest.mark.soak if (number + turn) % 2 else pytest.mark.slow)
        for turn, match in enumerate(("count", "mass"))
        for number, family in enumerate(golden.FAMILIES)
    ],
)
def test_a_row_with_its_own_seed_does_not_depend_on_the_batch(family: str, match: str) -> None:
    policy = ss.MaskRandom(like=ss.MaskTop(3), match=match)
    ids = prompts(family, rows=3)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    together = taken(family, policy, ids, attention_mask=mask, seed=[5, 6, 5])
    swapped = taken(family, policy, ids[[2, 1, 0]], attention_mask=mask[[2, 1, 0]], seed=[5, 6, 5])
    assert np.array_equal(together, swapped[[2, 1, 0]])
    alone = taken(family, policy, ids[1:2, 4:], seed=[6])
    assert alone.any()
    assert np.array_equal(together[1:2, ..., 4:], alone)
    assert not together[1, ..., :4].any()
    first = taken(family, policy, ids[:1], seed=[5])
    assert np.array_equal(together[:1], first)


@pytest.mark.slow
@pytest.mark.parametrize("family", golden.FAMILIES)
@pytest.mark.parametrize("like", [ss.MaskFirst(2), ss.MaskTop(2)], ids=str)
def test_left_padding_does_not_matter(family: str, like: Any) -> None:
    policy = ss.MaskRandom(like=like, seed=3)
    ids = prompts(family, rows=1)
    wide = torch.cat([torch.full((1, 5), 7), ids], 1)
    mask = torch.ones_like(wide)
    mask[:, :5] = 0
    assert np.array_equal(
        taken(family, policy, wide, attention_mask=mask, seed=1)[..., 5:], taken(family, policy, ids, seed=1)
    )


@pytest.mark.slow
@pytest.mark.parametrize("setting", PLAIN, ids=str)
@pytest.mark.parametrize("match", ["count", "mass"])
def test_drawn_anew_only_where_the_policy_changed(setting: Setting, match: str) -> None:
    """The dense reference checks every draw; here: that both cases really occur."""
    _, references = follow(setting, ss.MaskRandom(like=ss.MaskTop(1), match=match))
    dense = references[0]
    assert dense.kept > 10
    assert dense.redrawn > 10


def test_heads_and_layers_draw_apart_and_scopes_together() -> None:
    ids = prompts("llada")
    heads = taken("llada", ss.MaskRandom(like=ss.MaskTop(3)), ids)[:, 1:]
    assert (heads[:, :, :, 0] != heads[:, :, :, 1]).any()
    layers = taken("llada", ss.MaskRandom(like=ss.MaskTop(3, scope="layer")), ids)[:, 1:]
    assert (layers == layers[:, :, :, :1]).all()
    assert (layers[:, :, 0] != layers[:, :, 1]).any()
    model = taken("llada", ss.MaskRandom(like=ss.MaskTop(3, scope="model")), ids)[:, 1:]
    assert (model == model[:, :, :1, :1]).all()
    assert (model.sum(-1) == 3).all()


@pytest.mark.slow
def test_every_free_key_is_as_likely() -> None:
    """A coarse χ² over the columns that the control of MaskFirst(1) draws in rows, layers and seeds."""
    model = golden.model("llada")
    ids = prompts("llada", rows=16)
    counts = np.zeros(PROMPT)
    draws = []
    for seed in range(40):
        maps = model.attention(ids, policy=ss.MaskRandom(like=ss.MaskFirst(1), seed=seed))
        gone = (maps.sum(3) == 0).numpy()  # [layer, row, head, key]
        assert (gone.sum(-1) == 1).all()
        assert (gone == gone[:, :, :1]).all()  # without a score to look at, one set for all heads of a layer
        assert not gone[..., 0].any()
        counts += gone[:, :, 0].sum((0, 1))
        draws.append(gone[:, :, 0].argmax(-1))
    total = counts.sum()
    assert total == 40 * 3 * 16
    expected = total / (PROMPT - 1)
    chi = ((counts[1:] - expected) ** 2 / expected).sum()
    assert chi < 27.9  # 99.9 % point for 9 degrees of freedom
    assert chi > 1.15  # and not suspiciously even: 0.1 % point
    drawn = np.stack(draws)  # [seed, layer, row]
    for one, two in ((drawn[:, 0], drawn[:, 1]), (drawn[:, :, :-1], drawn[:, :, 1:]), (drawn[:-1], drawn[1:])):
        same = (one == two).mean()  # independent draws agree in one of ten cases
        assert 0.06 < same < 0.15


@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(2, 14)),
    seed=st.integers(0, 10_000),
    share=st.sampled_from([0.0, 0.2, 0.5]),
    match=st.sampled_from(["count", "mass"]),
)
def test_the_draw_by_its_definition(sizes: tuple[int, int], seed: int, share: float, match: str) -> None:
    """count: the first keys of the random order. mass: the prefix of it whose attention comes nearest, the shortest of equals."""
    heads, keys = sizes
    random = torch.Generator().manual_seed(seed)
    allowed = torch.rand(1, heads, keys, generator=random) < 0.8
    chosen = allowed & (torch.rand(1, heads, keys, generator=random) < share)
    scores = torch.rand(1, heads, keys, generator=random).masked_fill(~allowed, float("nan"))
    priority = torch.randint(0, 2**60, (1, heads, keys), generator=random)
    drawn = ss.MaskRandom(like=ss.MaskTop(1), match=match).draw(chosen, allowed, scores, priority)
    for h in range(heads):
        free = [j for j in range(keys) if allowed[0, h, j] and not chosen[0, h, j]]
        order = sorted(free, key=lambda j: int(priority[0, h, j]))
        if match == "count":
            expected = order[: int(chosen[0, h].sum())]
        else:
            target = sum(float(scores[0, h, j]) for j in range(keys) if chosen[0, h, j])
            gaps = [abs(sum(float(scores[0, h, j]) for j in order[:n]) - target) for n in range(len(order) + 1)]
            expected = order[: min(range(len(gaps)), key=lambda n: (round(gaps[n], 5), n))]
        assert set(drawn[0, h].nonzero()[:, 0].tolist()) == set(expected)


def test_the_mass_that_was_reached_is_recorded() -> None:
    """Where q and k do not depend on what is taken (layer 0), the attention removed is that of the drawn keys."""
    model, ids = golden.model("llada"), prompts("llada")
    run = ss.generate(
        model, ids, DECODINGS["llada"], policy=ss.MaskRandom(like=ss.MaskTop(2), match="mass"), capture=ss.Capture(),
    )  # fmt: skip
    data = run.trace.dataset.isel(layer=0)
    raw, drawn = data["received_raw"].values, run.trace.masked_keys().isel(layer=0).values
    expected = (raw * drawn).sum(-1) / raw.shape[-1]
    assert (expected[:, 1:] > 0).any()
    np.testing.assert_allclose(data["hidden_share"].values, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("policy", "keys"),
    [
        (ss.MaskRandom(like=ss.MaskTop(12)), 23),
        (ss.MaskRandom(like=ss.MaskFirst(12)), 23),
        (ss.MaskRandom(like=ss.MaskKeys({1: list(range(12))})), 23),
    ],
    ids=str,
)
def test_no_control_where_no_equal_number_of_keys_is_left(policy: Any, keys: int) -> None:
    with pytest.raises(ss.InputError, match="other keys beside the 12"):
        ss.generate(golden.model("llada"), prompts("llada"), DECODINGS["llada"], policy=policy)


def test_a_prompt_too_short_for_the_control_is_an_error_and_not_a_smaller_set() -> None:
    with pytest.raises(ss.InputError, match="no equal number"):
        ss.generate(
            golden.model("llama"),
            prompts("llama", length=4),
            ss.GreedyDecoding(length=12, eos=None),
            policy=ss.MaskRandom(like=ss.MaskTop(3)),
        )


@pytest.mark.parametrize("policy", ["random(top:4,regions=prompt)", "random(top:12)"])
def test_a_control_that_lacks_keys_is_told(policy: str) -> None:
    """Where its policy may choose among few keys, the number of those that are left is looked at."""
    model = golden.model("llada")
    prompt = torch.randint(0, 300, (1, 6), generator=torch.Generator().manual_seed(0))
    with pytest.raises(ss.InputError, match=r"no equal number of others|other keys beside"):
        ss.generate(model, prompt, ss.LladaDecoding(16, 4, 16), policy=policy)


def test_a_window_of_the_models_own_leaves_fewer_candidates() -> None:
    """A key outside of it has no score, so that it is no candidate, however many keys there are."""
    runtime = PolicyRuntime(ss.parse_policy("random(top:4)"), [0], causal=True, first=20)
    q, k = (torch.randn(1, 2, count, 8, generator=torch.Generator().manual_seed(count)) for count in (1, 20))
    visibility = Visibility(1, 20, causal=True, window=6)
    for step in range(2):
        runtime.begin(Forward(least=20))
        if step:
            with pytest.raises(ss.InputError, match="no equal number of others"):
                runtime.mask(0, q, k, visibility, 1.0)
            return
        context = ForwardContext(causal=True)
        out, lse = attend(Scores(q, k, visibility, 1.0), k)
        runtime.measure(AttentionCall(0, q, k, k, out, lse, 1.0, visibility, context))
        runtime.end()
