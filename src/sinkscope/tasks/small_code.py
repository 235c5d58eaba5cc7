"""Generated programming exercises: a signature and a docstring, to be completed with a short body, graded by hidden tests.

They stand in for HumanEval where a small model must be able to learn the task: one or a few lines, within 64
tokens for question and answer each with a small tokenizer.

    def solve(items):
        '''Return a list of the even numbers in items, each plus 3.'''

    return [x + 3 for x in items if x % 2 == 0]

The answer is the body, its first line without the indentation (chat templates trim what they are given). The
tests run in the sandbox, and include the values around which each condition changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from sinkscope.tasks.bounded import BoundedResult
from sinkscope.tasks.generated import Draft, GeneratedTask, only_scheme
from sinkscope.tasks.programs import CodeTask
from sinkscope.tasks.small_code_parts import FAMILIES, data
from sinkscope.tasks.task import Document, cut

VERSION = "small_code/1"  # changing any text, code or test changes scores: count up


def draft(rng: Random) -> Draft:
    """One exercise; the skeleton is its family with all choices and constants, without the names."""
    results: list[Any] = []
    while len(set(map(repr, results))) < 2:  # a function that always answers the same is no exercise
        function = rng.choice(FAMILIES)(rng)
        results = function.results()
    name = rng.choice(data()["names"])
    head = f'def {name}({", ".join(function.arguments)}):\n    """{function.docstring}"""'
    tests = [
        f"assert {name}({', '.join(map(repr, given))}) == {result!r}"
        for given, result in zip(function.inputs, results, strict=True)
    ]
    return Draft(function.key, head, function.body, {"tests": "\n".join(tests)})


def program(document: Document, output: str) -> str:
    """The function that an output completes.

    The output is its body, whether or not the first line is indented.
    """
    return f"{document.question}\n    {output.lstrip()}\n"


@dataclass(frozen=True)
class SmallCode(GeneratedTask, CodeTask):
    """The task."""

    name: str = "small_code"
    version = VERSION
    draft = staticmethod(draft)

    def programs(self, pairs: Sequence[tuple[Document, str]]) -> list[BoundedResult]:
        """The functions that the answers complete."""
        until = self.scheme.until
        return [BoundedResult(program(document, cut(output, until))) for document, output in pairs]

    def tests(self, document: Document) -> tuple[str, str]:
        """The document's tests, and its function."""
        return document.extra["tests"], document.question.removeprefix("def ").partition("(")[0]


def task(scheme: str | None = None, family: str | None = None, data: str | Path | None = None) -> SmallCode:
    """The task with the decoding of a family."""
    ends = ("\ndef", "\nclass", "\n#", "\nprint", "\nassert")
    return SmallCode(only_scheme("small_code", "body", scheme, family, data, until=ends))
