"""A policy that takes nothing is no policy, bit for bit; and whatever happens inside, the model is left as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.helpers import golden
from tests.policies.follow import DECODINGS, GUIDED, PROMPT, Setting, heard, inputs, prompts

import sinkscope as ss
from sinkscope.tasks.likelihood import masked

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
    "no sink so strong": ss.MaskTop(2, epsilon=1e6, heads=[1], queries="scored"),
    "no token of that id": ss.MaskToken(100_000, queries="scored", heads=[0]),
    "no columns in one head": ss.MaskKeys({0: []}, heads=[2], queries="scored"),
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


def test_a_moment_that_never_comes_takes_nothing() -> None:
    """One token behind the prompt is predicted by the prefill alone."""
    setting = Setting("llama", ss.GreedyDecoding(length=1, eos=None))
    plain, logits = generated(setting, None)
    for policy in ("first:1,prefill=no", "top:1,prefill=no", "top:1", "window:2,prefill=no"):
        run, same = generated(setting, policy)
        assert torch.equal(same[0], logits[0]), policy
        assert torch.equal(run.states, plain.states)
        assert run.hidden_share.isnan().all()
        assert run.sinks_hit.isnan().all()


def test_queries_that_there_are_none_of_lose_nothing() -> None:
    """All queries of the only block are masked; where all of a text is masked, so are its."""
    model = golden.model("sdar")
    decoding = ss.SdarDecoding(length=4, block=4, steps=1, top_k=1, scoring="raw", threshold=1.0)
    ids = torch.arange(12)[None]
    with heard(model) as logits:
        plain = ss.generate(model, ids, decoding, seed=1, cache=True)
    with heard(model) as same:
        run = ss.generate(model, ids, decoding, policy="first:1,queries=decided,prefill=no", seed=1, cache=True)
    assert torch.equal(run.states, plain.states)
    assert all(torch.equal(one, two) for one, two in zip(same[:2], logits[:2], strict=True))
    assert run.hidden_share.isnan().all()
    ids = prompts("llada")
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    found, free = (
        masked(golden.model("llada"), ids, everywhere, 0, policy, [0, 1])
        for policy in (ss.MaskFirst(1, queries="decided"), None)
    )
    assert torch.equal(found.values, free.values)
    assert found.account["hidden_share"].isnan().all()


@pytest.mark.parametrize(("family", "keys"), [("llada", 23), ("dream", 23)])
def test_queries_that_would_lose_every_key_lose_none(family: str, keys: int) -> None:
    """Also where the last query is none of them."""
    setting = Setting(family, DECODINGS[family])
    plain, logits = generated(setting, None)
    for queries in ("decided", "masked", "scored"):
        run, same = generated(setting, ss.MaskTop(keys, queries=queries), capture=ss.Capture())
        torch.testing.assert_close(same, logits, atol=1e-4, rtol=1e-4)
        assert torch.equal(run.states, plain.states)
        assert not run.trace.masked_keys().values.any()
        assert run.hidden_share.isnan().all()


ALONE = {
    "llama": [
        "first:1,prefill=no,queries=newest",
        "top:2,by=received,prefill=yes,heads=0+2",
        "above:-2@layer,by=distant",
        "random(top:2,prefill=yes,by=sum)",
        "top:4,epsilon=-2,among=others",
    ],
    "dream": ["top:2,queries=scored,heads=1", "first:2,queries=decided", "random(top:2,queries=masked)"],
    "sdar": ["first:2,prefill=no,queries=masked", "above:-5,queries=scored", "top:6,epsilon=-6,among=others"],
}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "text"), [(family, text) for family, texts in ALONE.items() for text in texts])
def test_rows_of_a_batch_are_as_alone(family: str, text: str) -> None:
    decodings = {
        **DECODINGS,
        "sdar": ss.SdarDecoding(length=8, block=4, steps=2, top_k=1, scoring="raw", threshold=1.0),
    }
    model, decoding, ids = golden.model(family), decodings[family], prompts(family, rows=3) % 200
    together = ss.generate(model, ids, decoding, policy=text, seed=[7, 8, 9])
    for row in range(3):
        alone = ss.generate(model, ids[row : row + 1], decoding, policy=text, seed=[7 + row])
        assert together.answers[row] == alone.answers[0]
        for name in ("hidden_share", "sinks_hit", "strongest_hit", "sink_removed"):
            one, two = (getattr(run, name) for run in (together, alone))
            torch.testing.assert_close(one[row : row + 1], two, atol=1e-5, rtol=1e-5, equal_nan=True)
    assert bool((together.hidden_share > 0).any())


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
def test_an_interrupted_generation_leaves_the_model_as_it_was(family: str, error: type[BaseException]) -> None:
    model = golden.model(family)
    ids = prompts(family)
    before = model.logits(ids)

    def stop(done: int, expected: int, states: torch.Tensor) -> None:
        if done == 3:
            raise error

    with pytest.raises(error):
        ss.generate(
            model, ids, DECODINGS[family], policy=ss.MaskTop(2), capture=ss.Capture(anatomy=True), progress=stop,
        )  # fmt: skip
    assert torch.equal(model.logits(ids), before)


@pytest.mark.parametrize("family", golden.FAMILIES)
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_in_the_middle_of_a_forward_leaves_the_model_as_it_was(
    family: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sinkscope.attention import interface

    model = golden.model(family)
    ids = prompts(family)
    before = model.logits(ids)
    plain, calls = interface.attend_and_sum, []

    def failing(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise error
        return plain(*arguments)

    monkeypatch.setattr(interface, "attend_and_sum", failing)
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
