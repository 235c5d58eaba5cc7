"""The system-call filter of the sandbox: a short list of calls that no graded program has a use for.

The namespaces and limits of `sandbox.py` do the confining. The filter closes what they leave open: sockets
inside the empty network, signals, memory that no limit counts (shared segments, memory files), new
namespaces, and child processes. A refused call answers "not permitted", so that a program fails where it
tried, and says so.

It is a deny list, not a proof: a kernel bug reachable through an allowed call is out of its reach.
"""

from __future__ import annotations

import platform
import struct

# Name: number on x86-64, number on aarch64 (the kernel's own tables).
REFUSED: dict[str, tuple[int, int]] = {
    # other processes
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    # the network
    "socket": (41, 198),
    # memory that neither the address-space limit nor the file-size limit counts (attributes of files too)
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    # parts of the kernel with a long history of holes
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "personality": (135, 92),
    "syslog": (103, 116),
}

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH
_FORK = {"x86_64": (57, 58), "aarch64": ()}  # fork, vfork; aarch64 has only clone
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435

_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
_THREAD = 0x00010000  # CLONE_THREAD

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # classic BPF operations
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_NOT_PERMITTED, _NO_SUCH_CALL = 0x00050000 | 1, 0x00050000 | 38  # errno EPERM, ENOSYS


def filter_program(children: bool, machine: str | None = None) -> bytes | None:
    """The filter as bubblewrap's `--seccomp` reads it: an array of `struct sock_filter`, 8 bytes each.

    `children`: whether the program may start processes of its own. Threads are always allowed (and counted by
    the process limit). Returns None for a machine whose numbers are not in the table: the sandbox then works
    without.
    """
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        return None
    column, architecture = _ARCHITECTURES[machine]
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, 4),  # seccomp_data.arch: numbers mean other calls in another ABI
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # seccomp_data.nr
    ]
    if machine == "x86_64":  # the x32 ABI shares the architecture and hides behind this bit
        code += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _NO_SUCH_CALL)]
    refused = [numbers[column] for numbers in REFUSED.values()]
    if not children:
        refused += _FORK[machine]
    for number in refused:
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _NOT_PERMITTED)]
    # clone3 keeps its flags behind a pointer that a filter cannot follow: libc falls back to clone.
    code += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _NO_SUCH_CALL)]
    code += [(_EQUAL, 1, 0, _CLONE[machine]), (_RETURN, 0, 0, _ALLOW)]
    code += [(_LOAD, 0, 0, 16), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), (_RETURN, 0, 0, _NOT_PERMITTED)]
    if not children:
        code += [(_ANY_BIT, 1, 0, _THREAD), (_RETURN, 0, 0, _NOT_PERMITTED)]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
