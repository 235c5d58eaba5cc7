"""Records: nothing lost, nothing twice, whatever happens to the process that writes."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sinkscope.base.errors import InputError
from sinkscope.tasks import records
from sinkscope.tasks.records import Generation, Grade, RunFolder

SETTINGS = {"model": "organism/scratch", "decoding": {"steps": 32}, "policy": None}


def _generation(index: int, seed: int = 0) -> Generation:
    return Generation(f"test-{index}", index, seed, f"prompt {index}\n", f"Ausgabe é {index * seed}\n", 32, 64, 0.25)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    with RunFolder.write(tmp_path / "run", SETTINGS) as run:
        run.generations.append([_generation(2), _generation(0)])
        run.generations.append([_generation(1), _generation(0, seed=1)])
        run.grades.append([Grade("test-0", 0, 0, True, "18")])
        assert ("test-1", 0) in run.generations
        assert ("test-3", 0) not in run.generations
    found = RunFolder.read(tmp_path / "run")
    assert list(found.generations) == [_generation(0), _generation(0, 1), _generation(1), _generation(2)]
    assert list(found.grades) == [Grade("test-0", 0, 0, True, "18")]
    assert found.settings == SETTINGS


def test_nothing_is_done_twice(tmp_path: Path) -> None:
    with RunFolder.write(tmp_path, SETTINGS) as run:
        run.generations.append([_generation(0)])
        with pytest.raises(InputError, match="'test-0' with seed 0 already"):
            run.generations.append([_generation(1), _generation(0)])
        with pytest.raises(InputError, match="'test-1' with seed 0 already"):
            run.generations.append([_generation(1), _generation(1)])
        assert list(run.generations) == [_generation(0)]  # all of a batch or none
    with RunFolder.write(tmp_path, SETTINGS) as run, pytest.raises(InputError, match="already"):
        run.generations.append([_generation(0)])


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    RunFolder.write(tmp_path, SETTINGS).close()
    with pytest.raises(InputError, match=r"decoding\.steps is 32 there and 64 here"):
        RunFolder.write(tmp_path, {**SETTINGS, "decoding": {"steps": 64}})
    with pytest.raises(InputError, match="policy is None there and 'top:1' here"):
        RunFolder.write(tmp_path, {**SETTINGS, "policy": "top:1"})
    RunFolder.write(tmp_path, dict(reversed(SETTINGS.items()))).close()  # no lock was left behind
    with pytest.raises(InputError, match="not the folder of a run"):
        RunFolder.read(tmp_path / "elsewhere")


def test_one_writer_many_readers(tmp_path: Path) -> None:
    with RunFolder.write(tmp_path, SETTINGS) as run:
        run.generations.append([_generation(0)])
        code = (
            "import sys\n"
            "from sinkscope.tasks.records import RunFolder\nfrom sinkscope.base.errors import InputError\n"
            "print(len(list(RunFolder.read(sys.argv[1]).generations)))\n"
            "try: RunFolder.write(sys.argv[1], {})\n"
            "except InputError as error: print(error)\n"
        )
        done = _python(code, tmp_path)
        assert done[0] == "1"
        assert "another process is writing" in done[1]
        with pytest.raises(InputError, match="another process"):
            RunFolder.write(tmp_path, SETTINGS)
    RunFolder.write(tmp_path, SETTINGS).close()


@pytest.mark.slow
def test_a_line_cut_short_at_any_byte_is_done_again(tmp_path: Path) -> None:
    with RunFolder.write(tmp_path, SETTINGS) as run:
        run.generations.append([_generation(0)])
        run.generations.append([_generation(1)])
    file = tmp_path / "generations.jsonl"
    raw = file.read_bytes()
    first = raw.index(b"\n") + 1
    for end in range(first, len(raw)):
        file.write_bytes(raw[:end])
        assert list(RunFolder.read(tmp_path).generations) == [_generation(0)]
        with RunFolder.write(tmp_path, SETTINGS) as run:
            assert ("test-1", 0) not in run.generations
            run.generations.append([_generation(1)])
        assert file.read_bytes() == raw


def test_damage_inside_is_an_error_not_a_loss(tmp_path: Path) -> None:
    with RunFolder.write(tmp_path, SETTINGS) as run:
        run.generations.append([_generation(0), _generation(1)])
    file = tmp_path / "generations.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"index":0', b'"index":', 1))
    with pytest.raises(InputError, match=r"line 1 is damaged"):
        list(RunFolder.read(tmp_path).generations)
    with pytest.raises(InputError, match=r"line 1 is damaged"):
        RunFolder.write(tmp_path, SETTINGS)


@pytest.mark.parametrize("how", ["refused", "short"])
def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if how == "refused":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[: len(data) // 2])

    with RunFolder.write(tmp_path, SETTINGS) as run:
        run.generations.append([_generation(0)])
        with monkeypatch.context() as patch:
            patch.setattr(records.os, "write", full)
            with pytest.raises(InputError, match="make room and run the same command again"):
                run.generations.append([_generation(1), _generation(2)])
        assert list(run.generations) == [_generation(0)]
        run.generations.append([_generation(1)])
    assert list(RunFolder.read(tmp_path).generations) == [_generation(0), _generation(1)]


def test_grading_again_replaces_the_grades_at_once(tmp_path: Path) -> None:
    with RunFolder.write(tmp_path, SETTINGS) as run:
        run.generations.append([_generation(i) for i in range(3)])
        run.grades.append([Grade(f"test-{i}", i, 0, False, "") for i in range(3)])
        run.grades.replace([Grade(f"test-{i}", i, 0, True, "18") for i in range(2)])
        assert [grade.passed for grade in run.grades] == [True, True]
        run.grades.append([Grade("test-2", 2, 0, True, "18")])
        assert len(list(run.grades)) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "generations.jsonl",
        "grades.jsonl",
        "lock",
        "settings.json",
    ]


def test_rows_of_a_later_version_can_be_read(tmp_path: Path) -> None:
    with RunFolder.write(tmp_path, SETTINGS) as run:
        run.generations.append([_generation(0)])
    file = tmp_path / "generations.jsonl"
    file.write_text(json.dumps({**json.loads(file.read_text()), "new": 1}) + "\n")
    assert list(RunFolder.read(tmp_path).generations) == [_generation(0)]


# ---- kill -9 -------------------------------------------------------------------------------------

WORKER = """
import random, sys, time
from sinkscope.tasks.records import Generation, Grade, RunFolder

folder, batch = sys.argv[1], int(sys.argv[2])
with RunFolder.write(folder, {"model": "m"}) as run:
    print("started", flush=True)
    todo = [i for i in range(40) if (f"test-{i}", 0) not in run.generations]
    for start in range(0, len(todo), batch):
        rows = []
        for i in todo[start : start + batch]:
            time.sleep(0.004)  # the model
            text = "".join(random.Random(i).choices("abc \\n", k=3000))
            rows.append(Generation(f"test-{i}", i, 0, f"prompt {i}", text, 32, 32))
        run.generations.append(rows)
    for row in run.generations:
        if (row.document, 0) not in run.grades:
            run.grades.append([Grade(row.document, row.index, 0, "a" in row.output[:3], row.output[:3])])
"""


def _environment() -> dict[str, str]:
    source = next(entry for entry in sys.path if Path(entry, "sinkscope", "tasks", "records.py").is_file())
    return {**os.environ, "PYTHONPATH": source}


def _python(code: str, *arguments: object) -> list[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=_environment()).stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(int(os.environ.get("SINKSCOPE_KILLS", "2"))))
def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path, trial: int) -> None:
    """Twice by default; SINKSCOPE_KILLS sets another number (`make soak`: twenty)."""
    _python(WORKER, tmp_path / "whole", 1)
    rng = random.Random(trial)
    kills = 0
    for _ in range(200):
        batch = rng.choice([1, 3, 8])  # the batch size may change in between
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path / "killed"), str(batch)],
            stdout=subprocess.PIPE,
            env=_environment(),
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.random() * 0.1)
        if kills < 4:
            process.kill()
        code = process.wait()
        process.stdout.close()
        if code == 0:
            break
        kills += 1
    assert kills >= 1  # it was interrupted
    whole, killed = RunFolder.read(tmp_path / "whole"), RunFolder.read(tmp_path / "killed")
    assert len(list(whole.generations)) == 40
    assert list(killed.generations) == list(whole.generations)
    assert list(killed.grades) == list(whole.grades)
