"""Grading programs by their tests: what the tasks that run code share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sinkscope.tasks import sandbox
from sinkscope.tasks.bounded import BoundedResult
from sinkscope.tasks.task import Document, Mark, Task


@dataclass(frozen=True, kw_only=True)
class CodeTask(Task):
    """A task whose answers are programs, which the document's tests judge in the sandbox."""

    runs_code: bool = True
    sandbox: str = "auto"

    def programs(self, pairs: Sequence[tuple[Document, str]]) -> list[BoundedResult]:
        """The sources that are run before the tests; an answer that cannot be read has none."""
        raise NotImplementedError

    def tests(self, document: Document) -> tuple[str, str]:
        """The tests, and the function that they are of: no other name of a program replaces a builtin or a module of the
        standard library in them.
        """
        raise NotImplementedError

    def grade(self, document: Document, output: str) -> Mark:
        return self.grade_many([(document, output)])[0]

    def grade_many(self, pairs: Sequence[tuple[Document, str]]) -> list[Mark]:
        jobs: dict[int, sandbox.Program] = {}
        marks = {}
        for number, (reading, (document, _)) in enumerate(zip(self.programs(pairs), pairs, strict=True)):
            if reading.value is None:
                marks[number] = Mark(False, "", f"the answer {reading.error}")
            else:
                tests, function = self.tests(document)
                jobs[number] = sandbox.Program(reading.value, tests, "solution", (function,))
        results = sandbox.run_many(list(jobs.values()), self.scheme.timeout, sandbox=self.sandbox)
        for (number, job), result in zip(jobs.items(), results, strict=True):
            marks[number] = Mark(result.passed, job.source, result.reason, result.rung)
        return [marks[number] for number in range(len(pairs))]
