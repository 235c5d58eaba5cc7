"""Our own reading of what a model wrote, in a child process with limits on time, memory and depth.

    readings = apply([("sanitized", prompt, output, "f"), ("syntax-error", source)])
    readings[0].value, readings[0].error

The functions are those of `code_text.py`, which is the child's script. An answer that takes too long, or that ends
the child, is that answer's failure: the next one gets a new child.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SECONDS = 10.0  # for one text; Dream's rule parses every run of a hundred lines
SCRIPT = Path(__file__).with_name("code_text.py")


@dataclass(frozen=True)
class BoundedResult:
    """The result of a call; `value` is None where it failed, and `error` says why."""

    value: str | None
    error: str = ""


def apply(calls: Sequence[tuple[str, ...]], seconds: float = SECONDS) -> list[BoundedResult]:
    """The results of calls (function, argument, …), in their order, within so many seconds of wall time each."""
    readings: list[BoundedResult] = []
    while len(readings) < len(calls):  # a child does all that are left, up to one that it fails on
        readings += _child(calls[len(readings) :], seconds)
    return readings


def _child(calls: Sequence[tuple[str, ...]], seconds: float) -> Iterator[BoundedResult]:
    with tempfile.TemporaryFile() as stdin:
        stdin.writelines(json.dumps(call).encode() + b"\n" for call in calls)
        stdin.seek(0)
        process = subprocess.Popen(  # noqa: S603 (our own script)
            [sys.executable, "-I", "-S", str(SCRIPT)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            bufsize=0,
        )
    if process.stdout is None:  # for the type checker: it is a pipe
        raise RuntimeError("no output pipe")
    with process, selectors.DefaultSelector() as selector:
        try:
            selector.register(process.stdout, selectors.EVENT_READ)
            waiting = b""
            for _ in calls:
                deadline = time.monotonic() + seconds
                while b"\n" not in waiting:
                    if not selector.select(max(0.0, deadline - time.monotonic())):
                        yield BoundedResult(None, f"took more than {seconds:g} s to read")
                        return
                    part = process.stdout.read(1 << 16)
                    if not part:
                        yield BoundedResult(None, "ended the reader")
                        return
                    waiting += part
                line, _, waiting = waiting.partition(b"\n")
                yield BoundedResult(*json.loads(line))
        finally:
            process.kill()
