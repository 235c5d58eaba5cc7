"""Lines of Python per folder stay within what `pyproject.toml` allows: growth is paid for by simplification.

A number may be lowered by anyone, and raised only with a reason in the changelog. Every folder with Python has one.
"""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUDGET = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["sinkscope"]["budget"]
MEGABYTES = 83
"""A checkout's size, fixtures included: it does not grow."""
PARTS = ("src/sinkscope", "train/src", "train/tests", "bench", "lab", "tests")


def lines(folder: Path) -> int:
    """Lines of all Python files and stubs below a folder."""
    files = [path for path in folder.rglob("*.py*") if path.suffix in (".py", ".pyi")]
    return sum(path.read_bytes().count(b"\n") for path in files if ".venv" not in path.parts)


def folders() -> list[str]:
    """Every folder that needs a number: the rooms of the instrument, and what stands beside it."""
    rooms = {path.parent.relative_to(ROOT).parts[2] for path in (ROOT / "src/sinkscope").glob("*/*.py")}
    return [*(f"src/sinkscope/{room}" for room in sorted(rooms)), *(part for part in PARTS if (ROOT / part).is_dir())]


@pytest.mark.parametrize("folder", folders())
def test_folder_is_within_its_budget(folder: str) -> None:
    assert folder in BUDGET, f"give {folder} a number in [tool.sinkscope.budget]"
    assert lines(ROOT / folder) <= BUDGET[folder], f"{folder} has outgrown its budget"


def test_no_number_is_left_of_a_folder_that_is_gone() -> None:
    assert sorted(set(BUDGET) - set(folders())) == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout of the repository")
def test_a_checkout_does_not_grow() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    assert sum(path.lstat().st_size for path in files if path.exists()) <= MEGABYTES * 1e6
