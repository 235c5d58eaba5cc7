"""Run a program that a model wrote, and say whether it ran to its end.

    result = run("def f(x):\n    return x + 1\n", checks="assert f(1) == 2")
    result.passed

Each program gets a fresh interpreter (`python -I -S`: standard library alone, so that a verdict does not
depend on what is installed), with an empty environment and no descriptors, inside bubblewrap: no network, a
read-only system, no home, a private small /tmp, limits on time, memory, processes and files, and its own
process tree that dies with it. Nothing is forked from the calling process, which may hold a model.

The verdict is a random secret that `confined.py` writes to a private pipe after the last line; exit codes and
printed text count for nothing. What this cannot exclude: program and checks share one interpreter, so a
program may still answer with an object that equals everything, or hunt for the secret in memory. Both need
intent; docs/tasks.md says more.
"""

from __future__ import annotations

import math
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Literal

from sinkscope.errors import InputError, nearest
from sinkscope.tasks.bubblewrap import (
    AS_ROOT,
    AS_USER,
    CANNOT,
    INSTALL,
    PROBE,
    Route,
    homes,
    interpreter,
    options,
)
from sinkscope.tasks.seccomp import filter_program

Sandbox = Literal["bubblewrap", "none"]
MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What one program may use. Sizes in bytes."""

    memory: int = 512 * MIB  # address space, of each process
    tasks: int = 32  # threads and processes together
    children: bool = False  # may it start processes of its own
    file_size: int = 8 * MIB  # of one file
    disk: int = 32 * MIB  # of its /tmp, which is memory
    output: int = 4 * MIB  # printed
    source: int = 1 * MIB  # program and checks together

    def __post_init__(self) -> None:
        for name in ("memory", "tasks", "file_size", "disk", "output", "source"):
            if getattr(self, name) < 1:
                raise InputError(f"sandbox limit {name} is {getattr(self, name)}: give a positive number")


@dataclass(frozen=True)
class Result:
    """What became of one program."""

    passed: bool  # it ran to its end, checks included
    reason: str  # "passed", or why not, in a few words
    seconds: float  # wall time, interpreter start included
    output: str  # the last 2000 characters that it printed


@dataclass(frozen=True)
class Program:
    """A program and the checks that run after it in the same namespace, compiled apart from it."""

    source: str
    checks: str = ""
    name: str = "__main__"  # of its module


def run(
    program: str,
    timeout: float = 5.0,
    *,
    checks: str = "",
    name: str = "__main__",
    limits: Limits | None = None,
    sandbox: Sandbox = "bubblewrap",
) -> Result:
    """Run `program`, then `checks` in the same namespace; `timeout` in seconds of wall time.

    `sandbox="none"` runs without bubblewrap: limits and the verdict still hold, but the program sees your
    files and network.
    """
    if not timeout > 0:
        raise InputError(f"timeout is {timeout}: give a positive number of seconds")
    _known(sandbox)
    route = _checked_route() if sandbox == "bubblewrap" else None
    return _execute(Program(program, checks, name), timeout, limits or Limits(), route)


def run_many(
    programs: Sequence[Program],
    timeout: float = 5.0,
    *,
    limits: Limits | None = None,
    sandbox: Sandbox = "bubblewrap",
    workers: int | None = None,
) -> list[Result]:
    """`run` for each program, `workers` (default: one for each core) at a time, in the order given."""

    def one(item: Program) -> Result:
        return run(item.source, timeout, checks=item.checks, name=item.name, limits=limits, sandbox=sandbox)

    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        return list(pool.map(one, programs))


def check(sandbox: Sandbox = "bubblewrap") -> str:
    """Raise `InputError` with instructions unless programs can be confined here.

    To be called before a model is loaded. It runs a probe inside the sandbox that tries to break each
    promise, rather than trusting version numbers. Returns a sentence that says how programs are confined, for
    the record.
    """
    _known(sandbox)
    if sandbox == "none":
        return "no sandbox: programs run with limits, but see files and network"
    return f"bubblewrap, {_checked_route().words}"


def _known(sandbox: str) -> None:
    if sandbox not in ("bubblewrap", "none"):
        raise InputError(f"unknown sandbox {sandbox!r}: {nearest(sandbox, ['bubblewrap', 'none'])}")


# ---- one run ------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _checked_route() -> Route:
    """The first way into bubblewrap whose probe comes back; checked once in a process."""
    if shutil.which("bwrap") is None:
        raise InputError(
            f"grading model-written code needs bubblewrap, and there is no `bwrap` on the PATH: {INSTALL}"
        )
    limits = Limits()
    known = {
        "LIMIT_MEMORY": limits.memory,
        "LIMIT_TASKS": limits.tasks,
        "HOMES": [str(home) for home in homes()],
    }
    lines = [f"{name} = {value!r}" for name, value in known.items()]
    probe = Program("\n".join([*lines, PROBE]), name="probe")
    failures = []
    for route in AS_ROOT if os.geteuid() == 0 else AS_USER:
        result = _execute(probe, 20.0, limits, route)
        if result.passed:
            return route
        failures.append(f"{route.words}: {result.reason}")
    raise InputError(
        f"bubblewrap is installed but cannot confine a program here ({'; '.join(failures)}). {CANNOT}"
    )


@lru_cache(maxsize=1)
def _confined_source() -> str:
    return Path(__file__).with_name("confined.py").read_text(encoding="utf-8")


def _execute(program: Program, timeout: float, limits: Limits, route: Route | None) -> Result:
    source = program.source.encode("utf-8", "surrogatepass")
    checks = program.checks.encode("utf-8", "surrogatepass")
    if len(source) + len(checks) > limits.source:
        size = len(source) + len(checks)
        return Result(False, f"the source has {size} bytes, {limits.source} are allowed", 0.0, "")
    secret = secrets.token_hex(24)
    verdict_read, verdict_write = os.pipe()
    user = 0x60000000 + secrets.randbelow(0x10000000) if route is not None and route.become_inside else 0
    job = [secret, verdict_write, user, math.ceil(timeout) + 1, limits.memory, limits.tasks, limits.file_size]
    head = " ".join(map(str, [*job, len(source), program.name.replace(" ", "_").replace("\n", "_")]))
    started = time.monotonic()
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as rules,
        tempfile.TemporaryDirectory() as folder,
    ):
        stdin.write(head.encode() + b"\n" + source + checks)
        stdin.seek(0)
        filters = filter_program(limits.children) if route is not None else None
        passed_on = [verdict_write]
        if filters is not None:
            rules.write(filters)
            rules.seek(0)
            passed_on.append(rules.fileno())
        way_in = options(route, limits.disk, rules.fileno() if filters is not None else None) if route else []
        nobody = 65534 if route is not None and route.become_first else None
        try:
            process = subprocess.Popen(  # noqa: S603 (the point of this file)
                [*way_in, str(interpreter()), "-I", "-S", "-u", "-c", _confined_source()],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={},
                cwd=folder if route is None else "/",
                pass_fds=passed_on,
                start_new_session=True,
                user=nobody,
                group=nobody,
                extra_groups=None if nobody is None else [],
            )
        finally:
            os.close(verdict_write)
        try:
            verdict, output, ended = _watch(process, verdict_read, started + timeout, limits.output)
        finally:
            _kill(process)
            os.close(verdict_read)
    seconds = time.monotonic() - started
    text = output.decode("utf-8", "replace")[-2000:]
    if verdict == secret.encode():
        return Result(True, "passed", seconds, text)
    return Result(False, ended or _reason(process.returncode, text), seconds, text)


def _watch(
    process: subprocess.Popen[bytes], verdict: int, deadline: float, most_output: int
) -> tuple[bytes, bytes, str]:
    """Collect the verdict and the end of the output until the program is gone.

    Say why if it had to be stopped.
    """
    stream: IO[bytes] | None = process.stdout
    if stream is None:  # for the type checker: stdout is a pipe
        raise RuntimeError("no output pipe")
    told, tail, printed = b"", b"", 0
    with selectors.DefaultSelector() as selector:
        for descriptor in (verdict, stream.fileno()):
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return told, tail, "ran out of time"
            # Short waits only matter without bubblewrap, where a stray child may keep the pipes open.
            ready = selector.select(min(left, 0.1))
            for key, _ in ready:
                part = os.read(key.fd, 1 << 16)
                if not part:
                    selector.unregister(key.fd)
                elif key.fd == verdict:
                    told = (told + part)[:1024]
                else:
                    printed += len(part)
                    tail = (tail + part)[-8000:]
                    if printed > most_output:
                        return told, tail, f"printed more than {most_output} bytes"
            if not ready and process.poll() is not None:
                break
    return told, tail, ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the whole session.

    With bubblewrap the process namespace, and all that is in it, goes with its parent.
    """
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _reason(status: int, output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if lines and status > 0:
        return lines[-1][:200]
    if status < 0:
        return f"killed by signal {-status}"
    return f"ended before its last line (exit code {status})"
