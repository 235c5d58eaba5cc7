"""Values that cannot work are refused with a sentence, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from tests.helpers import golden
from tests.policies.follow import DECODINGS, heard, prompts

import sinkscope as ss
from sinkscope.models.model import Model
from sinkscope.tasks.likelihood import causal, masked

BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "k below 0": (lambda: ss.MaskTop(-1), "k should be a whole number"),
    "k not whole": (lambda: ss.MaskTop(1.0), "k should be a whole number"),
    "k a truth": (lambda: ss.MaskTop(True), "k should be a whole number"),
    "k a text": (lambda: ss.MaskFirst("3"), "k should be a whole number"),
    "k none": (lambda: ss.MaskFirst(None), "k should be a whole number"),
    "epsilon nan": (lambda: ss.MaskAbove(float("nan")), "epsilon should be a finite number"),
    "epsilon inf": (lambda: ss.MaskAbove(float("inf")), "epsilon should be a finite number"),
    "epsilon −inf of top": (lambda: ss.MaskTop(1, epsilon=float("-inf")), "epsilon should be a finite number"),
    "epsilon too long": (lambda: ss.MaskAbove(10**400), "epsilon should be a finite number"),
    "epsilon a text": (lambda: ss.MaskAbove("3"), "epsilon should be a finite number"),
    "epsilon a truth": (lambda: ss.MaskTop(1, epsilon=True), "epsilon should be a finite number"),
    "scope": (lambda: ss.MaskTop(1, scope="heads"), "did you mean head"),
    "scope a list": (lambda: ss.KeepTop(0.5, scope=["head"]), "scope"),
    "scores": (lambda: ss.MaskTop(1, scores="Raw"), "did you mean raw"),
    "when": (lambda: ss.MaskAbove(1, when="now"), "when 'now' is not known"),
    "effect": (lambda: ss.MaskFirst(1, effect="mute"), "effect 'mute' is not known"),
    "regions": (lambda: ss.MaskFirst(1, regions="padding"), "regions"),
    "same with model scope": (lambda: ss.MaskTop(1, scope="model", when="same"), "layer by layer"),
    "same with model scope, above": (lambda: ss.MaskAbove(1, scope="model", when="same"), "layer by layer"),
    "same with model scope, keep": (lambda: ss.KeepTop(0.5, scope="model", when="same"), "layer by layer"),
    "same with masked scores": (lambda: ss.MaskTop(1, scores="masked", when="same"), "before anything is masked"),
    "layers below 0": (lambda: ss.MaskTop(1, layers=[-1]), "layers should be indices"),
    "layers a text": (lambda: ss.MaskTop(1, layers="0"), "layers should be a list"),
    "layers empty": (lambda: ss.MaskTop(1, layers=[]), "layers should be a list"),
    "layers with a truth": (lambda: ss.MaskTop(1, layers=[True]), "layers should be indices"),
    "steps with a float": (lambda: ss.MaskTop(1, steps=[1.5]), "steps should be indices"),
    "fraction 0": (lambda: ss.KeepTop(0), "fraction should lie above 0"),
    "fraction above 1": (lambda: ss.KeepTop(1.01), "fraction should lie above 0"),
    "fraction nan": (lambda: ss.KeepTop(float("nan")), "fraction should be a finite number"),
    "fraction a text": (lambda: ss.KeepTop("0.5"), "fraction should be a finite number"),
    "width 0": (lambda: ss.Window(0), "width should be a whole number"),
    "first below 0": (lambda: ss.Window(4, first=-1), "first should be a whole number"),
    "future not whole": (lambda: ss.Window(4, future=0.5), "future should be a whole number"),
    "window regions": (lambda: ss.Window(4, regions="prompt"), "distance, not regions"),
    "keys no mapping": (lambda: ss.MaskKeys([0, 1]), "mapping of layer to columns"),
    "keys a tuple": (lambda: ss.MaskKeys((1, 2)), "mapping of layer to columns"),
    "keys a number": (lambda: ss.MaskKeys(3), "mapping of layer to columns"),
    "keys columns a number": (lambda: ss.MaskKeys({0: 3}), "list of columns"),
    "keys columns a text": (lambda: ss.MaskKeys({0: "3"}), "list of columns"),
    "keys column below 0": (lambda: ss.MaskKeys({0: [-1]}), "a column of MaskKeys should be a whole number"),
    "keys column not whole": (lambda: ss.MaskKeys({0: [1.0]}), "a column of MaskKeys should be a whole number"),
    "keys layer a text": (lambda: ss.MaskKeys({"0": [1]}), "a layer of MaskKeys should be a whole number"),
    "control of nothing": (lambda: ss.MaskRandom(like=None), "takes one policy"),
    "control of a text": (lambda: ss.MaskRandom(like="top:5"), "takes one policy"),
    "control of both": (lambda: ss.MaskRandom(like=ss.MaskTop(1) & ss.MaskFirst(1)), "not a combination"),
    "control of a control": (lambda: ss.MaskRandom(like=ss.MaskRandom(like=ss.MaskTop(1))), "is one already"),
    "control of a window": (lambda: ss.MaskRandom(like=ss.Window(4)), "for every query"),
    "control of a small keep": (lambda: ss.MaskRandom(like=ss.KeepTop(0.4)), "use fraction"),
    "match": (lambda: ss.MaskRandom(like=ss.MaskTop(1), match="number"), "match 'number' is not known"),
    "seed": (lambda: ss.MaskRandom(like=ss.MaskTop(1), seed=-1), "seed should be a whole number"),
    "control with effect": (lambda: ss.MaskRandom(like=ss.MaskTop(1), effect="silence"), "from its policy"),
    "control with layers": (lambda: ss.MaskRandom(like=ss.MaskTop(1), layers=[0]), "from its policy"),
    "and with a text": (lambda: ss.MaskTop(1) & "first:1", "combines policies"),
    "and with none": (lambda: ss.MaskTop(1) & None, "combines policies"),
    "different effects": (lambda: ss.MaskTop(1) & ss.MaskFirst(1, effect="silence"), "different effects"),
    "queries": (lambda: ss.MaskTop(1, queries="mask"), "did you mean masked"),
    "prefill": (lambda: ss.MaskFirst(1, prefill="maybe"), "got 'maybe'"),
    "prefill a number": (lambda: ss.MaskFirst(1, prefill=2), "prefill should be True or False"),
    "by": (lambda: ss.MaskTop(1, by="sums"), "did you mean sum"),
    "by with masked scores": (lambda: ss.MaskTop(1, by="sum", scores="masked"), "leave out scores=masked"),
    "by of the same forward": (lambda: ss.MaskTop(1, by="newest", when="same"), "when=same"),
    "heads below 0": (lambda: ss.MaskTop(1, heads=[-1]), "heads should be indices"),
    "heads empty": (lambda: ss.MaskTop(1, heads=[]), "heads should be a list"),
    "heads of a window": (lambda: ss.Window(4, heads=[0]), "the same for all heads"),
    "among without epsilon": (lambda: ss.MaskTop(1, among="others"), "needs ε"),
    "among": (lambda: ss.MaskTop(1, epsilon=3.0, among="rest"), "among 'rest' is not known"),
    "control with queries": (lambda: ss.MaskRandom(like=ss.MaskTop(1), queries="scored"), "from its policy"),
    "control with prefill": (lambda: ss.MaskRandom(like=ss.MaskTop(1), prefill=True), "from its policy"),
    "different queries": (lambda: ss.MaskTop(1) & ss.MaskFirst(1, queries="scored"), "different queries"),
    "different moments": (lambda: ss.MaskTop(1) & ss.MaskFirst(1, prefill=False), "same queries= and prefill="),
    "kind": (lambda: ss.MaskKind("punctation"), "did you mean punctuation"),
    "no tokens": (lambda: ss.MaskToken([]), "takes token ids from 0 on, or texts"),
    "token below 0": (lambda: ss.MaskToken(-1), "takes token ids from 0 on, or texts"),
    "token a truth": (lambda: ss.MaskToken([True]), "takes token ids from 0 on, or texts"),
    "token empty": (lambda: ss.MaskToken(""), "takes token ids from 0 on, or texts"),
    "two windows": (lambda: ss.Window(3) & ss.Window(4), "two windows"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_an_input_error(name: str) -> None:
    make, says = BAD[name]
    with pytest.raises(ss.InputError, match=says):
        make()


UNFIT = {
    "more keys than there are": (ss.MaskTop(1000), "the sequence has only"),
    "more first keys than there are": (ss.MaskFirst(1000), "the sequence has only"),
    "no such layer": (ss.MaskTop(1, layers=[0, 3]), "layers 0 to 2"),
    "no such layer of a window": (ss.Window(4, layers=[7]), "layers 0 to 2"),
    "no such layer of keys": (ss.MaskKeys({3: [0]}), "layers 0 to 2"),
    "no such column": (ss.MaskKeys({0: [500]}), "columns 0 to"),
    "no such layer in a combination": (ss.MaskTop(1) & ss.MaskFirst(1, layers=[9]), "layers 0 to 2"),
    "no such layer in a control": (ss.MaskRandom(like=ss.MaskTop(1, layers=[9])), "layers 0 to 2"),
    "no such head": (ss.MaskTop(1, heads=[0, 4]), "heads 0 to 3"),
    "no such head of a fixed rule": (ss.MaskFirst(1, heads=[9]), "heads 0 to 3"),
    "no such head in a control": (ss.MaskRandom(like=ss.MaskTop(1, heads=[9])), "heads 0 to 3"),
    "a text that is no policy": ("tip:5", "did you mean top"),
    "a class": (ss.MaskTop, "should be a policy"),
    "a number": (5, "should be a policy"),
}


@cache
def plain_run(family: str) -> ss.Run:
    """A run without a policy."""
    return ss.generate(golden.model(family), prompts(family), DECODINGS[family])


def never_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no network runs."""
    for name in ("hidden", "forward"):
        monkeypatch.setattr(Model, name, lambda *arguments, **options: pytest.fail("a forward ran"))


@pytest.mark.parametrize("family", golden.FAMILIES)
@pytest.mark.parametrize("name", UNFIT)
def test_a_policy_that_does_not_fit_is_refused_before_the_first_forward(
    family: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, says = UNFIT[name]
    model, ids = golden.model(family), prompts(family)
    run = plain_run(family)
    never_forward(monkeypatch)
    with pytest.raises(ss.InputError, match=says):
        ss.generate(model, ids, DECODINGS[family], policy=policy)
    with pytest.raises(ss.InputError, match=says):
        ss.replay(model, run, policy)
    with pytest.raises(ss.InputError, match=says):
        model.logits(ids, policy=policy)
    with pytest.raises(ss.InputError, match=says):
        model.attention(ids, policy=policy)


SENSELESS = {
    "causal": {
        "first:1,queries=masked": "no mask tokens",
        "top:1,queries=decided": "no mask tokens",
        "random(top:1,queries=masked)": "no mask tokens",
    },
    "masked": {
        "first:1,prefill=no": "no prefill",
        "top:1,prefill=yes": "no prefill",
        "random(first:1,prefill=yes)": "no prefill",
        "first:1,queries=newest": "is for causal models",
        "top:1,by=newest": "is for causal models",
        "top:1,by=distant": "is for causal models",
        "top:1 & above:1,by=newest": "is for causal models",
    },
    "block": {
        "top:1,prefill=yes": "use prefill=yes with a fixed rule",
        "random(first:1,prefill=yes),match=mass": "use prefill=yes with a fixed rule",
        "first:1,queries=newest": "is for causal models",
        "above:1,by=distant": "is for causal models",
    },
}
"""Kind of attention → what makes no sense there, and a part of the reason."""


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (family, text)
        for kind, families in {
            "causal": ["llama"],
            "masked": ["llada", "dream", "mmada", "a2d_qwen3"],
            "block": ["sdar", "fast_dllm_v2", "llada2"],
        }.items()
        for family in families
        for text in SENSELESS[kind]
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(
    family: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = golden.model(family), torch.arange(24).view(2, 12)
    never_forward(monkeypatch)
    policy = ss.parse_policy(text)
    says = SENSELESS[model.attention_kind][text]
    with pytest.raises(ss.InputError, match=says) as refused:
        ss.generate(model, ids, policy=policy)
    assert "does not suit this model" in str(refused.value)
    read = causal if family == "llama" else partial(masked, where=ids % 3 == 2)
    with pytest.raises(ss.InputError, match=says):
        read(model, ids, given=2, policy=policy, keys=[0, 1])


def test_k_may_be_as_large_as_the_sequence() -> None:
    size = prompts("llada").shape[1] + DECODINGS["llada"].length
    run = ss.generate(golden.model("llada"), prompts("llada"), DECODINGS["llada"], policy=ss.MaskTop(size))
    # A query that would lose every key keeps its scores, so nothing was masked in any step.
    assert run.hidden_share.isnan().all()
    assert run.sinks_hit.isnan().all()
    with pytest.raises(ss.InputError, match=f"only {size}"):
        ss.generate(golden.model("llada"), prompts("llada"), DECODINGS["llada"], policy=ss.MaskTop(size + 1))


SINGLE = [
    ss.MaskKeys({0: [1]}), ss.MaskFirst(2), ss.Window(3), ss.Window(3, first=1), ss.MaskTop(2, when="same"),
    ss.MaskAbove(0.5, when="same", scope="layer"), ss.MaskTop(8, when="same", scope="layer", epsilon=-4),
    ss.KeepTop(0.5, when="same"), ss.MaskRandom(like=ss.MaskFirst(2)),
    ss.MaskRandom(like=ss.MaskTop(2, when="same")), ss.MaskRandom(like=ss.MaskTop(2, when="same"), match="mass"),
    ss.MaskFirst(1, effect="silence"), ss.MaskFirst(1) & ss.Window(4),
]  # fmt: skip
WAITING = [
    ss.MaskTop(2), ss.MaskAbove(1.0, scope="layer"), ss.KeepTop(0.5, scope="model"), ss.MaskRandom(like=ss.MaskTop(2)),
    ss.MaskRandom(like=ss.MaskFirst(2), match="mass"), ss.MaskFirst(1) & ss.MaskTop(2),
]  # fmt: skip


@pytest.mark.parametrize("family", golden.FAMILIES)
@pytest.mark.parametrize("policy", SINGLE, ids=str)
def test_a_single_forward_takes_policies_that_need_no_step_before(family: str, policy: Any) -> None:
    model, ids = golden.model(family), prompts(family)
    plain = model.logits(ids)
    assert float((model.logits(ids, policy=policy) - plain).abs().max()) > 1e-3
    maps = model.attention(ids, policy=policy)
    torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]), atol=1e-5, rtol=0)
    same = torch.equal(maps[0], model.attention(ids)[0])  # in layer 0 only hiding changes the attention itself
    assert same == (
        getattr(policy, "effect", "hide") == "silence"
        or (isinstance(policy, ss.MaskKeys) and 0 not in dict(policy.chosen))
        or (isinstance(policy, ss.MaskAbove) and family == "llama")  # whose layer 0 has no sink on average
    )
    assert torch.equal(model.logits(ids), plain)


@pytest.mark.parametrize("family", golden.FAMILIES)
@pytest.mark.parametrize("policy", WAITING, ids=str)
def test_a_single_forward_refuses_those_that_do(family: str, policy: Any) -> None:
    model, ids = golden.model(family), prompts(family)
    for call in (model.logits, model.attention):
        with pytest.raises(ss.InputError, match=r"a single forward has none; use MaskKeys, MaskFirst, Window"):
            call(ids, policy=policy)


@pytest.mark.slow
@pytest.mark.parametrize("family", golden.FAMILIES)
def test_a_single_forward_equals_the_first_of_a_generation(family: str) -> None:
    """What the answer's masks see: the first forward of a loop, under fixed policies and own scores."""
    model = golden.model(family)
    for policy in (
        ss.MaskFirst(2),
        ss.Window(4, effect="silence"),
        ss.MaskTop(2, when="same"),
        ss.MaskKeys({1: [3, 5]}),
    ):
        with heard(model) as calls:
            run = ss.generate(model, prompts(family), DECODINGS[family], policy=policy)
        first = run.states[0]
        if family == "llama":
            last = model.logits(first[:, first[0] >= 0], policy=policy)[:, -1]
            torch.testing.assert_close(calls[0][:, -1], last, atol=1e-5, rtol=1e-5)  # the head runs on other shapes
        else:
            assert torch.equal(calls[0], model.logits(first, policy=policy))


def test_padding_in_a_single_forward() -> None:
    for family in golden.FAMILIES:
        model, ids = golden.model(family), prompts(family, rows=1)
        wide, mask = torch.cat([torch.full((1, 4), 9), ids], 1), torch.ones(1, 15, dtype=torch.long)
        mask[:, :4] = 0
        for policy in (
            ss.MaskFirst(2),
            ss.Window(4, first=1),
            ss.MaskTop(2, when="same"),
            ss.MaskFirst(2, effect="silence"),
        ):
            torch.testing.assert_close(
                model.logits(wide, mask, policy=policy)[:, 4:], model.logits(ids, policy=policy), atol=2e-4, rtol=1e-4,
            )  # fmt: skip
