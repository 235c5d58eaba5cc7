"""Run programs that a model wrote, and say whether they ran to their end.

    result = run("def f(x):\n    return x + 1\n", checks="assert f(1) == 2")
    result.passed, result.rung

Each program gets a fresh interpreter (`python -I -S`: standard library alone, so that a verdict does not depend on
what is installed), with an empty environment and no descriptors of ours, on the first rung that holds on this machine:
bubblewrap, else Landlock with a system-call filter. On both: no network, a read-only system, no home, a private
folder of limited size, limits on time, memory, processes and files, and no process that outlives it. Nothing is
forked from the calling process, which may hold a model.

The checks run in a process of their own, the judge, which asks the program for values and alone can tell the verdict;
exit codes and printed text count for nothing. docs/sandbox.md says what crosses between the two, and what this does not
exclude.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sinkscope.base.errors import InputError
from sinkscope.tasks import bounded
from sinkscope.tasks.sandbox.process import OUT_OF_TIME, Limits, Program, Result, Rung, execute
from sinkscope.tasks.sandbox.rungs import UnconfinedWarning, available, check, reason

__all__ = [
    "Limits", "Program", "Result", "Rung", "UnconfinedWarning", "available", "check", "reason", "run", "run_many",
]  # fmt: skip


def run(
    program: str,
    timeout: float = 5.0,
    *,
    checks: str = "",
    name: str = "__main__",
    limits: Limits | None = None,
    sandbox: str = "auto",
) -> Result:
    """Run `program`, then `checks`, which use its names; `timeout` in seconds of wall time.

    `sandbox="none"` confines nothing: limits still hold, but the program sees your files and network.
    """
    limits = limits or Limits()
    return execute(Program(program, checks, name), timeout, limits, _checked(timeout, limits, sandbox))


def run_many(programs: Sequence[Program], timeout: float = 5.0, *, sandbox: str = "auto") -> list[Result]:
    """The results of many programs, in the order given; each still has an interpreter and a sandbox of its own.

    Equal programs run once, and those that do not compile not at all. Programs that ran out of time run once more, one
    for each core, so that a verdict depends less on how busy the others kept the machine.
    """
    limits = Limits()
    rung = _checked(timeout, limits, sandbox)
    # Models often write the same program again.
    different = list(dict.fromkeys(programs))
    readings = bounded.apply([("syntax-error", program.source) for program in different])
    result_of = {
        program: Result(False, reading.value, 0.0, "", rung.name)
        for program, reading in zip(different, readings, strict=True)
        if reading.value
    }

    def run_all(some: Sequence[Program], at_once: int) -> None:
        with ThreadPoolExecutor(at_once) as pool:
            results = pool.map(lambda program: execute(program, timeout, limits, rung), some)
            result_of.update(zip(some, results, strict=True))

    left = [program for program in different if program not in result_of]
    cores = os.cpu_count() or 1
    run_all(left, 2 * cores)  # starting one is mostly waiting
    if len(left) > 1:
        late = [program for program in left if result_of[program].reason == OUT_OF_TIME]
        run_all(late, cores)
    return [result_of[program] for program in programs]


def _checked(timeout: float, limits: Limits, sandbox: str) -> Rung:
    if not timeout > 0:
        raise InputError(f"timeout is {timeout}: give a positive number of seconds")
    rung = check(sandbox)
    if limits.children and rung.name != "bubblewrap":
        raise InputError(
            f"children=True needs bubblewrap, whose process namespace ends them all; programs run in {rung.name} here"
        )
    return rung
