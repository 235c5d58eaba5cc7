"""Locks: one holder, and a dead one loses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sinkscope.base import locks
from sinkscope.base.errors import InputError
from sinkscope.base.locks import LockHeldError, locked

HOLD = """
import sys, time
from pathlib import Path
from sinkscope.base.locks import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_only_one_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path):
        assert locks.is_held(path)
        with pytest.raises(LockHeldError, match="held by process"), locked(path):
            pass
    assert not locks.is_held(path)
    with locked(path):
        pass


def test_a_killed_holder_loses_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(LockHeldError, match=f"held by process {process.pid} on "), locked(path):
        pass
    process.kill()
    process.wait()
    with locked(path):
        pass


@pytest.mark.slow
def test_one_may_wait_for_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = HOLD.replace("sleep(60)", "sleep(1)")
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with locked(path, wait=30):
        assert f"process {process.pid} " not in locks.holder(path)
    process.wait()


def test_a_note_alone_holds_nobody_up(tmp_path: Path) -> None:
    """A holder that was killed, here or on another machine, leaves one."""
    path = tmp_path / "lock"
    with locked(path):
        left = locks.note(path).read_text()
    locks.note(path).write_text(left)
    assert not locks.is_held(path)
    with locked(path):
        pass


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "thesis.tex"
    target.write_text("text")
    (tmp_path / "lock").symlink_to(target)
    with pytest.raises(InputError, match="is it a link"), locked(tmp_path / "lock"):
        pass
    assert target.read_text() == "text"
