"""kill -9 of workers and of the main process at random moments; then the same command gives the tables of a quiet run.

SINKSCOPE_KILLS: how many commands are killed (by default one, after a worker of its own; `make soak` takes twenty).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from tests.study import small

from sinkscope.study import status

KILLS = int(os.environ.get("SINKSCOPE_KILLS", "1"))
ANSWERS = 3 * 6 + 2 + 2 + 1  # of three policies, traces, replays and the maps of an exemplar


def children(process: BaseProcess) -> list[int]:
    """The workers of a process."""
    pid = process.pid
    with contextlib.suppress(OSError):
        every = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [child for child in every if b"popen_loky" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return []


def answers(out: Path) -> int:
    """Answers that are written down."""
    return sum(path.read_bytes().count(b"\n") for path in out.glob("cells/*/shards/*/generations.jsonl"))


def wait(process: BaseProcess, out: Path, share: float) -> None:
    """Until a share of the answers that are missing now is there: most of a short run's time is the start of its processes,
    where a kill finds nothing to break. Below 0: when the first worker is there; above 1: while the tables are made."""
    there = answers(out)
    wanted = there + min(1.0, share) * (ANSWERS - there)
    while process.exitcode is None and not (children(process) if share < 0 else answers(out) >= wanted):
        time.sleep(0.01)
    if not 0 <= share <= 1:
        process.join(abs(share) % 1)


@pytest.mark.slow
@pytest.mark.timeout(900 * max(1, KILLS // 5))
def test_a_study_survives_kills_of_workers_and_of_itself(tmp_path: Path) -> None:
    study = small.write_study(tmp_path / "study", models=("llada",), samples=6)
    quiet, out = tmp_path / "quiet", tmp_path / "killed"
    small.run_here(study, quiet, "--no-report")
    assert answers(quiet) == ANSWERS
    rng = random.Random(3)
    killed: dict[str, list[int]] = {"main": [], "worker": []}

    def landed() -> bool:
        """Whether a kill of each kind came in the middle of the work; on a busy machine it may come too late."""
        return all(any(0 < moment < ANSWERS for moment in moments) for moments in killed.values())

    for number in range(KILLS + 6):
        if number >= KILLS and landed():
            break
        if answers(out) == ANSWERS:  # the next kills need work again
            small.run_here(study, out, "--no-report")
            small.assert_same(out, quiet)
            shutil.rmtree(out)
        both = number % 2 == 0  # a worker first; the study goes on with another
        workers = 1 + number % 3 // 2
        process = small.start(
            study, out, "--workers", str(workers), "--no-report", "--shard", str(rng.choice((1, 2, 8)))
        )
        if both:
            wait(process, out, rng.uniform(-0.1, 0.5))
            if alive := children(process):
                killed["worker"].append(answers(out))
                os.kill(rng.choice(alive), signal.SIGKILL)
        wait(process, out, rng.uniform(-0.1, 1.3))
        if process.exitcode is None:
            process.kill()
            killed["main"].append(answers(out))
        if (out / "study.toml").exists():
            status.read(out)  # a reader never sees anything broken
        process.join()
    print(f"answers at the kills: {killed}")
    assert landed(), killed
    small.run_here(study, out, "--no-report")
    small.assert_same(out, quiet)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_commands_at_once_do_not_corrupt_a_folder(tmp_path: Path) -> None:
    study = small.write_study(tmp_path / "study", models=("llada",), samples=3)
    quiet, out = tmp_path / "quiet", tmp_path / "both"
    small.run_here(study, quiet, "--no-report")
    said = [tmp_path / f"said-{number}" for number in range(2)]
    both = [small.start(study, out, "--on", "here", "--no-report", said=file) for file in said]
    for process in both:
        process.join(600)
    codes = {process.exitcode for process in both}
    errors = [file.read_text() for file in said]
    assert codes in ({0}, {0, 2}), errors
    if codes == {0, 2}:
        assert any("is running the study" in error for error in errors)
    small.assert_same(out, quiet)
