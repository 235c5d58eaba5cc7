"""kill -9 of workers and of the main process at random moments; then the same command gives the tables of a quiet run.

SINKSCOPE_KILLS: how many times (two by default, one of each kind; `make soak` takes twenty).
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
from tests.study import small

from sinkscope.study import status

KILLS = int(os.environ.get("SINKSCOPE_KILLS", "2"))
ANSWERS = 3 * 6 + 2 + 2 + 1  # of three policies, traces, replays and the maps of an exemplar


def children(pid: int) -> list[int]:
    """The workers of the process `pid`."""
    with contextlib.suppress(OSError):
        every = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [child for child in every if b"popen_loky" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return []


def answers(out: Path) -> int:
    """Answers that are written down."""
    return sum(path.read_bytes().count(b"\n") for path in out.glob("cells/*/shards/*/generations.jsonl"))


def wait(process: subprocess.Popen[bytes], out: Path, share: float) -> None:
    """Until a share of the answers that are missing now is there: most of a short run's time is the start of its processes,
    where a kill finds nothing to break. Below 0: when the first worker is there; above 1: while the tables are made."""
    there = answers(out)
    wanted = there + min(1.0, share) * (ANSWERS - there)
    while process.poll() is None and not (children(process.pid) if share < 0 else answers(out) >= wanted):
        time.sleep(0.01)
    if not 0 <= share <= 1:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(abs(share) % 1)


@pytest.mark.slow
@pytest.mark.timeout(900 * max(1, KILLS // 5))
def test_a_study_survives_kills_of_workers_and_of_itself(tmp_path: Path) -> None:
    study = small.write_study(tmp_path / "study", models=("llada",), samples=6)
    quiet, out = tmp_path / "quiet", tmp_path / "killed"
    small.run_here(study, quiet, "--no-report")
    assert answers(quiet) == ANSWERS
    rng = random.Random(12)
    killed: dict[str, list[int]] = {"main": [], "worker": []}
    for number in range(KILLS):
        if answers(out) == ANSWERS:  # the next kills need work again
            small.run_here(study, out, "--no-report")
            small.assert_same(out, quiet)
            shutil.rmtree(out)
        both = number % 2  # a worker first; the study goes on with another
        process = subprocess.Popen(
            small.command(study, out, "--workers", str(1 + both), "--no-report", "--shard", str(rng.choice((1, 2, 8)))),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=small.environment(), cwd=small.ROOT,
        )  # fmt: skip
        if both:
            wait(process, out, rng.uniform(-0.1, 0.5))
            if workers := children(process.pid):
                killed["worker"].append(answers(out))
                os.kill(rng.choice(workers), signal.SIGKILL)
        wait(process, out, rng.uniform(-0.1, 1.3))
        if process.poll() is None:
            process.kill()
            killed["main"].append(answers(out))
        if (out / "study.toml").exists():
            status.read(out)  # a reader never sees anything broken
        process.wait()
    print(f"answers at the kills: {killed}")
    for moments in killed.values():
        assert any(0 < moment < ANSWERS for moment in moments), killed  # in the middle of the work
    small.run_here(study, out, "--no-report")
    small.assert_same(out, quiet)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_commands_at_once_do_not_corrupt_a_folder(tmp_path: Path) -> None:
    study = small.write_study(tmp_path / "study", models=("llada",), samples=3)
    quiet, out = tmp_path / "quiet", tmp_path / "both"
    small.run_here(study, quiet, "--no-report")
    both = [
        subprocess.Popen(
            small.command(study, out, "--on", "here", "--no-report"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
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
