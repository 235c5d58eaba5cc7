"""What a program may see of this machine on every rung, and what is watched from outside while it runs.

The second rung, that of a plain Linux machine, is Landlock with a system-call filter, which the kernel gives to every process:
no network and no child processes at all, nothing to read but the system and the interpreter, nothing to write but files in a
private folder, whose size is looked at twenty times a second. Without namespaces a program still sees names and sizes of files
whose path it knows, and the numbers of other processes, which it cannot touch.

PyPI's sandlock (0.9.0) was tried first and does not hold: a program changes the limits, affinity and priority of the
calling process, and modes and times of the user's files; it also needs Linux 6.12, where this needs 5.13.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path

from sinkscope.base.errors import InputError

MOST_FILES = 1000
"""In the private folder."""
TOPS = tuple(Path("/", name) for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"))
"""Folders of programs and libraries beside /usr, or links into it."""


@lru_cache(maxsize=1)
def interpreter() -> Path:
    """This interpreter itself, not the virtual environment's name for it: nothing installed comes along."""
    return Path(sys.executable).resolve()


def homes() -> list[Path]:
    """Directories of people, as far as they exist; not "/" and "/tmp", the homes of some containers' users."""
    named = {Path(os.path.expanduser("~")), Path("/root"), Path("/home")}
    others = (Path("/"), Path("/tmp"))  # noqa: S108
    return [path for path in sorted(named) if path.is_dir() and path not in others]


def system_folders() -> list[Path]:
    """The folders that a program may read: the system's programs and libraries, and the interpreter wherever it lives."""
    shown = [Path("/usr"), *(path for path in TOPS if path.is_dir() and not path.is_symlink())]
    stores = (Path("/nix/store"), Path("/gnu/store"), Path("/etc/ld.so.cache"))
    shown += [path for path in stores if path.exists()]
    for folder in (Path(sys.base_prefix), Path(sys.base_exec_prefix), interpreter().parent):
        folder = folder.resolve()
        if any(folder == known or known in folder.parents for known in shown):
            continue
        if any(home == folder or folder in home.parents for home in homes()):
            raise InputError(
                f"the Python at {interpreter()} has the prefix {folder}, which contains home directories: "
                "use an interpreter with a folder of its own"
            )
        shown.append(folder)
    return shown


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


def too_much(folder: str, process: int, disk: int) -> str:
    """Why a program that uses its folder like this must be stopped; "" when it need not. disk: the bytes that it has."""
    used, files = 0, 0
    try:
        for path in (folder, f"/proc/{process}/fd"):  # a file that was removed while it is open counts too
            for entry in os.scandir(path):
                try:
                    status = os.stat(entry.path, follow_symlinks=path != folder)
                except OSError:
                    continue
                files += path == folder
                used += status.st_blocks * 512 if path == folder or status.st_nlink == 0 else 0
    except OSError:  # gone in the meantime
        return ""
    if used > disk:
        return f"wrote more than {disk} bytes"
    return f"made more than {MOST_FILES} files" if files > MOST_FILES else ""
