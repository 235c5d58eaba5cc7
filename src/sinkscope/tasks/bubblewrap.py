"""How a program gets into bubblewrap, and what it sees there.

No network, no home, the system and the interpreter's prefix read-only, a private /tmp. Three routes lead in,
for ordinary users and for root; `sandbox.check` takes the first whose probe finds every promise kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sinkscope.errors import InputError

INSTALL = (
    "install it (Debian, Ubuntu: `apt install bubblewrap`; Fedora: `dnf install bubblewrap`; conda: "
    '`conda install -c conda-forge bubblewrap`), or choose no sandbox (`sandbox="none"`, `--sandbox none`), '
    "which lets model-written code see your files and network"
)

CANNOT = (
    "Often user namespaces are switched off (sysctl kernel.unprivileged_userns_clone, "
    "user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns) or a container lacks the right "
    "(docker: `--security-opt seccomp=unconfined` or `--privileged`). Otherwise choose no sandbox "
    '(`sandbox="none"`, `--sandbox none`)'
)


@dataclass(frozen=True)
class Route:
    """A way into the sandbox.

    The kernel does not count processes of root: as root, programs must become someone else.
    """

    words: str
    user_namespace: bool  # bubblewrap makes the sandbox in a user namespace of its own
    become_inside: bool = False  # root: change user inside, just before the program
    become_first: bool = False  # root: change user before bubblewrap (containers without CAP_SYS_ADMIN)


AS_USER = (Route("in a user namespace", user_namespace=True),)
AS_ROOT = (
    Route("as a user of its own", user_namespace=False, become_inside=True),
    Route("as nobody, in a user namespace", user_namespace=True, become_first=True),
)

# Tries to break each promise; the values in capitals are put before it.
PROBE = """
import _thread, os, socket, sys, time

def refused(what, call, *errors):
    try:
        call()
    except errors:
        return
    raise SystemExit(f"the sandbox allowed {what}")

refused("a network connection", lambda: socket.create_connection(("127.0.0.1", 9), 1), OSError)
# A child leaves at once: two reports at the same time would be cut into each other.
refused("a child process", lambda: os.fork() or os._exit(0), OSError)
refused("a file in the system", lambda: open("/usr/x", "w"), OSError)
refused("a file at the root", lambda: open("/x", "w"), OSError)
refused("memory beyond its limit", lambda: bytearray(LIMIT_MEMORY), MemoryError)
for home in HOMES:
    refused("a look at home", lambda: os.listdir(home), OSError)
if os.environ:
    raise SystemExit(f"the sandbox passed on the environment: {sorted(os.environ)}")
if os.getuid() == 0:
    raise SystemExit("the sandbox runs programs as root")

_thread.stack_size(1 << 16)

def start_threads():
    for _ in range(LIMIT_TASKS + 1):
        _thread.start_new_thread(time.sleep, (60,))

refused("threads beyond their limit", start_threads, RuntimeError)
"""


def homes() -> list[Path]:
    """Directories of people, as far as they exist.

    Not "/" and "/tmp", the homes of some containers' users.
    """
    named = {Path(os.path.expanduser("~")), Path("/root"), Path("/home")}
    others = (Path("/"), Path("/tmp"))  # noqa: S108
    return [path for path in sorted(named) if path.is_dir() and path not in others]


@lru_cache(maxsize=1)
def _can_limit_tmp() -> bool:
    command = [shutil.which("bwrap") or "bwrap", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return "--size " in done.stdout + done.stderr


@lru_cache(maxsize=1)
def interpreter() -> Path:
    """This interpreter itself, not the virtual environment's name for it: nothing installed comes along."""
    return Path(sys.executable).resolve()


def file_system(disk: int) -> list[str]:
    """bubblewrap's options for what is there: a read-only system, the interpreter wherever it lives, no home.

    `disk`: bytes of the private /tmp.
    """
    options: list[str] = []
    shown = [Path("/usr")]
    for top in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", top)
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            shown.append(path)
    shown += [
        path for path in (Path("/nix/store"), Path("/gnu/store"), Path("/etc/ld.so.cache")) if path.exists()
    ]
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
    for path in shown:
        for parent in reversed(path.parents[:-1]):  # passable and unreadable: a home on the way stays hidden
            options += ["--perms", "0111", "--dir", str(parent)]
        options += ["--ro-bind", str(path), str(path)]
    for home in homes():
        if any(known in home.parents for known in shown):  # a home inside the system folders: covered up
            options += ["--perms", "0111", "--tmpfs", str(home), "--remount-ro", str(home)]
    options += ["--dev", "/dev", "--remount-ro", "/dev"]
    if _can_limit_tmp():
        options += ["--perms", "1777", "--size", str(disk), "--tmpfs", "/tmp"]  # noqa: S108 (its own)
    else:  # bubblewrap before 0.7 cannot say how large: then nothing can be written at all
        options += ["--tmpfs", "/tmp", "--remount-ro", "/tmp"]  # noqa: S108
    return [*options, "--remount-ro", "/", "--chdir", "/tmp"]  # noqa: S108


def options(route: Route, disk: int, filter_descriptor: int | None) -> list[str]:
    """The command up to the program: `bwrap … --`. `disk`: bytes of the private /tmp."""
    chosen = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    chosen += ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    if route.user_namespace:
        chosen += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    if route.become_inside:
        chosen += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    if filter_descriptor is not None:
        chosen += ["--seccomp", str(filter_descriptor)]
    return [shutil.which("bwrap") or "bwrap", *chosen, *file_system(disk), "--"]
