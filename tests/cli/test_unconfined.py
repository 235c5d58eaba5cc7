"""`--sandbox none`: what it means is said, it is confirmed, and records and report name it."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from sinkscope import cli
from sinkscope.report.study.page import sandbox_of
from sinkscope.tasks.evaluation import open_evaluation
from sinkscope.tasks.records import Generation, RunFolder
from sinkscope.tasks.registry import get

MEANING = "change and delete what you can"


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    """An evaluation whose only answer is a program, not graded."""
    task = get("small_code", "llada")
    model = {"source": "m", "family": "llada", "dtype": "float32", "weights": "w" * 12}
    wanted = {"model": model, "task": task.settings(), "decoding": {"kind": "llada"}, "policy": None}
    (document,) = task.documents(1)
    with RunFolder.write(tmp_path / "run", wanted) as run:
        run.generations.append([Generation(document.id, 0, 0, "p", document.answer, 1, 1)])
    return tmp_path / "run"


def on_a_terminal(answer: str, *words: object) -> tuple[int, str]:
    """Exit code of a command in a process that has a terminal, on which a person answers, and what it showed there."""
    pid, terminal = pty.fork()
    if pid == 0:
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv = ["sinkscope", *map(str, words)]
        try:
            cli.main()
        except SystemExit as ended:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(ended.code or 0))
        os._exit(99)
    os.write(terminal, f"{answer}\n".encode())
    shown = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


@pytest.mark.slow
def test_a_person_is_asked(answers: Path) -> None:
    code, shown = on_a_terminal("n", "evaluate", "--grade", answers, "--sandbox", "none")
    assert (code, MEANING in shown, "not confirmed" in shown) == (2, True, True), shown
    assert not list(RunFolder.read(answers).grades)
    code, shown = on_a_terminal("y", "evaluate", "--grade", answers, "--sandbox", "none")
    assert (code, shown.count(MEANING)) == (0, 1), shown
    assert "which confines nothing" in shown
    assert [record.sandbox for record in open_evaluation(answers).records] == ["none"]


def test_where_nobody_can_be_asked_it_is_given_beforehand(
    answers: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for more, wanted in (((), 2), (("--yes",), 0)):
        monkeypatch.setattr(sys, "argv", ["sinkscope", "evaluate", "--grade", str(answers), "--sandbox", "none", *more])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        err = capsys.readouterr().err
        assert int(ended.value.code or 0) == wanted, err
        assert err.count(MEANING) == 1
        assert bool(list(RunFolder.read(answers).grades)) == bool(more)


def test_a_study_asks_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "study", "quick", "--model", "organism/scratch", "--task", "small_code", "--out", tmp_path / "out",
    )  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["sinkscope", *map(str, words), "--sandbox", "none"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "--yes" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rungs", "said"), [(["none", ""], "none, which confines nothing"), (["bubblewrap"] * 2, "bubblewrap"), ([""], "")]
)
def test_the_report_names_what_programs_ran_on(rungs: list[str], said: str) -> None:
    source: Any = SimpleNamespace(frames={"records": pd.DataFrame({"sandbox": rungs})})
    assert sandbox_of(source) == said
