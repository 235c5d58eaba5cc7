"""Text forms, published settings, registration, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tests.helpers import golden

import sinkscope as ss
from sinkscope.reuse.rule import REUSES
from sinkscope.reuse.text import PRESETS

PROMPT = torch.arange(20, 29)[None]


@pytest.mark.parametrize(
    "rule",
    [
        ss.PrefixReuse(), ss.PrefixReuse(8), ss.PrefixReuse(4, fresh="masks"), ss.SparseReuse(64), ss.SparseReuse(1.0),
        ss.SparseReuse(0.25, by="first:4+recent", refresh=8, seed=3), ss.DriftReuse(0.95), ss.DriftReuse(0.5, by="union"),
        ss.DriftReuse(0.9, refresh="layers"),
    ],
)  # fmt: skip
def test_text_form_reads_back(rule: ss.Reuse) -> None:
    assert ss.parse_reuse(str(rule)) == rule
    assert rule.identity() == str(rule)


def test_text_forms_are_these() -> None:
    assert str(ss.PrefixReuse()) == "prefix:block"
    assert str(ss.SparseReuse(1.0)) == "sparse:1.0" != str(ss.SparseReuse(1))
    assert ss.parse_reuse("none") is None
    assert ss.parse_reuse("prefix") == ss.PrefixReuse()


def test_published_settings_parse_and_say_where_they_are_from() -> None:
    assert set(PRESETS) == {
        "fast-dllm", "fast-dllm-dual", "dkv-cache", "sparse-dllm", "elastic-cache", "streaming", "h2o",
    }  # fmt: skip
    for name, preset in PRESETS.items():
        assert str(ss.parse_reuse(name)) == preset.rule
        assert "arXiv" in preset.source
    assert ss.parse_reuse("fast-dllm-dual") == ss.PrefixReuse("block")
    assert ss.parse_reuse("elastic-cache") == ss.DriftReuse(0.9, refresh="layers")
    assert ss.parse_reuse("streaming") == ss.SparseReuse(1024, by="first:4+recent")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prefx:3", "prefix"), ("prefix:0", "at least 1"), ("prefix:2,fresh=mask", "masks"), ("prefix:2,frsh=x", "fresh"),
        ("sparse:0.5,by=sink", "sinks"), ("sparse:2.5", "at most at 1"), ("sparse", "sparse:KEEP"), ("drift:x", "number"),
        ("drift:0.5,by=keys", "did you mean key"), ("drift:0.5,refresh=layer", "did you mean layers"),
        ("drift:0.5,by=union,refresh=layers", "take by=key"),
        ("sparse:2,by=first:4+recent", "keep is 2"), ("sparse:2,by=first:x", "whole number"), ("prefix:2,fresh", "name=value"),
        ("", "prefix:8"),
    ],
)  # fmt: skip
def test_bad_text_is_refused(text: str, says: str) -> None:
    with pytest.raises(ss.InputError, match=says):
        ss.parse_reuse(text)


@pytest.mark.parametrize(
    ("family", "options", "says"),
    [
        ("llada", {"reuse": "prefix:2", "policy": "top:1"}, "cannot act together"),
        ("llada", {"reuse": "prefix:2", "decoding": ss.LladaDecoding(4, block=4, cfg=1.0)}, "guidance"),
        ("llada", {"reuse": "prefix:2", "capture": ss.Capture(level="maps")}, "maps"),
        ("llama", {"reuse": "prefix:2"}, "diffusion"),
        ("llama", {"reuse": "sparse:4", "capture": ss.Capture()}, "causal model"),
    ],
)
def test_what_cannot_act_is_refused(family: str, options: dict[str, object], says: str) -> None:
    with pytest.raises(ss.InputError, match=says):
        ss.generate(golden.model(family), PROMPT, **options)


def test_a_strangers_rule_runs() -> None:
    @ss.register
    @dataclass(frozen=True)
    class OddReuse(ss.Reuse):
        """A full forward in every other step."""

        start: int = 0
        word = "odd"

        def due(self, age: int, begins: bool) -> bool:
            return begins or age >= 2

    try:
        model, decoding = golden.model("llada"), ss.LladaDecoding(8, block=4)
        run = ss.generate(model, PROMPT, decoding, reuse="odd:1")
        same = ss.generate(model, PROMPT, decoding, reuse="prefix:2")
        assert torch.equal(run.states, same.states)
    finally:
        REUSES._things.pop("odd")


def test_trace_says_what_was_approximate() -> None:
    model, decoding = golden.model("llada"), ss.LladaDecoding(8, block=4)
    run = ss.generate(model, PROMPT, decoding, reuse="prefix:2", capture=ss.Capture())
    assert run.trace.attributes["reuse"] == "prefix:2"
    assert "approximate" in run._repr_html_()
    assert "prefix:2" in repr(run)
    exact = ss.generate(model, PROMPT, decoding, capture=ss.Capture())
    assert "reuse" not in exact.trace.attributes
    assert "fresh" not in exact.trace.dataset
