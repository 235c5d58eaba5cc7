"""One run of one program: an interpreter that `confined.py` confines and splits in two, the verdict from the half that runs
the checks, and nothing left of it afterwards.
"""

from __future__ import annotations

import marshal
import math
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sinkscope.base.errors import InputError
from sinkscope.tasks.sandbox import bubblewrap, system
from sinkscope.tasks.sandbox.seccomp import OWN_PROCESS, filter_program

MIB = 1 << 20
OUT_OF_TIME = "ran out of time"


@dataclass(frozen=True)
class Limits:
    """The most that one program may use. Sizes in bytes."""

    memory: int = 512 * MIB  # address space, of each process
    tasks: int = 32  # threads and processes together
    children: bool = False  # may it start processes of its own; needs bubblewrap
    file_size: int = 8 * MIB  # of one file
    disk: int = 32 * MIB  # of its private folder
    output: int = 4 * MIB  # printed
    source: int = 1 * MIB  # program and checks together

    def __post_init__(self) -> None:
        for name in ("memory", "tasks", "file_size", "disk", "output", "source"):
            if getattr(self, name) < 1:
                raise InputError(f"sandbox limit {name} is {getattr(self, name)}: give a positive number")


@dataclass(frozen=True)
class Program:
    """A program, and the checks of it, which run after it in a process of their own and use its names."""

    source: str
    checks: str = ""
    name: str = "__main__"  # of its module
    # Names of builtins and of standard modules that the checks take from it; None: all that it defines.
    shadows: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Result:
    passed: bool  # it ran to its end, checks included
    reason: str  # "passed", or why not, in a few words
    seconds: float  # wall time, interpreter start included
    output: str  # the last 2000 characters that it printed
    rung: str  # how it was confined: "bubblewrap", "landlock" or "none"


@dataclass(frozen=True)
class Rung:
    """A way to confine programs.

    Attributes:
        name: "bubblewrap", "landlock" or "none"; recorded with every result.
        words: half a sentence about it.
    """

    name: str
    words: str
    route: bubblewrap.Route | None = None


def execute(program: Program, timeout: float, limits: Limits, rung: Rung) -> Result:
    """Run a program and its checks within so many seconds of wall time."""
    source = program.source.encode("utf-8", "surrogatepass")
    checks = program.checks.encode("utf-8", "surrogatepass")
    size = len(source) + len(checks)
    if size > limits.source:
        return Result(False, f"the source has {size} bytes, {limits.source} are allowed", 0.0, "", rung.name)
    secret = secrets.token_bytes(32)  # the word for a program that passed: only the judge is told it
    verdict_read, verdict_write = os.pipe()
    started = time.monotonic()
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryDirectory(prefix="sinkscope-") as folder:
        try:
            script = _script()
            job = marshal.dumps(
                {
                    "source": len(source), "checks": len(checks), "secret": len(secret), "name": program.name,
                    "shadows": program.shadows, "verdict": verdict_write,
                    **_confinement(rung, math.ceil(timeout) + 1, limits, folder),
                }
            )  # fmt: skip
            stdin.writelines([script, job, source, checks, secret])
            stdin.seek(0)
            inner = [str(system.interpreter()), "-I", "-S", "-u", "-c", START, str(len(script)), str(len(job))]
            first = 65534 if rung.route and rung.route.become_first else None
            process = subprocess.Popen(  # noqa: S603 (the point of this file)
                bubblewrap.command(rung.route, inner, limits.disk) if rung.route else inner,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={},
                cwd="/" if rung.route else folder,
                pass_fds=[verdict_write],
                start_new_session=True,
                user=first,
                group=first,
                extra_groups=None if first is None else [],
            )
        except BaseException:
            os.close(verdict_read)
            raise
        finally:
            os.close(verdict_write)

        def stop_for() -> str:
            return system.too_much(folder, process.pid, limits.disk) if rung.name == "landlock" else ""

        try:
            ended, verdict, printed = _watch(process, verdict_read, started + timeout, limits.output, stop_for)
        finally:
            _kill(process)
            os.close(verdict_read)
    seconds = time.monotonic() - started
    text = printed.decode("utf-8", "replace")[-2000:]
    if verdict == secret:
        return Result(True, "passed", seconds, text, rung.name)
    why = _last_line(verdict.decode("utf-8", "replace").removeprefix("failed\n"))
    return Result(False, why or ended or _reason(process.returncode, text), seconds, text, rung.name)


def _confinement(rung: Rung, cpu: int, limits: Limits, folder: str) -> dict[str, object]:
    """How the process confines itself, as `confined.Job` has it; with the rung "none" it only has no children, which
    could outlive the run.
    """
    alone = rung.name == "landlock" or (rung.route is not None and rung.route.become_inside)
    linux = sys.platform == "linux"
    tasks = limits.tasks + 1  # the judge
    if rung.route is None:  # no filter against children elsewhere; the limit on processes takes its place
        tasks = tasks + system.tasks_of_user() if linux else 0
    return {
        "rung": rung.name,
        "user": 0x60000000 + secrets.randbelow(0x10000000) if alone and os.geteuid() == 0 else 0,
        "readable": system.readable(rung.name),
        "folder": "/tmp" if rung.route else folder,  # noqa: S108 (its own)
        "code": (filter_program(rung.name, limits.children) or b"") if linux else b"",
        "own_process": OWN_PROCESS,
        "limits": (
            ("RLIMIT_CPU", cpu), ("RLIMIT_AS", limits.memory), ("RLIMIT_NPROC", tasks), ("RLIMIT_FSIZE", limits.file_size),
            ("RLIMIT_NOFILE", 64), ("RLIMIT_CORE", 0), ("RLIMIT_MEMLOCK", 0), ("RLIMIT_MSGQUEUE", 0),
        ),
    }  # fmt: skip


# Makes the modules of the script from standard input, where the arguments say how long it is and the job behind it.
START = (
    "import marshal, os, sys\n"
    "start, size = map(int, sys.argv[1:])\n"
    "for name, code in marshal.loads(os.pread(0, start, 0)):\n"
    "    module = sys.modules[name] = type(sys)(name)\n"
    "    exec(code, module.__dict__)\n"
    "module.main(start, size)"
)


@lru_cache(maxsize=1)
def _script() -> bytes:
    """The modules that run inside, compiled once: for the interpreter that runs this."""
    names = ("wire", "kernel", "confined")
    sources = {name: Path(__file__).with_name(f"{name}.py").read_bytes() for name in names}
    return marshal.dumps([(f"{__package__}.{name}", compile(text, name, "exec")) for name, text in sources.items()])


def _watch(
    process: subprocess.Popen[bytes], verdict: int, deadline: float, most: int, stop_for: Callable[[], str]
) -> tuple[str, bytes, bytes]:
    """Read until a program is gone: why it had to be stopped, or ""; its verdict; the end of what it printed.

    Args:
        verdict: its descriptor. most: bytes that may be printed. stop_for: says why it must be stopped, or "".
    """
    stdout = process.stdout.fileno() if process.stdout else -1
    read, printed = {verdict: b"", stdout: b""}, 0

    def take(descriptor: int) -> bool:
        """Take what a pipe holds; False at its end."""
        nonlocal printed
        chunk = os.read(descriptor, 1 << 16)
        whole = read[descriptor] + chunk
        read[descriptor] = whole[:1024] if descriptor == verdict else whole[-8000:]
        printed += len(chunk) if descriptor == stdout else 0
        return bool(chunk)

    def until_gone(selector: selectors.BaseSelector) -> str:
        gone = False
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return OUT_OF_TIME
            ready = selector.select(0 if gone else min(left, 0.05))
            for key, _ in ready:
                if not take(key.fd):
                    selector.unregister(key.fd)
            if printed > most:
                return f"printed more than {most} bytes"
            if reason := stop_for():
                return reason
            if read[verdict] and verdict not in selector.get_map():  # all is told
                while selector.get_map() and printed <= most and selector.select(0) and take(stdout):
                    pass
                return ""
            if not ready and gone:
                break  # a pipe that a stray process keeps open
            # What it wrote between the look at the pipes and its end is read in the next round.
            gone = process.poll() is not None
        return ""

    with selectors.DefaultSelector() as selector:
        for descriptor in (verdict, stdout):
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        return until_gone(selector), read[verdict], read[stdout]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the whole session. With bubblewrap the process namespace, and all that is in it, goes with its parent."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _reason(status: int, output: str) -> str:
    if status > 0 and (line := _last_line(output)):
        return line
    if status < 0:
        return f"killed by signal {-status}"
    return f"ended before its last line (exit code {status})"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
