"""A policy that takes nothing is no policy, bit for bit; and whatever happens inside, the model is left as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.helpers import golden
from tests.policies.follow import DECODINGS, GUIDED, PROMPT, Setting, heard, inputs, prompts

import sinkscope as ss

WIDE = 64

NOTHING = {
    "top:0": ss.MaskTop(0),
    "top:0@layer": ss.MaskTop(0, scope="layer", effect="silence"),
    "control of top:0": ss.MaskRandom(like=ss.MaskTop(0)),
    "mass control of top:0": ss.MaskRandom(like=ss.MaskTop(0), match="mass"),
    "first:0": ss.MaskFirst(0),
    "no keys": ss.MaskKeys({}),
    "no columns": ss.MaskKeys({0: [], 2: []}),
    "keep all": ss.KeepTop(1.0),
    "keep all@model": ss.KeepTop(1.0, scope="model"),
    "control of keep all": ss.MaskRandom(like=ss.KeepTop(1.0)),
    "wide window": ss.Window(WIDE),
    "wide window with first": ss.Window(WIDE, first=3),
    "wide window, all ahead": ss.Window(WIDE, future=WIDE),
    "both": ss.MaskTop(0) & ss.Window(WIDE),
}


def generated(setting: Setting, policy: Any, **options: Any) -> tuple[Any, list[torch.Tensor]]:
    """A run and the logits of its forwards."""
    model = golden.model(setting.family)
    with heard(model) as calls:
        run = ss.generate(model, policy=policy, **inputs(setting), **options)
    return run, calls


SETTINGS = [
    *(Setting(family, decoding) for family, decoding in DECODINGS.items()),
    Setting("llada", GUIDED),
    Setting("dream", DECODINGS["dream"], "padded"),
    Setting("llama", DECODINGS["llama"], "padded"),
]


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_taking_nothing_changes_no_bit(setting: Setting) -> None:
    plain, logits = generated(setting, None)
    half = SETTINGS.index(setting) % 2
    for name, policy in list(NOTHING.items())[half::2]:
        run, others = generated(setting, policy)
        assert torch.equal(run.states, plain.states), name
        assert len(others) == len(logits)
        assert all(torch.equal(one, two) for one, two in zip(others, logits, strict=True)), name


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_a_window_as_wide_as_the_sequence_is_the_narrowest_that_takes_nothing(family: str) -> None:
    setting = Setting(family, DECODINGS[family])
    plain, logits = generated(setting, None)
    size = plain.states.shape[-1] - (family == "llama")  # the last token of a causal model is never fed
    _, same = generated(setting, ss.Window(size))
    assert all(torch.equal(one, two) for one, two in zip(same, logits, strict=True))
    _, other = generated(setting, ss.Window(size - 1))
    assert not torch.equal(other[-1], logits[-1])


def test_a_causal_model_never_looks_ahead_so_future_0_takes_nothing_from_it() -> None:
    setting = Setting("llama", DECODINGS["llama"])
    _, logits = generated(setting, None)
    _, same = generated(setting, ss.Window(WIDE, future=0))
    assert all(torch.equal(one, two) for one, two in zip(same, logits, strict=True))


def test_future_0_makes_a_diffusion_model_causal() -> None:
    model = golden.model("llada")
    ids = prompts("llada", length=20)
    policy = ss.Window(20, future=0)
    whole = model.logits(ids, policy=policy)
    part = model.logits(ids[:, :9], policy=ss.Window(9, future=0))
    torch.testing.assert_close(whole[:, :9], part, atol=1e-4, rtol=1e-4)
    maps = model.attention(ids, policy=policy)
    assert float(maps.triu(1).abs().max()) == 0


@pytest.mark.parametrize("family", golden.FAMILIES)
@pytest.mark.parametrize("policy", [ss.MaskTop(3), ss.Window(3, effect="silence"), ss.MaskFirst(2)], ids=str)
def test_generating_under_a_policy_leaves_the_model_as_it_was(family: str, policy: Any) -> None:
    model = golden.model(family)
    ids = prompts(family)
    before = model.logits(ids)
    run = ss.generate(model, ids, DECODINGS[family], policy=policy, capture=ss.Capture(anatomy=True))
    assert run.hidden_share is not None
    assert float(run.hidden_share.min()) > 0
    assert torch.equal(model.logits(ids), before)


@pytest.mark.parametrize("family", golden.FAMILIES)
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_generation_leaves_the_model_as_it_was(
    family: str, error: type[BaseException]
) -> None:
    model = golden.model(family)
    ids = prompts(family)
    before = model.logits(ids)

    def stop(done: int, expected: int, states: torch.Tensor) -> None:
        if done == 3:
            raise error

    with pytest.raises(error):
        ss.generate(
            model,
            ids,
            DECODINGS[family],
            policy=ss.MaskTop(2),
            capture=ss.Capture(anatomy=True),
            progress=stop,
        )
    assert torch.equal(model.logits(ids), before)


@pytest.mark.parametrize("family", golden.FAMILIES)
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_in_the_middle_of_a_forward_leaves_the_model_as_it_was(
    family: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sinkscope.attention import fused

    model = golden.model(family)
    ids = prompts(family)
    before = model.logits(ids)
    plain, calls = fused.attend_and_sum, []

    def failing(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise error
        return plain(*arguments)

    monkeypatch.setattr(fused, "attend_and_sum", failing)
    with pytest.raises(error):
        ss.generate(model, ids, DECODINGS[family], policy=ss.MaskFirst(2), capture=ss.Capture())
    monkeypatch.undo()
    assert torch.equal(model.logits(ids), before)


def test_what_is_not_taken_is_still_recorded() -> None:
    """A threshold that no key passes: nothing is taken, and the record says so."""
    model = golden.model("llada")
    ids = prompts("llada")
    plain = ss.generate(model, ids, DECODINGS["llada"], capture=ss.Capture())
    run = ss.generate(model, ids, DECODINGS["llada"], policy=ss.MaskAbove(1e6), capture=ss.Capture())
    assert torch.equal(run.states, plain.states)
    assert not run.trace.masked_keys().values.any()
    data = run.trace.dataset
    assert (data["hidden_share"].values == 0).all()
    assert (data["received"].values == data["received_raw"].values).all()
    assert (data["received"].values == plain.trace.dataset["received"].values).all()
    assert data.sizes["key"] == PROMPT + DECODINGS["llada"].length
