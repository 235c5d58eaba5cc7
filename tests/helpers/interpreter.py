"""Triton's interpreter in a process of its own: whether kernels are interpreted is decided when triton is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def interpreted(module: str, *words: str) -> dict[str, dict[str, float]]:
    """The JSON line that `python -m tests.helpers.MODULE cpu …` ends with: case → numbers."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.helpers.{module}", "cpu", *words],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found
