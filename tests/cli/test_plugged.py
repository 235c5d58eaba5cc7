"""Commands of other distributions: they appear when installed, and a broken or missing one says so in a line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint

import pytest
import typer

from sinkscope import cli
from sinkscope.cli import plugged

app = typer.Typer(help="A stranger's.", no_args_is_help=True)


@app.command()
def hello(name: str) -> None:
    """Greet."""
    print(f"hello {name}")


@app.callback()
def group() -> None:
    """A stranger's."""


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs `sinkscope …` where these entry points are installed."""

    def call(points: dict[str, str], *words: str) -> tuple[int, str, str]:
        installed = [EntryPoint(name, value, plugged.GROUP) for name, value in points.items()]
        monkeypatch.setattr(plugged, "entry_points", lambda group: installed)
        monkeypatch.setattr(sys, "argv", ["sinkscope", *words])
        plugged.plugged.cache_clear()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), *capfd.readouterr()

    yield call
    plugged.plugged.cache_clear()


def test_an_installed_command_is_listed_and_runs(run: Run) -> None:
    points = {"stranger": f"{__name__}:app"}
    assert "A stranger's." in run(points, "--help")[1]
    assert run(points, "stranger", "hello", "Ada") == (0, "hello Ada\n", "")


@pytest.mark.parametrize("words", [(), ("--help",), ("scratch", "--out", "runs/a")])
def test_training_says_how_to_install_it(run: Run, words: tuple[str, ...]) -> None:
    code, out, error = run({}, "train", *words)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert "pip install sinkscope-train" in error


def test_ten_commands_are_listed_and_training_where_it_is_installed(run: Run) -> None:
    for points, more in (({}, set()), ({"train": f"{__name__}:app"}, {"train"})):
        listed = re.findall(r"^│ ([a-z][a-z-]+) ", run(points, "--help")[1], re.MULTILINE)
        assert set(listed) == set(typer.main.get_group(cli.app).commands) | more
        assert len(listed) <= 10 + len(more)


def test_a_command_that_cannot_be_loaded_does_not_take_the_others_with_it(run: Run) -> None:
    points = {"broken": "no_such_module:app"}
    code, listed, _ = run(points, "--help")
    assert (code, "broken " in listed, "Cannot be loaded" in listed) == (0, True, True)
    code, _, error = run(points, "broken", "--help")
    assert (code, error.count("\n")) == (2, 1)
    assert "no_such_module:app cannot be loaded" in error
