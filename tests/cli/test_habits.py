"""What holds for every command: JSON, completion, plain help, text that is never interpreted, output that is never folded."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from tests.helpers import golden
from typer.testing import CliRunner

import sinkscope as ss
from sinkscope import cli
from sinkscope.base.text import visible
from sinkscope.cli.output import say, show_json, table

IDS = "5 9 2 30 41 7\n"
HOSTILE = "[/x] [bold]b[/bold] :smile: \x1b[31mred\x9b2J \u202e"


def process(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, its output in pipes."""
    return subprocess.run(
        [sys.executable, "-m", "sinkscope", *map(str, words)], capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


@pytest.fixture
def run(sinkscope: Any) -> Any:
    """Runs a command; gives what it printed, or said as it failed."""

    def go(*words: object, code: int = 0) -> str:
        done = sinkscope(*words)
        assert done.code == code, done.error
        return str(done.error if code else done.out)

    return go


def test_text_from_outside_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE, "x" * 500)
    say(HOSTILE, table(("name", "value"), [(HOSTILE, "y" * 500)]))
    out = capsys.readouterr().out
    assert out.count("[/x] [bold]b[/bold] :smile: ⟨U+001B⟩[31mred⟨U+009B⟩2J ⟨U+202E⟩") == 3
    assert not re.search("[\x1b\x9b\u202e]", out)
    assert "x" * 500 in out
    assert "y" * 500 in out


def test_json_has_no_steering_characters_and_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    show_json({"text": HOSTILE, "unknown": float("nan"), "path": Path("a/b"), "rows": (1, 2.5, None, True)})
    out = capsys.readouterr().out
    assert json.loads(out) == {"text": HOSTILE, "unknown": None, "path": "a/b", "rows": [1, 2.5, None, True]}
    assert not re.search("[\x1b\x9b\u202e]", out)


def test_safe_keeps_lines_and_tabs() -> None:
    assert visible("a\n\tb é ☃") == "a\n\tb é ☃"


@pytest.mark.slow
def test_a_model_path_with_markup_and_escapes(run: Any, tmp_path: Path) -> None:
    """Such a path crashed `models` and what reads traces, and its escapes reached the terminal."""
    folder = tmp_path / "[" / "x] \x1b[31m"
    shutil.copytree(golden.checkpoint("llada"), folder)
    (tmp_path / "ids").write_text(IDS)
    out = run("models", folder)
    assert "[/x] ⟨U+001B⟩[31m" in out
    flags = ("--prompt-ids", "ids", "--decoding", "length=8,block=4", "--device", "cpu")
    out += run("trace", folder, *flags, "--out", "t.zarr.zip")
    out += run("show", "t.zarr.zip")
    assert "\x1b" not in out


def test_errors_do_not_steer_the_terminal(run: Any, tmp_path: Path) -> None:
    said = run("models", tmp_path / "no\x1b[31m", code=2)
    assert "'; give a folder" in said
    assert "\x1b" not in said


def test_json_of_models(run: Any) -> None:
    families = json.loads(run("models", "--json"))
    assert {family["name"] for family in families["families"]} >= {"llada", "dream", "mmada", "causal"}
    known = json.loads(run("models", golden.checkpoint("dream"), "--check", "--device", "cpu", "--json"))
    assert known["layers"] == 3
    assert known["mask id"] == 501
    assert all(finding["passed"] for finding in known["check"])


@pytest.mark.slow
def test_json_of_trace(run: Any, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text(IDS)
    flags = ("--decoding", "length=8,block=4", "--device", "cpu", "--policy", "top:1")
    out = json.loads(
        run(
            "trace", golden.checkpoint("llada"), "--prompt-ids", "ids", *flags, "--out", "t.zarr.zip", "--json",
        )
    )  # fmt: skip
    trace = ss.Trace.open(tmp_path / out["trace"])
    assert out["decoding"]["length"] == out["decoding"]["steps"] == out["steps"] == len(trace) == 8
    assert out["policy"] == "top:1"
    assert len(out["strongest"]) == 3
    assert {"section", "measure", "value"} <= set(out["summary"][0])
    assert 0 < out["hidden_share"] < 1


@pytest.mark.slow
def test_json_of_what_is_made_from_a_trace(run: Any, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text(IDS)
    flags = ("--decoding", "length=8,block=4", "--device", "cpu")
    run("trace", golden.checkpoint("llada"), "--prompt-ids", "ids", *flags, "--out", "t.zarr.zip")
    summary = json.loads(run("show", "t.zarr.zip", "--json"))["table"]
    strict = json.loads(run("show", "t.zarr.zip", "--epsilon", "0", "--rule", "sum", "--json"))["table"]
    few, many = (
        next(row["value"] for row in table if row["measure"] == "heads without a sink") for table in (summary, strict)
    )
    assert few > many
    assert {"section", "measure", "value", "unit"} <= set(summary[0])
    page = json.loads(run("show", "t.zarr.zip", "--view", "t.html", "--json"))
    assert (tmp_path / page["page"]).stat().st_size == page["bytes"]
    drawn = json.loads(run("show", "t.zarr.zip", "--only", "figure_1", "--figures", "f", "--json"))
    assert all((tmp_path / path).is_file() for paths in drawn["files"].values() for path in paths)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "flags"), [("llada", ("--decoding", "block=8")), ("dream", ()), ("mmada", ("--decoding", "block=8"))]
)
def test_steps_follow_length(family: str, flags: tuple[str, ...], run: Any, tmp_path: Path) -> None:
    """`--length 16` kept 128 steps, most of them idle."""
    (tmp_path / "ids").write_text(IDS)
    command = ("trace", golden.checkpoint(family), "--prompt-ids", "ids", "--device", "cpu", "--json")
    out = json.loads(run(*command, "--length", "16", *flags, "--out", "a.zarr.zip"))
    assert out["steps"] == out["decoding"]["steps"] == 16
    out = json.loads(run(*command, "--length", "16", "--steps", "4", *flags, "--out", "b.zarr.zip"))
    assert out["steps"] == 4


@pytest.mark.slow
def test_an_organism_writes_as_many_tokens_as_it_learned(run: Any) -> None:
    """128 tokens by default: garbage behind the answer of a model that knows 64."""
    prompt = "Jack has 6 bags with 6 seeds each. He sells 28 of them. How many seeds does he have now?"
    out = json.loads(run("trace", "organism/scratch", "--prompt", prompt, "--out", "t.zarr.zip", "--json"))
    assert out["decoding"]["length"] == out["decoding"]["steps"] == 64


@pytest.mark.slow
def test_help_has_no_python_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("NO_COLOR", "1")
    for name in ("", *typer.main.get_group(cli.app).commands):
        shown = CliRunner().invoke(cli.app, [*([name] if name else []), "--help"])
        assert shown.exit_code == 0
        assert not re.search(r"<\w+(\[\w+\])?>|\b(None|list\[)", shown.output), shown.output


def test_what_is_no_terminal_is_never_folded(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    shutil.copytree(golden.checkpoint("llada"), folder)
    assert str(folder) in run("models", folder)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(shell: str) -> None:
    found = process(
        _SINKSCOPE_COMPLETE=f"complete_{shell}", COMP_WORDS="sinkscope sh", COMP_CWORD="1",
        _TYPER_COMPLETE_ARGS="sinkscope sh", _TYPER_COMPLETE_FISH_ACTION="get-args",
    )  # fmt: skip
    assert "show" in found.stdout
    assert "evaluate" not in found.stdout


def test_python_dash_m() -> None:
    done = process("--version")
    assert done.stdout == f"sinkscope {ss.__version__}\n"


def test_commands_let_waiting_threads_sleep() -> None:
    """Spinning threads made a trace five to fifty times slower on a host that others use, too."""
    code = (
        "import os, sys; from sinkscope import cli; sys.argv = ['sinkscope', '--version']\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    )
    words = [sys.executable, "-c", code]
    plain = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    shown = subprocess.run(words, capture_output=True, text=True, check=True, env=plain).stdout
    assert shown.split()[-2:] == ["PASSIVE", "False"]
    own = subprocess.run(words, capture_output=True, text=True, check=True, env={**plain, "OMP_WAIT_POLICY": "ACTIVE"})
    assert own.stdout.split()[-2:] == ["ACTIVE", "False"]


def test_every_command_that_prints_a_result_takes_json() -> None:
    group = typer.main.get_group(cli.app)
    without = {
        name for name, command in group.commands.items() if "json" not in {option.name for option in command.params}
    }
    assert without <= {"fetch", "lm-eval"}, "what only makes files, or hands over to another program"
