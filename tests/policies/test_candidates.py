"""Which keys may be taken, from when on, and what the restrictions mean."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import golden
from tests.helpers.naive_sinks import sinks_of_far
from tests.policies.follow import DECODINGS, GUIDED, PLAIN, PROMPT, SETTINGS, Setting, inputs, prompts
from tests.policies.matrix import FIXED, RESTRICTED, SCORED

import sinkscope as ss
from sinkscope.attention import fused
from sinkscope.sinks import sinks_of


def recorded(setting: Setting, policy: Any) -> tuple[Any, np.ndarray]:
    """A run, and what was taken: Bool [sample, step, layer, head, key]."""
    run = ss.generate(golden.model(setting.family), policy=policy, capture=ss.Capture(), **inputs(setting))
    return run, run.trace.masked_keys().values


@pytest.mark.parametrize(("name", "when"), list(zip(SCORED, ["previous", "same"] * len(SCORED), strict=False)))
def test_the_newest_token_of_a_causal_model_is_never_taken(name: str, when: str) -> None:
    run, taken = recorded(Setting("llama", DECODINGS["llama"]), SCORED[name](when=when))
    assert taken.any()
    for step in range(len(run)):
        assert not taken[:, step, :, :, PROMPT + step - 1 :].any()


@pytest.mark.parametrize("name", ["random-first", "random-keys"])
def test_nor_by_the_control_of_a_fixed_policy(name: str) -> None:
    for seed in range(4):
        control = FIXED[name]()
        _, taken = recorded(Setting("llama", DECODINGS["llama"]), ss.MaskRandom(like=control.like, seed=seed))
        assert taken.any()
        assert not taken[:, 0, :, :, PROMPT - 1 :].any()


@pytest.mark.slow
@pytest.mark.parametrize("family", golden.FAMILIES)
def test_padding_is_never_taken(family: str) -> None:
    for index, (name, make) in enumerate({**SCORED, **FIXED, **RESTRICTED}.items()):
        if index % 4 != golden.FAMILIES.index(family):
            continue  # the matrix runs them all, padded too
        _, taken = recorded(Setting(family, DECODINGS[family], "padded"), make())
        assert not taken[1, ..., :3].any(), name
        assert taken.any() or "window" in name, name


@pytest.mark.slow
@pytest.mark.parametrize("setting", PLAIN, ids=str)
def test_scores_of_the_step_before_act_from_the_second_forward_on(setting: Setting) -> None:
    for name in ("top", "keep", f"random-{'above' if setting.family == 'dream' else 'top'}"):
        run, taken = recorded(setting, SCORED[name]())
        assert not taken[:, 0].any(), name
        assert (run.trace.dataset["hidden_share"].values[:, 0] == 0).all(), name
        assert taken[:, 1].any(), name
    plain = ss.generate(golden.model(setting.family), **inputs(setting))
    assert torch.equal(run.states[1], plain.states[1])


@pytest.mark.slow
@pytest.mark.parametrize("setting", PLAIN, ids=str)
def test_fixed_policies_and_own_scores_act_in_the_first_forward(setting: Setting) -> None:
    half = PLAIN.index(setting) % 2
    for name, make in list(FIXED.items())[half::2]:
        run, taken = recorded(setting, make())
        if "mass" in name:  # it needs scores to know the mass
            assert not taken[:, 0].any()
        else:
            assert (run.trace.dataset["hidden_share"].values[:, 0] > 0).any(), name
    _, taken = recorded(setting, ss.MaskTop(2, when="same"))
    assert (taken[:, 0].sum(-1) == 2).all()


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_first_and_window_count_from_the_first_real_token(family: str) -> None:
    setting = Setting(family, DECODINGS[family], "padded")
    _, taken = recorded(setting, ss.MaskFirst(2))
    for row, begin in ((0, 0), (1, 3)):
        assert (np.flatnonzero(taken[row].any((0, 1, 2))) == [begin, begin + 1]).all()
        assert taken[row, ..., begin : begin + 2].all()
    given = inputs(setting)
    maps = golden.model(family).attention(given["prompts"], given["attention_mask"], policy=ss.Window(1, first=2))
    for row, begin in ((0, 0), (1, 3)):
        last = maps[:, row, :, -1]  # [layer, head, key]
        seen = [j for j in range(PROMPT) if bool((last[..., j] > 0).all())]
        assert seen == [begin, begin + 1, PROMPT - 1]
        assert float(last[..., [j for j in range(PROMPT) if j not in seen]].max()) == 0


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_columns_index_the_tensor_as_it_is_passed(family: str) -> None:
    _, taken = recorded(Setting(family, DECODINGS[family], "padded"), ss.MaskKeys({1: [1, 4]}))
    assert np.flatnonzero(taken[0].any((0, 1, 2))).tolist() == [1, 4]
    assert np.flatnonzero(taken[1].any((0, 1, 2))).tolist() == [4]  # column 1 is padding there
    assert not taken[:, :, [0, 2]].any()


@pytest.mark.slow
@given(
    scores=st.lists(st.integers(0, 3), min_size=2, max_size=12),
    left_out=st.integers(0, 2**12 - 1),
    k=st.integers(0, 14),
    fraction=st.sampled_from([0.05, 0.1, 0.25, 1 / 3, 0.5, 0.7, 0.9, 1e-12, 1 - 1e-12]),
)
def test_ties_go_to_the_lower_index(scores: list[int], left_out: int, k: int, fraction: float) -> None:
    keys = len(scores)
    candidates = [j for j in range(keys) if not left_out >> j & 1]
    ordered = sorted(candidates, key=lambda j: (-scores[j], j))
    given_scores = torch.tensor(scores, dtype=torch.float32)[None, None]
    allowed = torch.tensor([[[j in candidates for j in range(keys)]]])

    def chosen(policy: Any) -> list[int]:
        return policy.choose(given_scores, allowed)[0, 0].nonzero()[:, 0].tolist()

    assert chosen(ss.MaskTop(k)) == sorted(ordered[:k])
    kept = math.ceil(Fraction(str(fraction)) * len(candidates))
    assert chosen(ss.KeepTop(fraction)) == sorted(ordered[kept:])


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [0.1, 1 / 3, 0.9, 1e-12])
def test_keep_top_keeps_the_ceiling(fraction: float) -> None:
    for setting in (PLAIN[0], PLAIN[3], Setting("dream", DECODINGS["dream"], "padded")):
        run, taken = recorded(setting, ss.KeepTop(fraction))
        for step in range(1, len(run)):
            for row in range(2):
                real = int((run.trace.dataset["region"].values[row] != "padding").sum())
                n = PROMPT + step - 1 if setting.family == "llama" else real
                assert (taken[row, step].sum(-1) == n - math.ceil(Fraction(str(fraction)) * n)).all()


def test_regions() -> None:
    for setting in (PLAIN[0], PLAIN[3]):
        _, prompt = recorded(setting, ss.MaskTop(3, regions="prompt"))
        assert (prompt[:, 1:].sum(-1) == 3).all()
        assert not prompt[..., PROMPT:].any()
        _, answer = recorded(setting, ss.MaskTop(3, regions="answer"))
        assert answer.any()
        assert not answer[..., :PROMPT].any()
        _, fixed = recorded(setting, ss.MaskKeys({0: [2, PROMPT + 1]}, regions="answer"))
        assert np.flatnonzero(fixed.any((0, 1, 2, 3))).tolist() == [PROMPT + 1]


def test_layers_and_steps() -> None:
    for policy in (ss.MaskTop(2, layers=[2], steps=[1, 3]), ss.MaskFirst(2, layers=[2], steps=[1, 3])):
        run, taken = recorded(PLAIN[0], policy)
        acted = taken.any((0, 3, 4))  # [step, layer]
        assert np.argwhere(acted).tolist() == [[1, 2], [3, 2]]
        share = run.trace.dataset["hidden_share"].values
        assert (share[:, [1, 3], 2] > 0).all()
        assert share.sum() == share[:, [1, 3], 2].sum()


def test_and_takes_the_union() -> None:
    model, ids = golden.model("llada"), prompts("llada")
    one, two, window = ss.MaskKeys({0: [1, 2]}), ss.MaskFirst(1), ss.Window(4)
    maps = model.attention(ids, policy=one & two & window)[0]  # layer 0 does not depend on what is taken
    gone = [model.attention(ids, policy=policy)[0] == 0 for policy in (one, two, window)]
    stranded = (gone[0] | gone[1] | gone[2]).all(-1)
    union = (gone[0] | gone[1] | gone[2]) & ~stranded[..., None]
    assert torch.equal(maps == 0, union)
    _, both = recorded(PLAIN[0], ss.MaskKeys({1: [3]}) & ss.MaskFirst(2, layers=[1, 2]))
    assert np.flatnonzero(both[:, :, 1].any((0, 1, 2))).tolist() == [0, 1, 3]
    assert np.flatnonzero(both[:, :, 2].any((0, 1, 2))).tolist() == [0, 1]


def test_top_with_epsilon_takes_only_sinks() -> None:
    epsilon = 2.0
    run, taken = recorded(PLAIN[0], ss.MaskTop(4, epsilon=epsilon))
    raw = run.trace.dataset["received_raw"].values
    K = raw.shape[-1]
    others = (raw.sum(-1, keepdims=True) - raw) / (K - 1)
    sinks = raw > others + epsilon
    rank = (-raw).argsort(-1, kind="stable").argsort(-1, kind="stable")
    expected = (sinks & (rank < 4))[:, :-1]
    assert np.array_equal(taken[:, 1:], expected)
    counts = taken[:, 1:].sum(-1)
    assert counts.min() < 4
    assert counts.max() > 0


def test_raw_scores_find_a_hidden_sink_again_and_masked_scores_do_not() -> None:
    """The feedback that alternates a mask when the scores are those that acted."""
    layer = {"layers": [0]}  # keys and queries of layer 0 change only by decided tokens
    _, raw = recorded(PLAIN[0], ss.MaskTop(1, **layer))
    _, masked = recorded(PLAIN[0], ss.MaskTop(1, scores="masked", **layer))
    again_raw = (raw[:, 2:, 0] & raw[:, 1:-1, 0]).any(-1).mean()
    again_masked = (masked[:, 2:, 0] & masked[:, 1:-1, 0]).any(-1).mean()
    assert again_masked == 0
    assert again_raw > 0.5


def test_both_guidance_branches_are_masked_alike() -> None:
    for batch in ("plain", "padded"):
        setting = Setting("llada", GUIDED, batch)
        run, taken = recorded(setting, ss.MaskTop(3))
        data = run.trace.dataset
        assert (taken[:, 1:].sum(-1) == 3).all()
        for name in ("received", "received_uncond"):
            assert (data[name].values[taken] == 0).all()
            rest = data[name].values[~taken]
            assert (rest[~np.isnan(rest)] > 0).all()


@pytest.mark.parametrize("setting", SETTINGS[::2], ids=str)
def test_totals_of_a_run_are_those_of_its_trace(setting: Setting) -> None:
    """Over all layers, heads and the steps in which some layer masked a key of the row; sinks are pooled."""
    causal = setting.family == "llama"
    # Silenced keys keep their attention, so that a causal trace has all that its sinks are told by.
    run, taken = recorded(setting, ss.MaskAbove(1.5, effect="silence" if causal else "hide"))
    data = run.trace.dataset
    for row in range(2):
        acted = taken[row].any((-1, -2, -3))  # [step]
        assert acted.any()
        share = data["hidden_share"].values[row][acted].mean()
        assert float(run.hidden_share[row]) == pytest.approx(share, abs=1e-5)
        if causal:
            written = (data["tokens"].values[row] >= 0) & (data["region"].values[row] != "padding")
            far = data["received_far"].values[row]
            sinks = np.stack([sinks_of_far(far[step], written[step]) for step in np.flatnonzero(acted)])
        else:
            sinks = sinks_of(data["received_raw"].values[row][acted])
        caught = (sinks & taken[row][acted]).sum()
        assert float(run.sinks_hit[row]) == pytest.approx(caught / sinks.sum(), abs=1e-5)
    assert ss.generate(golden.model(setting.family), **inputs(setting)).hidden_share is None


def test_a_trace_keeps_the_hidden_sets(tmp_path: Any) -> None:
    run, taken = recorded(PLAIN[0], ss.MaskTop(3))
    run.trace.save(tmp_path / "one.zarr.zip")
    back = ss.Trace.open(tmp_path / "one.zarr.zip")
    assert np.array_equal(back.masked_keys().values, taken)
    assert back.attributes["policy"] == "top:3"
    assert back.dataset["masked_keys"].dtype == np.uint8
    assert back.dataset.sizes["byte"] == math.ceil(taken.shape[-1] / 8)
    np.testing.assert_allclose(back.dataset["hidden_share"], run.trace.dataset["hidden_share"], atol=1e-3)


def test_level_layers_averages_and_has_no_sets() -> None:
    given = inputs(PLAIN[0])
    model = golden.model("llada")
    run = ss.generate(model, policy=ss.MaskTop(3), capture=ss.Capture(level="layers"), **given)
    heads, _ = recorded(PLAIN[0], ss.MaskTop(3))
    for name in ("hidden_share", "received_raw"):
        np.testing.assert_allclose(run.trace.dataset[name], heads.trace.dataset[name].mean("head"), atol=1e-5)
    with pytest.raises(ss.InputError, match="level 'layers'"):
        run.trace.masked_keys()
    with pytest.raises(ss.InputError, match="without a policy"):
        ss.generate(model, capture=ss.Capture(), **given).trace.masked_keys()


def test_recording_less_does_not_change_what_a_policy_does() -> None:
    given = inputs(PLAIN[0])
    model = golden.model("llada")
    full, _ = recorded(PLAIN[0], ss.MaskTop(3))
    for capture in (
        None,
        ss.Capture(every=3),
        ss.Capture(layers=[1]),
        ss.Capture(heads=[0, 2]),
        ss.Capture(level="maps"),
    ):
        run = ss.generate(model, policy=ss.MaskTop(3), capture=capture, **given)
        assert torch.equal(run.states, full.states)
        assert torch.equal(run.hidden_share, full.hidden_share)


@pytest.mark.slow
@pytest.mark.parametrize("effect", ["hide", "silence"])
@pytest.mark.parametrize("family", golden.FAMILIES)
def test_rows_without_a_key_poison_nobody(family: str, effect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA kernels give NaN and +inf for a padded query that sees nothing; nothing of it may reach a real one."""
    setting = Setting(family, DECODINGS[family], "padded")
    policy = ss.MaskFirst(2, effect=effect)
    expected, _ = recorded(setting, policy)
    plain, poisoned = fused.kernel, []

    def kernel(query: Any, key: Any, value: Any, bias: Any, causal: bool, scale: float) -> Any:
        out, lse = plain(query, key, value, bias, causal, scale)
        seen = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
        seen = (seen.tril() if causal else seen) & (True if bias is None else bias > float("-inf"))
        blind = (~seen.any(-1)).expand(lse.shape)
        poisoned.append(bool(blind.any()))
        return out.masked_fill(blind[..., None], float("nan")), lse.masked_fill(blind, float("inf"))

    monkeypatch.setattr(fused, "kernel", kernel)
    run, _ = recorded(setting, policy)
    assert any(poisoned) == (family == "llama")
    assert torch.equal(run.states, expected.states)
    assert torch.isfinite(run.hidden_share).all()
