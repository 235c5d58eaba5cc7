"""A task of one's own: a JSON-lines file of questions and answers.

    sinkscope evaluate MODEL --task capitals.jsonl

    {"question": "What is the capital of France?", "answer": "Paris"}      graded; `id` may be given
    {"question": "The capital of France is", "choices": [" Paris", " Rome"], "answer": 0}     a choice by likelihood

A graded answer is right when its last number is the given one, if that is a number, or else when its last line is the given
text; capitals, spaces and punctuation around it do not count. The file's name is the task's, and a digest of its content is
part of every result's identity.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sinkscope.base.errors import InputError
from sinkscope.tasks.schemes import only_scheme
from sinkscope.tasks.sources import from_file, json_lines, text_of
from sinkscope.tasks.task import Document, Mark, Scheme, Task

FIELDS = 'give JSON lines such as {"question": "…", "answer": "…"}'
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class OwnTask(Task):
    """The questions of a file, each put as one user turn."""

    name: str
    scheme: Scheme
    data: Path = Path()
    content: str = ""  # digest of the file

    version: ClassVar[str] = "own/1"

    def documents(self, limit: int | None = None) -> Sequence[Document]:
        return _questions(self.data)[:limit]

    def grade(self, document: Document, output: str) -> Mark:
        """Right when the last number, or the last line, is the answer."""
        gold = document.answer.rpartition("####")[2].strip()
        if NUMBER.fullmatch(gold.strip("$% ")):
            numbers = NUMBER.findall(output)
            right = bool(numbers) and _value(numbers[-1]) == _value(gold.strip("$% "))
            return Mark(right, numbers[-1] if numbers else "")
        lines = [line for line in output.splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        return Mark(_normal(last) == _normal(gold), last.strip())


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _normal(text: str) -> str:
    return " ".join(text.split()).strip(string.punctuation + " ").casefold()


def task(name: str, scheme: str | None = None, family: str | None = None) -> Task:
    """The task that a file holds; `scheme` is for choices (raw or character)."""
    from sinkscope.tasks.choices import choice_task

    path = Path(name).expanduser()
    text = text_of(path, FIELDS)
    label = path.name.removesuffix(".gz").removesuffix(".jsonl")
    content = hashlib.sha256(text.encode()).hexdigest()[:16]
    _, first = next(json_lines(text, path))
    if "choices" in first:
        return choice_task(label, scheme, family, path.resolve(), content)
    return OwnTask(label, only_scheme(label, scheme, family, None, extraction="own"), path.resolve(), content)


@from_file
def _questions(path: Path) -> Iterator[tuple[str, Document]]:
    for number, (where, row) in enumerate(json_lines(text_of(path, FIELDS), path)):
        if "tests" in row:
            raise InputError(
                f"{where}: tests are not run for a file of one's own: the tasks humaneval and small_code run programs, and so "
                "may a Task in Python"
            )
        question, answer = row.get("question"), row.get("answer")
        if isinstance(answer, (int, float)) and not isinstance(answer, bool):
            answer = json.dumps(answer)
        if not all(isinstance(part, str) and part.strip() for part in (question, answer)):
            raise InputError(f"{where}: expected question and answer, both texts: {FIELDS}")
        yield where, Document(str(row.get("id", number)), str(question), str(answer))
