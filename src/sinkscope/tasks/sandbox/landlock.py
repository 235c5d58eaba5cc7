"""The rung of a plain Linux machine: Landlock and seccomp, which the kernel gives to every process.

No network and no child processes at all, nothing to read but the system and the interpreter, nothing to write but
files in a private folder, whose size is looked at twenty times a second. Without namespaces a program still sees
names and sizes of files whose path it knows, and the numbers of other processes, which it cannot touch.

PyPI's sandlock (0.9.0) was tried first and does not hold: a program changes the limits, affinity and priority of the
calling process, and modes and times of the user's files; it also needs Linux 6.12, where this needs 5.13.
"""

from __future__ import annotations

import os
from pathlib import Path

from sinkscope.base.errors import InputError
from sinkscope.tasks.sandbox.program import Limits
from sinkscope.tasks.sandbox.system import homes, system_folders

MOST_FILES = 1000
"""In the private folder."""


def readable(rung: str) -> tuple[str, ...]:
    """The folders that a program may read; in bubblewrap, the judge."""
    if rung == "none":
        return ()
    folders = system_folders()
    covered = [home for home in homes() if any(place in home.parents for place in folders)]
    if covered and rung == "landlock":
        raise InputError(f"{covered[0]} lies inside the system's folders, and Landlock cannot hide it there")
    return tuple(str(path) for path in folders)


def tasks_of_user() -> int:
    """Threads of this user: the kernel counts a process limit per user, so that ours comes on top of them."""
    if os.geteuid() == 0:
        return 0  # the program becomes a user of its own
    number = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == os.geteuid():
                    number += len(list((entry / "task").iterdir()))
            except OSError:
                continue
    return number


def too_much(folder: str, process: int, limits: Limits) -> str:
    """Why a program that uses its folder like this must be stopped; "" when it need not."""
    used, files = 0, 0
    try:
        for place in (folder, f"/proc/{process}/fd"):  # a file that was removed while it is open counts too
            for entry in os.scandir(place):
                try:
                    status = os.stat(entry.path, follow_symlinks=place != folder)
                except OSError:
                    continue
                files += place == folder
                used += status.st_blocks * 512 if place == folder or status.st_nlink == 0 else 0
    except OSError:  # gone in the meantime
        return ""
    if used > limits.disk:
        return f"wrote more than {limits.disk} bytes"
    return f"made more than {MOST_FILES} files" if files > MOST_FILES else ""
