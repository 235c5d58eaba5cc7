"""Our own reading of what a model wrote, in a child process with limits on time, memory and depth.

    found = apply([("sanitized", prompt, output, "f"), ("syntax-error", source)])
    found[0].value, found[0].error

The functions are those of `code_text.py`, which is the child's script. An answer that takes too long, or that ends
the child, is that answer's failure: the next one gets a new child.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

SECONDS = 10.0  # for one text; Dream's rule parses every run of a hundred lines
SCRIPT = Path(__file__).with_name("code_text.py")


@dataclass(frozen=True)
class Reading:
    """What a function gave; `value` is None where it failed, and `error` says why."""

    value: str | None
    error: str = ""


def apply(calls: Sequence[tuple[str, ...]], seconds: float = SECONDS) -> list[Reading]:
    """The results of calls (function, argument, …), in their order, one child after another as far as needed."""
    with _Child() as child:
        return [child.call(call, seconds) for call in calls]


class _Child:
    """A process that answers one line at a time; started when it is first needed, and anew after a failure."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def call(self, call: tuple[str, ...], seconds: float) -> Reading:
        """The result of one call within so many seconds of wall time."""
        if self._process is None:
            self._process = subprocess.Popen(  # noqa: S603 (our own script)
                [sys.executable, "-I", "-S", str(SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
            )
        deadline = time.monotonic() + seconds
        line = self._exchange(self._process, json.dumps(call).encode() + b"\n", deadline)
        if line is None:
            late = time.monotonic() >= deadline
            self._end()
            return Reading(None, f"took more than {seconds:g} s to read" if late else "ended the reader")
        reply = json.loads(line)
        return Reading(reply[0], *reply[1:])

    @staticmethod
    def _exchange(process: subprocess.Popen[bytes], line: bytes, deadline: float) -> bytes | None:
        """Write a line and read one; None when the child is gone or late."""
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None:  # for the type checker: both are pipes
            raise RuntimeError("no pipes")
        reply = b""
        with selectors.DefaultSelector() as selector:
            os.set_blocking(stdin.fileno(), False)
            selector.register(stdin.fileno(), selectors.EVENT_WRITE)
            selector.register(stdout.fileno(), selectors.EVENT_READ)
            while not reply.endswith(b"\n"):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    return None
                for key, _ in ready:
                    if key.fd == stdin.fileno():
                        try:
                            line = line[os.write(key.fd, line[: 1 << 16]) :]
                        except BrokenPipeError:
                            return None
                        if not line:
                            selector.unregister(key.fd)
                    else:
                        part = os.read(key.fd, 1 << 16)
                        if not part:
                            return None
                        reply += part
        return reply

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
