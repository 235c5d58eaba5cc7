"""A stranger's distribution: a policy, a task, a family and a decoding that sinkscope finds through entry points.

It is installed into a folder of its own, and used in processes that have the folder on their path: in `generate` and
`evaluate`, on the command line, in a local study and in one on Ray.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.helpers.byte_tokenizer import TURNS, checkpoint_with_tokenizer

pytestmark = pytest.mark.slow  # a process for each use, with its imports

DISTRIBUTION = Path(__file__).parent / "distribution"
SOURCE = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the distribution is installed into."""
    folder = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(DISTRIBUTION)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the stranger's family: golden weights of LLaDA under another model_type."""
    folder = checkpoint_with_tokenizer("llada", tmp_path_factory.mktemp("model") / "echo", TURNS)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "echo"}))
    return folder


@pytest.fixture(scope="module")
def python(installed: Path) -> Any:
    """Runs `python …` in a folder, with the distribution installed; gives what it printed."""
    path = os.pathsep.join([str(installed), str(SOURCE)])
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def run(folder: Path, *words: object) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, words)],
            cwd=folder, env=variables, capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        return done.stdout

    return run


PROGRAM = """
import contextlib, io, json, sys
import sinkscope as ss
from sinkscope import cli

model = ss.load(sys.argv[1], device="cpu")
plain = ss.generate(model, "Say a.", seed=[0])
policies = [ss.parse_policy(f"rank:{rank}") for rank in (0, 1)]
runs = [ss.generate(model, "Say a.", policy=policy, capture=ss.Capture(), seed=[0]) for policy in policies]
masked = [run.trace.masked_keys().values for run in runs]
used = {
    "family": model.family, "decoding": plain.decoding.as_dict(), "policies": [str(p) for p in policies],
    "counts": [int(keys[:, 1:].sum(-1).max()) for keys in masked], "apart": not bool((masked[0] & masked[1])[:, 1].any()),
    "top": bool((masked[0] == ss.generate(model, "Say a.", policy=ss.MaskTop(1), capture=ss.Capture(), seed=[0])
                 .trace.masked_keys().values).all()),
    "n": len(ss.evaluate(model, "letters", policy=policies[0], limit=3).records),
    "control": str(policies[1].__class__(1, "layer")), "late": "sinkscope_extension" in sys.modules,
}

ss.evaluate(model, "letters", policy="rank:0", limit=2, out="run")
try:
    ss.evaluate(model, "letters", policy="rank:1", limit=2, out="run")
except ss.InputError as error:
    refused = str(error)

commands = []
for words in json.loads(sys.argv[2]):
    sys.argv = ["sinkscope", *words]
    printed, said, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
    commands.append((code, printed.getvalue(), said.getvalue()))
print(json.dumps({"used": used, "refused": refused, "commands": commands}))
"""


STUDY = """
name = "stranger"
modules = ["sinkscope_extension"]
[[models]]
source = "{checkpoint}"
[[evaluate]]
task = "letters"
samples = 4
policies = ["none", "rank:0", "rank:1", "random(rank:1)"]
"""


def study_command(on: str) -> tuple[str, ...]:
    """The study, with a worker."""
    words = ("study", "stranger.toml", "--device", "cpu", "--workers", "1", "--shard", "2")
    return (*words, "--on", on, "--out", "study", "--no-report")


@pytest.fixture(scope="module")
def found(python: Any, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process found: in Python, with records, and with five commands, the last of which is a study."""
    evaluate = ("evaluate", str(checkpoint), "--device", "cpu", "--limit", "2")
    lines = [
        (*evaluate, "--task", "letters", "--policy", "random(rank:1)"),
        ("models", str(checkpoint)),
        (*evaluate, "--task", "letters", "--policy", "rnk:1"),
        (*evaluate, "--task", "lettrs"),
        study_command("local"),
    ]
    folder = tmp_path_factory.mktemp("found")
    (folder / "stranger.toml").write_text(STUDY.format(checkpoint=checkpoint))
    shown: dict[str, Any] = json.loads(python(folder, "-c", PROGRAM, checkpoint, json.dumps(lines)))
    return {**shown, "folder": folder}


def test_in_generate_and_evaluate(found: dict[str, Any]) -> None:
    found = found["used"]
    assert found["family"] == "echo"
    assert found["decoding"]["kind"] == "echo"
    assert found["decoding"]["length"] == found["decoding"]["steps"] == 8
    assert found["policies"] == ["rank:0", "rank:1"]
    assert found["control"] == "rank:1@layer"
    assert found["counts"] == [1, 1]
    assert found["apart"]
    assert found["top"], "rank 0 is what top:1 masks"
    assert found["n"] == 3
    assert found["late"]


def test_two_values_of_a_policy_never_share_a_record(found: dict[str, Any]) -> None:
    """A policy whose text form left out its field gave one value's answers for the other."""
    assert "rank" in found["refused"]


def test_on_the_command_line(found: dict[str, Any]) -> None:
    measured, described, policy, task, _ = found["commands"]
    assert [code for code, _, _ in (measured, described, policy, task)] == [0, 0, 2, 2]
    assert "letters" in measured[1]
    assert "echo" in described[1]
    assert "did you mean rank" in policy[2]
    assert "letters" in task[2]


def check_study(folder: Path) -> None:
    table = pd.read_parquet(folder / "study" / "tables" / "results.parquet")
    assert set(table["policy"]) == {"none", "rank:0", "rank:1", "random(rank:1)"}
    assert set(table["family"]) == {"echo"}
    assert set(table["n"]) == {4}
    shares = dict(zip(table["policy"], table["hidden_share"], strict=True))
    assert 0 < shares["rank:1"] < shares["rank:0"] < 1, "the strongest key has more attention than the second"


def test_in_a_study(found: dict[str, Any]) -> None:
    """Workers are processes of their own, and know what the study's modules register."""
    code, _, error = found["commands"][-1]
    assert code == 0, error
    check_study(found["folder"])


@pytest.mark.soak
@pytest.mark.parametrize("on", ["local", "ray"])
def test_in_a_study_by_the_program(on: str, python: Any, checkpoint: Path, tmp_path: Path) -> None:
    """Started as a user does, with no command before it."""
    if on == "ray":
        pytest.importorskip("ray", reason="Ray is not installed (pip install 'sinkscope[ray]')")
    (tmp_path / "stranger.toml").write_text(STUDY.format(checkpoint=checkpoint))
    python(tmp_path, "-m", "sinkscope", *study_command(on))
    check_study(tmp_path)
