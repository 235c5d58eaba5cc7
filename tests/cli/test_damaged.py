"""Folders that a kill cut, a hand edited or a stranger made: every command that reads one ends in a result or in one line.

Each example damages one file of a small real study, evaluation or trace, and runs one command on it, in this process.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import golden
from tests.study import small

import sinkscope as ss
from sinkscope import cli

pytestmark = pytest.mark.slow

SECONDS = 30
"""More than any of these commands takes on a folder that is whole."""

WRONG = (
    None, True, -1, 0, 7, 2**70, 10**400, 1e308, float("nan"), "", "x", "false", "\ud800", "../..", [], [[]], {}, {"x": 1},
)  # fmt: skip
"""Values that are right nowhere, or almost nowhere."""


class HangError(BaseException):
    """A command did not come to an end; not an Exception, which a command may catch."""


def command(*words: object) -> tuple[int, str, str]:
    """Exit code and output of a command; anything else than an exit code is an error of the test."""

    def ring(number: int, frame: object) -> None:
        raise HangError(" ".join(map(str, words)))

    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    out, err = io.StringIO(), io.StringIO()
    signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        with (
            mock.patch.object(sys, "argv", ["sinkscope", *map(str, words)]),
            mock.patch.dict(os.environ, small.environment()),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            cli.main()
    finally:
        signal.alarm(0)
        torch.set_num_threads(1)
        for one, handler in before.items():
            signal.signal(one, handler)
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


# ---- damage --------------------------------------------------------------------------------------

Damage = Callable[[bytes], bytes | None]


def parts(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a JSON document."""
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from parts(value, (*path, key))


@st.composite
def changed_json(draw: Any, data: Any) -> Any:
    """A JSON document with one value of another type, or without it."""
    copy = json.loads(json.dumps(data))
    *path, last = draw(st.sampled_from([path for path in parts(copy) if path] or [("",)]))
    if not isinstance(copy, (dict, list)) or draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(WRONG))
    inside = copy
    for key in path:
        inside = inside[key]
    if draw(st.booleans()) and draw(st.booleans()):
        del inside[last]
    else:
        inside[last] = draw(st.sampled_from(WRONG))
    return copy


@st.composite
def changed_bytes(draw: Any, raw: bytes) -> bytes:
    """Cut, with one byte changed, or something else altogether."""
    place = draw(st.integers(0, max(0, len(raw) - 1)))
    return draw(
        st.sampled_from(
            [
                raw[:place], raw[:place] + b"\xff" + raw[place + 1 :], b"", b"[" * 5000, b"\x00\n{}\n", raw + raw,
            ]
        )
    )  # fmt: skip


@st.composite
def changed(draw: Any, path: Path) -> bytes:
    """Another content of a file: of its JSON where it has any, of its lines, or of its bytes."""
    raw = path.read_bytes()
    if not raw or draw(st.integers(0, 3)) == 0 or path.suffix not in (".json", ".jsonl", ".holder"):
        return draw(changed_bytes(raw))
    if path.suffix != ".jsonl":
        return json.dumps(draw(changed_json(json.loads(raw)))).encode()
    lines = raw.splitlines()
    number = draw(st.integers(0, len(lines) - 1))
    line = json.dumps(draw(changed_json(json.loads(lines[number])))).encode()
    others = [[line], [lines[number], lines[number]], [lines[number], line], [], [lines[number][:-3]], [b""]]
    return b"\n".join([*lines[:number], *draw(st.sampled_from(others)), *lines[number + 1 :]]) + b"\n"


def replace_file(path: Path, how: str) -> None:
    """Something else in the place of a file."""
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how == "a pipe":
        os.mkfifo(path)
    elif how == "a dead link":
        path.symlink_to(path.with_name("nowhere"))


@st.composite
def damaged(draw: Any, root: Path, files: list[Path]) -> Path:
    """One file of a folder is changed, or another thing is in its place; its path."""
    path = draw(st.sampled_from(files))
    if draw(st.integers(0, 7)) == 0:
        replace_file(root / path, draw(st.sampled_from(["nothing", "a folder", "a pipe", "a dead link"])))
    else:
        (root / path).write_bytes(draw(changed(root / path)))
    return path


def keys(root: Path) -> set[tuple[str, str, int]]:
    """Folder, document and seed of every record that can be read."""
    found = set()
    for path in root.glob("**/generations.jsonl"):
        for line in path.read_bytes().split(b"\n")[:-1] if path.is_file() else ():
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                row = json.loads(line)
                found.add((str(path.parent), row["document"], row["seed"]))
    return found


def check(words: tuple[object, ...], root: Path) -> None:
    """A command on a damaged folder: a result or one line, in time; no record is lost."""
    before = keys(root)
    code, _, err = command(*words)
    assert code in (0, 2), err
    assert code == 0 or err.splitlines()[-1].startswith("error: "), err
    assert "Traceback" not in err
    assert before <= keys(root)


# ---- a study -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study beside its file, with an evaluation in its folder; without figures, which no command reads."""
    folder = tmp_path_factory.mktemp("whole")
    file = small.write_study(folder / "models", models=("llada",), samples=2)
    small.run_here(file, folder / "study", "--no-report")
    code, _, err = command(*evaluate(folder / "study", file))
    assert code == 0, err
    return folder


def evaluate(root: Path, file: Path) -> tuple[object, ...]:
    """The command that makes the evaluation beside the study, or goes on with it."""
    small_one = (
        "--task", "word_problems", "--limit", 2, "--decoding", "length=8,steps=4,block=4", "--device", "cpu",
    )  # fmt: skip
    return ("evaluate", file.parent / "llada", *small_one, "--out", root / "evaluation")


def study_files(root: Path) -> list[Path]:
    """The files that commands read back, each kind about as often."""
    kinds = (
        "manifest.json", "models.json", "study.toml", "speed.json", "lock.holder", "tables/*.parquet", "cells/*/cell.json",
        "cells/*/shards/*/settings.json", "cells/*/shards/*/g*.jsonl", "cells/*/shards/*/lock.holder", "traces/*/*.npz",
        "traces/*/*.zip", "evaluation/*.json*",
    )  # fmt: skip
    found = [sorted(path.relative_to(root) for path in root.glob(kind)) for kind in kinds]
    most = max(map(len, found))
    return [paths[number % len(paths)] for paths in found if paths for number in range(most)]


def note(folder: Path) -> None:
    """A holder's note, as a command that runs elsewhere leaves it, or one that was killed."""
    (folder / "lock.holder").write_text(json.dumps({"pid": 2**40, "host": os.uname().nodename}))


def graded(root: Path) -> list[Path]:
    """The folders of evaluations in a study."""
    return [path.parent for path in sorted(root.glob("cells/*/shards/*/grades.jsonl")) if path.stat().st_size]


COMMANDS: dict[str, Callable[[Path, Path], tuple[object, ...]]] = {
    "status": lambda root, file: ("study", "--status", root),
    "status --json": lambda root, file: ("study", "--status", root, "--json"),
    "grade": lambda root, file: ("evaluate", "--grade", root),
    "grade --again": lambda root, file: ("evaluate", "--grade", root, "--again", "--json"),
    "study": lambda root, file: (
        "study", file, "--out", root, "--on", "here", "--no-report", "--device", "cpu",
    ),
    "compare": lambda root, file: ("compare", *graded(root)),
    "compare one": lambda root, file: ("compare", root / "evaluation", "--json"),
    "evaluate": evaluate,
    "figures": lambda root, file: ("show", root, "--figures", root / "drawn", "--only", "figure_10"),
}  # fmt: skip


def try_study(study: Path, scratch: Path, draw: Any) -> None:
    """One damaged copy of a study, and one command on it."""
    root = scratch / "study"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(study / "study", root)
    (root / "speed.json").write_text('{"llada": {"plain": 0.1, "masked": 0.1, "traced": 0.1}}')
    note(root)
    note(next((root / "cells").glob("*/shards/*")))
    draw(damaged(root, study_files(root)))
    check(COMMANDS[draw(st.sampled_from(list(COMMANDS)))](root, study / "models" / "small.toml"), root)


@settings(max_examples=80)
@given(data=st.data())
def test_a_damaged_study_is_read_or_refused_in_a_line(
    data: st.DataObject, study: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try_study(study, tmp_path_factory.mktemp("damaged"), data.draw)


@pytest.mark.soak
@settings(max_examples=2000, derandomize=False)
@given(data=st.data())
def test_damaged_studies_for_longer(data: st.DataObject, study: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    try_study(study, tmp_path_factory.mktemp("damaged"), data.draw)


@pytest.fixture
def copy(study: Path, tmp_path: Path) -> Path:
    """A copy of the study, to be damaged."""
    shutil.copytree(study / "study", tmp_path / "study")
    return tmp_path / "study"


def cell_of(root: Path, kind: str = "evaluate") -> Path:
    """The folder of the first cell of a kind."""
    files = sorted(root.glob("cells/*/cell.json"))
    return next(file.parent for file in files if json.loads(file.read_text())["identity"]["kind"] == kind)


def edit(path: Path, **changes: Any) -> Path:
    """A JSON file, or the second line of a JSON-lines file, with other values."""
    first, line = ("", path.read_text()) if path.suffix == ".json" else path.read_text().splitlines()
    path.write_text(f"{first}\n{json.dumps(json.loads(line) | changes)}\n".lstrip())
    return path


@pytest.mark.parametrize(
    ("log", "changes", "said"),
    [
        ("generations", {"index": "1"}, "index should be a whole number, got '1'"),
        ("generations", {"index": -1}, "index should be a whole number of at least 0"),
        ("generations", {"more": []}, "more should be a table, got []"),
        ("generations", {"more": {"ties": "x"}}, "ties should be a whole number, got 'x'"),
        ("generations", {"document": "test-0"}, "contradicts another line about test-0, seed 0"),
        ("generations", {"output": "\ud800"}, "output should be a text"),
        ("grades", {"passed": "false"}, "passed should be true or false, got 'false'"),
    ],
)
def test_a_damaged_record_is_named_with_its_line_and_what_is_safe(
    log: str, changes: dict[str, Any], said: str, copy: Path
) -> None:
    path = edit(next(cell_of(copy).glob(f"shards/*/{log}.jsonl")), **changes)
    before = path.read_bytes()
    for words in (("study", "--status", copy), ("evaluate", "--grade", copy), ("compare", path.parent)):
        code, _, err = command(*words)
        assert (code, len(err.strip().splitlines())) == (2, 1), err
        assert f"{path}, line 2 is damaged ({'it ' if said.startswith('contra') else ''}{said}" in err
        assert "1 records in it are whole" in err
    assert path.read_bytes() == before


def test_a_line_that_is_there_twice_counts_once(copy: Path) -> None:
    path = next(cell_of(copy).glob("shards/*/generations.jsonl"))
    path.write_bytes(path.read_bytes() * 2)
    code, out, _ = command("study", "--status", copy, "--json")
    assert code == 0
    assert json.loads(out)["answers"] == json.loads(out)["wanted"]


@pytest.mark.parametrize("document", ["test-1", "test-999999999"])
def test_a_number_without_bounds_is_graded_or_refused_in_time(document: str, copy: Path) -> None:
    run = next(cell_of(copy).glob("shards/*"))
    edit(run / "generations.jsonl", index=10**12, document=document)
    code, _, err = command("evaluate", "--grade", run, "--again")
    assert code == (0 if document == "test-1" else 2), err


def test_cells_that_are_none_are_named(copy: Path) -> None:
    cell = cell_of(copy)
    shutil.copytree(cell, cell.with_name("odd name"))
    code, _, err = command("study", "--status", copy)
    assert (code, "odd name/cell.json is of the cell" in err) == (2, True), err
    shutil.rmtree(cell.with_name("odd name"))
    (cell / "cell.json").write_text("[1]")
    code, _, err = command("study", "--status", copy)
    assert (code, "cell.json is damaged (it should be a table, got [1])" in err) == (2, True), err


def test_what_is_made_of_the_records_is_made_again(copy: Path, study: Path) -> None:
    whole = small.tables(copy)
    table = copy / "tables" / "results.parquet"
    again = COMMANDS["study"](copy, study / "models" / "small.toml")
    for path, content in ((table, table.read_bytes()[:-9]), (copy / "manifest.json", b"{")):
        path.write_bytes(content)
        code, _, err = command("show", copy, "--figures", copy / "drawn", "--only", "figure_10")
        assert (code, path.name in err, "records, which are safe" in err) == (2, True, True), err
        code, _, err = command(*again)
        assert (code, "made again" in err) == (0, True), err
        for name, frame in small.tables(copy).items():
            assert frame.equals(whole[name]), name


@pytest.mark.parametrize(
    "holder",
    [
        {"pid": 10**15, "host": os.uname().nodename}, {"pid": 1, "host": "elsewhere"}, [1], {"pid": "x", "host": None},
    ],
)  # fmt: skip
def test_a_damaged_note_of_a_lock_holds_nobody_up(holder: Any, copy: Path, study: Path) -> None:
    for folder in (copy, next(cell_of(copy).glob("shards/*"))):
        (folder / "lock.holder").write_text(json.dumps(holder))
    code, out, err = command("study", "--status", copy, "--json")
    assert (code, json.loads(out)["running"]) == (0, ""), err
    next(cell_of(copy).glob("shards/*/grades.jsonl")).write_bytes(b"")
    begun = time.monotonic()
    code, _, err = command(*COMMANDS["study"](copy, study / "models" / "small.toml"))
    assert code == 0, err
    assert time.monotonic() - begun < SECONDS


# ---- a trace -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of two prompts."""
    path = tmp_path_factory.mktemp("trace") / "t.zarr.zip"
    ids = torch.arange(5, 29).view(2, 12)
    capture = ss.Capture(by_query=True, anatomy=True)
    ss.generate(golden.model("llada"), ids, ss.LladaDecoding(8, 4, 8), capture=capture, seed=[0, 1], out=path)
    return path


TRACE_COMMANDS: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "show": lambda path: ("show", path),
    "view": lambda path: ("show", path, "--view", path.with_name("page.html"), "--force"),
    "figures": lambda path: (
        "show", path, "--figures", path.with_name("drawn"), "--only", "figure_3", "--force",
    ),
    "inspect": lambda path: ("inspect", path, "--looks", "1", "--device", "cpu"),
    "trace": lambda path: ("trace", path, "--maps-at", "1", "--device", "cpu"),
}  # fmt: skip


def try_trace(trace: Path, scratch: Path, draw: Any) -> None:
    """One damaged copy of a trace, a file or the folder of a recording that was stopped, and one command on it."""
    path = scratch / "t.zarr.zip"
    shutil.rmtree(scratch)
    scratch.mkdir()
    with zipfile.ZipFile(trace) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    if draw(st.booleans()):
        path = scratch / "t.zarr.zip.partial"
        files["complete.json"] = b'{"steps": [0, 1, 2]}'
    wanted = sorted(files, key=lambda name: (not name.endswith(".json"), name))
    described = [name for name in wanted if name.endswith(".json")]
    name = draw(st.sampled_from([*["zarr.json"] * 8, "complete.json", "complete.json", *described, *wanted]))
    (scratch / "one.json").write_bytes(files.get(name, b"{}"))
    files[name] = draw(changed(scratch / "one.json") if name in described else changed_bytes(files.get(name, b"")))
    if path.suffix == ".partial":
        for other, content in files.items():
            (path / other).parent.mkdir(parents=True, exist_ok=True)
            (path / other).write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for other, content in files.items():
                archive.writestr(other, content)
        if draw(st.integers(0, 9)) == 0:
            path.write_bytes(draw(changed_bytes(path.read_bytes())))
    check(TRACE_COMMANDS[draw(st.sampled_from(list(TRACE_COMMANDS)))](path), scratch)


@settings(max_examples=50)
@given(data=st.data())
def test_a_damaged_trace_is_read_or_refused_in_a_line(
    data: st.DataObject, trace: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try_trace(trace, tmp_path_factory.mktemp("damaged"), data.draw)
