"""Many programs graded in few sandboxes: a masking table has tens of thousands of them, and a sandbox takes 50 ms to start.

A batch of programs runs one after another in one confined interpreter, each compiled, named and checked as `tasks/confined.py`
does it. What that cannot decide (a program that runs long, a batch that does not come to its end) is graded alone, by the task.
"""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Callable, Sequence

from sinkscope.tasks import sandbox
from sinkscope.tasks.small_code import SmallCode, program
from sinkscope.tasks.task import Document, cut

BATCH = 200
PATIENCE = 1.0
"""Seconds after which a program of a batch is put aside, to be graded alone with the task's own time limit."""
WHOLE = 60.0
"""Seconds for a batch."""

DRIVER = r"""
import io, json, signal, sys
from types import ModuleType

class Long(BaseException):
    pass

def late(*_):
    raise Long

def verdict(source, checks):
    try:
        codes = [compile(text, "<program>", "exec", dont_inherit=True) for text in (source, checks)]
        module = ModuleType("solution")
        sys.modules["solution"] = module
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        for code in codes:
            exec(code, module.__dict__)
        return "1"
    except Long:
        return "?"
    except BaseException:
        return "0"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)

signal.signal(signal.SIGALRM, late)
real, found = sys.stdout, []
for source, number in JOBS:
    sys.stdout = sys.stderr = io.StringIO()
    found.append(verdict(source, CHECKS[number]))
sys.stdout = real
print(NONCE + "".join(found) + NONCE)
"""


def grade_programs(
    task: SmallCode, pairs: Sequence[tuple[Document, str]], say: Callable[[str], None] = print
) -> list[bool]:
    """Whether each (document, answer) passes the document's tests; each program runs once, however often it was given."""
    jobs = [
        sandbox.Program(program(document, cut(output, task.scheme.until)), document.extra["tests"])
        for document, output in pairs
    ]
    different = list(dict.fromkeys(jobs))
    known: dict[sandbox.Program, bool] = {job: False for job in different if not _compiles(job.source)}
    left = [job for job in different if job not in known]
    say(f"{len(jobs)} programs, {len(different)} different, {len(left)} of them to run")
    alone = []
    for first in range(0, len(left), BATCH):
        batch = left[first : first + BATCH]
        for job, mark in zip(batch, _together(batch, task.sandbox), strict=True):
            if mark == "?":
                alone.append(job)
            else:
                known[job] = mark == "1"
    named = [sandbox.Program(job.source, job.checks, "solution") for job in alone]
    results = sandbox.run_many(named, task.scheme.timeout, sandbox=task.sandbox)
    known |= {job: result.passed for job, result in zip(alone, results, strict=True)}
    return [known[job] for job in jobs]


def _compiles(source: str) -> bool:
    """What does not compile fails in any sandbox; compiling runs nothing."""
    try:
        with warnings.catch_warnings():
            # What a model writes is full of things that Python warns of; they are its own affair.
            warnings.simplefilter("ignore", SyntaxWarning)
            compile(source, "<program>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True


def _together(batch: Sequence[sandbox.Program], kind: sandbox.Sandbox) -> str:
    """A mark for each program: 1 passed, 0 failed, ? not known."""
    checks = list(dict.fromkeys(job.checks for job in batch))
    nonce = secrets.token_hex(16)  # so that nothing which a program prints can pass for the verdicts
    jobs = [[job.source, checks.index(job.checks)] for job in batch]
    given = {"JOBS": jobs, "CHECKS": checks, "NONCE": nonce, "PATIENCE": PATIENCE}
    head = "".join(
        f"{name} = __import__('json').loads({json.dumps(value)!r})\n" for name, value in given.items()
    )
    result = sandbox.run(head + DRIVER, WHOLE, sandbox=kind)
    parts = result.output.split(nonce)
    if not result.passed or len(parts) != 3 or len(parts[1]) != len(batch):
        return "?" * len(batch)
    return parts[1]
