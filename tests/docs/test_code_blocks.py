"""Every code block of README and docs works: Python is run, cheap commands are run, the others parsed, study files read.

The blocks of a page run in one folder, empty at first: Python after docs/preamble.py, then commands. A block that cannot run
here has a comment before it, `<!-- not run: the reason -->`; its Python still has to compile. Commands that are not run have a
reason in NOT_RUN.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
from typer.core import TyperGroup
from typer.testing import CliRunner

import sinkscope as ss
from sinkscope import cli
from sinkscope.study import spec

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
PREAMBLE = (ROOT / "docs" / "preamble.py").read_text(encoding="utf-8")
NOT_RUN = {
    r"pip |uv |apt-get ": "installs packages",
    r"sinkscope --install-completion": "changes the user's shell",
    r"make |torchrun |python -m ": "takes minutes",
    r"sinkscope (fetch|lm-eval) ": "needs the network",
    r"sinkscope train ": "trains a model",
    r"(sinkscope|python -m) bench": "measures for minutes",
    r"sinkscope study (?!.*--plan)": "a study takes minutes to days, or needs a finished one",
    r"sinkscope evaluate --grade study|sinkscope show study/": "needs a finished study",
    r"sinkscope \w+ .*\b(MODEL|SOURCE|[\w-]+/[\w-]+-[78]B\S*)": "needs a checkpoint of your own, or the hub",
    r"sinkscope .*--data ": "needs a data file",
    r"sinkscope (evaluate --grade|compare) runs": "needs the runs of the lines before it",
    r"sinkscope inspect ": "takes minutes (tests/cli runs it small)",
}
"""Beginning of a command → why it is only parsed here."""
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^>]+) -->\n+)?^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


WRITES = re.compile(
    r'(?:--view|--csv) (\S+)|--out (\S+\.zarr\.zip)|(?:to_html|save|save_step)\("([^"]+)"|\bout="([^"]+\.zarr\.zip)"'
)
"""Files that a line writes, which must not be there."""


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
            match["language"], match["text"], text[: match.start("text")].count("\n"), match["reason"],
        )
        for match in BLOCK.finditer(text)
    ]  # fmt: skip


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def with_language(*languages: str) -> list[Path]:
    return [page for page in PAGES if any(block.language in languages for block in blocks(page))]


@cache
def after_preamble() -> dict[str, Any]:
    """The names that every page begins with; they are made once, and nothing is written."""
    space: dict[str, Any] = {"__name__": "page"}
    exec(compile(PREAMBLE, "preamble", "exec"), space)
    return space


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """The folder that a page's Python and commands share."""
    return cache(lambda page: tmp_path_factory.mktemp(page.stem))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_two_lines_write_one_file(page: Path) -> None:
    """What is there is not replaced, so that the second one would stop whoever walks a page."""
    lines = [line for block in blocks(page) for line in block.text.replace("\\\n", " ").splitlines()]
    new = [line for line in lines if not re.search("--force|--overwrite", line)]
    written = Counter(next(filter(None, match.groups())) for line in new for match in WRITES.finditer(line))
    assert [file for file, times in written.items() if times > 1] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", with_language("python"), ids=name)
def test_python_runs(page: Path, folders: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folders(page)
    monkeypatch.chdir(folder)
    space = dict(after_preamble())
    for block in blocks(page):
        if block.language == "toml":
            (folder / f"{tomllib.loads(block.text).get('name', 'page')}.toml").write_text(block.text)
        if block.language != "python":
            continue
        # As with commands: the same calls with one document, and with half or a quarter of the steps.
        text = re.sub(r"(\bevaluate\(.*\blimit=)\d+", r"\g<1>1", block.text)
        text = re.sub(r"Decoding\(length=64, block=16\b", "Decoding(length=16, block=16", text)
        text = re.sub(r"Decoding\(length=64\b", "Decoding(length=32", text)
        code = compile("\n" * block.line + text, str(page), "exec", dont_inherit=True)
        if block.reason is None:
            exec(code, space)
    monkeypatch.setattr(sys, "argv", ["sinkscope"])


def commands(block: Block) -> list[str]:
    """The lines of a shell block that are commands, without comments."""
    if block.language not in ("", "sh", "console"):
        return []
    lines = [line.strip().removeprefix("$ ") for line in block.text.replace("\\\n", " ").splitlines()]
    return [
        re.sub(r"\s+#.*$", "", line)
        for line in lines
        if re.match(r"(sinkscope|make|pip|uv|apt-get|torchrun|python) ", line)
    ]


def reason(line: str, block: Block) -> str | None:
    """Why a command is not run; None: it is."""
    return block.reason or next((why for pattern, why in NOT_RUN.items() if re.match(pattern, line)), None)


def cheap_commands(page: Path) -> list[str]:
    """The commands of a page that are run."""
    return [line for block in blocks(page) for line in commands(block) if reason(line, block) is None]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trace, for pages that begin with one."""
    path = tmp_path_factory.mktemp("recorded") / "run.zarr.zip"
    ss.generate(
        "organism/scratch", "Tom has 3 apples.", ss.LladaDecoding(length=16, block=16),
        capture=ss.Capture(anatomy=True), out=path,
    )  # fmt: skip
    return path


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if cheap_commands(page)], ids=name)
def test_cheap_commands_run(
    page: Path, recorded: Path, folders: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, in a folder that has the traces which the page speaks of; with one document, and with short answers."""
    monkeypatch.chdir(folders(page))
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    cheap = cheap_commands(page)
    written = {word for line in cheap for word in re.findall(r"--(?:out|view) (\S+)", line)}
    Path("traces").mkdir(exist_ok=True)
    for place in {"run.zarr.zip", "masked.zarr.zip", "plain.zarr.zip", "traces/run.zarr.zip"} - written:
        shutil.copy(recorded, place)
    for line in cheap:
        words = shlex.split(re.sub(r"--limit \d+", "--limit 1", line))
        if words[1:3] == ["trace", "organism/scratch"] and "--length" not in words:
            words += ["--length", "32"]
        if "--figures" in words and any("--figures" in earlier for earlier in cheap[: cheap.index(line)]):
            words += ["--only", "figure_1"]  # all of them were drawn before
        done = CliRunner().invoke(cli.app, words[1:], catch_exceptions=False)
        assert done.exit_code == 0, f"{line}\n{done.output}"
        assert done.output.strip(), f"{line} prints nothing"
    assert len(opened) == sum("--open" in line for line in cheap)


@pytest.mark.slow
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
    command = group.get_command(typer.Context(group), words[1])
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
