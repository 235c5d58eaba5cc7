"""The organisms' own commands: bad input ends in one line, answers of other weights are refused, few libraries are needed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lab import cards, measure
from sinkscope import statistics
from sinkscope.models.load import ORGANISMS as WEIGHTS
from sinkscope.tasks import registry

COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "cards": cards.main,
    "measure": measure.main,
}
CAUSAL = str(WEIGHTS / "causal")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `empty`, a checkpoint without weights; no GPU."""
    folder = tmp_path / "empty"
    folder.mkdir()
    for name in ("config.json", "training.json", "emergence.json", "accuracy.json"):
        shutil.copy(WEIGHTS / "causal" / name, folder)
    (tmp_path / "words.txt").write_text("no JSON", encoding="utf-8")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        ("measure", "{shelf}/nowhere", "there is no folder"),
        ("measure", "{causal} --count 0", "count should be a whole number of at least 1, got 0"),
        ("measure", "{causal} --batch 0", "batch should be a whole number of at least 1, got 0"),
        ("measure", "{causal} --device cuda", "no usable CUDA GPU"),
        ("measure", "{shelf}/empty", "has no weights"),
        ("measure", "{causal} --answers {shelf}/nothing.json", "cannot be read"),
        ("measure", "{causal} --answers {shelf}/words.txt", "cannot be read"),
        ("measure", "{causal} --answers {shelf}/list.json", "holds no answers"),
        ("cards", "write --models empty --root {shelf}", "has no weights"),
        ("cards", "profile --models empty --root {shelf}", "has no weights"),
    ],
)
def test_bad_input_ends_in_one_line(command: str, words: str, said: str, shelf: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        COMMANDS[command]([one.format(shelf=shelf, causal=CAUSAL) for one in words.split()])
    text = str(ended.value.code)
    assert text.startswith("error: ")
    assert said in text
    assert "\n" not in text


def made(digest: str) -> dict[str, Any]:
    """Answers to three word problems, two of them right."""
    right = [one.answer for one in registry.get("word_problems", "causal").documents(3)]
    tasks = {"word_problems": {"decoding": {}, "answers": [*right[:2], "I do not know."]}}
    about = {"date": "2026-01-02", "dtype": "float32", "batch": 3, "machine": "a GPU", "family": "causal"}
    return {"digest": digest, "count": 3, "tasks": tasks, **about}


def test_answers_are_graded_for_the_weights_that_gave_them_alone(tmp_path: Path) -> None:
    folder = tmp_path / "causal"
    shutil.copytree(WEIGHTS / "causal", folder)  # the digest is over config and tokenizer, too
    path, graded = tmp_path / "causal.answers.json", folder / "accuracy.json"
    before = graded.read_bytes()
    path.write_text(json.dumps(made("0123456789abcdef")), encoding="utf-8")
    with pytest.raises(SystemExit, match="error: the answers are of weights 0123456789ab, and those in"):
        measure.main([str(folder), "--answers", str(path)])
    assert graded.read_bytes() == before
    digest = json.loads(before)["digest"]
    path.write_text(json.dumps(made(digest)), encoding="utf-8")
    measure.main([str(folder), "--answers", str(path)])
    found = json.loads(graded.read_text(encoding="utf-8"))
    assert (found["digest"], found["where"]) == (digest, "a GPU")
    entry = found["tasks"]["word_problems"]
    assert (entry["n"], entry["right"]) == (3, 2)
    assert entry["interval"] == [round(bound, 4) for bound in statistics.wilson(2, 3)]


@pytest.mark.slow
def test_a_gpu_machine_needs_few_libraries() -> None:
    others = [
        "pandas",
        "xarray",
        "zarr",
        "typer",
        "rich",
        "matplotlib",
        "pyarrow",
        "scipy",
        "datasets",
        "jinja2",
    ]
    program = f"import sys; sys.modules.update(dict.fromkeys({others}))\nimport lab.measure"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
