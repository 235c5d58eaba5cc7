"""The script inside the sandbox: two processes, of which one runs the program and the other the checks.

The process that `process.py` starts gives up its rights and forks. It runs the program itself, and then does what the
checks ask of it. Its child, the judge, runs the checks. The two share neither memory nor a folder: over two pipes the judge
sends names and arguments, and gets values back (`wire.py`). The program never sees the checks, and nothing in its
interpreter leads to the verdict: that is a secret which the judge alone is given, sent on a pipe that it alone has.

Only the standard library, and little of it: this file is start-up time of every graded program.
"""

from __future__ import annotations

import builtins
import marshal
import os
import resource
import sys
from fcntl import F_DUPFD_CLOEXEC, fcntl

from sinkscope.tasks.sandbox.kernel import become, die_with, hide, landlock, leave_root, refuse_calls
from sinkscope.tasks.sandbox.wire import NOTHING_CAUGHT_IT, Gone, Peer, Remote, RemoteModule

TYPE_CHECKING = False  # `typing` takes as long to import as all the rest
if TYPE_CHECKING:
    from typing import Any


class Job:
    """What `process.py` wants to be done; plain values, which `marshal` carries."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    source: int  # bytes of the program, which stands behind this in standard input
    checks: int  # bytes of the checks, behind the program
    secret: int  # bytes of what the judge says of a program that passed, behind the checks
    name: str  # of the program's module
    shadows: tuple[str, ...] | None  # as `Program` has it
    verdict: int  # the descriptor
    user: int  # whom root becomes; 0: nobody else
    rung: str
    readable: tuple[str, ...]  # folders, for Landlock
    folder: str
    code: bytes  # the system-call filter
    own_process: int  # stands in it for the process that it is for
    limits: tuple[tuple[str, int], ...]


def main(start: int, size: int) -> None:
    """Do the job that stands in standard input, from a place and with so many bytes."""
    parent = os.getppid()
    job = Job(**marshal.loads(os.pread(0, size, start)))  # noqa: S302 (from process.py)
    _give_up_rights(job, parent)
    source = os.pread(0, job.source, start + size)
    questions, ask = os.pipe()
    answers, reply = os.pipe()
    first = os.getpid()
    if os.fork() == 0:
        checks = os.pread(0, job.checks, start + size + job.source)
        secret = os.pread(0, job.secret, start + size + job.source + job.checks)
        verdict, read, write = _keep(job.verdict, answers, ask)
        _confine(job, first, judge=True)
        _judge(checks, job, verdict, secret, read, write)
    else:
        read, write = _keep(questions, reply)
        _confine(job, first, judge=False)
        _program(source, job, read, write)


def _keep(*descriptors: int) -> list[int]:
    """Close all but these (and output), which become 3, 4, …; standard input becomes empty."""
    # Above 100, wherever there is room: they may have any number, and one that is copied to itself is an error.
    high = [fcntl(descriptor, F_DUPFD_CLOEXEC, 100) for descriptor in descriptors]
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    copies = [os.dup2(descriptor, 3 + i, inheritable=False) for i, descriptor in enumerate(high)]
    os.closerange(3 + len(copies), 4096)
    return copies


def _give_up_rights(job: Job, parent: int) -> None:
    """What holds for both processes."""
    os.chdir(job.folder)
    if job.rung == "bubblewrap":
        if job.user:
            leave_root(job.user)
    elif sys.platform == "linux":
        if job.user:
            become(job.user, job.folder)
        die_with(parent)
    if sys.platform == "linux":
        hide()  # before the fork, so that there is no moment at which the judge can be seen


def _confine(job: Job, program: int, *, judge: bool) -> None:
    """What each process does for itself; the system-call filter comes last, because it refuses some of this.

    Each has a Landlock domain of its own: pipes can be opened under /proc in spite of Landlock, but not those of another
    domain. The judge's has no folder to write, and none that the program writes: a file that the program has named like
    a module, or like anything else that is looked for, is not found by code that runs in the judge.
    """
    if judge:
        os.chdir("/")
    if sys.platform == "linux":
        if judge:
            die_with(program)
        elif not job.user:
            hide(False)  # its descriptors are looked at from outside: files that were removed while open
        if job.rung == "landlock" or (judge and job.rung == "bubblewrap"):
            landlock(list(job.readable), None if judge else job.folder, needed=job.rung == "landlock")
    for name, value in job.limits:
        if hasattr(resource, name):
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (value, value))
    if job.code:
        refuse_calls(job.code, job.own_process)
    for name in [name for name in sys.modules if name.startswith("sinkscope")]:
        del sys.modules[name]
    sys.argv = [""]
    os.environ.clear()  # what bubblewrap (PWD) and Python's start-up (LC_CTYPE) have put there


# ---- the process of the program ----------------------------------------------------------------------------


def _program(source: bytes, job: Job, read: int, write: int) -> None:
    """Run the program, then do what the checks ask for until they have ended."""
    leave, complain = os._exit, sys.__excepthook__
    module = type(sys)(job.name)
    sys.modules[job.name] = module
    peer = Peer(read, write, judge=False, permits=lambda *question: None)
    try:
        exec(compile(source, "<program>", "exec", dont_inherit=True), vars(module))  # noqa: S102 (the point of this file)
        peer.send(("ready", module, [name for name in vars(module) if hasattr(builtins, name)]))
        while True:
            peer.answer(peer.receive())
    except Gone:
        leave(0)
    except BaseException as error:  # SystemExit too: a program that leaves has not run to its end
        try:
            error = _shown(error)
            complain(type(error), error, error.__traceback__)
        finally:
            leave(1)


def _shown(error: BaseException) -> BaseException:
    """The error as it is told: without our own frame, and what only iterators understand in words."""
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    if isinstance(error, StopIteration):
        trace, error = error.__traceback__, RuntimeError(NOTHING_CAUGHT_IT)
        error.__traceback__ = trace
    return error


# ---- the judge ---------------------------------------------------------------------------------------------


class Space(dict):  # type: ignore[type-arg]
    """The names of the checks; those that they do not define themselves are the program's.

    Builtins and modules of the standard library are the judge's own, found by the name that the checks use: what the program
    calls its modules is never looked at. Only names in `shadows` are the program's all the same; None: those that it has defined.
    """

    def __init__(self, job: Job, program: Remote, defined: set[str]) -> None:
        super().__init__(__name__=job.name, __builtins__=builtins)
        self._program, self._defined, self._shadows = program, defined, job.shadows

    def __missing__(self, name: str) -> Any:
        meant = self._shadows is None or name in self._shadows
        if hasattr(builtins, name) and not (meant and name in self._defined):
            raise KeyError(name)
        try:
            value = getattr(self._program, name)
        except AttributeError:
            raise KeyError(name) from None
        imported = name in sys.stdlib_module_names and (isinstance(value, RemoteModule) or not meant)
        return __import__(name) if imported else value

    def attribute(self, name: str) -> Any:
        """As the attribute of a module."""
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _judge(source: bytes, job: Job, verdict: int, secret: bytes, read: int, write: int) -> None:
    """Run the checks when the program has run to its end; the verdict is told here and nowhere else."""

    def permits(action: str, target: Any, args: Any) -> None:
        # What the checks pass to the program: functions may be called, iterators asked, and objects of the checks' own
        # classes used. Nothing else: attributes of functions and generators lead to the whole interpreter.
        by_checks = type(target).__module__ == job.name
        attribute = action.endswith("attr__")
        private = attribute and not (args and type(args[0]) is str and not args[0].startswith("_"))
        if action not in ("__call__", "__iter__", "__next__", "__bool__") and (private or not by_checks):
            words = f"{action} of an object that belongs to the checks is not available to the program"
            raise (AttributeError(words) if attribute else TypeError(words))  # as Python does: `list` asks for a length

    peer = Peer(read, write, judge=True, permits=permits)
    report, failure = b"", None
    try:
        code = compile(source, "<checks>", "exec", dont_inherit=True)
        ready, program, defined = peer.receive()
        if ready != "ready" or not isinstance(program, Remote):
            raise RuntimeError("the program broke off")
        space = Space(job, program, set(defined))
        module = sys.modules[job.name] = type(sys)(job.name)
        module.__getattr__ = space.attribute  # type: ignore[method-assign]  # for `from solution import f`
        exec(code, space)  # noqa: S102
        report = secret
    except Gone:
        pass
    except BaseException as error:
        try:
            failure = _shown(error)
            report = f"failed\n{type(failure).__name__}".encode("utf-8", "replace")
            report = f"failed\n{type(failure).__name__}: {failure}".strip(": ").encode("utf-8", "replace")
        except BaseException:  # noqa: S110 (an error that has no words is a failure all the same)
            pass
    try:
        if not peer.gone:  # also where the checks caught that the program left
            os.write(verdict, report[:4000])
        if failure:  # after the verdict: some of what prints errors imports modules that they name
            sys.__excepthook__(type(failure), failure, failure.__traceback__)
    finally:
        os._exit(0)
