"""Leases: one holder, and a dead one loses it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sinkscope.study import lease
from sinkscope.study.lease import Lease, LeaseHeldError

HOLD = """
import sys, time
from pathlib import Path
from sinkscope.study.lease import Lease
with Lease(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_only_one_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    with Lease(path):
        assert lease.is_held(path)
        with pytest.raises(LeaseHeldError, match="held by process"), Lease(path):
            pass
    assert not lease.is_held(path)
    with Lease(path):
        pass


def test_a_killed_holder_loses_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(LeaseHeldError) as error, Lease(path):
        pass
    assert error.value.holder["pid"] == process.pid
    process.kill()
    process.wait()
    with Lease(path):
        pass


@pytest.mark.parametrize(("age", "free"), [(0.0, False), (lease.LOST + 1, True)])
def test_another_machine_loses_it_when_its_heart_stops(tmp_path: Path, age: float, free: bool) -> None:
    path = tmp_path / "lease"
    path.write_text(json.dumps({"pid": 1, "host": "elsewhere", "beat": time.time() - age}))
    assert lease.is_held(path) is not free
    if free:
        with Lease(path):
            pass
    else:
        with pytest.raises(LeaseHeldError, match="elsewhere"), Lease(path):
            pass


def test_it_beats_while_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT", 0.02)
    path = tmp_path / "lease"
    with Lease(path):
        first = (lease.holder(path) or {})["beat"]
        until = time.monotonic() + 10
        while (lease.holder(path) or {"beat": first})["beat"] == first and time.monotonic() < until:
            time.sleep(0.02)
        assert (lease.holder(path) or {})["beat"] > first
