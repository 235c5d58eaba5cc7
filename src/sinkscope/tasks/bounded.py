"""Our own reading of what a model wrote, in a child process with limits on time, memory and depth.

    readings = apply([("sanitized", prompt, output, "f"), ("syntax-error", source)])
    readings[0].value, readings[0].error

The functions are those of `code_text.py`, which is the child's script. An answer that takes too long, or that ends the child,
is that answer's failure: the next one gets a new child.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
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
        child = subprocess.run(  # noqa: S603 (our own script)
            [sys.executable, "-I", "-S", str(SCRIPT), str(seconds)],
            input=b"".join(json.dumps(call).encode() + b"\n" for call in calls[len(readings) :]),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            check=False,
        )
        *lines, _ = child.stdout.split(b"\n")  # behind the last newline is what it did not come to write
        readings += [BoundedResult(*json.loads(line)) for line in lines]
        if len(readings) < len(calls):
            late = child.returncode == -signal.SIGALRM
            why = f"took more than {seconds:g} s to read" if late else "ended the reader"
            readings.append(BoundedResult(None, why))
    return readings
