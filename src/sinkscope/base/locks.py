"""A lock with one holder at a time, for the folder of a study and for each folder of records.

filelock's kernel lock (flock) decides, and is free the moment its holder dies. A note beside it says who holds it, for messages.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypedDict

from filelock import FileLock, Timeout

from sinkscope.base.errors import InputError
from sinkscope.base.files import read_json, write_atomically

GRACE = 0.5
"""Seconds that are waited at least: whoever asks `is_held` has the lock for a moment."""


class _Note(TypedDict):
    pid: int
    host: str


class LockHeldError(InputError):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, wait: float = 0.0) -> Iterator[None]:
    """Inside, this process holds the lock; LockHeldError where it is not free within `wait` seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=max(wait, GRACE), poll_interval=0.1)
    except Timeout as error:
        raise LockHeldError(f"{path} is held by {holder(path) or 'a process that left no note'}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be locked ({error}); is it a link, or the folder read-only?") from error
    try:
        write_atomically(note(path), json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        yield
    finally:
        note(path).unlink(missing_ok=True)
        lock.release()


def note(path: Path) -> Path:
    """The file in which the holder of a lock says who it is."""
    return path.with_name(f"{path.name}.holder")


def holder(path: Path) -> str:
    """Who held a lock last, "process 7 on this-machine"; "" when it was given back, or never taken."""
    with suppress(InputError):
        noted: _Note = read_json(note(path), "", kind=_Note)
        return f"process {noted['pid']} on {noted['host']}"
    return ""


def is_held(path: Path) -> bool:
    """True when a process holds the lock now; where it may not be tried (a folder of somebody else's), when one has noted so."""
    if not holder(path) or not path.is_file():
        return False
    try:
        with FileLock(path).acquire(timeout=0):
            return False
    except (Timeout, OSError):
        return True
