"""sinkscope evaluate and compare: what is printed, what is kept, what is refused."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.byte_tokenizer import TURNS, checkpoint_with_tokenizer

from sinkscope.models import load as loading
from sinkscope.models.model import Model
from sinkscope.tasks.evaluation import open_evaluation
from sinkscope.tasks.records import Generation, RunFolder
from sinkscope.tasks.sandbox import rungs
from sinkscope.tasks.word_problems import task as word_problems

SMALL = ["--task", "word_problems", "--limit", "4", "--length", "8", "--steps", "4", "--device", "cpu"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A golden Dream checkpoint with a tokenizer."""
    return str(checkpoint_with_tokenizer("dream", tmp_path_factory.mktemp("checkpoint") / "dream", TURNS))


LOAD = loading.load


@cache
def loaded(source: str, device: str, dtype: str, revision: str | None) -> Model:
    """As `load`, once for each set of arguments."""
    return LOAD(source, device, dtype, revision)


@pytest.fixture
def run(sinkscope: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command line with one checkpoint that is loaded once: what loading costs is not tested here."""
    monkeypatch.setattr("sinkscope.load", loaded)
    return sinkscope


@pytest.mark.slow
def test_evaluate_grade_compare(run, source: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    policies = [None, "top:2", "random(top:2)", "random(top:2),seed=1", "random(top:2),seed=2"]
    for number, policy in enumerate(policies):
        options = [] if policy is None else ["--policy", policy]
        code, out, err = run("evaluate", source, *SMALL, "--out", tmp_path / "runs" / str(number), *options)
        assert code == 0, err
        flat = " ".join(out.replace("│", " ").split())
        assert "word_problems (word_problems/1)" in flat
        assert "length=8, steps=4" in flat
        assert "accuracy 0.0000 ± 0.0000, 95 % interval" in flat
        assert f"policy {policy or 'none'}" in flat
        assert ("of the attention removed" in flat) == (policy is not None)
        assert "4/4 accuracy 0.000" in err
    whole = open_evaluation(tmp_path / "runs" / "1")
    assert whole.settings["decoding"]["algorithm"] == "entropy"  # the scheme's, where no option says otherwise
    code, out, err = run("evaluate", "--grade", tmp_path / "runs" / "1", "--again")
    assert code == 0, err
    assert "accuracy" in out
    assert open_evaluation(tmp_path / "runs" / "1") == whole
    code, out, err = run("compare", tmp_path / "runs", "--csv", tmp_path / "table.csv")
    assert code == 0, err
    lines = [line.split()[0] for line in out.splitlines() if line.strip().startswith(("none", "top", "random"))]
    assert lines == ["none", "top:2", "random(top:2)"]
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 4
    code, out, err = run("compare", tmp_path / "runs", "--csv", tmp_path / "table.csv")
    assert code == 2
    assert "--force" in err
    code, out, err = run("compare", tmp_path / "runs", "--csv", tmp_path / "table.csv", "--force", "--json")
    assert code == 0, err
    assert len(json.loads(out)["rows"]) == 3
    code, _, err = run("evaluate", source, *SMALL, "--policy", "top:3", "--out", tmp_path / "runs" / "1")
    assert code == 2
    assert "policy is 'top:2' there and 'top:3' here" in err
    code, _, err = run("evaluate", source, *SMALL, "--decoding", "eps=0.01", "--out", tmp_path / "runs" / "other")
    code, _, err = run("compare", tmp_path / "runs")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "decoding.eps is 0.001 there and 0.01 here" in err


def test_generate_now_grade_later(run, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """A machine without a sandbox can answer a task that runs code; grading it there is refused."""
    monkeypatch.setattr(rungs, "_candidates", lambda kind: [(rungs.NONE, "bubblewrap is missing")])
    rungs._tried.cache_clear()
    small = ["--task", "small_code", "--limit", "2", "--length", "8", "--steps", "4", "--device", "cpu"]
    asked: list[object] = []
    monkeypatch.setattr("sinkscope.load", asked.append)
    code, _, err = run("evaluate", source, *small)
    assert code == 2
    assert "bubblewrap" in err
    assert not asked  # the sandbox is checked before a model is loaded
    monkeypatch.undo()
    rungs._tried.cache_clear()
    code, out, err = run("evaluate", source, *small, "--no-grade", "--out", tmp_path / "run")
    assert code == 0, err
    assert "sinkscope evaluate --grade" in out
    assert "accuracy" not in out
    code, _, err = run("compare", tmp_path / "run")
    assert code == 2
    assert "2 answers without a grade" in err
    code, out, err = run("evaluate", "--grade", tmp_path / "run", "--sandbox", "none", "--yes")
    assert code == 0, err
    assert "documents 2" in " ".join(out.replace("│", " ").split())
    assert "warning: no sandbox" in err
    assert "which confines nothing" in out
    assert {record.sandbox for record in open_evaluation(tmp_path / "run").records} == {"none"}


def test_a_study_is_graded_later_in_one_command(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A folder that holds evaluations: each is graded by its own task, and traces are left alone."""
    settings = {"task": word_problems().settings(), "model": {"source": "m"}}
    documents = word_problems().documents(6)
    for place, extra in enumerate(({}, {}, {"kind": "trace"})):
        with RunFolder.write(tmp_path / "cells" / str(place) / "shards" / "0", settings | extra) as folder:
            folder.generations.append(
                Generation(one.id, index, 0, "", one.answer if index % 3 else "#### 0", 1, 1)
                for index, one in enumerate(documents)
            )
    code, out, err = run("evaluate", "--grade", tmp_path)
    assert code == 0, err
    assert out == "12 answers in 2 folders are graded, 8 of them right\n"
    assert "12/12 accuracy 0.667" in err
    assert not list(RunFolder.read(tmp_path / "cells" / "2" / "shards" / "0").grades)
    code, out, err = run("evaluate", "--grade", tmp_path, "--json")
    assert json.loads(out) == {"folders": 2, "answers": 12, "right": 8}
    code, _, err = run("evaluate", "--grade", tmp_path / "cells" / "2")
    assert code == 2
    assert "holds no answers of an evaluation" in err


def test_json(run, source: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, err = run("evaluate", source, *SMALL, "--out", tmp_path / "run", "--json")
    assert code == 0, err
    data = json.loads(out)
    assert data["accuracy"] == 0
    assert data["documents"] == len(data["records"]) == 4
    assert data["settings"]["task"]["task"] == "word_problems"
    code, again, err = run("evaluate", "--grade", tmp_path / "run", "--json")
    assert code == 0, err
    assert json.loads(again)["records"] == data["records"]


def test_an_interrupt_says_how_to_go_on(run, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    from sinkscope.tasks import answer

    first, calls = answer.generate, []

    def once(*words: object, **options: object) -> object:
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return first(*words, **options)

    with monkeypatch.context() as patch:
        patch.setattr(answer, "generate", once)
        code, _, err = run("evaluate", source, *SMALL, "--batch-size", "1", "--out", tmp_path / "run")
    assert code == 130
    assert f"the same command goes on from what is in {tmp_path / 'run'}" in " ".join(err.split())
    assert len(open_evaluation(tmp_path / "run").records) == 1
    code, _, err = run("evaluate", source, *SMALL, "--batch-size", "1", "--out", tmp_path / "run")
    assert code == 0, err
    assert len(open_evaluation(tmp_path / "run").records) == 4


@pytest.mark.slow
def test_approximate_steps_are_said(run, source: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    runs = tmp_path / "runs"
    for number, rule in enumerate((None, "prefix:2", "sparse:4,by=recent")):
        options = [] if rule is None else ["--reuse", rule]
        code, out, err = run("evaluate", source, *SMALL, "--out", runs / str(number), *options)
        assert code == 0, err
        assert ("approximate steps" in out) == (rule is not None)
    plain, reused = (open_evaluation(runs / name) for name in "01")
    assert "reuse" not in plain.settings
    assert reused.settings["reuse"] == "prefix:2"
    said = [record.extras for record in reused.records]
    assert all(each["reuse"] == "prefix:2" and each["macs"] < each["macs_exact"] for each in said)
    work = reused.extras["reuse"].work
    assert 0 < work.saved < 1
    assert plain.extras == {}
    assert not {"reuse", "macs"} & set(plain.table())
    code, out, err = run("compare", runs)
    assert code == 0, err
    rows = [line for line in out.splitlines() if line.startswith(("none", "reuse"))]
    assert [line.split("  ")[0] for line in rows] == ["none", "reuse prefix:2", "reuse sparse:4,by=recent"]
    code, _, err = run("evaluate", source, *SMALL, "--reuse", "prefix:3", "--out", runs / "1")
    assert code == 2
    assert "reuse is 'prefix:2' there and 'prefix:3' here" in err
    code, out, err = run("evaluate", source, *SMALL, "--reuse", "prefix:2", "--json")
    assert json.loads(out)["work_saved"] == pytest.approx(work.saved)
    for words, says in ((["--reuse", "prefx:2"], "prefix"), (["--reuse", "prefix:2", "--policy", "top:1"], "together")):
        code, _, err = run("evaluate", source, *SMALL, *words)
        assert code == 2
        assert says in err
