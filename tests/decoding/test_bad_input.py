"""What cannot work is refused before anything runs, in one line that names the value and the fix; decodings as JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import golden

import sinkscope as ss
from sinkscope.decoding import decoding_from_json

IDS = torch.tensor([[5, 9, 2, 30]])


def refused(call: Any, *words: str) -> str:
    """Runs what must fail; the message is one line that holds all words."""
    with pytest.raises(ss.InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"
    return message


BAD_DECODINGS = {
    "length not divisible by blocks": (lambda: ss.LladaDecoding(30, 30, 8), ["30", "block 8", "length=32", "block=6"]),
    "mmada too": (lambda: ss.MmadaDecoding(length=30, steps=30, block=8), ["30", "block 8", "length=32"]),
    "steps not divisible": (lambda: ss.LladaDecoding(length=32, steps=10, block=8), ["steps 10", "4 blocks", "try steps=8"]),
    "fewer steps than blocks": (lambda: ss.LladaDecoding(length=32, steps=1, block=8), ["steps 1", "try steps=4"]),
    "unknown algorithm": (lambda: ss.DreamDecoding(algorithm="entrpy"), ["'entrpy'", "did you mean entropy?"]),
    "unrelated algorithm": (lambda: ss.DreamDecoding(algorithm="zzzz"), ["'zzzz'", "maskgit_plus", "origin"]),
    "unknown remasking": (lambda: ss.LladaDecoding(remasking="low"), ["'low'", "low_confidence"]),
    "top_p above 1": (lambda: ss.DreamDecoding(top_p=1.5), ["top_p", "1.5", "leave it out"]),
    "top_p 0": (lambda: ss.DreamDecoding(top_p=0.0), ["top_p", "0.0"]),
    "top_p below 0": (lambda: ss.SamplingDecoding(top_p=-0.1), ["top_p", "-0.1"]),
    "top_p not a number": (lambda: ss.SamplingDecoding(top_p=float("nan")), ["top_p", "nan"]),
    "top_k 0": (lambda: ss.DreamDecoding(top_k=0), ["top_k", "at least 1"]),
    "negative temperature": (lambda: ss.LladaDecoding(temperature=-1.0), ["temperature", "-1.0"]),
    "endless temperature": (lambda: ss.LladaDecoding(temperature=float("inf")), ["temperature", "inf"]),
    "sampling at 0": (lambda: ss.SamplingDecoding(temperature=0.0), ["temperature", "GreedyDecoding"]),
    "length 0": (lambda: ss.GreedyDecoding(length=0), ["length", "at least 1", "0"]),
    "length a float": (lambda: ss.DreamDecoding(length=8.0), ["length", "8.0"]),
    "length a bool": (lambda: ss.DreamDecoding(length=True), ["length", "True"]),
    "steps 0": (lambda: ss.DreamDecoding(steps=0), ["steps", "at least 1"]),
    "eps": (lambda: ss.DreamDecoding(eps=0.0), ["eps", "1e-3"]),
    "eos a word": (lambda: ss.GreedyDecoding(eos="end"), ["eos", "'end'", "token ids"]),
    "eos empty": (lambda: ss.GreedyDecoding(eos=()), ["eos", "token ids"]),
    "no timesteps": (lambda: ss.MmadaImageDecoding(timesteps=0), ["timesteps"]),
    "negative guidance": (lambda: ss.MmadaImageDecoding(guidance=-1.0), ["guidance"]),
    "sdar at 0": (lambda: ss.SdarDecoding(temperature=0), ["top_k=1"]),
    "stop a word": (lambda: ss.SdarDecoding(stop="eos"), ["stop should be 'model', None, or token ids"]),
    "steps of a block": (lambda: ss.SdarDecoding(steps=3, scoring="raw"), ["divide the block"]),
    "remasking of sdar": (lambda: ss.SdarDecoding(remasking="entropy_bounded"), ["not known"]),
    "sub-blocks": (lambda: ss.FastDllmDecoding(small_block=5), ["multiple of small_block"]),
    "no whole block": (lambda: ss.FastDllmDecoding(length=8), ["less than one block"]),
    "no step": (lambda: ss.Llada2Decoding(length=2, minimal_topk=3), ["leaves no step"]),
    "negative threshold": (lambda: ss.Llada2Decoding(threshold=-1), ["threshold"]),
    "an algorithm of open_dcoder": (lambda: ss.OpenDcoderDecoding(algorithm="p3"), ["did you mean p2"]),
    "top_p of rnd1": (lambda: ss.Rnd1Decoding(top_p=1.5), ["top_p"]),
}  # fmt: skip


@pytest.mark.parametrize("what", list(BAD_DECODINGS))
def test_decodings_check_themselves(what: str) -> None:
    make, words = BAD_DECODINGS[what]
    refused(make, *words)


@pytest.mark.parametrize(
    ("family", "decoding", "words"),
    [
        ("llama", ss.LladaDecoding(), ["LladaDecoding is for llada", "causal model", "GreedyDecoding"]),
        ("llama", ss.DreamDecoding(), ["DreamDecoding is for dream", "causal model", "GreedyDecoding"]),
        ("llada", ss.GreedyDecoding(), ["GreedyDecoding is for causal", "llada model", "LladaDecoding"]),
        ("dream", ss.LladaDecoding(), ["llada", "dream model", "DreamDecoding"]),
        ("mmada", ss.LladaDecoding(), ["llada", "mmada model", "MmadaDecoding"]),
        ("llada", ss.MmadaImageDecoding(), ["mmada", "LladaDecoding"]),
        ("llada", "entropy", ["decoding should be", "ss.LladaDecoding()", "str"]),
        ("llada", ss.LladaDecoding(eot_id=512), ["eot_id 512", "512 ids"]),
        ("mmada", ss.MmadaDecoding(stop_at=9999), ["stop_at 9999", "576 ids"]),
        ("llama", ss.GreedyDecoding(eos=(3, 600)), ["eos 600", "512 ids"]),
        ("llada", ss.LladaDecoding(confidence_eos_eot_inf=True), ["end-of-turn", "give eot_id"]),
        ("mmada", ss.MmadaImageDecoding(offset=550), ["vocabulary of 576", "give offset"]),
        ("sdar", ss.SdarDecoding(length=4, stop=[999]), ["999 is not in the vocabulary"]),
        ("sdar", ss.Llada2Decoding(), ["use SdarDecoding"]),
    ],
)
def test_a_decoding_must_fit_its_model(family: str, decoding: Any, words: list[str]) -> None:
    refused(lambda: ss.generate(golden.model(family), IDS, decoding, seed=1), *words)


@pytest.mark.parametrize(
    ("family", "options", "words"),
    [
        ("llada_moe", {"cache": True}, "no blocks to keep"), ("sdar", {"reuse": "prefix:4"}, "cannot act"),
        ("sdar", {"policy": "random(top:9)"}, "smaller number"), ("sdar", {"attention_mask": [[0, 1, 1, 1]]}, "pad on the right"),
    ],
)  # fmt: skip
def test_what_a_family_cannot_do(family: str, options: dict[str, Any], words: str) -> None:
    decoding = ss.SdarDecoding(length=4) if family == "sdar" else ss.LladaDecoding(4, block=4)
    refused(lambda: ss.generate(golden.model(family), IDS, decoding, seed=0, **options), words)


def test_a_block_loop_cannot_be_replayed() -> None:
    model = golden.model("sdar")
    run = ss.generate(model, IDS, ss.SdarDecoding(length=4), seed=0)
    refused(lambda: ss.replay(model, run, "top:1"), "replay cannot follow")


@pytest.mark.parametrize("family", ["llada2", "open_dcoder"])
def test_a_missing_mask_token_says_how_to_name_it(family: str) -> None:
    named = family if family == "open_dcoder" else None
    model = ss.load(golden.checkpoint(family), device="cpu", family=named)
    refused(lambda: ss.generate(model, IDS), "mask_token_id")


@pytest.mark.parametrize("family", ["llada", "dream", "mmada", "llama"])
def test_prompts_are_checked(family: str) -> None:
    model = golden.model(family)
    context = model.shape.context

    def run(prompts: Any, **options: Any) -> Any:
        return lambda: ss.generate(model, prompts, seed=1, **options)

    refused(run(torch.zeros(1, context + 1, dtype=torch.long)), str(context + 1), f"is {context}", "shorten")
    refused(run(torch.zeros(1, 0, dtype=torch.long)), "prompt is empty", "at least one token")
    refused(run([[]]), "prompt is empty")
    refused(run([]), "no prompt")
    refused(run(""), "tokenizer")
    refused(run("hello"), "no tokenizer files", "token ids")
    refused(run(["hello", 5]), "mixes texts")
    masked = {"attention_mask": [[1, 1, 1], [1, 1, 0]]}
    refused(run([[1, 2, 3], [4, 5]], **masked), "differ in length", "attention_mask")
    refused(run([[1, 2, 3], [4, 0.5]]), "[batch, length]", "whole numbers")
    refused(run([1, 2, 3]), "[batch, length]")
    refused(run(torch.ones(1, 4)), "whole numbers", "float32")
    refused(run(torch.tensor([[1, -2]])), "-2", "0 to")
    refused(run(torch.tensor([[1, 10**6]])), "1000000", "another tokenizer")
    refused(run(IDS, attention_mask=torch.ones(1, 3)), "[1, 3]", "[1, 4]")
    refused(run(IDS, attention_mask=[[1, 1, 0, 1]]), "pad on the left")
    refused(run(IDS, attention_mask=[[0, 0, 0, 0]]), "pad on the left")
    refused(run("hello", attention_mask=[[1]]), "attention_mask goes with token ids")


def test_a_causal_model_cannot_pass_its_context() -> None:
    model = golden.model("llama")
    ids = torch.zeros(1, 500, dtype=torch.long)
    message = refused(lambda: ss.generate(model, ids, ss.GreedyDecoding(length=20)), "500", "512", "length=12")
    assert "12 or less" in message
    assert len(ss.generate(model, ids[:, :12], length=2)) == 2


def test_an_answer_may_fill_the_context_and_not_pass_it() -> None:
    """The official code of diffusion models recomputes its rotary table for longer sequences, on which it was not trained."""
    model, ids = golden.model("llada"), torch.zeros(1, 252, dtype=torch.long)
    assert ss.generate(model, ids, ss.LladaDecoding(4, 1, 4)).sequences.shape == (1, 256)
    assert "use length=3 or less" in refused(
        lambda: ss.generate(model, torch.zeros(1, 253).long(), ss.LladaDecoding(4, 1, 4)), "253"
    )


@pytest.mark.parametrize("seed", [[1, 2], [], -1, 2**63, 1.5, "1", True, [1.5], [True]])
def test_wrong_seeds(seed: Any) -> None:
    decoding = ss.LladaDecoding(length=4, steps=4, block=4)
    refused(lambda: ss.generate(golden.model("llada"), IDS, decoding, seed=seed), "seed")


def test_seeds_of_numpy_and_large_ones_work() -> None:
    model, decoding = golden.model("llada"), ss.LladaDecoding(length=4, steps=2, block=4, temperature=1.0)
    number = ss.generate(model, IDS, decoding, seed=7).states
    assert torch.equal(ss.generate(model, IDS, decoding, seed=np.int64(7)).states, number)
    assert torch.equal(ss.generate(model, IDS, decoding, seed=list(np.array([7]))).states, number)
    ids = torch.arange(12)[None]
    policy = ss.MaskRandom(like=ss.MaskTop(1), seed=1)
    for seed in (2**62, [2**62]):
        run = ss.generate(model, ids, decoding, seed=seed, policy=policy, capture=ss.Capture())
        assert json.loads(run.trace.attributes["seed"]) == seed


def test_pictures_need_slots_and_a_twin() -> None:
    model = golden.model("mmada")
    ids = torch.tensor([[5, 6, 504, 504, 504, 483]])
    plain = ss.MmadaImageDecoding(timesteps=2, offset=507)
    guided = ss.MmadaImageDecoding(timesteps=2, offset=507, guidance=1.0)
    refused(lambda: ss.generate(model, IDS, plain, seed=1), "whole sequence", "mask token 504")
    refused(lambda: ss.generate(model, ids, guided, seed=1), "unconditional=(ids, attention_mask)")
    refused(lambda: ss.generate(model, ids, guided, seed=1, unconditional=(ids[:, 1:], None)), "[1, 5]", "[1, 6]")
    # The twin's ids alone, as a tensor or as a list of rows, mean that nothing of it is padding.
    tensor = ss.generate(model, ids, guided, seed=1, unconditional=ids)
    listed = ss.generate(model, ids, guided, seed=1, unconditional=ids.tolist())
    pair = ss.generate(model, ids, guided, seed=1, unconditional=[ids, torch.ones_like(ids)])
    assert torch.equal(tensor.states, listed.states)
    assert torch.equal(tensor.states, pair.states)
    assert tensor.codes.shape == (1, 3)


def test_captures_check_themselves() -> None:
    refused(lambda: ss.Capture(level="head"), "'head'", "heads")
    refused(lambda: ss.Capture(every=0), "every", "at least 1")
    refused(lambda: ss.Capture(layers=[-1]), "layers", "-1")
    refused(lambda: ss.Capture(layers=[]), "layers", "None for all")
    refused(lambda: ss.Capture(level="layers", heads=[1]), "heads")
    model, decoding = golden.model("llada"), ss.LladaDecoding(4, 4, 4)
    refused(lambda: ss.generate(model, IDS, decoding, capture=ss.Capture(layers=[0, 3])), "layer 3", "layers 0 to 2")
    refused(lambda: ss.generate(model, IDS, decoding, capture=ss.Capture(heads=4)), "head 4", "heads 0 to 3")


DECODINGS = st.one_of(
    st.builds(
        lambda blocks, per, block, **more: ss.LladaDecoding(blocks * block, blocks * per, block, **more),
        st.integers(1, 8),
        st.integers(1, 8),
        st.integers(1, 8),
        temperature=st.floats(0, 3),
        cfg=st.floats(0, 3),
        remasking=st.sampled_from(["low_confidence", "random"]),
        logits_eos_inf=st.booleans(),
        confidence_eos_eot_inf=st.booleans(),
        eot_id=st.none() | st.integers(0, 500),
    ),
    st.builds(
        ss.DreamDecoding,
        length=st.integers(1, 99),
        steps=st.integers(1, 99),
        algorithm=st.sampled_from(["origin", "maskgit_plus", "topk_margin", "entropy"]),
        temperature=st.floats(0, 3),
        top_p=st.none() | st.floats(0.01, 1),
        top_k=st.none() | st.integers(1, 99),
        alg_temp=st.none() | st.floats(0, 3),
        eps=st.floats(1e-6, 0.9),
    ),
    st.builds(
        ss.MmadaDecoding, st.just(12), st.just(6), st.just(4), cfg=st.floats(0, 2), stop_at=st.none() | st.integers(0, 9),
    ),
    st.builds(
        ss.MmadaImageDecoding,
        timesteps=st.integers(1, 50),
        guidance=st.floats(0, 9),
        temperature=st.floats(0, 2),
        offset=st.none() | st.integers(0, 999),
    ),
    st.builds(
        ss.GreedyDecoding,
        length=st.integers(1, 99),
        eos=st.sampled_from(["model", None, 7, (1, 2)])
        | st.lists(st.integers(0, 99), min_size=1, max_size=3),
    ),
    st.builds(
        ss.SamplingDecoding,
        length=st.integers(1, 99),
        temperature=st.floats(0.01, 3),
        top_p=st.floats(0.01, 1),
        eos=st.sampled_from(["model", None, (5,)]),
    ),
)  # fmt: skip


@given(DECODINGS)
def test_decodings_survive_json(decoding: Any) -> None:
    text = decoding.to_json()
    assert "\n" not in text
    again = decoding_from_json(text)
    assert again == decoding
    assert type(again) is type(decoding)
    assert hash(again) == hash(decoding)
    assert again.to_json() == text


@pytest.mark.parametrize("text", ["", "{", "5", "[1]", "null", '"x"', "{}", '{"length": 8}'])
def test_json_that_is_no_decoding(text: str) -> None:
    refused(lambda: decoding_from_json(text), "kind")


def test_json_with_wrong_names() -> None:
    refused(lambda: decoding_from_json('{"kind": "lada"}'), "'lada'", "llada")
    refused(lambda: decoding_from_json('{"kind": "llada", "lenght": 8}'), "'lenght'", "did you mean length?")
    refused(lambda: decoding_from_json('{"kind": "llada", "length": "8"}'), "length", "'8'")


def test_decodings_are_frozen() -> None:
    decoding: Any = ss.GreedyDecoding()
    with pytest.raises(AttributeError):
        decoding.length = 3


def test_top_p_none_keeps_all_tokens() -> None:
    model = golden.model("llama")
    none = ss.generate(model, IDS, ss.SamplingDecoding(length=4, top_p=None, eos=None), seed=3)
    whole = ss.generate(model, IDS, ss.SamplingDecoding(length=4, top_p=1.0, eos=None), seed=3)
    assert torch.equal(none.states, whole.states)


@pytest.mark.parametrize(
    ("family", "default"),
    [
        ("llada", ss.LladaDecoding(128, 128, 32, 0.0, 0.0, "low_confidence", False, False, None)),
        ("dream", ss.DreamDecoding(128, 128, "entropy", 0.0, None, None, 0.0, 1e-3)),
        ("mmada", ss.MmadaDecoding(128, 128, 32, 0.0, 0.0, "low_confidence", None)),
        ("llama", ss.GreedyDecoding(128, "model")),
    ],
)
def test_the_default_decoding_is_the_familys(family: str, default: Any) -> None:
    """Stopped after two steps: what was decided so far must be what the full defaults decide."""
    model = golden.model(family)
    seen: dict[str, torch.Tensor] = {}

    def stop_in(name: str) -> Any:
        def stop(done: int, expected: int, states: torch.Tensor) -> None:
            seen[name] = states
            assert expected == 128
            if done == 2:
                raise KeyboardInterrupt

        return stop

    for name, decoding in (("none", None), ("given", default)):
        with pytest.raises(KeyboardInterrupt):
            ss.generate(model, IDS, decoding, progress=stop_in(name))
    assert torch.equal(seen["none"], seen["given"])
    assert type(default)() == default
