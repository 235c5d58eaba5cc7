"""The system-call filter of the sandbox: calls that no graded program has a use for.

It refuses what namespaces, Landlock and resource limits leave open: sockets, child processes, signals to others and
every other call that changes another process, changes to files that are not writes (modes, owners, times,
attributes), memory that no limit counts, namespaces, and parts of the kernel with a long history of holes. A
refused call answers "not permitted", so that a program fails where it tried, and says so.

It is a deny list, not a proof: a kernel bug reachable through an allowed call is out of its reach.
"""

from __future__ import annotations

import platform
import struct

# Name: number on x86-64, number on aarch64 (the kernel's own tables; 0: that machine has no such call).
REFUSED: dict[str, tuple[int, int]] = {
    # other processes
    "kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "kcmp": (312, 272), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274), "migrate_pages": (256, 238), "move_pages": (279, 239),
    # the network, and sockets of the machine
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    # files that a program can name but not open: their modes, owners, times and attributes, and who looks at them
    "chmod": (90, 0), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, 0),
    "fchown": (93, 55), "lchown": (94, 0), "fchownat": (260, 54), "utime": (132, 0), "utimes": (235, 0),
    "utimensat": (280, 88), "futimesat": (261, 0), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "setxattrat": (463, 463), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "removexattrat": (466, 466), "truncate": (76, 45), "inotify_init": (253, 0), "inotify_init1": (294, 26),
    "fanotify_init": (300, 262), "file_setattr": (469, 469),
    # memory that neither the address-space limit nor the file-size limit counts, and memory of others
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "semget": (64, 190),
    "semop": (65, 193), "semtimedop": (220, 192), "semctl": (66, 191), "mq_open": (240, 180), "mq_unlink": (241, 181),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsmount": (432, 432),
    "mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    # parts of the kernel with a long history of holes
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "personality": (135, 92), "syslog": (103, 116),
}  # fmt: skip

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH
_FORK = {"x86_64": (57, 58), "aarch64": ()}  # fork, vfork; aarch64 has only clone
_CLONE = (56, 220)
_CLONE3, _OPENAT2 = 435, 437
_PRLIMIT, _FCNTL, _IOCTL, _TGKILL, _SOCKETPAIR = (302, 261), (72, 25), (16, 29), (234, 131), (53, 199)
_OPEN, _OPENAT = (2, 0), (257, 56)

_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
_THREAD = 0x00010000  # CLONE_THREAD
# F_SETOWN, F_SETSIG, F_SETOWN_EX (signals to others), F_SETLEASE, F_NOTIFY
_OWNER_COMMANDS = (8, 10, 15, 1024, 1026)
_OWNER_REQUESTS = (0x8901, 0x8902, 0x5412, 0x541C)  # FIOSETOWN, SIOCSPGRP, TIOCSTI, TIOCLINUX
_TRUNCATE_ONLY = (0x203, 0x200)  # O_TRUNC without a right to write, which Landlock sees from Linux 6.2 on

OWN_PROCESS = 0x5E1F0123
"""Stands for the number of the filtered process, which is not known when the filter is made."""

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06  # classic BPF operations
_EQUAL, _AT_LEAST, _ANY_BIT = 0x15, 0x35, 0x45
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_NOT_PERMITTED, _NO_SUCH_CALL = 0x00050000 | 1, 0x00050000 | 38  # errno EPERM, ENOSYS

Code = list[tuple[int, int, int, int]]
_REFUSE: Code = [(_RETURN, 0, 0, _NOT_PERMITTED)]
_PERMIT: Code = [(_RETURN, 0, 0, _ALLOW)]


def filter_program(rung: str, children: bool = False, machine: str | None = None) -> bytes | None:
    """The filter as the kernel reads it: an array of `struct sock_filter`, 8 bytes each.

    Args:
        rung: "bubblewrap", "landlock"; "none" refuses children alone.
        children: the program may start processes of its own. Threads are always allowed, and counted by the process limit.

    Returns None for a machine whose numbers are not in the table.
    """
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        return None
    column, architecture = _ARCHITECTURES[machine]
    code: Code = [
        (_LOAD, 0, 0, 4),  # seccomp_data.arch: numbers mean other calls in another ABI
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # seccomp_data.nr
    ]
    if machine == "x86_64":  # the x32 ABI shares the architecture and hides behind this bit
        code += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _NO_SUCH_CALL)]
    refused = [numbers[column] for numbers in REFUSED.values() if numbers[column]] if rung != "none" else []
    for number in [*refused, *(() if children else _FORK[machine])]:
        code += _for_call(number, _REFUSE)
    # These keep their flags behind a pointer that a filter cannot follow: libc falls back to the older call.
    for number in (_CLONE3, _OPENAT2):
        code += _for_call(number, [(_RETURN, 0, 0, _NO_SUCH_CALL)])
    clone = _when(0, _ANY_BIT, _NEW_NAMESPACES, _REFUSE)
    if not children:
        clone += _when(0, _ANY_BIT, _THREAD, _PERMIT) + _REFUSE
    code += _for_call(_CLONE[column], clone + _PERMIT)
    if rung == "landlock" or (rung == "bubblewrap" and not children):
        code += _for_call(_TGKILL[column], _when(0, _EQUAL, OWN_PROCESS, _PERMIT) + _REFUSE)
    if rung != "none":
        code += _for_call(_PRLIMIT[column], _when(0, _EQUAL, 0, _PERMIT) + _REFUSE)  # limits of its own alone
        code += _for_call(_FCNTL[column], _unless(1, _OWNER_COMMANDS))
        code += _for_call(_IOCTL[column], _unless(1, _OWNER_REQUESTS))
        # A pair of connected streams (asyncio has one) reaches nobody; a datagram could be sent to a named socket.
        stream = [(_LOAD, 0, 0, _argument(1)), (_AND, 0, 0, 0xF), (_EQUAL, 0, 1, 1), *_PERMIT]
        code += _for_call(_SOCKETPAIR[column], _when(0, _EQUAL, 1, stream) + _REFUSE)
        for numbers, argument in ((_OPEN, 1), (_OPENAT, 2)):
            if numbers[column]:
                mask, value = _TRUNCATE_ONLY
                flags = [(_LOAD, 0, 0, _argument(argument)), (_AND, 0, 0, mask), (_EQUAL, 0, 1, value), *_REFUSE]
                code += _for_call(numbers[column], flags + _PERMIT)
    code += _PERMIT
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _for_call(number: int, block: Code) -> Code:
    """The block for this call alone; it must end in a return, because it loads arguments over the call's number."""
    return [(_EQUAL, 0, len(block), number), *block]


def _when(number: int, test: int, value: int, block: Code) -> Code:
    """The block where the argument of this number passes the test."""
    return [(_LOAD, 0, 0, _argument(number)), (test, 0, len(block), value), *block]


def _unless(number: int, values: tuple[int, ...]) -> Code:
    """Refuses the call where the argument of this number is one of these."""
    return [item for value in values for item in _when(number, _EQUAL, value, _REFUSE)] + _PERMIT


def _argument(number: int) -> int:
    """The offset of an argument's low half in seccomp_data (all of it, for what the kernel reads as an int)."""
    return 16 + 8 * number
