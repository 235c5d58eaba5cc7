"""The first rung: bubblewrap, which gives a program namespaces of its own.

No network, no home, the system and the interpreter's prefix read-only, a private /tmp. Three routes lead in,
for ordinary users and for root; `rungs.py` takes the first whose probe finds every promise kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache

from sinkscope.tasks.sandbox.system import TOPS, homes, system_folders


@dataclass(frozen=True)
class Route:
    """A way into bubblewrap. The kernel does not count processes of root: as root, programs must become someone else."""

    words: str
    user_namespace: bool  # bubblewrap makes the sandbox in a user namespace of its own
    become_inside: bool = False  # root: change user inside, just before the program
    become_first: bool = False  # root: change user before bubblewrap (containers without CAP_SYS_ADMIN)


def routes() -> tuple[Route, ...]:
    """The ways in for whoever calls, the best first."""
    if os.geteuid() != 0:
        return (Route("in a user namespace", user_namespace=True),)
    return (
        Route("as a user of its own", user_namespace=False, become_inside=True),
        Route("as nobody, in a user namespace", user_namespace=True, become_first=True),
    )


def command(route: Route, inner: list[str], disk: int) -> list[str]:
    """The command that runs `inner` inside. `disk`: bytes of the private /tmp."""
    chosen = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    chosen += ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    if route.user_namespace:
        chosen += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    if route.become_inside:
        chosen += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return [shutil.which("bwrap") or "bwrap", *chosen, *_file_system(), *_tmp(disk), "--", *inner]


@lru_cache(maxsize=1)
def _file_system() -> list[str]:
    """Options for what is there: a read-only system, the interpreter wherever it lives, no home."""
    options: list[str] = []
    shown = system_folders()
    for path in TOPS:
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), str(path)]
    for path in shown:
        for parent in reversed(path.parents[:-1]):  # passable and unreadable: a home on the way stays hidden
            options += ["--perms", "0111", "--dir", str(parent)]
        options += ["--ro-bind", str(path), str(path)]
    for home in homes():
        if any(known in home.parents for known in shown):  # a home inside the system folders: covered up
            options += ["--perms", "0111", "--tmpfs", str(home), "--remount-ro", str(home)]
    return [*options, "--dev", "/dev", "--remount-ro", "/dev"]


@lru_cache(maxsize=8)
def _tmp(disk: int) -> list[str]:
    command = [shutil.which("bwrap") or "bwrap", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if "--size " in done.stdout + done.stderr:
        options = ["--perms", "1777", "--size", str(disk), "--tmpfs", "/tmp"]  # noqa: S108 (its own)
    else:  # bubblewrap before 0.7 cannot say how large: then nothing can be written at all
        options = ["--tmpfs", "/tmp", "--remount-ro", "/tmp"]  # noqa: S108
    return [*options, "--remount-ro", "/", "--chdir", "/tmp"]  # noqa: S108
