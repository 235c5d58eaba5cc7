"""A run knows its answers, its steps and how it was made, whatever batch it ran in; options stand for a decoding."""

from __future__ import annotations

import pytest
import torch
from tests.helpers import golden

import sinkscope as ss


def test_an_answer_is_the_same_in_any_batch() -> None:
    """Rows of a causal model that end at different steps; with a policy that reads the prompt twice too."""
    model, ids = golden.model("llama"), torch.arange(20, 60).view(4, 10)
    free = ss.generate(model, ids, ss.GreedyDecoding(12, eos=None))
    decoding = ss.GreedyDecoding(12, eos=tuple({int(row[10 + 3 * n]) for n, row in enumerate(free.sequences)}))
    for policy in (None, "top:1,prefill=yes"):
        together = ss.generate(model, ids, decoding, policy=policy, seed=[1, 2, 3, 4])
        assert len({together.steps(row) for row in range(4)}) > 1, "no row ended before another"
        for row in range(4):
            alone = ss.generate(model, ids[row : row + 1], decoding, policy=policy, seed=[row + 1])
            assert together.answer(row) == together.answers[row] == alone.answer(0)
            assert together.texts[row] == alone.texts[0]
            assert together.steps(row) == alone.steps(0) == len(alone) == len(alone.answer(0))
            assert together.forwards[row] == alone.forwards[0] == len(alone) + (policy is not None)


def test_what_is_recorded_can_be_said_in_words() -> None:
    model, ids = golden.model("llada"), torch.arange(20, 29)[None]
    for said, meant in (("layers", ss.Capture("layers")), ("heads,every=2", ss.Capture(every=2)), (True, ss.Capture())):
        by_word, by_object = (
            ss.generate(model, ids, length=8, block=8, steps=4, capture=capture).trace for capture in (said, meant)
        )
        assert by_word is not None
        assert by_object is not None
        assert by_word.dataset.equals(by_object.dataset)
        assert by_word.attributes["capture"] == by_object.attributes["capture"]
    assert ss.generate(model, ids, length=8, block=8, steps=4, capture=False).trace is None
    for wrong, named in (
        ("hedas", "did you mean heads"),
        (3, "should be True, ss.Capture"),
        (["heads"], "should be True"),
    ):
        with pytest.raises(ss.InputError, match=named):
            ss.generate(model, ids, length=8, block=8, steps=4, capture=wrong)  # type: ignore[arg-type]


def test_options_are_those_of_the_familys_decoding() -> None:
    model, ids = golden.model("llada"), torch.arange(20, 29)[None]
    run = ss.generate(model, ids, length=16, block=8, steps=4)
    assert run.decoding == ss.LladaDecoding(length=16, block=8, steps=4)
    assert run.steps(0) == len(run) == 4
    with pytest.raises(ss.InputError, match=r"option of llada models 'lenght'.*length"):
        ss.generate(model, ids, lenght=16)
    with pytest.raises(ss.InputError, match="given to LladaDecoding itself"):
        ss.generate(model, ids, ss.LladaDecoding(16, 4, 8), length=8)
    with pytest.raises(TypeError, match="positional"):
        ss.generate(model, ids, ss.LladaDecoding(16, 4, 8), "top:1")  # type: ignore[misc]


def test_extras_say_what_a_plug_in_did() -> None:
    model, ids, decoding = golden.model("llada"), torch.arange(20, 29)[None], ss.LladaDecoding(16, 16, 8)
    plain, exact, quick = (ss.generate(model, ids, decoding, reuse=rule) for rule in (None, "prefix:1", "prefix:4"))
    assert (plain.exact, exact.exact, quick.exact) == (True, True, False)
    assert plain.row_extras(0) == {}
    assert exact.row_extras(0) == {"reuse": "prefix:1"}
    assert quick.row_extras(0)["macs"] < quick.row_extras(0)["macs_exact"]
    assert "reuse prefix:4" in repr(quick)
