"""Chat templates of strangers: the same text as transformers', and what goes wrong is one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.byte_tokenizer import TURNS as TURNS_TEMPLATE
from tests.helpers.byte_tokenizer import checkpoint_with_tokenizer
from tests.helpers.tokenizers import CHATML, HEADERS

from sinkscope.base.errors import InputError
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


REFUSED = {
    "a macro without end": "{% macro f(x) %}{{ f(x + 1) }}{% endmacro %}{{ f(1) }}",
    "a syntax error": "{% for x in %}",
    "an exception of its own": "{{ raise_exception('no system turn, please') }}",
    "a sum of many": "{{ 1" + "+1" * 1500 + " }}",
    "an attribute of an attribute of an attribute": "{{ messages" + ".x" * 60_000 + " }}",
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "a missing attribute": "{{ messages.what.is.this }}",
    "an object behind an object": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a change of what it was given": "{% set _ = messages.append('more') %}",
    "a range without end": "{% for a in range(10 ** 9) %}{% endfor %}",
    "a long template": "x" * (prompts.LONGEST_TEMPLATE + 1),
    "a long text": "{% for a in range(20000) %}{{ '" + "x" * 1000 + "' }}{% endfor %}",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_template_may_not_do_is_one_line(name: str, tokenizer: Any) -> None:
    tokenizer.chat_template = REFUSED[name]
    with pytest.raises(InputError, match="the chat template of m ") as error:
        render(tokenizer, TURNS, "m", add_generation_prompt=True)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


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
