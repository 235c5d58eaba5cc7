"""Word problems: worked answers that compute, texts that vary."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from sinkscope.tasks.task import Document
from sinkscope.tasks.word_problems import task

TASK = task()


@pytest.fixture(scope="module")
def train() -> list[Document]:
    return [TASK.document("train", index) for index in range(3000)]


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


def test_documents_are_fresh_and_varied(train: list[Document]) -> None:
    assert len({document.question for document in train}) > 0.98 * len(train)
    kinds = Counter(document.extra["skeleton"].split(":")[0] for document in train)
    assert len(kinds) >= 30
    assert max(kinds.values()) < 0.15 * len(train)
    assert set(Counter(document.answer.count("\n") for document in train)) == {2, 3, 4}
    openings = {" ".join(document.question.split()[1:3]) for document in train}
    assert len(openings) > 40
    numbers = Counter(document.answer.split("#### ")[1] for document in train)
    assert max(numbers.values()) < 0.05 * len(train)  # no answer worth guessing
