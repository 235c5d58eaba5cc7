"""Small code: reference bodies pass, others fail; both tasks fit a small tokenizer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from tests.helpers.marks import needs_sandbox

from sinkscope.models.load import ORGANISMS
from sinkscope.models.tokenizer import read_tokenizer
from sinkscope.tasks import sandbox
from sinkscope.tasks.small_code import program, task
from sinkscope.tasks.task import Document
from sinkscope.tasks.word_problems import task as word_problems

TASK = task()


@pytest.fixture(scope="module")
def train() -> list[Document]:
    return [TASK.document("train", index) for index in range(3000)]


@pytest.fixture(scope="module")
def test() -> list[Document]:
    return TASK.documents(600)


def _passed(pairs: list[tuple[Document, str]]) -> list[bool]:
    programs = [
        sandbox.Program(program(document, body), document.extra["tests"], "solution") for document, body in pairs
    ]
    return [result.passed for result in sandbox.run_many(programs)]


@pytest.mark.slow
@needs_sandbox
def test_reference_bodies_pass_and_others_fail(test: list[Document]) -> None:
    some = test[:80]
    assert all(_passed([(document, document.answer) for document in some]))
    assert not any(_passed([(document, "pass") for document in some]))
    # One constant or sign off: the tests must see these (a few change nothing: 15 % 2 is 15 % 7).
    changes = [
        (" > ", " >= "), (" < ", " <= "), ("== 0", "!= 0"), (" + ", " - "), (" * ", " + "), ("//= ", "//= 1"),
    ]  # fmt: skip
    wrong = []
    for document in test[:160]:
        if document.extra["skeleton"].startswith("counting"):
            continue  # two conditions: a change to one is often no change at all
        body = next((document.answer.replace(a, b, 1) for a, b in changes if a in document.answer), None)
        if body is not None:
            wrong.append((document, body))
    assert len(wrong) > 80
    assert sum(_passed(wrong)) <= 0.03 * len(wrong)


@pytest.mark.slow
@needs_sandbox
def test_grading_takes_the_body_with_or_without_indentation(test: list[Document]) -> None:
    document = next(item for item in test if "\n" in item.answer)
    assert TASK.grade(document, document.answer).passed
    assert TASK.grade(document, "    " + document.answer).passed
    assert TASK.grade(document, "\n" + document.answer + "\n").passed
    assert TASK.grade(document, document.answer + "\nprint('and more')").passed
    verdict = TASK.grade(document, "return undefined_name")
    assert not verdict.passed
    assert "undefined_name" in verdict.reason
    several = TASK.grade_many([(document, "pass"), (document, document.answer)])
    assert [item.passed for item in several] == [False, True]
    assert verdict.extracted.startswith("def ")


def test_families_are_all_there(test: list[Document]) -> None:
    families = Counter(document.extra["skeleton"].split(":")[0] for document in test)
    assert len(families) == 8
    assert min(families.values()) > 0.02 * len(test)


def test_both_generated_tasks_fit_64_tokens(train: list[Document], test: list[Document]) -> None:
    """Of the organisms' own tokenizer; and they are not trivial."""
    tokenizer = read_tokenizer(ORGANISMS / "scratch")
    documents = [
        *(word_problems().document("train", index) for index in range(3000)), *word_problems().documents(500), *train, *test,
    ]  # fmt: skip
    questions, answers = ([getattr(one, part) for one in documents] for part in ("question", "answer"))
    assert max(map(len, tokenizer(questions, add_special_tokens=False).input_ids)) <= 64
    assert 40 < max(map(len, tokenizer(answers, add_special_tokens=False).input_ids)) <= 62


@pytest.mark.slow
@needs_sandbox
def test_answers_of_a_batch_are_graded_as_alone() -> None:
    """None shares an interpreter with another: what one does to its own reaches nobody else."""
    task = replace(TASK, scheme=replace(TASK.scheme, timeout=1.0))
    documents = task.documents(6)
    hostile = (
        "import builtins, sys, os\n"
        "    builtins.compile = builtins.exec = builtins.AssertionError = lambda *a, **k: None\n"
        "    sys.modules['solution'] = None\n"
        "    for frame in sys._current_frames().values(): frame.f_globals.clear()"
    )
    pairs = [
        (documents[1], hostile),
        *((document, document.answer) for document in documents),
        (documents[0], documents[1].answer),
        (documents[0], "return ("),
        (documents[1], "while True:\n        pass"),
        (documents[2], f"print('1' * 99)\n    {documents[2].answer}"),
        (documents[3], "raise SystemExit"),
        (documents[2], "import os\n    os._exit(0)"),
        *((document, document.answer) for document in documents),
    ]
    verdicts = task.grade_many(pairs)
    assert [verdict.passed for verdict in verdicts] == [
        False,
        *[True] * 6,
        *[False] * 3,
        True,
        *[False] * 2,
        *[True] * 6,
    ]
    alone = [task.grade(document, answer) for document, answer in pairs]
    assert [verdict.passed for verdict in alone] == [verdict.passed for verdict in verdicts]
