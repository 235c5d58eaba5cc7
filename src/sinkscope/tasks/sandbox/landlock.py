"""The rung of a plain Linux machine: Landlock and seccomp, which the kernel gives to every process.

No network and no child processes at all, nothing to read but the system and the interpreter, nothing to write but
files in a private folder, whose size is looked at twenty times a second. Without namespaces a program still sees
names and sizes of files whose path it knows, and the numbers of other processes, which it cannot touch.

PyPI's sandlock (0.9.0) was tried first and does not hold: a program changes the limits, affinity and priority of the
calling process, and modes and times of the user's files; it also needs Linux 6.12, where this needs 5.13.
"""

from __future__ import annotations

import os
import secrets
from functools import lru_cache
from pathlib import Path

from sinkscope.errors import InputError
from sinkscope.tasks.sandbox.program import Limits
from sinkscope.tasks.sandbox.seccomp import OWN_PROCESS, filter_program
from sinkscope.tasks.sandbox.system import homes, interpreter, system_folders

MOST_FILES = 1000
"""In the private folder."""


def command(rung: str, inner: list[str], folder: str) -> list[str]:
    """The command that confines itself and then becomes `inner`; `folder`: the private one.

    With the rung "none" it confines nothing, but neither has it children: they could outlive the run.
    """
    readable: list[str] = []
    user = 0
    if rung == "landlock":
        folders = system_folders()
        covered = [home for home in homes() if any(place in home.parents for place in folders)]
        if covered:
            raise InputError(
                f"{covered[0]} lies inside the system's folders, and Landlock cannot hide it there"
            )
        readable = [str(path) for path in folders]
        if os.geteuid() == 0:
            user = 0x60000000 + secrets.randbelow(0x10000000)
    job = (inner, filter_program(rung) or b"", OWN_PROCESS, readable, folder, user)
    return [str(interpreter()), "-I", "-S", "-c", _launch(), repr(job)]


@lru_cache(maxsize=1)
def _launch() -> str:
    return Path(__file__).with_name("launch.py").read_text(encoding="utf-8")


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
