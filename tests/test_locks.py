"""Locks: one holder, and a dead one loses it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sinkscope import locks
from sinkscope.errors import InputError
from sinkscope.locks import Lock, LockHeldError

HOLD = """
import sys, time
from pathlib import Path
from sinkscope.locks import Lock
with Lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_only_one_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with Lock(path):
        assert locks.is_held(path)
        with pytest.raises(LockHeldError, match="held by process"), Lock(path):
            pass
    assert not locks.is_held(path)
    with Lock(path):
        pass


def test_a_killed_holder_loses_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(LockHeldError) as error, Lock(path):
        pass
    assert error.value.holder["pid"] == process.pid
    process.kill()
    process.wait()
    with Lock(path):
        pass


@pytest.mark.slow
def test_one_may_wait_for_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = HOLD.replace("sleep(60)", "sleep(1)")
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with Lock(path, wait=30):
        assert (locks.holder(path) or {})["pid"] != process.pid
    process.wait()


@pytest.mark.parametrize(("age", "free"), [(0.0, False), (locks.LOST + 1, True)])
def test_another_machine_loses_it_when_its_heart_stops(tmp_path: Path, age: float, free: bool) -> None:
    """The kernel's lock is free here, as on a file system that does not share locks between machines."""
    path = tmp_path / "lock"
    locks.note(path).write_text(json.dumps({"pid": 1, "host": "elsewhere", "beat": time.time() - age}))
    assert locks.is_held(path) is not free
    if free:
        with Lock(path):
            pass
    else:
        with pytest.raises(LockHeldError, match="elsewhere"), Lock(path):
            pass


def test_it_beats_while_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT", 0.02)
    path = tmp_path / "lock"
    with Lock(path):
        first = (locks.holder(path) or {})["beat"]
        until = time.monotonic() + 10
        while (locks.holder(path) or {"beat": first})["beat"] == first and time.monotonic() < until:
            time.sleep(0.02)
        assert (locks.holder(path) or {})["beat"] > first


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "thesis.tex"
    target.write_text("text")
    (tmp_path / "lock").symlink_to(target)
    with pytest.raises(InputError, match="is it a link"), Lock(tmp_path / "lock"):
        pass
    assert target.read_text() == "text"
