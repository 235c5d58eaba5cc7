"""Every code block of README and docs works: Python is run, commands are parsed, study files are read.

The blocks of a page run one after the other, after PREAMBLE, in an empty folder. A block that cannot run here has a comment
before it, `<!-- not run: the reason -->`; its Python still has to compile.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tomllib
import typer.main
from typer.core import TyperGroup

from sinkscope import cli
from sinkscope.study import spec

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
PREAMBLE = """
import sinkscope as ss
model = ss.load("organism/scratch", device="cpu")
prompts = ["Jack has 6 bags with 6 seeds each. He sells 28 of them. How many seeds does he have now?"]
decoding = ss.LladaDecoding(length=16, steps=16, block=16)
"""
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^>]+) -->\n+)?^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str
    line: int
    reason: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            match["language"],
            match["text"],
            text[: match.start("text")].count("\n"),
            match["reason"],
        )
        for match in BLOCK.finditer(text)
    ]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def with_language(*languages: str) -> list[Path]:
    return [page for page in PAGES if any(block.language in languages for block in blocks(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", with_language("python"), ids=name)
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {"__name__": "page"}
    exec(compile(PREAMBLE, "preamble", "exec"), space)
    left_out = []
    for block in blocks(page):
        if block.language == "toml":
            (tmp_path / f"{tomllib.loads(block.text).get('name', 'page')}.toml").write_text(block.text)
        if block.language != "python":
            continue
        code = compile("\n" * block.line + block.text, str(page), "exec", dont_inherit=True)
        if block.reason is None:
            exec(code, space)
        else:
            left_out.append(f"{name(page)}:{block.line}: {block.reason}")
    for line in left_out:
        print("not run:", line, file=sys.stderr)
    monkeypatch.setattr(sys, "argv", ["sinkscope"])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_parse(page: Path) -> None:
    """Commands, their options and the targets of make exist as they are written."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    for block in blocks(page):
        if block.language in ("", "sh", "console"):
            for line in block.text.replace("\\\n", " ").splitlines():
                check_command(line, targets)
    for line in re.findall(r"`((?:sinkscope|make) [^`\n]+)`", text):
        check_command(line, targets)


def check_command(line: str, targets: set[str]) -> None:
    """Parse `sinkscope …` with the command line's own parser; other programs but make pass."""
    line = line.removeprefix("$ ")
    words = shlex.split(line, comments=True) if line.startswith(("sinkscope ", "make ")) else []
    if words[:1] == ["make"]:
        asked = [word for word in words[1:] if "=" not in word and word != "…"]
        assert set(asked) <= targets, line
    if words[:1] != ["sinkscope"] or words[1].startswith("-"):
        return
    group = typer.main.get_group(cli.app)
    command = group.commands.get(words[1])
    if command is None:
        assert words[1].isupper() or words[1] in ("COMMAND", "lm-eval", "…"), line
        return
    if isinstance(command, TyperGroup) and words[2:] and not words[2].startswith("-"):
        assert words[2] in command.commands or words[2].isupper(), f"{line}: {words[2]} is not a command"
        command = command.commands.get(words[2], command)
    if command.context_settings.get("ignore_unknown_options"):
        return  # lm-eval's own options
    known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
    asked = {word.split("=")[0].strip("[]") for word in words[2:] if re.match(r"\[?--\w", word)}
    assert asked <= known | {"--help"}, f"{line}: {asked - known} is not an option"


@pytest.mark.parametrize("page", with_language("toml"), ids=name)
def test_study_files_read(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(block for block in blocks(page) if block.language == "toml"):
        if block.reason is None and "evaluate" in tomllib.loads(block.text):
            path = tmp_path / f"{number}.toml"
            path.write_text(block.text, encoding="utf-8")
            spec.read(str(path))


def test_blocks_are_found_and_reasons_are_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "a\n```python\n1\n```\n\n<!-- not run: needs the hub -->\n```python\n2\n```\n\n```\nx\n```\n"
    )
    assert blocks(page) == [
        Block("python", "1\n", 2, None),
        Block("python", "2\n", 7, "needs the hub"),
        Block("", "x\n", 11, None),
    ]
