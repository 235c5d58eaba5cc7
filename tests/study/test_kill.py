"""kill -9 of workers and of the main process at random moments; then the same command gives the tables of a quiet run.

SINKSCOPE_KILLS: how many times (three by default; `make soak` takes twenty).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from sinkscope.study import status
from study import small

KILLS = int(os.environ.get("SINKSCOPE_KILLS", "3"))


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
        if number % 2:  # a worker, at a random moment after it is there; the study goes on with another
            while process.poll() is None and not children(process.pid):
                time.sleep(0.05)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0.0, 0.4) * whole)
            if workers := children(process.pid):
                os.kill(rng.choice(workers), signal.SIGKILL)
                killed["worker"] += 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0.3, 0.9) * whole)
        if process.poll() is None:
            process.kill()
            killed["main"] += 1
        if (out / "study.toml").exists():
            status.read(out)  # a reader never sees anything broken
        if process.wait() == 0 and number < KILLS - 1:  # it got to its end: the next kills need work again
            small.assert_same(out, quiet)
            shutil.rmtree(out)
    assert killed["main"] > 0
    assert killed["worker"] > 0
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
