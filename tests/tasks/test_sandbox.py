"""The sandbox: on every rung honest programs pass, hostile ones fail, and nothing of them is left outside."""

from __future__ import annotations

import os
import re
import resource
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.marks import needs_bubblewrap
from tests.tasks.doors import DOORS, EXERCISED, INSIDE, PRELUDE, RIGHT
from tests.tasks.hostile import ABUSES, CUBES, ESCAPES, FORGERIES, GRASPED, GRASPS, PRETENCES, programs

from sinkscope.base.errors import InputError
from sinkscope.tasks import sandbox
from sinkscope.tasks.sandbox import Limits, Program, check, process, run, run_many, rungs
from sinkscope.tasks.sandbox.seccomp import filter_program

pytestmark = pytest.mark.filterwarnings("ignore::sinkscope.tasks.sandbox.UnconfinedWarning")

RUNGS = ("bubblewrap", "landlock")
FIRST = sandbox.available()  # the rung of this machine; the usual loop leaves the others to `make test`


@pytest.fixture(
    params=[pytest.param(name, marks=() if FIRST and FIRST.name == name else pytest.mark.slow) for name in RUNGS]
)
def rung(request: pytest.FixtureRequest) -> str:
    """Every rung that confines; one that this machine does not have is skipped, with its reason."""
    if sandbox.available(request.param) is None:
        pytest.skip(sandbox.reason(request.param))
    return str(request.param)


@pytest.fixture
def new_rungs() -> Iterator[None]:
    """Nothing is known about the rungs of this machine, before and after."""
    rungs._tried.cache_clear()
    yield
    rungs._tried.cache_clear()


# ---- honest programs ---------------------------------------------------------------------------------------


def test_the_verdict_arrives_whatever_the_number_of_its_pipe(rung: str) -> None:
    """A grader with many open files: 1 in 100 right programs failed, those whose pipe had the number 100."""
    held, ends = [os.open(os.devnull, os.O_RDONLY)], []
    try:
        while held[-1] < 104:
            held.append(os.open(os.devnull, os.O_RDONLY))
            if held[-1] < 96:
                continue
            pipe = os.pipe()  # as the run will get it
            for end in pipe:
                os.close(end)
            ends.append(pipe[1])
            result = run("def f(x):\n    return x + 1\n", checks="assert f(1) == 2", sandbox=rung)
            assert (result.passed, result.reason, pipe) == (True, "passed", pipe)
    finally:
        for descriptor in held:
            os.close(descriptor)
    assert 100 in ends


def test_honest_programs_pass(rung: str) -> None:
    assert check(rung).name == rung
    result = run("def f(x):\n    return x + 1\n", checks="assert f(1) == 2", sandbox=rung)
    assert result.passed
    assert result.rung == rung
    assert run("if __name__ == '__main__':\n    print('seen')", sandbox=rung).output == "seen\n"
    # What the standard library does on its own behalf must keep working under the audit hook and the filter.
    result = run(
        "import collections, dataclasses, enum, json, re, threading, typing, tempfile, asyncio, uuid, decimal\n"
        "import datetime, fractions, functools, heapq, itertools, random, sqlite3, statistics, string, unittest\n"
        "collections.namedtuple('P', 'x y')\n"
        "@dataclasses.dataclass\nclass A:\n    x: int = 1\n"
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
        "asyncio.run(asyncio.sleep(0))\n"
        "datetime.datetime.strptime('2026', '%Y')\n"
        "with tempfile.TemporaryFile() as f: f.write(b'x' * 1000)\n"
        "with open('own', 'w') as f: f.write('x')\n"
        "with open('own') as f: assert f.read() == 'x'\n",
        sandbox=rung,
    )
    assert result.passed, result


@pytest.mark.slow
def test_failures_say_why(rung: str) -> None:
    result = run("def f(x):\n    return x\n", checks="assert f(1) == 2, 'f(1)'", sandbox=rung)
    assert not result.passed
    assert result.reason == "AssertionError: f(1)"
    assert "SyntaxError" in run("def f(:\n", sandbox=rung).reason
    result = run("while True:\n    pass", timeout=0.5, sandbox=rung)
    assert not result.passed
    assert result.reason == "ran out of time"
    assert result.seconds < 3


@pytest.mark.parametrize(
    ("program", "checks"),
    [
        ("raise StopIteration", "assert False"),
        ("next(iter([]))", "assert False"),
        ("def f():\n    return next(iter(()))", "f()\nassert False"),
        ("", "assert True\nnext(iter([]))\nassert False"),
        ("class E(StopIteration): pass\nraise E('x')", ""),
    ],
)
def test_an_uncaught_stop_iteration_fails(rung: str, program: str, checks: str) -> None:
    """It must not be taken for the end of the iterator that runs program and checks."""
    result = run(program, checks=checks, sandbox=rung)
    assert not result.passed
    assert "StopIteration" in result.reason


CROSSING: dict[str, list[str]] = programs("crossing")["CROSSING"]
"""Name → a program, and checks that use what it defines."""


@pytest.mark.parametrize("name", CROSSING)
def test_checks_use_what_the_program_defines(rung: str, name: str) -> None:
    """As if they shared its interpreter, though they do not."""
    program, checks = CROSSING[name]
    result = run(program, checks=checks, name="solution", sandbox=rung)
    assert result.passed, result


def test_checks_do_not_end_with_the_program(rung: str) -> None:
    """A program that leaves in the middle of a check has failed, also where the checks catch everything."""
    for ending in ("os._exit(0)", "os.close(3), os.close(4)", "os.execv(sys.executable, ['-c', 'pass'])"):
        result = run(f"import os, sys\ndef f(): {ending}", checks="try: f()\nexcept BaseException: pass", sandbox=rung)
        assert not result.passed, ending
    for error in ("StopIteration", "GeneratorExit", "KeyboardInterrupt", "SystemExit"):
        checks = "assert all(map(f, [1]))\nassert not any(map(f, [1]))"
        assert not run(f"def f(x): raise {error}", checks=checks, sandbox=rung).passed, error


def test_builtins_are_shadowed_only_where_the_checks_mean_the_program(rung: str) -> None:
    program, checks = "def sum(x): return 7\ndef abs(x): return 0", "assert sum([1]) == 7 and abs(1) == "
    for shadows, absolute in ((None, 0), (("sum",), 1), (("sum", "abs"), 0)):
        results = run_many([Program(program, f"{checks}{n}", shadows=shadows) for n in (0, 1)], sandbox=rung)
        assert [result.passed for result in results] == [absolute == 0, absolute == 1]


def test_many_keep_their_order(rung: str) -> None:
    results = run_many([Program(f"print({i})", checks=f"assert {i} % 2") for i in range(6)], sandbox=rung)
    assert [result.output.splitlines()[0] for result in results] == [str(i) for i in range(6)]
    assert [result.passed for result in results] == [False, True] * 3
    assert {result.rung for result in results} == {rung}


def test_many_run_what_must_run_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def execute(program: Program, timeout: float, limits: Limits, rung: process.Rung) -> sandbox.Result:
        ran.append(program.source)
        late = program.source == "late" and ran.count("late") == 1
        return sandbox.Result(not late, "ran out of time" if late else "passed", 0.0, "", rung.name)

    monkeypatch.setattr(sandbox, "execute", execute)
    sources = ["a", "b", "a", "def f(:", "a", "late", "x = '\0'"]
    results = run_many([Program(source) for source in sources], sandbox="none")
    assert sorted(ran) == ["a", "b", "late", "late"]  # once more, alone
    assert [result.passed for result in results] == [True, True, True, False, True, True, False]
    assert results[3].reason == "SyntaxError: invalid syntax"
    assert "null bytes" in results[6].reason
    assert run_many([], sandbox="none") == []


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean bubblewrap"):
        run("x = 1", sandbox="bublewrap")
    with pytest.raises(InputError, match="timeout"):
        run("x = 1", timeout=0, sandbox="none")
    with pytest.raises(InputError, match="memory"):
        Limits(memory=0)
    with pytest.raises(InputError, match="children=True needs bubblewrap"):
        run("x = 1", limits=Limits(children=True), sandbox="none")


# ---- which rung -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("new_rungs")
def test_the_first_rung_that_holds_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"bubblewrap": "", "landlock": ""}
    monkeypatch.setattr(rungs, "_broken_promise", lambda rung: broken[rung.name])
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(sys, "platform", "linux")

    def name() -> str | None:
        rungs._tried.cache_clear()
        rung = sandbox.available()
        return None if rung is None else rung.name

    assert name() == "bubblewrap"
    assert sandbox.reason().startswith("model-written programs run in bubblewrap, ")
    broken["bubblewrap"] = "the sandbox allowed a child process"
    assert name() == "landlock"
    broken["landlock"] = "this kernel has no Landlock"
    assert name() is None
    line = sandbox.reason()
    assert "\n" not in line
    assert "allowed a child process" in line
    assert "this kernel has no Landlock" in line
    assert "sinkscope evaluate --grade" in line
    with pytest.raises(InputError, match=r"apt install bubblewrap.*--sandbox none"):
        check()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert name() is None
    assert "part of Linux alone" in sandbox.reason()


@pytest.mark.usefixtures("new_rungs")
def test_without_bubblewrap_landlock_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match=r"no `bwrap` on the PATH.*apt install bubblewrap.*--sandbox none"):
        check("bubblewrap")
    with pytest.raises(InputError, match="bubblewrap"):
        run("x = 1", sandbox="bubblewrap")
    if sandbox.available() is None:
        pytest.skip(sandbox.reason())
    assert run("x = 1").rung == "landlock"


def test_no_sandbox_has_limits_and_says_so() -> None:
    assert check("none").words.startswith("no sandbox")
    with pytest.warns(sandbox.UnconfinedWarning, match="see your files and network"):
        result = run("x = 1", sandbox="none")
    assert result.passed
    assert result.rung == "none"
    assert not run("import sys; sys.exit(0)", sandbox="none").passed
    assert not run("x = bytearray(10 ** 10)", sandbox="none").passed


@pytest.mark.usefixtures("new_rungs")
@pytest.mark.parametrize("which", RUNGS)
def test_a_rung_that_cannot_confine_is_refused(monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    """The probe decides, not the version: here the filter is missing."""
    if sandbox.available(which) is None:
        pytest.skip(sandbox.reason(which))
    rungs._tried.cache_clear()
    monkeypatch.setattr("sinkscope.tasks.sandbox.process.filter_program", lambda *a: None)
    with pytest.raises(InputError, match=r"allowed a (child process|network connection)"):
        check(which)


# ---- hostile programs --------------------------------------------------------------------------------------

FORGING = 1.5
"""Seconds for a forgery, many times what each of them takes; one that has broken its own way out spins until they are over."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_verdict_fails(rung: str, name: str) -> None:
    result = run(FORGERIES[name], checks="assert False", timeout=FORGING, sandbox=rung)
    assert not result.passed, result


@pytest.mark.slow
@pytest.mark.parametrize("name", PRETENCES)
def test_a_pretended_answer_fails(rung: str, name: str) -> None:
    """Passing takes the right answers, whatever an answer says about itself."""
    for line in CUBES.splitlines():
        program = Program(f"import math\n{PRETENCES[name]}", line, shadows=())
        result = process.execute(program, 5.0, Limits(), check(rung))
        assert not result.passed, (line, result)


def test_the_right_answers_pass(rung: str) -> None:
    """So that the test above can fail."""
    assert run("import math\ndef f(x): return x ** 3", checks=CUBES, sandbox=rung).passed


def _exercised(programs: list[str], rung: str) -> list[sandbox.Result]:
    """As the tasks run programs: the checks take one name from them, and no builtin."""
    return run_many([Program(PRELUDE + text, EXERCISED, "solution", ("f",)) for text in programs], sandbox=rung)


@pytest.mark.slow
def test_no_code_of_the_program_runs_in_the_judge(rung: str) -> None:
    results = dict(zip(DOORS, _exercised(list(DOORS.values()), rung), strict=True))
    assert {name: result for name, result in results.items() if result.passed} == {}
    assert {name: result for name, result in results.items() if INSIDE in result.output} == {}


def test_code_of_the_program_would_be_seen_in_the_judge(rung: str) -> None:
    """So that the test above can fail."""
    result = _exercised([RIGHT], rung)[0]
    assert result.passed, result
    assert INSIDE in run(PRELUDE, checks="exec(payload)", sandbox=rung).output


def test_the_judge_imports_nothing_that_the_program_names(rung: str) -> None:
    """Neither a module that it is given, nor the module of a class; what the checks name is imported as ever."""
    program = (
        "import colorsys, types, unittest\n"
        "class Error(Exception): pass\n"
        "Error.__module__ = 'wave'\n"
        "other = colorsys\n"
        "def f(): return [types.ModuleType('unittest.__main__'), types.ModuleType('this'), colorsys, unittest, Error()]\n"
        "def g(): raise Error\n"
    )
    checks = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "try: g()\nexcept Exception as error: assert type(error).__name__ == 'Error'\n"
        "values = [*f(), other]\n"
        "assert set(sys.modules) == before, set(sys.modules) - before\n"
        "assert not any(type(value) is type(sys) for value in values)\n"
        "assert colorsys.rgb_to_hsv(0, 0, 0) == (0, 0, 0) and set(sys.modules) == before | {'colorsys'}\n"
    )
    result = run(program, checks=checks, sandbox=rung)
    assert result.passed, result


def test_the_judge_has_no_folder_of_the_program(rung: str) -> None:
    """Neither to work in nor to import from; where the kernel has Landlock, the judge cannot open it at all."""
    program = (
        "import os\nfor name in ('colorsys.py', 'mark'): open(name, 'w').write('raise SystemExit(0)')\n"
        "def folder(): return os.getcwd()\n"
    )
    checks = (
        "import os, sys\n"
        "assert os.getcwd() == '/' != folder() and not os.path.exists('mark')\n"
        "assert '' not in sys.path and not any(path.startswith(folder()) for path in sys.path)\n"
        "import colorsys\n"
        "assert colorsys.__file__.startswith(os.path.dirname(os.__file__))\n"
    )
    result = run(program, checks=checks, sandbox=rung)
    assert result.passed, result
    if sandbox.available("landlock") is None:
        pytest.skip("this kernel has no Landlock")
    for reach in ("open(folder() + '/mark')", "os.listdir(folder())", "open(folder() + '/new', 'w')"):
        result = run(program, checks=f"import os\n{reach}", sandbox=rung)
        assert result.reason.startswith("PermissionError"), result


@pytest.mark.parametrize("word", [b"passed", b"passed\n", bytes(32), b"0" * 64])
def test_the_word_for_a_pass_cannot_be_guessed(rung: str, word: bytes) -> None:
    """Code in the judge that writes it to every descriptor has not told a verdict.

    It runs here as part of the checks, whose rights it would have: that none runs is what the tests above are for.
    """
    for last in ("os._exit(0)", "raise SystemExit", "os.close(3)"):
        checks = (
            "import os\n"
            "for fd in range(64):\n"
            f"    try: fd != 5 and os.write(fd, {word!r})\n"  # 5: where its questions go
            "    except OSError: pass\n"
            f"{last}\n"
        )
        assert not run("", checks=checks, sandbox=rung).passed, last


def test_who_knows_the_word_has_passed(rung: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test above can fail; the word is another in each run."""
    word = secrets.token_bytes(32)
    monkeypatch.setattr(process.secrets, "token_bytes", lambda size: word)
    checks = f"import os\nos.write(3, {word!r}); os._exit(0)"
    assert run("", checks=checks, sandbox=rung).passed
    monkeypatch.undo()
    assert not run("", checks=checks, sandbox=rung).passed


@pytest.mark.parametrize("name", GRASPS)
def test_a_function_of_the_checks_can_be_called_and_no_more(rung: str, name: str) -> None:
    result = run(GRASPS[name], checks=GRASPED, sandbox=rung)
    assert not result.passed
    assert "belongs to the checks is not available to the program" in result.reason


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("(1 << 60).to_bytes(8, 'little')", "are allowed"),
        ("sized(b'q')", "unknown kind|longer than its message"),
        ("sized(b'')", "longer than its message"),
        ("sized(b'N' + bytes(8))", "a message that is none"),
        ("sized(b'l' + (1 << 40).to_bytes(8, 'little'))", "longer than its message"),
        ("sized((b't' + (1).to_bytes(8, 'little')) * 200_000 + b'N')", "RecursionError"),
        ("answer('made', 'os._exit', (0,))", "unknown kind 'os._exit'"),
        ("answer('made', 'unittest.__main__', ())", "unknown kind 'unittest.__main__'"),
        ("answer('named', 'eval')", "unknown kind 'eval'"),
        ("answer('named', 'type')", "unknown kind 'type'"),
        ("answer('yours', 99)", "unknown kind 99"),
        ("answer('module', 'unittest.__main__')", "'RemoteModule' object is not callable"),
        ("answer('import', 'unittest.__main__')", "unknown kind 'import'"),
        ("answer('derived', 9, list, 3)", "not what it says"),
        ("answer('derived', 9, ValueError, 3)", "not what it says"),
        ("answer('error', int, (), {})", "a class that is none"),
        ("answer('class of errors', 7, 'x', 'os', int)", "a class that is none"),
        ("sized(peer._coded(('error', 'no error')))", "TypeError"),
        ("sized(peer._coded(('value', 1, {0: [exec]})))", "'int' object is not callable|IndexError|out of range"),
    ],
)
def test_a_message_that_is_none_fails(rung: str, message: str, words: str) -> None:
    """What the program sends in place of an answer is data: the judge runs nothing of it."""
    program = (
        "import os, sys, time\n"
        "peer = sys._getframe(1).f_locals['peer']\n"
        "described = type(peer)._description\n"
        "class Fields(list): pass\n"
        "type(peer)._description = lambda self, value: (\n"
        "    tuple(value) if type(value) is Fields else described(self, value))\n"
        "def sized(data): return len(data).to_bytes(8, 'little') + data\n"
        "def answer(*fields): return sized(peer._coded(('value', Fields(fields), {})))\n"
        "peer.send(('ready', sys, []))\n"
        f"data = {message}\n"
        "while data: data = data[os.write(4, data):]\n"
        "time.sleep(60)\n"
    )
    result = run(program, checks="f()", sandbox=rung)
    assert not result.passed
    assert re.search(words, result.reason), result


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls of x86-64")
def test_the_program_cannot_touch_the_judge(rung: str) -> None:
    """By any call that looks into another process or changes it; both run as the same user."""
    program = (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "calls = {'ptrace': (101, 16), 'process_vm_readv': (310,), 'process_vm_writev': (311,), 'kill': (62,),\n"
        "         'tkill': (200,), 'pidfd_open': (434,), 'prlimit': (302,), 'kcmp': (312,), 'rt_sigqueueinfo': (129,)}\n"
        "others = [n for n in range(max(1, os.getpid() - 9), os.getpid() + 99) if n != os.getpid()]\n"
        "for name, (number, *first) in calls.items():\n"
        "    for process in others:\n"
        "        assert libc.syscall(number, *first, process, 0, 0, 0, 0) == -1, name\n"
        "        assert ctypes.get_errno() == 1, (name, ctypes.get_errno())\n"
        "for process in others:\n"
        "    assert libc.syscall(234, process, process, 0) == -1 and ctypes.get_errno() == 1, 'tgkill'\n"
    )
    result = run(program, checks="assert True", sandbox=rung)
    assert result.passed, result


def test_the_checks_stay_out_of_the_program(rung: str) -> None:
    """No text of them is in its memory, neither in objects nor in what was freed."""
    program = (
        "import gc, io\n"
        "kept, got = [], []\n"
        "class Raw(io.RawIOBase):\n"
        "    def readable(self): return True\n"
        "    def readinto(self, buffer): got.append(bytes(buffer)); return 0\n"
        "def f(word):\n"
        "    word = word[::-1]\n"
        "    texts = [part for thing in gc.get_objects() if type(thing) in (tuple, list) for part in thing[:99]]\n"
        "    texts += [value for thing in gc.get_objects() if type(thing) is dict for value in thing.values()]\n"
        "    for size in [*range(64, 512, 16), 1 << 10, 1 << 12, 1 << 14, 1 << 16]:\n"
        "        for _ in range(20): kept.append(io.BufferedReader(Raw(), size)); kept[-1].read(1)\n"
        "    in_objects = sum(type(text) in (str, bytes) and word in str(text) for text in texts if text is not word)\n"
        "    return in_objects + sum(word.encode() in part for part in got)\n"
    )
    checks = f"# {'sesame! ' * 99}\nassert f('!emases'[::1]) == 0"
    assert run(program, checks=checks, sandbox=rung).passed
    assert not run(f"{program}kept_here = ['-sesame!-']", checks=checks, sandbox=rung).passed  # so that it can fail


@pytest.mark.slow
def test_a_verdict_is_read_however_late_we_look(rung: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that ends just after an idle look at the pipes has told its verdict all the same."""

    class Late(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
        first = True

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if self.first:
                self.first = False
                time.sleep(0.7)  # the program ends in the meantime
                return []
            return super().select(timeout)  # type: ignore[no-any-return]

    monkeypatch.setattr(process.selectors, "DefaultSelector", Late)
    assert run("print('x')", sandbox=rung).passed
    assert run("assert False, 'no'", sandbox=rung).reason == "AssertionError: no"


@pytest.mark.slow
@pytest.mark.parametrize("name", ABUSES)
def test_abuse_fails_in_time(rung: str, name: str) -> None:
    program, words = ABUSES[name]
    result = run(program, timeout=2.0, sandbox=rung)
    assert not result.passed, result
    assert re.search(words, result.reason), result
    assert result.seconds < 4.0


@pytest.mark.parametrize(
    "program",
    [
        "for i in range(10 ** 6):\n    with open(str(i), 'wb') as f: f.write(b'x' * 10 ** 6)\n",
        "import os\nkept = []\nfor i in range(10 ** 6):\n    f = open(str(i), 'wb'); kept.append(f)\n"
        "    os.remove(str(i)); f.write(b'x' * 10 ** 6); f.flush()\n",
    ],
)
def test_disk_is_bounded(rung: str, program: str) -> None:
    """Also by files that were removed while they are open."""
    result = run(program, sandbox=rung)
    assert not result.passed
    words = f"wrote more than {Limits().disk} bytes" if rung == "landlock" else "No space left|Too many open"
    assert re.search(f"{words}|Too many open files", result.reason), result


def test_many_small_files_are_bounded() -> None:
    """Of Landlock's folder, which is the machine's own disk."""
    if sandbox.available("landlock") is None:
        pytest.skip(sandbox.reason("landlock"))
    result = run("for i in range(10 ** 7): open(str(i), 'w').close()", sandbox="landlock")
    assert result.reason == "made more than 1000 files"
    assert not run("import os; os.mkdir('x')", sandbox="landlock").passed


@pytest.mark.slow
@needs_bubblewrap
def test_process_limit_holds_for_this_user() -> None:
    """Also as root, whose processes the kernel does not count: inside, the program is someone else."""
    result = run(
        "import os, time\n"
        "started = 0\n"
        "try:\n"
        "    for _ in range(200):\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(60); os._exit(0)\n"
        "        started += 1\n"
        "finally:\n"
        "    print('started', started, 'as', os.getuid())\n",
        limits=Limits(children=True, tasks=20),
        sandbox="bubblewrap",
    )
    assert not result.passed
    started, user = map(int, re.search(r"started (\d+) as (\d+)", result.output).groups())  # type: ignore[union-attr]
    assert 1 <= started < 20
    assert user != 0
    assert result.seconds < 4  # the sixty-second children went with it


# ---- nothing is left, nothing is reached -------------------------------------------------------------------


def _command_lines() -> str:
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines.append((entry / "cmdline").read_bytes().decode("utf-8", "replace"))
            except OSError:
                continue
    return "\n".join(lines)


def _gone(mark: str) -> bool:
    deadline = time.monotonic() + 5
    while mark in _command_lines() and time.monotonic() < deadline:
        time.sleep(0.05)
    return mark not in _command_lines()


@pytest.mark.slow
@needs_bubblewrap
@pytest.mark.parametrize("ending", ["", "time.sleep(60)", "os._exit(0)"])
def test_no_process_is_left(ending: str) -> None:
    mark = f"mark-{secrets.token_hex(8)}"
    program = (
        "import os, sys, time\n"
        "for _ in range(2):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            wait = [sys.executable, '-I', '-S', '-c', 'import time; time.sleep(60)']\n"
        f"            os.execv(sys.executable, [*wait, {mark!r}])\n"
        "        os._exit(0)\n"
        "time.sleep(0.5)\n"
        f"{ending}\n"
    )
    result = run(program, timeout=1.0, limits=Limits(children=True), sandbox="bubblewrap")
    assert result.passed == (ending == "")
    assert _gone(mark)


@pytest.mark.slow
@pytest.mark.parametrize("which", [*RUNGS, "none"])
def test_a_child_is_refused_by_default(which: str) -> None:
    """Also with no sandbox: a child in a session of its own would outlive the run."""
    if sandbox.available(which) is None:
        pytest.skip(sandbox.reason(which))
    mark = f"mark-{secrets.token_hex(8)}"
    wait = f"[sys.executable, '-I', '-S', '-c', 'import time; time.sleep(60)', {mark!r}]"
    assert not run(
        f"import os, sys\nif os.fork() == 0:\n    os.setsid(); os.execv(sys.executable, {wait})", sandbox=which
    ).passed
    result = run(f"import subprocess, sys; subprocess.Popen({wait}, start_new_session=True)", sandbox=which)
    assert not result.passed
    assert (
        run(f"import os, sys\nos.setsid\nos.execv(sys.executable, {wait})", timeout=1.0, sandbox=which).reason
        == "ran out of time"
    )
    assert _gone(mark)


@needs_bubblewrap
def test_children_are_allowed_where_they_cannot_escape() -> None:
    program = "import subprocess; subprocess.run(['/bin/true'], check=True)"
    assert run(program, limits=Limits(children=True), sandbox="bubblewrap").passed


def test_the_search_for_processes_finds_one() -> None:
    """So that the tests above can fail."""
    mark = f"mark-{secrets.token_hex(8)}"
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", mark])
    try:
        deadline = time.monotonic() + 10
        while mark not in _command_lines() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert mark in _command_lines()
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def outside() -> Iterator[dict[str, object]]:
    """What a program must not reach: a file at home, a listening port, a named socket, this process."""
    with (
        tempfile.TemporaryDirectory(dir=Path.home(), prefix=".sinkscope-test-") as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as named,
    ):
        secret = Path(folder, "secret")
        secret.write_text("sesame")
        secret.chmod(0o600)
        named.bind(str(Path(folder, "socket")))
        named.settimeout(0.05)
        server.settimeout(0.05)
        yield {
            "secret": str(secret), "folder": folder, "home": str(Path.home()), "parent": os.getpid(),
            "port": server.getsockname()[1], "socket": str(Path(folder, "socket")),
        }  # fmt: skip
        with pytest.raises(TimeoutError):
            server.accept()
        with pytest.raises(TimeoutError):
            named.recv(10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ESCAPES)
def test_nothing_outside_is_reached(rung: str, name: str, outside: dict[str, object]) -> None:
    secret = Path(str(outside["secret"]))
    before, limits, cores = secret.stat(), resource.getrlimit(resource.RLIMIT_NOFILE), os.sched_getaffinity(0)
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    result = run(ESCAPES[name].format(**outside), timeout=3.0, sandbox=rung)
    assert not result.passed, result
    assert result.seconds < 3
    assert secret.read_text() == "sesame"
    after = secret.stat()
    assert (before.st_mode, before.st_uid, before.st_mtime_ns) == (after.st_mode, after.st_uid, after.st_mtime_ns)
    assert sorted(os.listdir(str(outside["folder"]))) == ["secret", "socket"]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
    assert os.sched_getaffinity(0) == cores
    assert os.getpriority(os.PRIO_PROCESS, 0) == priority


def test_without_a_sandbox_the_file_can_be_read(outside: dict[str, object]) -> None:
    """So that the test above can fail."""
    assert run(ESCAPES["read a file"].format(**outside), sandbox="none").passed
    assert run(ESCAPES["read the caller's limits"].format(**outside), sandbox="none").passed


def test_secrets_of_the_caller_stay_out(rung: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKSCOPE_TEST_SECRET", "sesame")
    result = run("import os\nassert not os.environ, os.environ", sandbox=rung)
    assert result.passed, result
    assert not run("import os; os.environ['SINKSCOPE_TEST_SECRET']", sandbox=rung).passed


def test_what_a_program_writes_is_gone_after_it(rung: str) -> None:
    name = f"sinkscope-{secrets.token_hex(4)}"
    result = run(
        f"import os\nopen({name!r}, 'w').write('x')\nprint(os.getcwd())\ndef read(): return open({name!r}).read()",
        checks="assert read() == 'x'",
        sandbox=rung,
    )
    assert result.passed, result
    assert not Path(result.output.strip(), name).exists()
    assert not run(f"open({name!r})", sandbox=rung).passed  # and the next program finds a fresh folder


def test_signals_do_not_reach_the_parent(rung: str) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        for target in ("os.getppid()", str(os.getpid()), str(os.getppid()), "-1", "0", "1"):
            for number in ("SIGTERM", "SIGKILL"):
                result = run(f"import os, signal; os.kill({target}, signal.{number})", sandbox=rung)
                assert not result.passed, (target, number)
        assert not run("import os, signal; os.killpg(os.getpgid(0), signal.SIGTERM)", sandbox=rung).passed
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == []


def test_verdict_and_limits_do_not_depend_on_open_descriptors(rung: str) -> None:
    """A process with many files open hands on a verdict pipe with a high number, and nothing else."""
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(300)]
    try:
        for descriptor in files:
            os.set_inheritable(descriptor, True)
        result = run(
            "import os\n"
            "def is_open(fd):\n"
            "    try: os.fstat(fd)\n"
            "    except OSError: return False\n"
            "    return True\n"
            "assert [fd for fd in range(4096) if is_open(fd)] == [0, 1, 2, 3, 4]\n",
            sandbox=rung,
        )
        assert result.passed, result
    finally:
        for descriptor in files:
            os.close(descriptor)


def _copy_without_torch(folder: Path) -> None:
    """A package `sinkscope` with what the sandbox needs, for another interpreter or user."""
    source, package = Path(sandbox.__file__).parents[2], folder / "sinkscope"
    shutil.copytree(source / "tasks", package / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "checks.py", "errors.py", "extras.py", "registry.py"):
        (package / "base").mkdir(exist_ok=True)
        shutil.copy(source / "base" / name, package / "base")
    (package / "__init__.py").write_text("")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755)


@pytest.mark.parametrize(
    "version",
    [
        # The running interpreter's own has all tests above, in processes of their own.
        pytest.param(version, marks=pytest.mark.soak if sys.version.startswith(version) else pytest.mark.slow)
        for version in ("3.11", "3.12", "3.13", "3.14")
    ],
)
def test_with_other_pythons(version: str, tmp_path: Path) -> None:
    """What holds does not depend on the version of the interpreter: the hostile and the honest, on every rung."""
    found = shutil.which(f"python{version}")
    tried = found and subprocess.run([found, "-c", "pass"], capture_output=True, check=False)
    if found is None or not tried or tried.returncode:
        pytest.skip(f"no python{version} on the PATH")
    _copy_without_torch(tmp_path)
    wrong = [(text, "assert False", "__main__") for text in FORGERIES.values()]
    wrong += [(f"import math\n{text}", line, "_") for text in PRETENCES.values() for line in CUBES.splitlines()]
    wrong += [(text, GRASPED, "__main__") for text in GRASPS.values()]
    wrong += [(f"{PRELUDE}{text}", EXERCISED, "_") for text in DOORS.values()]
    right = [(program, checks, "solution") for program, checks in CROSSING.values()]
    code = (
        "from sinkscope.tasks.sandbox import *\n"
        f"wrong, right = {wrong!r}, {right!r}\n"
        "for rung in ('bubblewrap', 'landlock'):\n"
        "    if available(rung) is None: print(reason(rung)); continue\n"
        "    jobs = [Program(*job, shadows=() if job[2] == '_' else None) for job in wrong + right]\n"
        "    results = run_many(jobs, sandbox=rung)\n"
        "    for job, result in zip(jobs, results):\n"
        "        assert result.passed == (job.name == 'solution'), (rung, job, result)\n"
        f"        assert {INSIDE!r} not in result.output, (rung, job, result)\n"
        "    print('held', rung, len(jobs))\n"
    )
    done = subprocess.run(
        [found, "-"],
        input=code,  # longer than a command line may be
        env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    if "held" not in done.stdout:
        pytest.skip(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("which", RUNGS)
def test_as_an_ordinary_user(which: str) -> None:
    """The route of a laptop, without root: run here by becoming nobody with the system's Python."""
    if os.geteuid() != 0:
        pytest.skip("this is an ordinary user: the whole file tests that route")
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no system-wide python3 that an ordinary user could run")
    with tempfile.TemporaryDirectory() as folder:
        _copy_without_torch(Path(folder))
        code = (
            "from sinkscope.tasks.sandbox import *\n"
            f"print(check({which!r}).name, check({which!r}).words)\n"
            f"def passed(program): return run(program, sandbox={which!r}).passed\n"
            "assert passed('x = 1')\n"
            "assert passed('import threading\\nfor _ in range(9): threading.Thread(target=print).start()')\n"
            "for hostile in HOSTILE: assert not passed(hostile), hostile\n"
            "for text in FORGERIES:\n"
            f"    forged = run(text, checks='assert False', timeout={FORGING}, sandbox={which!r})\n"
            "    assert not forged.passed, forged\n"
        )
        own = Path(folder, "own")  # of the user whom the program runs as
        own.write_text("sesame")
        os.chown(own, 65534, 65534)
        known: dict[str, object] = {
            "secret": str(own), "folder": folder, "home": folder, "parent": os.getpid(),
        }  # fmt: skip
        hostile = [text.format(**known, port=9, socket="/nowhere") for text in ESCAPES.values()]
        hostile += [
            "import threading, time\nfor _ in range(999):\n    threading.Thread(target=time.sleep, args=(9,)).start()",
            "import sys; sys.exit(0)",
            "import os; os.fork()",
        ]
        code = f"HOSTILE, FORGERIES = {hostile!r}, {list(FORGERIES.values())!r}\n{code}"
        done = subprocess.run(
            [python, "-c", code], env={"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]},
            user=65534, group=65534, extra_groups=[], cwd="/", capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert own.read_text() == "sesame"
        assert own.stat().st_mtime > 1e9
    if "cannot be confined here" in done.stderr:
        pytest.skip(f"not available to ordinary users here: {done.stderr.splitlines()[-1][:300]}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(which)
    assert "user" in done.stdout


def test_filter_exists_for_common_machines_only() -> None:
    for machine in ("x86_64", "aarch64"):
        sizes = {}
        for name in (*RUNGS, "none"):
            strict, lenient = filter_program(name, False, machine), filter_program(name, True, machine)
            assert strict is not None
            assert lenient is not None
            assert len(strict) % 8 == 0
            assert len(strict) > len(lenient)
            sizes[name] = len(strict)
        assert sizes["none"] < sizes["bubblewrap"] <= sizes["landlock"]
    assert filter_program("landlock", False, "riscv64") is None
