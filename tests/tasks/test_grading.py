"""Grading from disk: resumable, repeatable, and only with the task that the answers belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sinkscope.base.errors import InputError
from sinkscope.tasks import get, sandbox
from sinkscope.tasks.grading import grade_run
from sinkscope.tasks.records import Generation, RunFolder
from sinkscope.tasks.task import Document, Mark
from sinkscope.tasks.word_problems import WordProblems
from sinkscope.tasks.word_problems import task as word_problems

TASK = word_problems()
SETTINGS = {"model": "m", "task": TASK.settings()}


def _answer(path: Path, number: int = 70) -> RunFolder:
    """Answers to some documents, every third one wrong."""
    run = RunFolder.write(path, SETTINGS)
    run.generations.append(
        Generation(item.id, index, 0, item.question, item.answer if index % 3 else "#### 0", 32, 32)
        for index, item in enumerate(TASK.documents(number))
    )
    return run


def test_grades_and_progress(tmp_path: Path) -> None:
    told: list[tuple[int, int, int]] = []
    with _answer(tmp_path) as run:
        grades = grade_run(run, TASK, progress=lambda *numbers: told.append(numbers))
        assert [grade.passed for grade in grades] == [bool(index % 3) for index in range(70)]
        assert list(run.grades) == grades
        assert told[-1] == (70, 46, 70)
        assert len(told) == 3
        assert grade_run(run, TASK) == grades  # nothing left to do
        assert grade_run(run, TASK, again=True) == grades


def test_a_grader_that_dies_is_resumed(tmp_path: Path) -> None:
    class Dies(WordProblems):
        def grade_many(self, pairs: Sequence[tuple[Document, str]]) -> list[Mark]:
            if any(document.id == documents[40].id for document, _ in pairs):
                raise KeyboardInterrupt
            return super().grade_many(pairs)

    documents = TASK.documents(70)
    with _answer(tmp_path) as run:
        with pytest.raises(KeyboardInterrupt):
            grade_run(run, Dies(TASK.scheme))
        assert len(list(run.grades)) == 32
        with pytest.raises(KeyboardInterrupt):
            grade_run(run, Dies(TASK.scheme), again=True)
        assert len(list(run.grades)) == 32  # the old grades stay until all new ones are there
        grades = grade_run(run, TASK)
        assert len(grades) == 70
        assert sum(grade.passed for grade in grades) == 46


def test_only_with_its_own_task(tmp_path: Path) -> None:
    with _answer(tmp_path) as run:
        with pytest.raises(InputError, match=r"\(word_problems:plain\) than small_code:plain"):
            grade_run(run, get("small_code"))
        with pytest.raises(InputError, match="another task or scheme"):
            grade_run(run, WordProblems(replace(TASK.scheme, extraction="gsm8k-flexible")))
    with RunFolder.write(tmp_path / "other", {}) as run:
        run.generations.append([Generation("train-5", 0, 0, "", "", 1, 1)])
        with pytest.raises(InputError, match="such as train-5"):
            grade_run(run, TASK)
        assert list(run.grades) == []


def test_the_sandbox_is_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(kind: str) -> str:
        raise InputError(f"no {kind}")

    monkeypatch.setattr(sandbox, "check", refuse)
    with RunFolder.write(tmp_path, {}) as run:
        assert grade_run(run, TASK) == []
        with pytest.raises(InputError, match="no auto"):
            grade_run(run, get("small_code"))
        with pytest.raises(InputError, match="no none"):
            grade_run(run, get("small_code", sandbox="none"))


def test_an_answer_that_breaks_the_grader_fails_alone(tmp_path: Path) -> None:
    class Breaks(WordProblems):
        def grade_many(self, pairs: Sequence[tuple[Document, str]]) -> list[Mark]:
            if any(document.id == documents[40].id for document, _ in pairs):
                raise RecursionError("too deep")
            return super().grade_many(pairs)

    documents = TASK.documents(70)
    with _answer(tmp_path) as run:
        grades = grade_run(run, Breaks(TASK.scheme))
    right = [bool(index % 3) and index != 40 for index in range(70)]
    assert [grade.passed for grade in grades] == right
    assert grades[40].reason == "grading broke on the answer (RecursionError: too deep)"
    assert [grade.document for grade in grades if grade.broke] == [documents[40].id]


def test_a_machine_that_cannot_grade_is_no_answers_fault(tmp_path: Path) -> None:
    class NoDisk(WordProblems):
        def grade_many(self, pairs: Sequence[tuple[Document, str]]) -> list[Mark]:
            raise OSError(28, "no space left")

    with _answer(tmp_path) as run:
        with pytest.raises(OSError, match="no space left"):
            grade_run(run, NoDisk(TASK.scheme))
        assert list(run.grades) == []


def test_an_endless_answer_is_not_read(tmp_path: Path) -> None:
    [document] = TASK.documents(1)
    with RunFolder.write(tmp_path, SETTINGS) as run:
        run.generations.append([Generation(document.id, 0, 0, "", document.answer + " " * 1_000_000, 1, 1)])
        [grade] = grade_run(run, TASK)
    assert not grade.passed
    assert grade.reason == "the answer is longer than 1000000 characters"
