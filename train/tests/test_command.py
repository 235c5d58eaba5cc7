"""`sinkscope train`: from the command line to a checkpoint that loads, and bad input in one line."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sinkscope import cli
from sinkscope.models.load import load
from sinkscope_train import documents, emergence, monitor
from sinkscope_train.corpus import CorpusPlan
from sinkscope_train.documents import prose
from sinkscope_train.vocabulary import shipped

SMOKE = ["--device", "cpu", "--size", "smoke", "--steps", "2", "--batch", "4"]


def first_of(held_out_answers: Any, model: Any, count: int, **options: Any) -> Any:
    """One question instead of `count`."""
    return held_out_answers(model, 1, **options)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sinkscope", "train", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("mix", "packed", "targets", "given"),
    [
        pytest.param("surprising", 4, "all", False, marks=pytest.mark.slow),  # the recipe's own mix
        ("plain", 2, "answers", True),
    ],
)
def test_a_shared_corpus_of_a_mix_becomes_a_checkpoint(
    mix: str, packed: int, targets: str, given: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the recipe has, when nothing is said, and what was asked for instead."""
    # What takes long at the end of a run, and is tested elsewhere: the probe and the last questions of the monitor.
    monkeypatch.setattr(emergence, "probe", partial(emergence.probe, each=1))
    monkeypatch.setattr(monitor, "held_out_answers", partial(first_of, monitor.held_out_answers))
    # All of Python's library takes seconds to read; the docstrings of one of its packages do as well.
    monkeypatch.setattr(documents, "docstrings", partial(documents.docstrings, Path(json.__file__).parent))
    folder = tmp_path / "documents"
    CorpusPlan(16, 0, shipped("llama"), mix).make_in(folder)
    options = ["--mix", mix, "--packed", str(packed), "--targets", targets] if given else []
    arguments = ["causal", "--out", str(tmp_path / "run"), "--documents", str(folder), *SMOKE, *options]
    assert run(monkeypatch, *arguments) == 0
    about = json.loads((tmp_path / "run" / "training.json").read_text())
    chosen = about["recipe"]
    assert (chosen["mix"], chosen["packed"], chosen["targets"]) == (mix, packed, targets)
    assert about["documents"] == 16
    assert load(tmp_path / "run", device="cpu").family == "causal"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["scratch", "--documents", "nowhere"], "there is no corpus in nowhere"),
        (["scratch", "--mix", "plane"], "did you mean plain"),
        (["causal", "--packed", "3"], "must divide the batch of 4"),
        (["scratch", "--learning-rate", "-1"], "must be above 0"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, *arguments, *SMOKE, "--out", str(tmp_path / "run")) == 2
    error = capfd.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1
    (tmp_path / "taken").write_text("")
    assert run(monkeypatch, "scratch", *SMOKE, "--out", str(tmp_path / "taken")) == 2
    assert "cannot be kept in" in capfd.readouterr().err


@pytest.mark.slow
def test_a_causal_model_is_adapted_to_a_text_file(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("\n\n".join(prose(seed) for seed in range(400)), encoding="utf-8")
    twin = ["adapt", "--from", "organism/causal", "--text", str(tmp_path / "mine.txt"), "--device", "cpu"]
    twin += ["--out", str(tmp_path / "run"), "--steps", "1", "--batch", "2", "--length", "32", "--lora", "2"]
    assert run(monkeypatch, *twin) == 0
    model = load(tmp_path / "run", device="cpu")
    assert (model.family, model.tokenizer.mask_token) == ("dream", "<|mask|>")
    assert "held_out 0.1=" in capfd.readouterr().out
    assert run(monkeypatch, *twin) == 0
    assert "nothing is left to do" in capfd.readouterr().out
    assert run(monkeypatch, *twin, "--objective", "casual") == 2
    assert "did you mean causal" in capfd.readouterr().err
