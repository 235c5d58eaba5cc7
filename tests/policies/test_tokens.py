"""Policies that see tokens: by kind, by id and by text against a naive lookup, and rules of one's own that ask for them."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import golden
from tests.helpers.byte_tokenizer import UTF8, checkpoint_with_tokenizer
from torch import Tensor

import sinkscope as ss
from sinkscope.policies.policy import POLICIES

DECODINGS: dict[str, Any] = {
    "llada": ss.LladaDecoding(length=12, steps=6, block=6),
    "llama": ss.GreedyDecoding(length=8, eos=None),
    "sdar": ss.SdarDecoding(length=12, block=4, steps=2, top_k=1, scoring="raw", threshold=1.0),
}
PROMPT = [list(b"Say. 12,\nno\tend"), list(b"(a) b; c: d. 7!")]
"""Bytes are the ids of the tokenizer beside the golden checkpoints; from UTF8 on they are named, <|245|> and so on."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Golden checkpoints with a tokenizer."""
    folder = tmp_path_factory.mktemp("spelled")
    mask = golden.manifest("sdar")["special_ids"]["mask"]
    return {
        family: ss.load(
            checkpoint_with_tokenizer(family, folder / family),
            device="cpu",
            mask_token_id=mask if family == "sdar" else None,
        )
        for family in DECODINGS
    }


def kinds(model: Any) -> dict[str, set[int]]:
    """Kind → ids, from what the letters of the byte vocabulary are."""
    special = {*range(UTF8, model.shape.vocabulary)}
    named = {"mask": {model.ids.mask} - {None}, "end": set(model.ids.eos)}
    letters = {
        "punctuation": {ord(letter) for letter in string.punctuation},
        "digit": {ord(letter) for letter in string.digits},
        "newline": {10, 11, 12, 13},
        "whitespace": {9, 28, 29, 30, 31, 32},
    }
    ours = {kind: ids - named["end"] - named["mask"] for kind, ids in letters.items()}
    template = special - named["mask"] - named["end"]
    rest = set(range(UTF8)) - set().union(*ours.values(), *named.values())
    return {**named, **ours, "template": template, "word": rest}


def taken(model: Any, family: str, policy: Any) -> tuple[Any, np.ndarray]:
    """A run under a policy, and what was masked: bool [sample, step, layer, head, key]."""
    run = ss.generate(model, torch.tensor(PROMPT), DECODINGS[family], policy=policy, capture=ss.Capture(), seed=[1, 2])
    return run, run.trace.masked_keys().values


@pytest.mark.parametrize("family", DECODINGS)
@pytest.mark.parametrize("kind", ["punctuation", "mask", "newline", "template", "digit", "word", "whitespace", "end"])
def test_a_kind_is_every_token_of_that_kind(models: dict[str, Any], family: str, kind: str) -> None:
    model = models[family]
    wanted = kinds(model)[kind]
    run, masked = taken(model, family, f"kind:{kind},heads=1,layers=1")
    tokens = run.trace.dataset["tokens"].values  # [sample, step, key]
    forwards = run.trace.dataset["masked_keys"].sizes["step"]
    for row in range(2):
        for step in range(forwards):
            here = np.isin(tokens[row, step], sorted(wanted))
            if family == "sdar":  # keys behind the block that is being written do not exist yet
                here &= np.isfinite(run.trace.dataset["received"].values[row, step, 0, 0])
            assert np.array_equal(masked[row, step, 1, 1], here), (row, step)
    assert not masked[:, :, [0, 2]].any()
    assert not masked[:, :, 1, [0, 2, 3]].any()
    if kind == ("word" if family == "sdar" else "template"):
        assert masked[..., len(PROMPT[0]) :].any(), "tokens that were written are looked at too"


@pytest.mark.parametrize("family", DECODINGS)
def test_a_text_is_the_token_that_is_spelled_so(models: dict[str, Any], family: str) -> None:
    by_text, one = taken(models[family], family, ss.MaskToken([".", ",", 55]))
    by_id, two = taken(models[family], family, f"token:{ord('.')}+{ord(',')}+{ord('7')}")
    assert one.any()
    assert np.array_equal(one, two)
    assert torch.equal(by_text.states, by_id.states)


def test_without_a_tokenizer_masks_and_ends_are_known_and_nothing_else() -> None:
    model, ids = golden.model("llada"), torch.tensor(PROMPT)
    run = ss.generate(model, ids, DECODINGS["llada"], policy="kind:mask", capture=ss.Capture())
    masked = run.trace.masked_keys().values[:, :, 0, 0]
    assert np.array_equal(masked, run.trace.dataset["tokens"].values == model.ids.mask)
    for policy, says in (
        ("kind:punctuation", "has no tokenizer"),
        ("kind:template", "has no tokenizer"),
        ('token:"."', "has no tokenizer"),
    ):
        with pytest.raises(ss.InputError, match=says):
            ss.generate(model, ids, DECODINGS["llada"], policy=policy)


def test_a_text_that_is_no_token_is_refused(models: dict[str, Any]) -> None:
    for text in ('token:"no such"', 'token:13+"ab"'):
        with pytest.raises(ss.InputError, match="no token of this model has the text"):
            ss.generate(models["llada"], torch.tensor(PROMPT), DECODINGS["llada"], policy=text)


@pytest.mark.parametrize("family", ["llada", "llama"])
def test_a_reading_looks_at_tokens_too(models: dict[str, Any], family: str) -> None:
    from sinkscope.tasks.likelihood import causal, masked

    model, ids = models[family], torch.tensor(PROMPT)
    stops = "+".join(str(ord(letter)) for letter in string.punctuation)
    values = []
    for text in ("kind:punctuation", f"token:{stops}", "none"):
        policy = ss.parse_policy(text)
        if family == "llama":
            values.append(causal(model, ids, 6, policy, [0, 1]).values)
        else:
            where = torch.arange(ids.shape[1]).expand(2, -1) % 5 == 4
            values.append(masked(model, ids, where, 2, policy, [0, 1]).values)
    assert torch.equal(values[0], values[1])
    assert not torch.allclose(values[0], values[2], atol=1e-3)


def test_the_organism_knows_its_own_punctuation() -> None:
    model = ss.load("organism/scratch")
    ids = model.tokenizer("Sum: 3, 4 and 5.\nAnswer:")["input_ids"]
    marks = [i for i, token in enumerate(ids) if model.tokenizer.decode([token]).strip() in tuple(string.punctuation)]
    assert marks, "choose another text"
    decoding = ss.LladaDecoding(length=4, steps=2, block=4)
    run = ss.generate(model, torch.tensor([ids]), decoding, policy="kind:punctuation", capture=ss.Capture())
    first = run.trace.masked_keys().values[0, 0, 0, 0]
    assert np.flatnonzero(first).tolist() == marks


# ---- a policy of one's own -----------------------------------------------------------------------


@pytest.fixture
def two_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that asks for tokens and one that does not, registered for a test."""
    monkeypatch.setattr(POLICIES, "_things", dict(POLICIES))

    @ss.register
    @dataclass(frozen=True)
    class StrongestWord(ss.ScoredRule):
        """The strongest of the keys whose token is below a number."""

        below: int
        scope: str = "head"
        word = "below"

        def choose(self, scores: Tensor, candidates: Tensor, tokens: Tensor) -> Tensor:
            allowed = candidates & (tokens < self.below) & (tokens >= 0)
            best = scores.masked_fill(~allowed, -1.0).argmax(-1, keepdim=True)
            return torch.zeros_like(candidates).scatter(-1, best, True) & allowed

    @ss.register
    @dataclass(frozen=True)
    class Strongest(ss.ScoredRule):
        """The strongest key."""

        k: int = 1
        scope: str = "head"
        word = "strongest"

        def choose(self, scores: Tensor, candidates: Tensor) -> Tensor:
            best = scores.masked_fill(~candidates, -1.0).argmax(-1, keepdim=True)
            return torch.zeros_like(candidates).scatter(-1, best, True) & candidates


@pytest.mark.usefixtures("two_of_our_own")
@pytest.mark.parametrize("family", DECODINGS)
@pytest.mark.parametrize("options", ["@head", "@layer", "@model", "@head,when=same", "@layer,heads=1+2"])
def test_a_policy_of_ones_own_may_ask_for_tokens_or_not(models: dict[str, Any], family: str, options: str) -> None:
    model = models[family]
    ours, one = taken(model, family, f"strongest:1{options}")
    package, two = taken(model, family, f"top:1{options}")
    assert np.array_equal(one, two)
    assert torch.equal(ours.states, package.states)
    # Where every token is allowed it is the same again; where few are, only those are masked.
    _, three = taken(model, family, f"below:100000{options}")
    assert np.array_equal(three, two)
    run, masked = taken(model, family, f"below:60{options}")
    tokens = run.trace.dataset["tokens"].values[:, :, None, None]
    assert masked.any()
    assert not (masked & ~((tokens < 60) & (tokens >= 0))).any()
    assert not np.array_equal(masked, two)
    assert ss.parse_policy(f"below:60{options}").identity() == str(ss.parse_policy(f"below:60{options}"))
