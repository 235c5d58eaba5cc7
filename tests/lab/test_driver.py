"""The driver: jobs with options, bases before what starts from them, controls measured, and what a time limit leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lab.driver import Drive, Job, unpack

from sinkscope.errors import InputError
from sinkscope.models.load import load

SMOKE = [
    "--device",
    "cpu",
    "--size",
    "smoke",
    "--steps",
    "2",
    "--batch",
    "4",
    "--mix",
    "plain",
    "--final-count",
    "1",
    "--check-every",
    "0",
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    from sinkscope.organisms.corpus import ingredients, make
    from sinkscope.organisms.vocabulary import shipped

    folder, words = tmp_path_factory.mktemp("corpus"), shipped("llada")
    make(16, 8, words, workers=1, mix="plain").save(folder, ingredients("plain", words))
    return ["--documents", str(folder)]


def test_jobs_are_read_and_checked() -> None:
    job = Job.parse("scratch:seed=2:size=1m")
    assert job == Job("scratch", (("seed", "2"), ("size", "1m")))
    assert job.name == "scratch-seed2-size1m"
    for text, complaint in (
        ("scrach", "did you mean scratch"),
        ("scratch:sed=1", "seed"),
        ("scratch:seed", "seed=1"),
        ("scratch:seed=one", "one"),
        ("causal:size=7m", "unknown size"),
    ):
        with pytest.raises(InputError, match=complaint):
            Job.parse(text)


def test_jobs_that_share_documents_read_one_mix(tmp_path: Path) -> None:
    jobs = [Job.parse("causal"), Job.parse("scratch:mix=plain:steps=10")]
    assert jobs[1].chosen().mix == "plain"
    with pytest.raises(InputError, match="read plain and surprising documents"):
        Drive(tmp_path / "work", tmp_path / "out", jobs, 2, [], 0, False).go(60.0)
    with pytest.raises(InputError, match="did you mean plain"):
        Drive(tmp_path / "work", tmp_path / "out", jobs, 2, ["--mix", "plane"], 0, False).go(60.0)


def test_a_job_starts_from_the_one_with_the_same_changes() -> None:
    jobs = [
        Job.parse(text)
        for text in ("adapted:seed=1", "causal", "causal:seed=1", "text_only", "adapted:seed=2")
    ]
    assert [job.base(jobs) for job in jobs] == [jobs[2], None, None, None, jobs[1]]
    jobs = [Job.parse(text) for text in ("causal:packed=1:targets=answers", "adapted", "adapted:seed=1")]
    assert [job.base(jobs) for job in jobs] == [None, jobs[0], jobs[0]]
    jobs = [Job.parse(text) for text in ("causal:seed=1:steps=5", "causal:seed=2", "adapted:steps=5:seed=1")]
    assert jobs[2].base(jobs) == jobs[0], "in whatever order"
    with pytest.raises(InputError, match=r"which of causal-seed1-steps5, causal-seed2 is not clear"):
        Job.parse("adapted").base(jobs)
    with pytest.raises(InputError, match="has another size than causal"):
        Job.parse("adapted:size=1m").base([Job.parse("causal")])


def test_documents_of_another_mix_are_not_taken_for_these(corpus: list[str], tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "corpus").symlink_to(corpus[1])
    drive = Drive(tmp_path / "work", tmp_path / "out", [Job.parse("causal:mix=surprising")], 1, [], 0, False)
    with pytest.raises(InputError, match="their mix is"):
        drive.go(60.0)


@pytest.mark.soak
def test_organisms_come_back_in_flat_files(corpus: list[str], tmp_path: Path) -> None:
    jobs = [Job.parse(text) for text in ("adapted", "causal")]
    assert Drive(tmp_path / "work", tmp_path / "out", jobs, 2, [*SMOKE, *corpus], count=1, controls=False).go(
        600
    )
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "adapted.json", "adapted.safetensors", "causal.json", "causal.safetensors",
    ]  # fmt: skip
    bundle = json.loads((tmp_path / "out" / "adapted.json").read_text())
    assert bundle["answers.json"]["count"] == 1
    assert bundle["training.json"]["starts_from"] == "causal"
    causal = load(unpack(tmp_path / "out", "causal", tmp_path / "shelf"), device="cpu")
    assert causal.digest == bundle["training.json"]["start_digest"]


@pytest.mark.soak
def test_controls_leave_numbers(corpus: list[str], tmp_path: Path) -> None:
    arguments = [
        "--controls",
        "--jobs",
        "scratch:seed=1",
        "--side",
        "1",
        "--measure",
        "2",
        "--work",
    ]
    command = [sys.executable, "-m", "lab.driver", str(tmp_path / "out"), *arguments]
    subprocess.run([*command, str(tmp_path / "work"), *SMOKE, *corpus], check=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["controls.json"]
    found = json.loads((tmp_path / "out" / "controls.json").read_text())["jobs"]
    assert list(found) == ["scratch-seed1"]
    assert found["scratch-seed1"]["recipe"]["seed"] == 1
    rows = found["scratch-seed1"]["rows"]
    assert [row["policy"] for row in rows] == ["none", "top:1", "top:1@model"]
    assert rows[1]["control_seeds"] == 3
    assert 0 < rows[1]["hidden"] < 1
    assert set(found["scratch-seed1"]["sinks"]["levels"]) == {"0.25", "0.5", "0.75", "1"}


def test_nothing_is_begun_when_the_time_is_over(
    corpus: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [Job.parse("causal")]
    drive = Drive(tmp_path / "work", tmp_path / "out", jobs, 1, [*SMOKE, *corpus], count=1, controls=True)
    assert not drive.go(0.0)
    assert "missing: ['causal']" in capsys.readouterr().out
