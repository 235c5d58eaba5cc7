"""A program to run, what it may use, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from sinkscope.base.errors import InputError

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """The most that one program may use. Sizes in bytes."""

    memory: int = 512 * MIB  # address space, of each process
    tasks: int = 32  # threads and processes together
    children: bool = False  # may it start processes of its own; needs bubblewrap
    file_size: int = 8 * MIB  # of one file
    disk: int = 32 * MIB  # of its private folder
    output: int = 4 * MIB  # printed
    source: int = 1 * MIB  # program and checks together

    def __post_init__(self) -> None:
        for name in ("memory", "tasks", "file_size", "disk", "output", "source"):
            if getattr(self, name) < 1:
                raise InputError(f"sandbox limit {name} is {getattr(self, name)}: give a positive number")


@dataclass(frozen=True)
class Program:
    """A program, and the checks of it, which run after it in a process of their own and use its names."""

    source: str
    checks: str = ""
    name: str = "__main__"  # of its module
    # Names of builtins and of standard modules that the checks take from it; None: all that it defines.
    shadows: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Result:
    """The outcome of one program."""

    passed: bool  # it ran to its end, checks included
    reason: str  # "passed", or why not, in a few words
    seconds: float  # wall time, interpreter start included
    output: str  # the last 2000 characters that it printed
    rung: str  # how it was confined: "bubblewrap", "landlock" or "none"


OUT_OF_TIME = "ran out of time"
