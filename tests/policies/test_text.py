"""Policies as text: `parse_policy(str(policy))` is the policy, and what does not parse says what would."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import sinkscope as ss
from sinkscope.base.errors import InputError
from sinkscope.policies.policy import POLICIES, Both

SOME = st.one_of(st.none(), st.lists(st.integers(0, 40), min_size=1, max_size=4))
FRACTIONS = st.one_of(
    st.sampled_from([0.5, 0.25, 0.1, 1.0, 1e-7, 1 / 3]), st.floats(1e-9, 1.0, exclude_min=True, allow_subnormal=False)
)
EPSILONS = st.one_of(
    st.integers(-5, 50), st.floats(-1e30, 1e30, allow_nan=False), st.sampled_from([3.0, 1e-5, 1e22, -0.0])
)
WHOLE = st.integers(0, 10**6)
SHARED = {
    "effect": st.sampled_from(["hide", "silence"]),
    "layers": SOME,
    "steps": SOME,
    "regions": st.sampled_from([None, "prompt", "answer"]),
    "heads": SOME,
    "queries": st.sampled_from(["all", "scored", "newest", "masked", "decided"]),
    "prefill": st.sampled_from([None, True, False]),
}
ANY_TEXT = st.text(min_size=1, max_size=6)


@st.composite
def scored(draw: st.DrawFn, kind: Any, *arguments: Any, **more: Any) -> Any:
    """A policy with scope, scores and when that go together."""
    options = {name: draw(values) for name, values in {**SHARED, **more}.items()}
    options["when"] = draw(st.sampled_from(["previous", "same"]))
    same = options["when"] == "same"
    options["scope"] = draw(st.sampled_from(["head", "layer"] if same else ["head", "layer", "model"]))
    options["scores"] = "raw" if same else draw(st.sampled_from(["raw", "masked"]))
    if not same and options["scores"] == "raw":
        options["by"] = draw(st.sampled_from([None, "newest", "received", "sum", "distant"]))
    if options.get("epsilon") is not None:
        options["among"] = draw(st.sampled_from(["sinks", "others"]))
    return kind(*(draw(one) for one in arguments), **options)


WINDOWS = st.builds(
    ss.Window, st.integers(1, 10**6), first=WHOLE, future=st.one_of(st.none(), WHOLE),
    **{name: values for name, values in SHARED.items() if name not in ("regions", "heads")},
)  # fmt: skip
CONTROLLED = st.one_of(
    scored(ss.MaskTop, WHOLE, epsilon=st.one_of(st.none(), EPSILONS)),
    scored(ss.MaskAbove, EPSILONS),
    scored(ss.KeepTop, st.floats(0.5, 1.0)),
    st.builds(ss.MaskFirst, WHOLE, **SHARED),
    st.builds(ss.MaskKind, st.sampled_from(["mask", "punctuation", "template", "word"]), **SHARED),
    st.builds(ss.MaskToken, st.lists(st.one_of(WHOLE, ANY_TEXT), min_size=1, max_size=3), **SHARED),
    st.builds(ss.MaskKeys, st.dictionaries(st.integers(0, 99), st.lists(WHOLE, max_size=4), max_size=4), **SHARED),
)
SINGLE = st.one_of(
    CONTROLLED,
    scored(ss.KeepTop, FRACTIONS),
    WINDOWS,
    st.builds(
        ss.MaskRandom,
        like=CONTROLLED,
        match=st.sampled_from(["count", "mass"]),
        seed=st.one_of(WHOLE, st.integers(0, 2**70)),
    ),
)


@given(SINGLE)
def test_round_trip(policy: Any) -> None:
    text = str(policy)
    assert ss.parse_policy(text) == policy
    assert str(ss.parse_policy(text)) == text
    assert hash(ss.parse_policy(text)) == hash(policy)


@given(st.lists(SINGLE, min_size=2, max_size=4), st.booleans(), st.booleans())
def test_round_trip_of_combinations(parts: list[Any], from_the_right: bool, as_drawn: bool) -> None:
    if not as_drawn:  # most draws name different queries
        plain = {"effect": "hide", "queries": "all", "prefill": None}
        parts = [
            replace(part, like=replace(part.like, **plain), **plain)
            if isinstance(part, ss.MaskRandom)
            else replace(part, **plain)
            for part in parts
        ]
    alike = {(part.effect, part.queries, part.prefill) for part in parts}
    windows = sum(isinstance(part, ss.Window) for part in parts)

    def combined() -> Any:
        if from_the_right:
            policy = parts[-1]
            for part in reversed(parts[:-1]):
                policy = part & policy
        else:
            policy = parts[0]
            for part in parts[1:]:
                policy = policy & part
        return policy

    if len(alike) > 1 or windows > 1:
        with pytest.raises(ss.InputError):
            combined()
        return
    policy = combined()
    assert ss.parse_policy(str(policy)) == policy
    assert list(policy.parts()) == parts


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("top:5", ss.MaskTop(5)),
        ("top:5@layer", ss.MaskTop(5, scope="layer")),
        ("top:5@model,epsilon=3", ss.MaskTop(5, scope="model", epsilon=3.0)),
        ("top:5,scores=masked,effect=silence", ss.MaskTop(5, scores="masked", effect="silence")),
        ("top:5@head,when=same", ss.MaskTop(5, when="same")),
        ("top:5,layers=0+2+5-7,steps=1-3", ss.MaskTop(5, layers=[0, 2, 5, 6, 7], steps=range(1, 4))),
        ("above:3", ss.MaskAbove(3.0)),
        ("above:2.5,regions=prompt", ss.MaskAbove(2.5, regions="prompt")),
        ("first:1", ss.MaskFirst(1)),
        ("keys:0=0+5/2=1", ss.MaskKeys({0: [0, 5], 2: [1]})),
        ("keys:", ss.MaskKeys({})),
        ("window:64,first=4,future=0", ss.Window(64, first=4, future=0)),
        ("keep:0.25@layer", ss.KeepTop(0.25, scope="layer")),
        ("keep:1", ss.KeepTop(1.0)),
        (
            "random(top:5@layer),match=mass,seed=3",
            ss.MaskRandom(like=ss.MaskTop(5, scope="layer"), match="mass", seed=3),
        ),
        (" first:1 & window:64,first=4 ", ss.MaskFirst(1) & ss.Window(64, first=4)),
        ("random(top:2) & first:1", ss.MaskRandom(like=ss.MaskTop(2)) & ss.MaskFirst(1)),
        ("top:1,epsilon=3,among=others", ss.MaskTop(1, epsilon=3.0, among="others")),
        ("top:2,by=received,prefill=yes", ss.MaskTop(2, by="received", prefill=True)),
        ("first:1,prefill=no,queries=newest", ss.MaskFirst(1, queries="newest", prefill=False)),
        ("above:3,heads=0+3-5,queries=scored", ss.MaskAbove(3.0, heads=[0, 3, 4, 5], queries="scored")),
        ("random(first:1,queries=decided)", ss.MaskRandom(like=ss.MaskFirst(1, queries="decided"))),
        ("kind:punctuation,queries=masked", ss.MaskKind("punctuation", queries="masked")),
        ("token:13", ss.MaskToken(13)),
        ('token:13+".",layers=1', ss.MaskToken([13, "."], layers=[1])),
        ('token:"\\u002c"+" the"', ss.MaskToken([",", " the"])),
        ('top:1 & token:")"', ss.MaskTop(1) & ss.MaskToken(")")),
        ('token:"a)"+"\\"&(" & top:1', ss.MaskToken(["a)", '"&(']) & ss.MaskTop(1)),
        ("none", None),
    ],
)
def test_texts(text: str, policy: Any) -> None:
    assert ss.parse_policy(text) == policy


@pytest.mark.parametrize(
    ("text", "identity"),
    [
        *(
            (text, text)
            for text in (
                "top:5", "top:5@layer", "top:5@model,epsilon=3", "top:3,epsilon=2.5,effect=silence", "top:1,when=same", "above:3",
                "above:-2.5@layer,regions=prompt", "above:1.5,effect=silence,layers=1,steps=2,regions=answer,when=same",
                "first:1", "first:4,effect=silence,layers=0+1,steps=3,regions=prompt", "keys:0=0+5/2=1", "keys:",
                "keys:1=3,effect=silence,regions=answer", "window:64,first=4,future=0",
                "window:8,effect=silence,layers=2,steps=1",
                "keep:0.25@layer", "keep:1", "random(top:5)", "random(top:5@layer),match=mass,seed=3",
                "random(keys:0=0,effect=silence)", "random(above:3,layers=1),seed=7", "first:1 & window:64,first=4",
                "random(top:2) & first:1",
                "top:2@model,effect=silence & keys:1=3,effect=silence & window:9,effect=silence",
            )
        ),
        ("top:5,scores=masked,effect=silence", "top:5,effect=silence,scores=masked"),
        ("top:5,layers=0+2+5-7,steps=1-3", "top:5,layers=0+2+5+6+7,steps=1+2+3"),
        ("keep:0.1@model,scores=masked,regions=prompt", "keep:0.1@model,regions=prompt,scores=masked"),
    ],
)  # fmt: skip
def test_identities_stay_as_they_were(text: str, identity: str) -> None:
    """Records of a study are found by them: an option that came later leaves those without it alone."""
    policy = ss.parse_policy(text)
    assert policy is not None
    assert policy.identity() == str(policy) == identity


def test_and_is_associative() -> None:
    a, b, c = ss.MaskTop(1), ss.MaskFirst(2), ss.Window(3)
    assert a & (b & c) == (a & b) & c == Both((a, b, c))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tpo:5", "did you mean top"),
        ("TOP:5", "did you mean top"),
        ("above3", "did you mean above"),
        ("windw:5", "did you mean window"),
        ("keap:0.5", "did you mean keep"),
        ("top:5@hed", "did you mean head"),
        ("top:5@model,when=same", "layer by layer"),
        ("top:5,scors=raw", "did you mean scores"),
        ("top:5,scores=rae", "did you mean raw"),
        ("top:5,effect=hid", "did you mean hide"),
        ("top:5,regions=promt", "did you mean prompt"),
        ("random(top:5),mach=mass", "did you mean match"),
        ("random(top:5),match=mas", "did you mean mass"),
        ("random(top:1 & random(top:2))", "control of one policy"),
    ],
)
def test_the_nearest_match_is_named(text: str, says: str) -> None:
    with pytest.raises(ss.InputError, match=says):
        ss.parse_policy(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "  ", "top", "top5", "top:", "top:x", "top:5.5", "top:-1", "top:5@", "top:5,", "top:5,epsilon", "top:5,epsilon=",
        "top:5,epsilon=nan", "top:5;epsilon=3", "top:5 first:1", "top:5 &", "& top:5", "top:5 && first:1", "above:inf",
        "above:nan", "above:" + "9" * 400, "first:1@layer", "first:1,scores=raw", "keys:0", "keys:0=", "keys:0=a", "keys:a=0",
        "keys:0=-1", "window:0", "window:4,first=-1", "window:4,future=1.5", "window:4,regions=prompt", "keep:0", "keep:1.5",
        "keep:half", "random:5", "random()", "random(top:5", "random(top:5)@layer", "random(top:5)x", "random(top:5) first:1",
        "random(window:4)", "random(random(top:5))", "random(top:5 & first:1)", "random(none)", "random(keep:0.2)",
        "random(top:5),seed=-1", "random(top:5),layers=1", "top:5,layers=", "top:5,layers=a", "top:5,layers=3-1",
        "top:5,layers=0-99999999999", "top:5,layers=1,2", "none & top:5", "window:4 & window:5", "top:5 & first:1,effect=silence",
        "💧:5", "top:5@layer@model", "5:top", "top=5", "first:1,prefill=maybe", "first:1,prefill=1", "top:1,queries=last",
        "top:1,by=rows", "top:1,by=sum,scores=masked", "top:1,by=newest,when=same", "first:1,by=sum", "top:1,among=others",
        "above:3,among=others", "top:1,heads=", "top:1,heads=a", "window:4,heads=0", "kind:", "kind:letters", "kind:word@head",
        "token:", "token:.", "token:-1", 'token:""', "token:1.5", "token:true", "random(top:1),queries=scored",
        "top:1,queries=scored & first:1", "top:1,prefill=no & first:1",
    ],
)  # fmt: skip
def test_what_does_not_parse_is_an_input_error(text: str) -> None:
    with pytest.raises(ss.InputError):
        ss.parse_policy(text)


@pytest.mark.parametrize("text", ["top", "tpo:5", "hello world", "top;5"])
def test_the_message_says_what_is_allowed(text: str) -> None:
    with pytest.raises(ss.InputError) as error:
        ss.parse_policy(text)
    words = [
        "top:K", "above:EPSILON", "first:K", "keys:", "window:WIDTH", "keep:FRACTION", "random(POLICY)", "@layer",
    ]  # fmt: skip
    assert all(word in str(error.value) for word in words)


@pytest.mark.slow
@given(st.text(max_size=30))
def test_no_text_raises_anything_else(text: str) -> None:
    with contextlib.suppress(ss.InputError):
        ss.parse_policy(text)


@given(st.text(alphabet="topabvefirskywndm:@,=&()0123456789.+-/ ", max_size=30))
def test_nor_does_a_text_that_looks_like_one(text: str) -> None:
    try:
        policy = ss.parse_policy(text)
    except ss.InputError:
        return
    assert policy is None or ss.parse_policy(str(policy)) == policy


@pytest.mark.parametrize("value", [None, 5, ss.MaskTop(5), b"top:5", ["top:5"]])
def test_only_text_is_parsed(value: Any) -> None:
    with pytest.raises(ss.InputError, match="a policy is a text"):
        ss.parse_policy(value)


@dataclass(frozen=True)
class MaskWeakest(ss.MaskTop):
    """Another rule under the word of the one that it derives from."""

    def choose(self, scores: Tensor, candidates: Tensor) -> Tensor:
        return super().choose(-scores, candidates)


@dataclass(frozen=True)
class Scopeless(ss.ScoredRule):
    k: int = 1


def test_a_class_that_is_not_registered_shares_no_identity() -> None:
    """A record of MaskTop(1) was taken for one of a class that derives from it."""
    ours, derived = ss.MaskTop(1), MaskWeakest(1)
    assert ours.identity() == "top:1"
    assert derived.identity() == f"top:1 of {__name__}.MaskWeakest"
    identities = {
        policy.identity()
        for policy in (
            ours, derived, ss.MaskTop(1, epsilon=2.0), ss.MaskTop(1, "layer"), ss.MaskRandom(ours), ss.MaskRandom(derived),
        )
    }  # fmt: skip
    assert len(identities) == 6
    with pytest.raises(InputError, match="expected a number"):
        ss.parse_policy(derived.identity())


def test_a_scored_rule_without_a_scope_says_so() -> None:
    with pytest.raises(InputError, match="Scopeless has no scope"):
        Scopeless()


def test_a_registered_policy_is_named_among_the_allowed_and_may_have_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class MaskPlaces(ss.FixedRule):
        places: tuple[int, ...]
        beside: tuple[int, ...] = ()
        word = "places"

    monkeypatch.setattr(POLICIES, "_things", {**POLICIES, "places": MaskPlaces})
    assert ss.parse_policy("places:3+5-7,beside=1") == MaskPlaces((3, 5, 6, 7), (1,))
    assert ss.parse_policy(str(MaskPlaces((3, 5), (1,)))) == MaskPlaces((3, 5), (1,))
    with pytest.raises(ss.InputError, match="registered here: places"):
        ss.parse_policy("plaices:3")
