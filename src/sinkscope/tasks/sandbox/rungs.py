"""The rungs of the sandbox: which of them holds on this machine, tried and not assumed."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from functools import lru_cache

from sinkscope.base.checks import one_of
from sinkscope.base.errors import InputError
from sinkscope.tasks.sandbox import bubblewrap
from sinkscope.tasks.sandbox.process import Limits, Program, Rung, execute
from sinkscope.tasks.sandbox.system import homes

KINDS = ("auto", "bubblewrap", "landlock", "none")
"""Values of `sandbox=`; "auto": the first rung that holds here."""


class UnconfinedWarning(RuntimeWarning):
    """Programs that a model wrote run without a sandbox."""


NONE = Rung(
    "none",
    "no sandbox: model-written programs run with your rights: they see your files and network, can change and delete what "
    "you can, and stop your other programs; only their time, memory and children are limited",
)

INSTALL = (
    "install bubblewrap (Debian, Ubuntu: `apt install bubblewrap`; Fedora: `dnf install bubblewrap`; conda: "
    "`conda install -c conda-forge bubblewrap`), use a Linux kernel with Landlock (5.13 or later), grade later on a machine "
    'that has one (`sinkscope evaluate --grade`), or choose no sandbox (`sandbox="none"`, `--sandbox none`), which lets '
    "model-written code see your files and network"
)
OFTEN = (
    "Often user namespaces are switched off (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces, "
    "kernel.apparmor_restrict_unprivileged_userns) or a container lacks the right (docker: `--security-opt "
    "seccomp=unconfined` or `--privileged`)"
)

# Tries to break each promise; the values in capitals are put before it.
PROBE = """
import _thread, fcntl, os, resource, socket, sys, time

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
refused("a change of a file's mode", lambda: os.chmod(sys.executable, 0o755), OSError)
refused("a look at the machine's files", lambda: open("/etc/passwd"), OSError)
refused("a look at its own environment", lambda: open("/proc/self/environ"), OSError)
refused("a signal to its parent", lambda: os.kill(os.getppid(), 0), OSError)
refused("a signal through a descriptor", lambda: fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid()), OSError)
refused("a limit on its parent", lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE), OSError)
refused("another priority of its parent", lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19), OSError)
refused("memory beyond its limit", lambda: bytearray(LIMIT_MEMORY), MemoryError)
for home in HOMES:
    refused("a look at home", lambda: os.listdir(home), OSError)
if os.environ:
    raise SystemExit(f"the sandbox passed on the environment: {sorted(os.environ)}")
if os.getuid() == 0:
    raise SystemExit("the sandbox runs programs as root")

_thread.stack_size(1 << 16)

def start_threads():
    for _ in range(MOST_THREADS):
        _thread.start_new_thread(time.sleep, (60,))

refused("threads beyond their limit", start_threads, RuntimeError)
"""


def available(kind: str = "auto") -> Rung | None:
    """The rung that programs will be confined by here, or None where they cannot be; found once in a process."""
    return _tried(kind)[0]


def reason(kind: str = "auto") -> str:
    """A line for the start of a command: how programs are confined here, or why they cannot be."""
    rung, why = _tried(kind)
    if rung is None:
        return why
    return f"warning: {rung.words}" if rung is NONE else f"model-written programs run in {rung.name}, {rung.words}"


def check(kind: str = "auto") -> Rung:
    """As `available`; raises `InputError` with instructions where there is none, and warns where nothing is confined.

    To be called before a model is loaded. A probe inside the sandbox tries to break each promise, rather than trusting version
    numbers.
    """
    rung, why = _tried(kind)
    if rung is None:
        raise InputError(why)
    if rung is NONE:
        warnings.warn(rung.words, UnconfinedWarning, stacklevel=3)
    return rung


@lru_cache(maxsize=8)
def _tried(kind: str) -> tuple[Rung | None, str]:
    """The first rung of a kind whose probe comes back, and otherwise why none does."""
    if one_of("sandbox", kind, KINDS) == "none":
        return NONE, ""
    failures: list[str] = []
    for rung, missing in _candidates(kind):
        why = missing or _broken_promise(rung)
        if not why:
            return rung, ""
        failures.append(f"{rung.name}: {why}" if missing else f"{rung.name}, {rung.words}: {why}")
    often = f" {OFTEN}." if any("bubblewrap," in failure for failure in failures) else ""
    return (
        None,
        f"model-written programs cannot be confined here ({'; '.join(failures)}).{often} To grade them, {INSTALL}",
    )


def _candidates(kind: str) -> Iterator[tuple[Rung, str]]:
    """The rungs of a kind, and what is missing here for one to be tried at all."""
    if kind in ("auto", "bubblewrap"):
        missing = "" if shutil.which("bwrap") else "there is no `bwrap` on the PATH"
        for route in bubblewrap.routes()[: 1 if missing else None]:
            yield Rung("bubblewrap", route.words, route), missing
    if kind in ("auto", "landlock"):
        user = "as a user of its own" if os.geteuid() == 0 else "as this user"
        missing = "" if sys.platform == "linux" else "it is part of Linux alone"
        yield Rung("landlock", f"with a system-call filter, {user}"), missing


def _broken_promise(rung: Rung) -> str:
    """The promise that a probe could break; "" when all hold."""
    limits = Limits()
    values = {
        "LIMIT_MEMORY": limits.memory,
        # Landlock's limit comes on top of the user's other tasks, which come and go.
        "MOST_THREADS": limits.tasks + 1 if rung.name == "bubblewrap" else 8 * limits.tasks,
        "HOMES": [str(home) for home in homes()],
    }
    lines = [f"{name} = {value!r}" for name, value in values.items()]
    result = execute(Program("\n".join([*lines, PROBE]), name="probe"), 20.0, limits, rung)
    return "" if result.passed else result.reason
