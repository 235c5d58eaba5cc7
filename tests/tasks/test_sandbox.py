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
from tests.tasks.hostile import ABUSES, ESCAPES, FORGERIES, REFUSED

from sinkscope.errors import InputError
from sinkscope.tasks import sandbox
from sinkscope.tasks.sandbox import Limits, Program, check, process, run, run_many, rungs
from sinkscope.tasks.sandbox.seccomp import filter_program

pytestmark = pytest.mark.filterwarnings("ignore::sinkscope.tasks.sandbox.UnconfinedWarning")

RUNGS = ("bubblewrap", "landlock")
FIRST = sandbox.available()  # the rung of this machine; the usual loop leaves the others to `make test`


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if FIRST and FIRST.name == name else pytest.mark.slow) for name in RUNGS
    ]
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


def test_honest_programs_pass(rung: str) -> None:
    assert check(rung).startswith(rung)
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


def test_many_keep_their_order(rung: str) -> None:
    results = run_many(
        [Program(f"print({i})", checks=f"assert {i} % 2") for i in range(6)], workers=2, sandbox=rung
    )
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
    told: list[tuple[int, int]] = []
    sources = ["a", "b", "a", "def f(:", "a", "late", "x = '\0'"]
    results = run_many(
        [Program(source) for source in sources],
        sandbox="none",
        progress=lambda *numbers: told.append(numbers),
    )
    assert sorted(ran) == ["a", "b", "late", "late"]  # once more, alone
    assert [result.passed for result in results] == [True, True, True, False, True, True, False]
    assert results[3].reason == "SyntaxError: invalid syntax"
    assert "null bytes" in results[6].reason
    assert told[-1] == (5, 5)
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
    assert "sinkscope grade" in line
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
    assert check("none").startswith("no sandbox")
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
    monkeypatch.setattr("sinkscope.tasks.sandbox.landlock.filter_program", lambda *a: None)
    with pytest.raises(InputError, match=r"allowed a (child process|network connection)"):
        check(which)


# ---- hostile programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_verdict_fails(rung: str, name: str) -> None:
    result = run(FORGERIES[name], checks="assert False", sandbox=rung)
    assert not result.passed, result


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_lead_to_the_secret_is_refused(rung: str, name: str) -> None:
    program, words = REFUSED[name]
    result = run(program, sandbox=rung)
    assert not result.passed, result
    assert re.search(words, result.reason), result


def test_a_hook_of_the_program_is_not_installed(rung: str) -> None:
    """It would see the frames of ours."""
    result = run(
        "import sys\nseen = []\nsys.addaudithook(lambda *a: seen.append(a))\nopen('/dev/null')",
        checks="assert not seen",
        sandbox=rung,
    )
    assert result.passed, result


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


def test_a_copied_verdict_fails(rung: str) -> None:
    """Even the right secret counts only once: the pipe must hold it and nothing else."""
    assert not run("import os; os.write(3, b'x')", sandbox=rung).passed


@pytest.mark.parametrize("name", ABUSES)
def test_abuse_fails_in_time(rung: str, name: str) -> None:
    result = run(ABUSES[name], timeout=2.0, sandbox=rung)
    assert not result.passed, result
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


@pytest.mark.parametrize("which", [*RUNGS, "none"])
def test_a_child_is_refused_by_default(which: str) -> None:
    """Also with no sandbox: a child in a session of its own would outlive the run."""
    if sandbox.available(which) is None:
        pytest.skip(sandbox.reason(which))
    mark = f"mark-{secrets.token_hex(8)}"
    wait = f"[sys.executable, '-I', '-S', '-c', 'import time; time.sleep(60)', {mark!r}]"
    assert not run(
        f"import os, sys\nif os.fork() == 0:\n    os.setsid(); os.execv(sys.executable, {wait})",
        sandbox=which,
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


@pytest.mark.parametrize("name", ESCAPES)
def test_nothing_outside_is_reached(rung: str, name: str, outside: dict[str, object]) -> None:
    secret = Path(str(outside["secret"]))
    before, limits, cores = secret.stat(), resource.getrlimit(resource.RLIMIT_NOFILE), os.sched_getaffinity(0)
    result = run(ESCAPES[name].format(**outside), timeout=3.0, sandbox=rung)
    assert not result.passed, result
    assert result.seconds < 3
    assert secret.read_text() == "sesame"
    after = secret.stat()
    assert (before.st_mode, before.st_uid, before.st_mtime_ns) == (
        after.st_mode,
        after.st_uid,
        after.st_mtime_ns,
    )
    assert sorted(os.listdir(str(outside["folder"]))) == ["secret", "socket"]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
    assert os.sched_getaffinity(0) == cores
    assert os.getpriority(os.PRIO_PROCESS, 0) == 0


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
        f"import os\nopen({name!r}, 'w').write('x')\nprint(os.getcwd())",
        checks=f"assert open({name!r}).read() == 'x'",
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
            "assert [fd for fd in range(4096) if is_open(fd)] == [0, 1, 2, 3]\n",
            sandbox=rung,
        )
        assert result.passed, result
    finally:
        for descriptor in files:
            os.close(descriptor)


@pytest.mark.slow
@pytest.mark.parametrize("which", RUNGS)
def test_as_an_ordinary_user(which: str) -> None:
    """The route of a laptop, without root: run here by becoming nobody with the system's Python."""
    if os.geteuid() != 0:
        pytest.skip("this is an ordinary user: the whole file tests that route")
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no system-wide python3 that an ordinary user could run")
    source = Path(sandbox.__file__).parents[2]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "sinkscope")
        shutil.copytree(source / "tasks", package / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("errors.py", "registry.py"):
            shutil.copy(source / name, package)
        (package / "__init__.py").write_text("")
        for path in [Path(folder), *Path(folder).rglob("*")]:
            path.chmod(0o755)
        code = (
            "from sinkscope.tasks.sandbox import *\n"
            f"print(check({which!r}))\n"
            f"def passed(program): return run(program, sandbox={which!r}).passed\n"
            "assert passed('x = 1')\n"
            "assert passed('import threading\\nfor _ in range(9): threading.Thread(target=print).start()')\n"
            "for hostile in HOSTILE: assert not passed(hostile), hostile\n"
        )
        own = Path(folder, "own")  # of the user whom the program runs as
        own.write_text("sesame")
        os.chown(own, 65534, 65534)
        known: dict[str, object] = {
            "secret": str(own),
            "folder": folder,
            "home": folder,
            "parent": os.getpid(),
        }
        hostile = [text.format(**known, port=9, socket="/nowhere") for text in ESCAPES.values()]
        hostile += [
            "import threading, time\nfor _ in range(999):\n    threading.Thread(target=time.sleep, args=(9,)).start()",
            "import sys; sys.exit(0)",
            "import os; os.fork()",
        ]
        code = f"HOSTILE = {hostile!r}\n{code}"
        done = subprocess.run(
            [python, "-c", code],
            env={"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]},
            user=65534,
            group=65534,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
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
        assert sizes["none"] < sizes["bubblewrap"] < sizes["landlock"]
    assert filter_program("landlock", False, "riscv64") is None
