"""A command in this process: an exception that is no exit would show as one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from sinkscope import cli


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    error: str


Command = Callable[..., Done]


@pytest.fixture
def sinkscope(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs `sinkscope …` in an empty folder, its output in files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["sinkscope", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        seen = capfd.readouterr()
        code = ended.value.code
        return Done(code if isinstance(code, int) else int(bool(code)), seen.out, seen.err)

    return run
