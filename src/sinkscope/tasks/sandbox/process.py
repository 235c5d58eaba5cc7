"""One run of one program: a fresh interpreter, the verdict on a private pipe, and nothing left of it afterwards."""

from __future__ import annotations

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
from typing import IO

from sinkscope.tasks.sandbox import bubblewrap, landlock
from sinkscope.tasks.sandbox.program import OUT_OF_TIME, Limits, Program, Result
from sinkscope.tasks.sandbox.seccomp import filter_program
from sinkscope.tasks.sandbox.system import interpreter


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


@dataclass
class _Start:
    """The command of a process, and what goes with it."""

    command: list[str]
    folder: str
    descriptors: list[int]
    user_inside: int = 0  # whom the program becomes inside
    user_first: int | None = None  # who starts the command
    tasks: int = 0  # tasks of the user that the kernel counts beside the program's own


def execute(program: Program, timeout: float, limits: Limits, rung: Rung) -> Result:
    """Run a program and its checks within so many seconds of wall time."""
    source = program.source.encode("utf-8", "surrogatepass")
    checks = program.checks.encode("utf-8", "surrogatepass")
    size = len(source) + len(checks)
    if size > limits.source:
        return Result(False, f"the source has {size} bytes, {limits.source} are allowed", 0.0, "", rung.name)
    secret = secrets.token_hex(24)
    verdict_read, verdict_write = os.pipe()
    started = time.monotonic()
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as rules,
        tempfile.TemporaryDirectory(prefix="sinkscope-") as folder,
    ):
        try:
            start = _start(rung, limits, folder, rules, verdict_write)
            job = [
                secret, verdict_write, start.user_inside, math.ceil(timeout) + 1, limits.memory, limits.tasks + start.tasks,
                limits.file_size, len(source), program.name.replace(" ", "_").replace("\n", "_"),
            ]  # fmt: skip
            stdin.write(" ".join(map(str, job)).encode() + b"\n" + source + checks)
            stdin.seek(0)
            process = subprocess.Popen(  # noqa: S603 (the point of this file)
                start.command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={},
                cwd=start.folder,
                pass_fds=start.descriptors,
                start_new_session=True,
                user=start.user_first,
                group=start.user_first,
                extra_groups=None if start.user_first is None else [],
            )
        except BaseException:
            os.close(verdict_read)
            raise
        finally:
            os.close(verdict_write)
        try:
            watched = _Watched(process, verdict_read, limits)
            if rung.name == "landlock":
                watched.stop_for = lambda: landlock.too_much(folder, process.pid, limits)
            ended = watched.until(started + timeout)
        finally:
            _kill(process)
            os.close(verdict_read)
    seconds = time.monotonic() - started
    text = watched.tail.decode("utf-8", "replace")[-2000:]
    if watched.verdict == secret.encode():
        return Result(True, "passed", seconds, text, rung.name)
    return Result(False, ended or _reason(process.returncode, text), seconds, text, rung.name)


def _start(rung: Rung, limits: Limits, folder: str, rules: IO[bytes], verdict: int) -> _Start:
    """The command for a rung; `rules` takes bubblewrap's filter."""
    inner = [str(interpreter()), "-I", "-S", "-u", "-c", _confined()]
    if rung.route is not None:
        code = filter_program("bubblewrap", limits.children)
        descriptors = [verdict]
        if code is not None:
            rules.write(code)
            rules.seek(0)
            descriptors.append(rules.fileno())
        command = bubblewrap.command(rung.route, inner, limits.disk, None if code is None else rules.fileno())
        inside = 0x60000000 + secrets.randbelow(0x10000000) if rung.route.become_inside else 0
        return _Start(command, "/", descriptors, inside, 65534 if rung.route.become_first else None)
    if sys.platform != "linux":  # no filter against children there; the limit on processes takes its place
        return _Start(inner, folder, [verdict], tasks=-limits.tasks)
    return _Start(
        landlock.command(rung.name, inner, folder), folder, [verdict], tasks=landlock.tasks_of_user()
    )


@lru_cache(maxsize=1)
def _confined() -> str:
    return Path(__file__).with_name("confined.py").read_text(encoding="utf-8")


class _Watched:
    """A running program: its verdict, and the end of what it printed."""

    def __init__(self, process: subprocess.Popen[bytes], verdict: int, limits: Limits) -> None:
        self.process = process
        self.verdict = b""
        self.tail = b""
        self.stop_for: Callable[[], str] = str  # says why it must be stopped, or ""
        self._descriptor = verdict
        self._most = limits.output
        self._printed = 0

    def until(self, deadline: float) -> str:
        """Read until the program is gone; return why it had to be stopped, or ""."""
        stream = self.process.stdout
        if stream is None:  # for the type checker: stdout is a pipe
            raise RuntimeError("no output pipe")
        gone = False
        with selectors.DefaultSelector() as selector:
            for descriptor in (self._descriptor, stream.fileno()):
                os.set_blocking(descriptor, False)
                selector.register(descriptor, selectors.EVENT_READ)
            while selector.get_map():
                left = deadline - time.monotonic()
                if left <= 0:
                    return OUT_OF_TIME
                ready = selector.select(0 if gone else min(left, 0.05))
                for key, _ in ready:
                    if not self._read(key.fd):
                        selector.unregister(key.fd)
                if self._printed > self._most:
                    return f"printed more than {self._most} bytes"
                if reason := self.stop_for():
                    return reason
                if not ready and gone:
                    break  # a pipe that a stray process keeps open
                # What it wrote between the look at the pipes and its end is read in the next round.
                gone = self.process.poll() is not None
        return ""

    def _read(self, descriptor: int) -> bool:
        """Take what a pipe holds; False at its end."""
        part = os.read(descriptor, 1 << 16)
        if descriptor == self._descriptor:
            self.verdict = (self.verdict + part)[:1024]
        else:
            self._printed += len(part)
            self.tail = (self.tail + part)[-8000:]
        return bool(part)


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
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if lines and status > 0:
        return lines[-1][:200]
    if status < 0:
        return f"killed by signal {-status}"
    return f"ended before its last line (exit code {status})"
