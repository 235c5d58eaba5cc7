"""Chat templates of strangers: the same text as transformers', and none runs for ever or fills the memory."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.byte_tokenizer import TURNS as TURNS_TEMPLATE
from tests.helpers.byte_tokenizer import checkpoint_with_tokenizer
from tests.helpers.tokenizers import CHATML, HEADERS

from sinkscope.errors import InputError
from sinkscope.models import prompts
from sinkscope.models.prompts import render
from sinkscope.models.tokenizer import read_tokenizer

TURNS = [
    {"role": "user", "content": "How many?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "Why?"},
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer") / "checkpoint"
    return read_tokenizer(checkpoint_with_tokenizer("llada", folder, TURNS_TEMPLATE))


HOSTILE = {
    "a loop in a loop in a loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "doubling": "{% set ns = namespace(x='abcdefgh') %}{% for a in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
    "{{ ns.x }}",
    "a power": "{{ 10 ** 10 ** 10 }}",
    "copies": "{{ 'x' * 10000000000 }}",
    "copies of copies": "{% set n = messages | length %}{{ 'x' * n * messages[0]['content'] | length }}",
    "a macro without end": "{% macro f(x) %}{{ f(x + 1) }}{% endmacro %}{{ f(1) }}",
    "a syntax error": "{% for x in %}",
    "an exception of its own": "{{ raise_exception('no system turn, please') }}",
    "a sum of many": "{{ 1" + "+1" * 1500 + " }}",
    "an attribute of an attribute of an attribute": "{{ messages" + ".x" * 1500 + " }}",
    "a missing attribute": "{{ messages.what.is.this }}",
}


@pytest.mark.parametrize(
    "share",
    [
        pytest.param(8, id="an eighth", marks=pytest.mark.slow),
        pytest.param(1, id="whole", marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_in_time(
    name: str, share: int, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bounds on lines and memory as they are, and with an eighth of them, which are reached in an eighth of the time."""
    monkeypatch.setattr(prompts, "MOST_LINES", prompts.MOST_LINES // share)
    monkeypatch.setattr(prompts, "MOST_GROWTH", prompts.MOST_GROWTH // share)
    tokenizer.chat_template = HOSTILE[name]
    begun = time.monotonic()
    with pytest.raises(InputError, match="chat template of m"):
        render(tokenizer, TURNS, "m", add_generation_prompt=True)
    assert time.monotonic() - begun < 60 / share


@pytest.mark.parametrize("template", [HEADERS, CHATML, TURNS_TEMPLATE])
def test_usual_templates_give_what_transformers_gives(template: str, tokenizer: Any) -> None:
    tokenizer.chat_template = template
    for turns in (TURNS, TURNS[:1]):
        expected = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        assert render(tokenizer, turns, "m", add_generation_prompt=True) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "dream", "llama3"])
def test_official_templates_give_what_transformers_gives(name: str) -> None:
    folder = Path(os.environ.get("SINKSCOPE_SHARED", ""), "tokenizers", name)
    if not folder.is_dir():
        pytest.skip("needs the official tokenizers: set SINKSCOPE_SHARED to a folder that has tokenizers/")
    tokenizer = read_tokenizer(folder)
    assert tokenizer.chat_template
    expected = tokenizer.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)
    assert render(tokenizer, TURNS, name, add_generation_prompt=True) == expected


def test_a_tracer_of_the_caller_is_put_back(tokenizer: Any) -> None:
    def tracer(*_: Any) -> None:
        return None

    tokenizer.chat_template = TURNS_TEMPLATE
    before = sys.gettrace()
    try:
        sys.settrace(tracer)
        render(tokenizer, TURNS, "m")
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
