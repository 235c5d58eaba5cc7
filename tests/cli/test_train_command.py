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
from sinkscope.organisms import corpus, emergence, monitor
from sinkscope.organisms.vocabulary import shipped

SMOKE = ["--device", "cpu", "--size", "smoke", "--steps", "2", "--batch", "4"]


def first_of(questions: Any, chosen: Any, vocabulary: Any, count: int, device: Any) -> Any:
    """One question instead of `count`."""
    return questions(chosen, vocabulary, 1, device)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sinkscope", "train", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.mark.slow
def test_a_shared_corpus_of_a_mix_becomes_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # What takes long at the end of a run, and is tested elsewhere: the probe and the last questions of the monitor.
    monkeypatch.setattr(emergence, "probe", partial(emergence.probe, each=1))
    monkeypatch.setattr(monitor, "questions", partial(first_of, monitor.questions))
    words, documents = shipped("llada"), tmp_path / "documents"
    made = corpus.make(16, 0, words, workers=1, mix="surprising")
    made.save(documents, corpus.ingredients("surprising", words))
    options = ["--mix", "surprising", "--packed", "4", "--targets", "all", "--documents", str(documents)]
    assert run(monkeypatch, "causal", "--out", str(tmp_path / "run"), *SMOKE, *options) == 0
    about = json.loads((tmp_path / "run" / "training.json").read_text())
    chosen = about["recipe"]
    assert (chosen["mix"], chosen["packed"], chosen["targets"]) == ("surprising", 4, "all")
    assert about["documents"] == 16
    assert load(tmp_path / "run", device="cpu").family == "causal"


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
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    assert run(monkeypatch, *arguments, *SMOKE, "--out", str(tmp_path / "run")) == 2
    error = capfd.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1
    (tmp_path / "taken").write_text("")
    assert run(monkeypatch, "scratch", *SMOKE, "--out", str(tmp_path / "taken")) == 2
    assert "cannot be kept in" in capfd.readouterr().err
