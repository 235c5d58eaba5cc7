"""Inputs: a given text is read in one forward, by every family; messages, raw texts, and texts that are too long."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.helpers import golden
from tests.helpers.byte_tokenizer import TURNS, checkpoint_with_tokenizer

import sinkscope as ss
from sinkscope.decoding.reading import given_text
from sinkscope.models.prompts import encode

FAMILIES = [*golden.FAMILIES, *golden.LATER]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_is_read_by_every_family(family: str) -> None:
    """Its attention is that of one plain forward, and every trace of it can be judged."""
    model = golden.model(family)
    ids = torch.arange(5, 29).view(2, 12)
    reading = given_text(model) if not model.spec.blocks else type(given_text(model))(block=4)
    run = ss.generate(model, ids, reading, capture=ss.Capture(level="maps"))
    assert run.sequences.tolist() == ids.tolist()
    assert len(run) == max(run.forwards) == 1
    assert run.answers == [[], []]
    maps = model.attention(ids, **({"block": 4} if model.spec.blocks else {})).transpose(0, 1)
    np.testing.assert_allclose(run.trace.dataset["attention"].values[:, 0], maps.numpy(), atol=1e-5)
    assert ss.diagnose(run.trace)["sinks"].question == "sinks"
    assert not run.trace.dataset["decided"].values.any()


def test_the_prefill_of_a_generation_is_what_a_reading_records() -> None:
    model, ids = golden.model("llama"), torch.arange(5, 41)[None]
    read = ss.generate(model, ids, ss.GivenText(), capture=True)
    went_on = ss.generate(model, ids, length=1, capture=True)
    for name in ("received", "received_far", "prefill_received"):
        np.testing.assert_array_equal(read.trace.dataset[name].values, went_on.trace.dataset[name].values[..., :36])


def test_a_policy_acts_on_a_text_that_is_read() -> None:
    run = ss.generate(golden.model("llada"), [list(range(5, 25))], ss.GivenText(), policy="first:2", capture=True)
    assert run.trace.masked_keys().values[..., :2].all()


@pytest.mark.parametrize("family", ["llada", "dream", "mmada", "llama"])
def test_more_tokens_than_the_context_are_refused_before_anything_is_computed(family: str) -> None:
    model = golden.model(family)
    with pytest.raises(ss.InputError, match=r"pass the context of|the context of"):
        ss.generate(model, [[5, 9, 2]], length=4096)
    with pytest.raises(ss.InputError, match="shorten it"):
        ss.generate(model, torch.full((1, 4097), 5), ss.GivenText())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ss.Model:
    return ss.load(checkpoint_with_tokenizer("llada", tmp_path_factory.mktemp("model") / "llada", TURNS))


def test_messages_and_raw_texts(model: ss.Model) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    alone, several = encode(model, turns), encode(model, [turns, "Hi"])
    wanted = model.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert alone.ids[0].tolist() == model.tokenizer(wanted, add_special_tokens=False).input_ids
    assert several.lengths == [alone.ids.shape[1], encode(model, "Hi").ids.shape[1]]
    assert encode(model, "Hi", raw=True).ids[0].tolist() == model.tokenizer("Hi").input_ids
    assert encode(model, [{"role": "user", "content": "Hi"}]).ids.tolist() == encode(model, "Hi").ids.tolist()
    for prompts, words in (
        ([{"role": "user"}], "role and content"),
        ([turns, [5, 9]], "mixes"),
        ([{"role": "user", "content": " "}], "is empty"),
    ):
        with pytest.raises(ss.InputError, match=words):
            encode(model, prompts)
    with pytest.raises(ss.InputError, match="--raw leaves it out"):
        encode(model, turns, raw=True)
