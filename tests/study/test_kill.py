"""kill -9 of workers and of the main process at random moments; then the same command gives the tables of a quiet run.

SINKSCOPE_KILLS: how many times (five by default; `make soak` takes twenty).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from sinkscope.study import status
from study import small

KILLS = int(os.environ.get("SINKSCOPE_KILLS", "5"))


def children(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


@pytest.mark.slow
@pytest.mark.timeout(900 * max(1, KILLS // 5))
def test_a_study_survives_kills_of_workers_and_of_itself(tmp_path: Path) -> None:
    study = small.write_study(tmp_path / "study", models=("llada",), samples=6)
    quiet, out = tmp_path / "quiet", tmp_path / "killed"
    begun = time.monotonic()
    small.run(study, quiet, "--workers", "2", "--no-report")
    whole = time.monotonic() - begun
    rng = random.Random(8)
    killed = {"main": 0, "worker": 0}
    for number in range(KILLS):
        process = subprocess.Popen(
            small.command(study, out, "--workers", "2", "--no-report", "--shard", str(rng.choice((1, 2, 8)))),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=small.environment(), cwd=small.ROOT,
        )  # fmt: skip
        wait = rng.uniform(0.3, 1.0) * whole
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait)
        workers = children(process.pid)
        if number % 2 and workers:
            os.kill(rng.choice(workers), signal.SIGKILL)
            killed["worker"] += 1
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.3 * whole)
        if process.poll() is None:
            process.kill()
            killed["main"] += 1
        process.wait()
        if (out / "study.toml").exists():
            status.read(out)  # a reader never sees anything broken
    assert killed["main"] > 0
    small.run(study, out, "--workers", "2", "--no-report")
    small.assert_same(out, quiet)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_commands_at_once_do_not_corrupt_a_folder(tmp_path: Path) -> None:
    study = small.write_study(tmp_path / "study", models=("llada",), samples=3)
    quiet, out = tmp_path / "quiet", tmp_path / "both"
    small.run(study, quiet, "--workers", "1", "--no-report")
    both = [
        subprocess.Popen(
            small.command(study, out, "--workers", "1", "--no-report"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=small.environment(), cwd=small.ROOT,
        )
        for _ in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=600) for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 0], [0, 2]), said
    if codes == [0, 2]:
        assert any("is running the study" in error for _, error in said)
    small.assert_same(out, quiet)
