"""Word problems: worked answers that compute, splits that are disjoint, texts that stay short."""

from __future__ import annotations

import hashlib
import re
from collections import Counter

import pytest

from sinkscope.base.errors import InputError
from sinkscope.tasks import get
from sinkscope.tasks.generated import split_of
from sinkscope.tasks.task import Document
from sinkscope.tasks.word_problems import VERSION, task

TASK = task()


@pytest.fixture(scope="module")
def train() -> list[Document]:
    return [TASK.document("train", index) for index in range(3000)]


@pytest.fixture(scope="module")
def test() -> list[Document]:
    return TASK.documents(600)


def test_worked_answers_compute(train: list[Document]) -> None:
    for document in train:
        *lines, last = document.answer.split("\n")
        assert 2 <= len(lines) <= 4, document
        known = {int(number) for number in re.findall(r"\d+", document.question)}
        known |= {2, 3, 4, 5}  # "twice", "three times", "both"
        value = None
        for line in lines:
            (left, sign, right, value_text) = re.search(r"(\d+)([-+*/])(\d+)=(\d+)", line).groups()  # type: ignore[union-attr]
            a, b, value = int(left), int(right), int(value_text)
            assert {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[sign] == value, document
            assert {a, b} <= known, document  # nothing out of thin air
            assert value > 0
            known.add(value)
        assert last == f"#### {value}"


def test_grading(train: list[Document]) -> None:
    for document in train[:300]:
        number = int(document.answer.split("#### ")[1])
        assert TASK.grade(document, document.answer).passed
        assert not TASK.grade(document, document.answer.replace(f"#### {number}", f"#### {number + 1}")).passed
        assert not TASK.grade(document, str(number)).passed  # the form is part of the task
        assert not TASK.grade(document, "").passed
    verdict = TASK.grade(train[0], f"Well.\n#### {train[0].answer.split('#### ')[1]}.\nAnd more 7")
    assert verdict.passed


def test_splits_are_disjoint_in_structure_and_numbers(train: list[Document], test: list[Document]) -> None:
    mine = {document.extra["skeleton"] for document in train}
    theirs = {document.extra["skeleton"] for document in test}
    assert not mine & theirs
    assert {split_of(skeleton) for skeleton in mine} == {"train"}
    assert {split_of(skeleton) for skeleton in theirs} == {"test"}
    assert not {document.question for document in train} & {document.question for document in test}


def test_documents_are_fresh_and_varied(train: list[Document], test: list[Document]) -> None:
    assert len({document.question for document in train}) > 0.98 * len(train)
    assert len({document.question for document in test}) == len(test)
    kinds = Counter(document.extra["skeleton"].split(":")[0] for document in train)
    assert len(kinds) >= 30
    assert max(kinds.values()) < 0.15 * len(train)
    assert set(Counter(document.answer.count("\n") for document in train)) == {2, 3, 4}
    openings = {" ".join(document.question.split()[1:3]) for document in train}
    assert len(openings) > 40
    numbers = Counter(document.answer.split("#### ")[1] for document in train)
    assert max(numbers.values()) < 0.05 * len(train)  # no answer worth guessing


def test_documents_do_not_depend_on_how_they_are_asked_for() -> None:
    assert TASK.documents(50)[:20] == TASK.documents(20)
    assert get("word_problems", family="causal").documents(5) == TASK.documents(5)
    with pytest.raises(InputError, match="give a limit"):
        TASK.documents()
    with pytest.raises(InputError, match="did you mean train"):
        TASK.document("trian", 0)  # type: ignore[arg-type]


def test_documents_are_the_same_everywhere() -> None:
    """Another machine, another Python: the same texts. A change here changes scores: count VERSION up."""
    text = "\n".join(document.question + document.answer for document in TASK.documents(100))
    assert (VERSION, hashlib.sha256(text.encode()).hexdigest()[:16]) == ("word_problems/1", "ba145e71a7a7f001")


def test_texts_are_short(train: list[Document]) -> None:
    assert max(len(document.question) for document in train) <= 230
    assert max(len(document.answer) for document in train) <= 160
