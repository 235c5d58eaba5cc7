"""Imports go one way: the contract holds, and a planted upward import breaks it, at the top of a file or inside a function."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytest.importorskip("importlinter", reason="import-linter is not installed (pip install import-linter)")


def lint(folder: Path, source: Path) -> subprocess.CompletedProcess[str]:
    """import-linter on the package in `source`, by our contract."""
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", code, "--config", str(ROOT / "pyproject.toml"), "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_contract_holds(tmp_path: Path) -> None:
    done = lint(tmp_path, ROOT / "src")
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "planted"),
    [
        ("trace/capture.py", "def later() -> None:\n    from sinkscope.study import spec  # noqa: F401\n"),
        ("sinks/events.py", "from sinkscope.attention import visibility  # noqa: F401\n"),
        ("study/spec.py", "def draw() -> None:\n    import sinkscope.report.html  # noqa: F401\n"),
    ],
)
def test_a_planted_upward_import_breaks_it(module: str, planted: str, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("weights", "__pycache__")
    shutil.copytree(ROOT / "src" / "sinkscope", tmp_path / "src" / "sinkscope", ignore=ignored)
    path = tmp_path / "src" / "sinkscope" / module
    path.write_text(path.read_text(encoding="utf-8") + "\n\n" + planted, encoding="utf-8")
    done = lint(tmp_path, tmp_path / "src")
    assert done.returncode != 0
    assert "BROKEN" in done.stdout
    assert module.removesuffix(".py").replace("/", ".") in done.stdout
