"""Imports go one way: the contract in pyproject.toml holds."""

from __future__ import annotations

import os
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
        [sys.executable, "-c", code, "--config", str(ROOT / "pyproject.toml"), "--no-cache"], cwd=folder,
        env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_contract_holds(tmp_path: Path) -> None:
    done = lint(tmp_path, ROOT / "src")
    assert done.returncode == 0, done.stdout
