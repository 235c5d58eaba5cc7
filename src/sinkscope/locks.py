"""A lock with one holder at a time, for the folder of a study and for each folder of records.

filelock's kernel lock (flock) decides, and is free the moment its holder dies. Some file systems grant it on every machine
alone: Lustre mounted with `localflock`, NFS mounted with `nolock` or `local_lock=flock`. For these the holder leaves a note
with a heartbeat, and a lock that another machine noted less than LOST seconds ago counts as held.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any, TypedDict

from sinkscope.errors import InputError
from sinkscope.files import read_json, write_atomically

BEAT = 5.0
"""Seconds between two heartbeats."""

LOST = 60.0
"""Seconds without a heartbeat until another machine may take over."""

POLL = 0.2


class _Note(TypedDict):
    pid: int
    host: str
    beat: float


class LockHeldError(InputError):
    """Another process holds the lock; `holder` says which."""

    def __init__(self, path: Path, holder: dict[str, Any]) -> None:
        self.holder = holder
        super().__init__(f"{path} is held by process {holder.get('pid', '?')} on {holder.get('host', '?')}")


class Lock:
    """`with Lock(path): …` holds the lock, or raises LockHeldError when it is not free within `wait` seconds."""

    def __init__(self, path: Path, wait: float = 0.0) -> None:
        from filelock import FileLock

        self.path, self.wait = path, wait
        self._lock = FileLock(path, thread_local=False)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> Lock:
        """Take the lock, and keep its note fresh until `release`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + self.wait
        while True:
            try:
                self._take()
                break
            except LockHeldError:
                if time.monotonic() >= until:
                    raise
                time.sleep(POLL)
        self._stop.clear()
        self._thread = threading.Thread(target=self._beat_on, daemon=True)
        self._thread.start()
        return self

    def _take(self) -> None:
        from filelock import Timeout

        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise LockHeldError(self.path, holder(self.path) or {}) from error
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be locked ({error}); is it a link, or the folder read-only?"
            ) from error
        try:
            other = holder(self.path)
            if other and other.get("host") != socket.gethostname() and _fresh(other):
                raise LockHeldError(self.path, other)
            self._beat()
        except BaseException:
            self._lock.release()
            raise

    def release(self) -> None:
        """Give the lock back."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._lock.is_locked:
            note(self.path).unlink(missing_ok=True)
            self._lock.release()

    def __enter__(self) -> Lock:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _beat_on(self) -> None:
        while not self._stop.wait(BEAT):
            # A full disk must not end the work; the kernel's lock still holds on this machine.
            with contextlib.suppress(InputError):
                self._beat()

    def _beat(self) -> None:
        line = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "beat": time.time()})
        write_atomically(note(self.path), line)


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
    """True when a process seems to hold the lock now. Reads the note only, and takes nothing."""
    other = holder(path)
    if other is None or not _fresh(other):
        return False
    if other.get("host") != socket.gethostname():
        return True
    try:
        os.kill(other["pid"], 0)
    except (ProcessLookupError, OverflowError):  # no process has a number that the system cannot hold
        return False
    except OSError:
        return True
    return True


def _fresh(other: dict[str, Any]) -> bool:
    """Whether a note was left just now; one from the future is damaged, and would be waited for until then."""
    return bool(abs(time.time() - other["beat"]) < LOST)
