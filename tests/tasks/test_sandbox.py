"""The sandbox: honest programs pass, hostile ones fail, and nothing of them is left outside."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.helpers.marks import needs_bubblewrap
from tests.tasks.hostile import ABUSES, FORGERIES, REFUSED

from sinkscope.errors import InputError
from sinkscope.tasks import sandbox
from sinkscope.tasks.sandbox import Limits, Program, check, run, run_many
from sinkscope.tasks.seccomp import filter_program

# ---- honest programs ---------------------------------------------------------------------------------------


@needs_bubblewrap
def test_honest_programs_pass() -> None:
    assert check().startswith("bubblewrap")
    assert run("def f(x):\n    return x + 1\n", checks="assert f(1) == 2").passed
    assert run("if __name__ == '__main__':\n    print('seen')").output == "seen\n"
    # What the standard library does on its own behalf must keep working under the audit hook and the filter.
    assert run(
        "import collections, dataclasses, enum, json, re, threading, typing, tempfile, asyncio, uuid\n"
        "collections.namedtuple('P', 'x y')\n"
        "@dataclasses.dataclass\nclass A:\n    x: int = 1\n"
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
        "asyncio.run(asyncio.sleep(0))\n"
        "with tempfile.TemporaryFile() as f: f.write(b'x' * 1000)\n"
    ).passed


@needs_bubblewrap
def test_failures_say_why() -> None:
    result = run("def f(x):\n    return x\n", checks="assert f(1) == 2, 'f(1)'")
    assert not result.passed
    assert result.reason == "AssertionError: f(1)"
    assert "SyntaxError" in run("def f(:\n").reason
    result = run("while True:\n    pass", timeout=0.5)
    assert not result.passed
    assert result.reason == "ran out of time"
    assert result.seconds < 3


@needs_bubblewrap
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
def test_an_uncaught_stop_iteration_fails(program: str, checks: str) -> None:
    """It must not be taken for the end of the iterator that runs program and checks."""
    result = run(program, checks=checks)
    assert not result.passed
    assert "StopIteration" in result.reason


@needs_bubblewrap
def test_many_keep_their_order() -> None:
    results = run_many([Program(f"print({i})", checks=f"assert {i} % 2") for i in range(6)], workers=2)
    assert [result.output.splitlines()[0] for result in results] == [str(i) for i in range(6)]
    assert [result.passed for result in results] == [False, True] * 3


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean bubblewrap"):
        run("x = 1", sandbox="bublewrap")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="timeout"):
        run("x = 1", timeout=0)
    with pytest.raises(InputError, match="memory"):
        Limits(memory=0)


def test_without_bubblewrap_it_refuses_with_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    sandbox._checked_route.cache_clear()
    with pytest.raises(InputError, match=r"apt install bubblewrap.*--sandbox none"):
        check()
    with pytest.raises(InputError, match="bubblewrap"):
        run("x = 1")
    assert check("none").startswith("no sandbox")
    assert run("x = 1", sandbox="none").passed
    assert not run("import sys; sys.exit(0)", sandbox="none").passed


@needs_bubblewrap
def test_a_bubblewrap_that_cannot_confine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe decides, not the version.

    Here the filter is missing and the limit on threads is not enforced.
    """
    sandbox._checked_route.cache_clear()
    monkeypatch.setattr(sandbox, "filter_program", lambda children: None)
    with pytest.raises(InputError, match="allowed a child process"):
        check()
    sandbox._checked_route.cache_clear()


# ---- hostile programs --------------------------------------------------------------------------------------


@needs_bubblewrap
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_verdict_fails(name: str) -> None:
    result = run(FORGERIES[name], checks="assert False")
    assert not result.passed, result


@needs_bubblewrap
@pytest.mark.parametrize("name", REFUSED)
def test_what_could_lead_to_the_secret_is_refused(name: str) -> None:
    program, words = REFUSED[name]
    result = run(program)
    assert not result.passed, result
    assert re.search(words, result.reason), result


@needs_bubblewrap
def test_a_hook_of_the_program_is_not_installed() -> None:
    """It would see the frames of ours."""
    result = run(
        "import sys\nseen = []\nsys.addaudithook(lambda *a: seen.append(a))\nopen('/dev/null')",
        checks="assert not seen",
    )
    assert result.passed, result


@needs_bubblewrap
def test_a_copied_verdict_fails() -> None:
    """Even the right secret counts only once: the pipe must hold it and nothing else."""
    assert not run("import os; os.write(3, b'x')").passed


@needs_bubblewrap
@pytest.mark.parametrize("name", ABUSES)
def test_abuse_fails_in_time(name: str) -> None:
    result = run(ABUSES[name], timeout=2.0)
    assert not result.passed, result
    assert result.seconds < 4.0


@needs_bubblewrap
def test_disk_is_bounded() -> None:
    result = run(
        "total = 0\n"
        "try:\n"
        "    for i in range(10 ** 6):\n"
        "        with open(f'/tmp/{i}', 'wb') as f: total += f.write(b'x' * 10 ** 6)\n"
        "finally:\n"
        "    print('total', total)\n"
    )
    assert not result.passed
    written = int(re.search(r"total (\d+)", result.output)[1])  # type: ignore[index]
    assert written <= Limits().disk


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
    )
    assert not result.passed
    started, user = map(int, re.search(r"started (\d+) as (\d+)", result.output).groups())  # type: ignore[union-attr]
    assert 1 <= started < 20
    assert user != 0
    assert result.seconds < 4  # the sixty-second children went with it


def _command_lines() -> str:
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines.append((entry / "cmdline").read_bytes().decode("utf-8", "replace"))
            except OSError:
                continue
    return "\n".join(lines)


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
    result = run(program, timeout=1.0, limits=Limits(children=True))
    assert result.passed == (ending == "")
    deadline = time.monotonic() + 5
    while mark in _command_lines() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert mark not in _command_lines()


@needs_bubblewrap
def test_the_search_for_processes_finds_one() -> None:
    """So that the test above can fail."""
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


@needs_bubblewrap
def test_a_child_is_refused_by_default() -> None:
    assert not run("import os\nif os.fork() == 0:\n    os.setsid()").passed
    assert not run("import subprocess; subprocess.run(['/bin/true'])").passed
    assert run(
        "import subprocess; subprocess.run(['/bin/true'], check=True)", limits=Limits(children=True)
    ).passed


@needs_bubblewrap
def test_secrets_of_the_caller_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKSCOPE_TEST_SECRET", "sesame")
    result = run("import os\nassert not os.environ, os.environ")
    assert result.passed, result
    assert not run("import os; os.environ['SINKSCOPE_TEST_SECRET']").passed
    assert not run("open('/proc/self/environ')").passed
    assert not run("open('/proc/1/environ')").passed
    assert not run("open('/etc/passwd')").passed
    with tempfile.NamedTemporaryFile("w", dir=Path.home(), prefix=".sinkscope-test-") as file:
        file.write("sesame")
        file.flush()
        assert run(f"open({file.name!r})", sandbox="none").passed  # it is there
        assert not run(f"open({file.name!r})").passed
        assert not run("import os; os.listdir(os.path.expanduser('~'))").passed
        assert not run(f"import os; os.listdir({str(Path.home())!r})").passed
        assert not run(f"import os; os.listdir({str(Path(__file__).parent)!r})").passed


@needs_bubblewrap
def test_nothing_is_written_outside(tmp_path: Path) -> None:
    for place in (
        tmp_path,
        Path.home(),
        Path(__file__).parent,
        Path("/usr"),
        Path("/"),
        Path("/etc"),
        Path("/dev/shm"),
    ):
        target = place / f"sinkscope-{secrets.token_hex(4)}"
        assert not run(f"open({str(target)!r}, 'w').write('x')").passed, place
        assert not target.exists()
    inside = f"/tmp/sinkscope-{secrets.token_hex(4)}"
    assert run(f"open({inside!r}, 'w').write('x')", checks=f"assert open({inside!r}).read() == 'x'").passed
    assert not Path(inside).exists()
    assert not run(f"open({inside!r})").passed  # and the next program finds a fresh /tmp


@needs_bubblewrap
def test_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        connect = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"
        assert run(connect, sandbox="none").passed  # it listens
        server.accept()[0].close()
        assert not run(connect).passed
        assert not run("import socket; socket.socket(socket.AF_UNIX)").passed
        assert not run("import socket; socket.getaddrinfo('localhost', 80)[0]; socket.socket()").passed
        with pytest.raises(TimeoutError):
            server.accept()


@needs_bubblewrap
def test_signals_do_not_reach_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        for target in ("os.getppid()", str(os.getpid()), str(os.getppid()), "-1", "0", "1"):
            for number in ("SIGTERM", "SIGKILL"):
                result = run(f"import os, signal; os.kill({target}, signal.{number})")
                assert not result.passed, (target, number)
        assert not run("import os, signal; os.killpg(os.getpgid(0), signal.SIGTERM)").passed
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == []


@needs_bubblewrap
def test_verdict_and_limits_do_not_depend_on_open_descriptors() -> None:
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
            "assert [fd for fd in range(4096) if is_open(fd)] == [0, 1, 2, 3]\n"
        )
        assert result.passed, result
    finally:
        for descriptor in files:
            os.close(descriptor)


@needs_bubblewrap
def test_as_an_ordinary_user() -> None:
    """The route of a laptop.

    No root, a user namespace. Run here by becoming nobody with the system's Python.
    """
    if os.geteuid() != 0:
        assert check() == "bubblewrap, in a user namespace"  # the whole file then tests that route
        return
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no system-wide python3 that an ordinary user could run")
    source = Path(sandbox.__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "sinkscope")
        shutil.copytree(source / "tasks", package / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(source / "errors.py", package)
        (package / "__init__.py").write_text("")
        for path in [Path(folder), *Path(folder).rglob("*")]:
            path.chmod(0o755)
        code = (
            "from sinkscope.tasks.sandbox import *\n"
            "print(check())\n"
            "assert run('x = 1').passed\n"
            "bomb = 'import os, time\\nfor _ in range(99):\\n    if os.fork() == 0: time.sleep(9)'\n"
            "assert not run(bomb, limits=Limits(children=True, tasks=20)).passed\n"
            "assert not run('import os, signal; os.kill(os.getppid(), signal.SIGKILL)').passed\n"
            "assert not run('import sys; sys.exit(0)').passed\n"
        )
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
    if "cannot confine a program here" in done.stderr:
        pytest.skip(
            f"user namespaces are not available to ordinary users here: {done.stderr.splitlines()[-1][:300]}"
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("bubblewrap, in a user namespace")


def test_filter_exists_for_common_machines_only() -> None:
    for machine in ("x86_64", "aarch64"):
        strict, lenient = filter_program(False, machine), filter_program(True, machine)
        assert strict is not None
        assert lenient is not None
        assert len(strict) % 8 == 0
        assert len(strict) > len(lenient)
    assert filter_program(False, "riscv64") is None
