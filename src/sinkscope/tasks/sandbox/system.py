"""The parts of this machine that a program may see on every rung, and those that none may show."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path

from sinkscope.base.errors import InputError


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
    tops = [Path("/", name) for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32")]
    shown = [Path("/usr"), *(path for path in tops if path.is_dir() and not path.is_symlink())]
    stores = (Path("/nix/store"), Path("/gnu/store"), Path("/etc/ld.so.cache"))
    shown += [path for path in stores if path.exists()]
    for place in (Path(sys.base_prefix), Path(sys.base_exec_prefix), interpreter().parent):
        place = place.resolve()
        if any(place == known or known in place.parents for known in shown):
            continue
        if any(home == place or place in home.parents for home in homes()):
            raise InputError(
                f"the Python at {interpreter()} has the prefix {place}, which contains home directories: "
                "use an interpreter with a folder of its own"
            )
        shown.append(place)
    return shown
