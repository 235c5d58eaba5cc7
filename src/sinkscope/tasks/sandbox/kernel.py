"""What a process inside the sandbox asks of the kernel for itself: another user, Landlock, a system-call filter.

Part of the script that `process.py` hands to an interpreter: standard library alone. The modules with an underscore are
what `ctypes` and `struct` are made of, and take a tenth of the time to import.
"""

from __future__ import annotations

import _ctypes
import os
import sys
from _struct import pack

# From the kernel's headers.
SET_PARENT_DEATH_SIGNAL, SET_DUMPABLE, SET_KEEP_CAPABILITIES = 1, 4, 8
SET_SECCOMP, SET_NO_NEW_PRIVILEGES, AMBIENT = 22, 38, 47
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
CAPABILITY_SET = 126 if os.uname().machine == "x86_64" else 91
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_FILE, MAKE_REG, TRUNCATE = (1 << n for n in (0, 1, 2, 3, 5, 8, 14))
RIGHTS = {1: 1 << 13, 2: 1 << 14, 3: 1 << 15, 5: 1 << 16}  # all file-system rights below this bit, by version
READ_ANYWHERE = 2  # CAP_DAC_READ_SEARCH
KILL = 9  # SIGKILL


class Long(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "l"


class Char(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "c"


class LibcFunction(_ctypes.CFuncPtr):
    """A function of libc that answers with a long."""

    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = Long


def tried(function: str, *arguments: int | bytes | None) -> int:
    """The result of a function of libc, negative where it failed."""
    address = _ctypes.dlsym(_ctypes.dlopen(None, 0), function)  # type: ignore[arg-type]
    result: int = LibcFunction(address)(*(Long(value) if isinstance(value, int) else value for value in arguments))
    return result


def call(what: str, function: str, *arguments: int | bytes | None) -> int:
    """As `tried`; a failure ends the script with a sentence."""
    result = tried(function, *arguments)
    if result < 0:
        sys.exit(f"{what}: {os.strerror(_ctypes.get_errno())}")
    return result


def leave_root(user: int, folder: str = "") -> None:
    """Root becomes a user that owns nothing but the folder."""
    os.setgroups([])
    for number in (user, 65534):  # a number of its own, or "nobody" where a container maps few users
        try:
            if folder:
                os.chown(folder, number, number)
            os.setresgid(number, number, number)
            os.setresuid(number, number, number)
            break
        except OSError:
            continue
    if 0 in os.getresuid():
        sys.exit("could not leave root")


def become(user: int, folder: str) -> None:
    """As `leave_root`; the user may read, where Landlock lets it, what root could."""
    call("cannot keep a capability", "prctl", SET_KEEP_CAPABILITIES, 1, 0, 0, 0)
    leave_root(user, folder)
    bit = 1 << READ_ANYWHERE
    if tried("syscall", CAPABILITY_SET, pack("=Ii", 0x20080522, 0), pack("=6I", bit, bit, bit, 0, 0, 0)) == 0:
        tried("prctl", AMBIENT, 2, READ_ANYWHERE, 0, 0)


def die_with(parent: int) -> None:
    """From here on this process dies when its parent, the process with this number, does: at once if it has."""
    call("cannot die with its parent", "prctl", SET_PARENT_DEATH_SIGNAL, KILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def hide(hidden: bool = True) -> None:
    """From here on no process of the same user sees the memory and the descriptors of this one, or traces it."""
    call("cannot hide", "prctl", SET_DUMPABLE, int(not hidden), 0, 0, 0)


def landlock(readable: list[str], folder: str | None, *, needed: bool) -> None:
    """From here on this process reads `readable`, writes files in `folder`, and opens nothing else."""
    version = tried("syscall", CREATE_RULESET, None, 0, 1)
    if version < 1:
        if not needed:
            return
        sys.exit("this kernel has no Landlock, or it is switched off")
    call("cannot give up privileges", "prctl", SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    handled = RIGHTS[max(known for known in RIGHTS if known <= version)] - 1
    # Files; TCP; signals and abstract sockets.
    fields = [handled, 3, 3][: 1 + (version >= 4) + (version >= 6)]
    attributes = pack(f"={len(fields)}Q", *fields)
    rules = call("no ruleset", "syscall", CREATE_RULESET, attributes, len(attributes), 0)
    write = WRITE_FILE | TRUNCATE
    allowed = [(path, EXECUTE | READ_FILE | READ_DIR) for path in readable]
    allowed += [("/dev/null", READ_FILE | write), ("/dev/urandom", READ_FILE)]
    if folder is not None:
        allowed += [(folder, READ_FILE | READ_DIR | write | MAKE_REG | REMOVE_FILE)]
    for path, rights in allowed:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not os.path.isdir(path):
            rights &= EXECUTE | READ_FILE | write
        rule = pack("=Qi", rights & handled, descriptor)
        call(f"no rule for {path}", "syscall", ADD_RULE, rules, 1, rule, 0)
        os.close(descriptor)
    call("cannot restrict itself", "syscall", RESTRICT_SELF, rules, 0)
    os.close(rules)


def refuse_calls(code: bytes, own_process: int) -> None:
    """Install a system-call filter; `own_process` in it stands for the number of this process."""
    call("cannot give up privileges", "prctl", SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    code = code.replace(pack("=I", own_process), pack("=I", os.getpid()))
    buffer = (Char * len(code)).from_buffer_copy(code)
    program = pack("HP", len(code) // 8, _ctypes.addressof(buffer))
    call("no system-call filter", "prctl", SET_SECCOMP, 2, program, 0, 0)
