"""The script inside the sandbox: limits, then the program, then the verdict. `process.py` hands this file to
`python -I -S -c`.

The verdict is a secret that arrived on standard input, written to a private descriptor after the last line of
the program. The program shares this interpreter, so the secret is kept out of everything that Python code can
look at: no descriptor holds it, no module, frame or closure names it (it lives on the value stack of
`_finish_after`), and an audit hook refuses the calls that list all objects or frames, other interpreters, native
code and bytecode of the program's own. docs/tasks.md says what this does not exclude.

Only the standard library, and little of it: this file is start-up time of every graded program.
"""

import os
import resource
import sys
from _functools import partial  # type: ignore[import-not-found]  # functools itself takes as long to import as all the rest


def _read_all() -> bytes:
    parts = []
    while part := os.read(0, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _confine(user: int, cpu: int, memory: int, tasks: int, file_size: int) -> None:
    """Set limits (seconds, bytes, count, bytes); as root, also become a user that owns nothing.

    The kernel does not count processes of root, so the process limit holds only after the change of user.
    """
    if user:
        os.setgroups([])
        for number in (user, 65534):  # a number of its own, or "nobody" where the container maps few users
            try:
                os.setgid(number)
                os.setuid(number)
                break
            except OSError:
                continue
        if os.getuid() == 0:
            raise PermissionError("could not leave root")
    limits = {
        "RLIMIT_CPU": cpu,
        "RLIMIT_AS": memory,
        "RLIMIT_NPROC": tasks,
        "RLIMIT_FSIZE": file_size,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }
    for name, value in limits.items():
        if hasattr(resource, name):
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (value, value))


def _refuse_events() -> None:
    """Install an audit hook that refuses what could lead a program to the secret.

    The hook is a local function, so no module, frame or class leads to it and its code cannot be replaced. What it
    calls are its default arguments: nothing that a program assigns to `builtins` or `os` reaches them, and the
    locals that a traceback of the hook shows belong to a call that is over. All of them are C functions or
    immutable, and there is no closure, whose cells a frame could write to.
    """
    import _frozen_importlib as frozen_importer
    import _frozen_importlib_external as file_importer
    import _imp
    import types

    def hook(  # type: ignore[no-untyped-def]
        event, arguments,
        folders=tuple(sys.path), libraries=tuple([f"{folder}/" for folder in sys.path]),  # the standard library
        last=str.rpartition, starts=str.startswith, contains=str.__contains__, kind=type, text=str,
        frame=sys._getframe, opened=os.open, read=os.read, close=os.close,
        coroutine=types.coroutine.__code__, from_file=file_importer._compile_bytecode.__code__,  # type: ignore[attr-defined]
        from_table=frozen_importer._call_with_frames_removed.__code__,  # type: ignore[attr-defined]
        table=_imp.get_frozen_object,
        no_event=RuntimeError, no_module=ImportError,
    ):  # fmt: skip
        if event in {
            "gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames", "sys._current_exceptions",
            "sys.settrace", "sys.setprofile", "sys.addaudithook", "sys.remote_exec", "cpython.remote_debugger_script",
            "cpython.PyInterpreterState_New", "marshal.load", "sqlite3.enable_load_extension", "sqlite3.load_extension",
        } or starts(event, ("ctypes.", "sys.monitoring.")):  # fmt: skip
            raise no_event(f"{event} is not available in the sandbox")
        if event == "import":
            if kind(arguments[0]) is not text or kind(arguments[1]) not in (text, kind(None)):
                raise no_module("names of a kind of their own are not available in the sandbox")
            name = last(arguments[0], ".")[2]  # by which an extension module is initialised
            if name in {
                "ctypes", "_ctypes", "_interpreters", "_interpchannels", "_interpqueues", "_remote_debugging", "_tkinter",
            } or starts(name, ("_test", "_xx", "_ctypes_")):  # fmt: skip
                raise no_module(f"{name} is not available in the sandbox")
            if arguments[1] is not None and last(arguments[1], "/")[0] not in folders:
                raise no_module("extension modules of one's own are not available in the sandbox")
        elif event == "code.__new__":  # bytecode that no compiler made can read any memory
            if frame(1).f_code is not coroutine:
                raise no_event("only the compiler makes code objects in the sandbox")
        elif event == "marshal.loads":  # the importer reads the standard library, and nothing else
            caller, data = frame(1), b""
            space, path = caller.f_locals, None
            if caller.f_code is from_table and space["f"] is table and space["args"][1:] == ():
                return  # a module that is frozen into the interpreter
            if caller.f_code is from_file:
                path = space["bytecode_path"]
            if kind(path) is text and starts(path, libraries) and not contains(path, "/../"):
                descriptor = opened(path, 0)
                while part := read(descriptor, 1 << 20):
                    data += part
                close(descriptor)
            if data[16:] != arguments[0]:
                raise no_event("marshal reads the standard library alone in the sandbox")

    sys.addaudithook(hook)


def _prepare() -> list:  # type: ignore[type-arg]
    """Read the job from standard input; return [an iterator that runs it and then tells the verdict, a consumer]."""
    head, body = _read_all().split(b"\n", 1)
    secret, descriptor, user, cpu, memory, tasks, file_size, split, name = head.decode().split(" ")
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(int(descriptor), 3, inheritable=False)  # the same number every time, and alone
    if int(descriptor) > 3:
        os.close(int(descriptor))
    os.closerange(4, 4096)
    _confine(int(user), int(cpu), int(memory), int(tasks), int(file_size))
    sources = [("<program>", body[: int(split)]), ("<checks>", body[int(split) :])]
    # Compiled one by one, so that no half-open string or block of the program can swallow the checks.
    codes = tuple([compile(source, label, "exec", dont_inherit=True) for label, source in sources])
    module = type(sys)(name)
    sys.modules[name] = module
    sys.argv = [""]
    os.environ.clear()  # what bubblewrap (PWD) and Python's start-up (LC_CTYPE) have put there
    space = module.__dict__
    _refuse_events()
    calls: list = [partial(exec, code, space) for code in codes]  # type: ignore[type-arg]
    return [map(partial.__call__, (*calls, partial(os.write, 3, secret.encode()))), list]


def _finish_after(work: list) -> None:  # type: ignore[type-arg]
    """Exhaust the iterator work[0] with work[1]: the program, the checks, and last the call that tells the verdict.

    The verdict is an element of the same sequence, so whatever ends it early, an uncaught StopIteration included
    (which any iterator takes for its own end), also keeps the verdict from being told.

    Popped, both live on the value stack alone: between the program and this frame there is no Python frame,
    and no name that leads to the codes, to `exec` or to the secret.
    """
    leave, complain = os._exit, sys.__excepthook__
    try:
        if (work.pop())(work.pop())[2:] == []:
            raise RuntimeError("StopIteration was raised, and nothing caught it")
    except BaseException as error:  # SystemExit too: a program that leaves has not run to its end
        try:
            complain(type(error), error, error.__traceback__)
        finally:
            leave(1)
    leave(0)


if __name__ == "__main__":
    _finish_after(_prepare())
