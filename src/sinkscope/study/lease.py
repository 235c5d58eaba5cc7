"""A lease: one holder at a time, and a dead holder loses it.

On one machine the kernel's file lock decides, and lets go the moment its holder dies. Where a file system does not share locks
between machines, the holder's heartbeat decides: another machine's lease counts as lost when it has not beaten for a while.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

BEAT = 5.0
LOST = 60.0
"""Seconds between two beats, and without one until another machine may take over."""


class LeaseHeldError(Exception):
    """Somebody else holds it; `holder` says who."""

    def __init__(self, path: Path, holder: dict[str, Any]) -> None:
        self.holder = holder
        who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
        super().__init__(f"{path} is held by {who}")


class Lease:
    """`with Lease(path): …`; raises LeaseHeldError at once when another process holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Lease:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise LeaseHeldError(self.path, holder(self.path) or {}) from error
        other = holder(self.path)
        if (
            other
            and other.get("host") != socket.gethostname()
            and time.time() - float(other.get("beat", 0)) < LOST
        ):
            os.close(descriptor)
            raise LeaseHeldError(self.path, other)
        self._descriptor = descriptor
        try:
            self._beat()
        except OSError:
            self._descriptor = None
            os.close(descriptor)
            raise
        self._thread = threading.Thread(target=self._beat_on, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._descriptor is not None:
            try:
                os.ftruncate(self._descriptor, 0)
            finally:
                os.close(self._descriptor)
                self._descriptor = None

    def _beat_on(self) -> None:
        while not self._stop.wait(BEAT):
            try:
                self._beat()
            except OSError:  # a full disk must not end the work; the lock still holds on this machine
                continue

    def _beat(self) -> None:
        if self._descriptor is None:
            return
        line = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "beat": time.time()}).encode()
        os.pwrite(self._descriptor, line.ljust(160), 0)


def holder(path: Path) -> dict[str, Any] | None:
    """Who wrote into a lease last; None when it was given back, or never taken."""
    try:
        text = path.read_text(encoding="utf-8").strip("\0 \n")
        found = json.loads(text) if text else None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def is_held(path: Path) -> bool:
    """Whether somebody seems to hold it now; looks only, and takes nothing."""
    other = holder(path)
    if other is None or time.time() - float(other.get("beat", 0)) >= LOST:
        return False
    if other.get("host") != socket.gethostname():
        return True
    try:
        os.kill(int(other.get("pid", 0)), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
