"""A lock with one holder at a time, for the folder of a study and for each folder of records.

filelock's kernel lock (flock) decides, and is free the moment its holder dies. A note beside it says who holds it, for messages.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any, TypedDict

from filelock import FileLock, Timeout

from sinkscope.base.errors import InputError
from sinkscope.base.files import read_json, write_atomically

GRACE = 0.5
"""Seconds that are waited at least: whoever asks `is_held` has the lock for a moment."""


class _Note(TypedDict):
    pid: int
    host: str


class LockHeldError(InputError):
    """Another process holds the lock; `holder` says which."""

    def __init__(self, path: Path, holder: dict[str, Any]) -> None:
        self.holder = holder
        super().__init__(f"{path} is held by process {holder.get('pid', '?')} on {holder.get('host', '?')}")


class Lock:
    """`with Lock(path): …` holds the lock, or raises LockHeldError when it is not free within `wait` seconds."""

    def __init__(self, path: Path, wait: float = 0.0) -> None:
        self.path, self.wait = path, wait
        self._lock = FileLock(path, thread_local=False)

    def acquire(self) -> Lock:
        """Take the lock, and note who has it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=max(self.wait, GRACE), poll_interval=0.1)
        except Timeout as error:
            raise LockHeldError(self.path, holder(self.path) or {}) from error
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be locked ({error}); is it a link, or the folder read-only?"
            ) from error
        try:
            write_atomically(note(self.path), json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        except BaseException:
            self._lock.release()
            raise
        return self

    def release(self) -> None:
        if self._lock.is_locked:
            note(self.path).unlink(missing_ok=True)
            self._lock.release()

    __enter__ = acquire

    def __exit__(self, *error: object) -> None:
        self.release()


def note(path: Path) -> Path:
    """The file in which the holder of a lock says who it is."""
    return path.with_name(f"{path.name}.holder")


def holder(path: Path) -> dict[str, Any] | None:
    """The note of the last holder of a lock; None when it was given back, or never taken."""
    with contextlib.suppress(InputError):
        data: dict[str, Any] = read_json(note(path), "", kind=_Note)
        return data
    return None


def is_held(path: Path) -> bool:
    """True when a process holds the lock now; where it may not be tried (a folder of somebody else's), when one has noted so."""
    if holder(path) is None or not path.is_file():
        return False
    try:
        with FileLock(path).acquire(timeout=0):
            return False
    except (Timeout, OSError):
        return True
