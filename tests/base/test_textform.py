"""The text form of frozen dataclasses: decodings and captures too; policies and reuse rules have tests of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sinkscope as ss
from sinkscope.base.textform import Notation, read_options, read_value, write
from sinkscope.decoding.base import DECODINGS, option_fields, parse_decoding

CAPTURES = Notation("capture", {"capture": ss.Capture}, lambda: "capture:LEVEL,name=value")


@pytest.mark.parametrize(
    ("text", "decoding"),
    [
        ("llada,length=64,steps=32,block=16", ss.LladaDecoding(64, 32, 16)),
        ("llada,length=32,steps=32,logits_eos_inf=yes,threshold=0.9", ss.LladaDecoding(32, logits_eos_inf=True, threshold=0.9)),
        ("dream,algorithm=origin,top_p=0.95,top_k=5", ss.DreamDecoding(algorithm="origin", top_p=0.95, top_k=5)),
        ("greedy,length=4,eos=none", ss.GreedyDecoding(4, eos=None)),
        ("greedy,eos=2+13", ss.GreedyDecoding(eos=(2, 13))),
        ("sdar,stop=model,threshold=1", ss.SdarDecoding(stop="model", threshold=1.0)),
        ("causal-reading,length=32,scored=8", ss.CausalReading(length=32, scored=8)),
        *((kind, made()) for kind, made in DECODINGS.items()),
    ],
)  # fmt: skip
def test_decodings(text: str, decoding: Any) -> None:
    assert parse_decoding(text) == parse_decoding(str(decoding)) == decoding


def test_options_of_a_family_need_no_kind() -> None:
    assert read_options("length=64,block=16", option_fields("llada")) == {"length": 64, "block": 16}
    assert read_options("eos=none", option_fields("causal")) == {"eos": None}
    values = [read_value(text) for text in ("3", "0.5", "yes", "none", "word", "a.b")]  # by their look
    assert values == [3, 0.5, True, None, "word", "a.b"]
    with pytest.raises(ss.InputError, match="name=value"):
        read_options("length", {})


@given(st.sampled_from(["heads", "maps"]), st.booleans(), st.sampled_from([None, (0,), (1, 4, 5)]))
def test_captures(level: Any, anatomy: bool, layers: Any) -> None:
    capture = ss.Capture(level, anatomy=anatomy, layers=layers, every=4)
    assert CAPTURES.read(write(capture, "capture")) == capture
    assert CAPTURES.read("capture:maps,by_query=yes,layers=0-2") == ss.Capture("maps", True, layers=(0, 1, 2))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lada,length=4", "did you mean llada"), ("llada,lenth=4", "did you mean length"), ("llada,length", "name=value"),
        ("llada,length=four", "length should be a whole number"), ("llada(4)", "does not parse"), ("", "does not parse"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    with pytest.raises(ss.InputError, match=says):
        parse_decoding(text)


@dataclass(frozen=True)
class Named:
    name: str
    size: float = 1.0
    more: int | float = 0


@given(st.text(max_size=8), st.floats(allow_nan=False), st.one_of(st.integers(), st.floats(allow_nan=False)))
def test_two_things_never_share_a_text(name: str, size: float, more: float) -> None:
    thing, other = Named(name, size, more), Named("x")
    assert (write(thing, "named") == write(other, "named")) == (thing == other and type(more) is int)
