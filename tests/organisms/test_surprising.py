"""Text that is hard to foresee: the same seed gives the same text, docstrings come from whole files, and a corpus can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sinkscope.errors import InputError
from sinkscope.organisms.corpus import QUESTION, READING, WORD, make
from sinkscope.organisms.recipe import TEXT_MIX
from sinkscope.organisms.sources import document, read_corpus
from sinkscope.organisms.surprising import docstrings, reading, record
from sinkscope.organisms.vocabulary import shipped

LONG = "This paragraph of a docstring is long enough to be taken, because it has more than eighty characters in it."


def test_records_differ_and_ask_again_for_what_they_introduced() -> None:
    texts = [record(seed) for seed in range(200)]
    assert len(set(texts)) == 200
    registers = [text for text in texts if ";\n" in text]
    assert len(registers) > 30
    for text in registers:
        told = [line for line in text.split("\n") if line.endswith(";")]
        asked = [line.rstrip(".") for line in text.split("\n") if line.endswith(".")]
        assert len(asked) == 3
        introduced = {part for line in told for part in line.rstrip(";").split(", ")}
        for line in asked:
            assert sum(part in line for part in introduced) >= 2, line


def test_docstrings_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "good.py").write_text(f'def f():\n    """Short.\n\n    {LONG}\n    """\n')
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "test" / "left_out.py").write_text(f'"""{LONG}"""\n')
    assert docstrings(tmp_path) == (LONG,)


def test_a_folder_without_docstrings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no docstrings under"):
        docstrings(tmp_path)


def test_the_standard_library_has_plenty() -> None:
    found = docstrings()
    assert len(found) > 1000
    assert all(len(text) >= 80 for text in found)


def test_a_question_asks_for_the_word_after_one_that_is_there_once() -> None:
    for seed in range(300):
        text = record(seed)
        question, answer = reading(text, seed)
        asked = re.fullmatch(r"What comes after (\w+)\?\n(.*)", question, re.DOTALL)
        assert asked is not None
        assert asked[2] == text
        words = re.findall(r"\w+", text)
        assert words.count(asked[1]) == 1
        place = words.index(asked[1])
        assert words[place + 1] == answer
        assert answer in text[:100], "the end of a text may be cut off"
    assert reading("----------", 0) == ("", "----------")


def test_every_source_has_its_share_of_a_corpus_and_texts_are_cut_to_fit() -> None:
    words, total = shipped("llada"), 1000
    made = make(total, 0, words, workers=1)
    assert made.questions.shape == (total, READING)
    questions = [
        words.decode(row[:length].tolist())
        for row, length in zip(made.questions, made.question_lengths, strict=True)
    ]
    found = {"records": 0, "docstrings": 0}
    own = {name: {document(name, index).question for index in range(total)} for name in found}
    for question in questions:
        for name in found:
            found[name] += bool(question) and any(one.startswith(question) for one in own[name])
    for name, count in found.items():
        assert count / total == pytest.approx(TEXT_MIX[name], abs=0.02), name
    read = [question.startswith("What comes after") for question in questions]
    assert made.question_lengths[read].max() == READING
    assert made.answer_lengths[read].max() < WORD
    assert made.question_lengths[[not one for one in read]].max() <= QUESTION


def test_a_corpus_takes_them_in(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    mine = [record(seed) for seed in range(10_000, 10_050)]  # none of the package's own
    path.write_text("\n\n".join(mine))
    words = shipped("llama")
    made = make(100, 0, words, read_corpus(str(path)), 0.4, workers=1)
    texts = [
        words.decode(row[:length].tolist())
        for row, length in zip(made.answers, made.answer_lengths, strict=True)
    ]
    # A longer one is cut to the length of a row.
    taken = [text for text in texts if any(one.startswith(text) for one in mine)]
    assert 35 <= len(taken) <= 45
