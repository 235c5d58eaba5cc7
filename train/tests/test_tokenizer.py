"""The tokenizer: digits apart, newlines alone, prompts and answers within 64 tokens, the families' roles and templates."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import tokenizer as making
from sinkscope.base.errors import InputError
from sinkscope.models.tokenizer import read_tokenizer
from sinkscope_train import documents as sources
from sinkscope_train import vocabulary as tokenizer
from sinkscope_train.recipe import ANSWER, PROMPT
from sinkscope_train.vocabulary import shipped

LAYOUTS = list(tokenizer.TABLES["roles"])


def pieces(text: str) -> list[str]:
    backend = tokenizer.shipped_tokenizer()
    return [backend.decode([number]) for number in backend.encode(text, add_special_tokens=False).ids]


def test_digits_stand_alone() -> None:
    for text in ("12+305=317.", "$50 each, 7*8=56", "x % 12 == 0", "a1b22 c 333"):
        for piece in pieces(text):
            assert not any(letter.isdigit() for letter in piece) or (piece.isdigit() and len(piece) == 1), (text, piece)


def test_newline_is_a_token_of_its_own() -> None:
    for text in ("a\n\nb", "one.\n- two\n", "if x:\n    return 1\n", "\n\n\n"):
        found = pieces(text)
        assert all(piece == "\n" for piece in found if "\n" in piece)
        assert sum(piece == "\n" for piece in found) == text.count("\n")


def test_any_text_comes_back() -> None:
    for text in ("Grüße, 東京! \t ok", "    return [x for x in y]", "“quoted”  two  spaces"):
        backend = tokenizer.shipped_tokenizer()
        assert backend.decode(backend.encode(text, add_special_tokens=False).ids) == text


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_prompts_and_answers_fit(layout: str) -> None:
    words = shipped(layout)
    for source in ("word_problems", "small_code"):
        drawn = [sources.document(source, index) for index in range(400)]
        assert max(map(len, words.encode([words.before + text.question + words.after for text in drawn]))) <= PROMPT
        assert max(map(len, words.encode([text.answer for text in drawn]))) <= ANSWER - 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_prompts_are_what_the_chat_template_writes(layout: str, tmp_path: Path) -> None:
    words = shipped(layout)
    words.save(tmp_path)
    loaded = read_tokenizer(tmp_path)
    question = " Tom has 3 pens.\nHow many? "
    written = loaded.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
    )
    assert written == words.before + question.strip() + words.after
    ids = loaded(written, add_special_tokens=False).input_ids
    assert ids == words.encode([written])[0]
    assert ids[0] == words.bos == loaded.bos_token_id
    assert loaded.mask_token_id == words.mask
    assert loaded.pad_token_id == words.pad
    assert len(loaded) == len(words)


def test_roles_are_different_tokens() -> None:
    for layout in LAYOUTS:
        words = shipped(layout)
        given = [words.bos, words.eos, words.eot, *([] if words.mask is None else [words.mask])]
        assert len(set(given)) == len(given), layout


def test_inheritance_of_roles() -> None:
    pairs = tokenizer.same_roles("dream", "llama")
    assert pairs["<|beginoftext|>"] == "<|begin_of_text|>"
    assert pairs["<|im_end|>"] == "<|eot_id|>"
    assert "<|mask|>" not in pairs, "a causal model has no mask to inherit"
    assert tokenizer.same_roles("mmada", "llada") == {}


def test_unknown_layout_names_the_known() -> None:
    with pytest.raises(InputError, match="dream"):
        tokenizer.roles("drem")


@pytest.mark.slow
def test_the_shipped_file_is_what_the_generators_give() -> None:
    assert making.build(making.sample_texts()).get_vocab() == tokenizer.shipped_tokenizer().get_vocab()
