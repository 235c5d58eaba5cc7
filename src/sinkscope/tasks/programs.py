"""Grading programs by their tests: what the tasks that run code share."""

from __future__ import annotations

from collections.abc import Sequence

from sinkscope.tasks import sandbox
from sinkscope.tasks.bounded import BoundedResult
from sinkscope.tasks.task import Mark


def grade_programs(
    programs: Sequence[tuple[BoundedResult, str]],
    entry_points: Sequence[str],
    timeout: float,
    kind: str = "auto",
    workers: int | None = None,
) -> list[Mark]:
    """The marks on (program as it was read from an answer, its tests); an answer without a program is wrong.

    Args:
        entry_points: the function that is tested, for each program: no other name of a program replaces a builtin or a module
            of the standard library in its tests.
        timeout: seconds for one program. kind: of the sandbox. workers: programs at a time; None: by the cores.
    """
    jobs = [
        None if reading.value is None else sandbox.Program(reading.value, tests, "solution", (name,))
        for (reading, tests), name in zip(programs, entry_points, strict=True)
    ]
    ran = sandbox.run_many([job for job in jobs if job is not None], timeout, sandbox=kind, workers=workers)
    results = iter(ran)
    marks = []
    for job, (reading, _) in zip(jobs, programs, strict=True):
        if job is None:
            marks.append(Mark(False, "", f"the answer {reading.error}"))
        else:
            result = next(results)
            marks.append(Mark(result.passed, job.source, result.reason, result.rung))
    return marks
