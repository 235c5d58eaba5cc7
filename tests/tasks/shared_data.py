"""The published data sets (data/gsm8k_test.jsonl, data/HumanEval.jsonl.gz), for the tests that need them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def shared_file(name: str) -> Path:
    """The file, or a skip that says how to provide it."""
    folder = os.environ.get("SINKSCOPE_SHARED")
    if not folder:
        pytest.skip(f"needs {name}: set SINKSCOPE_SHARED to a folder that has data/{name}")
    path = Path(folder, "data", name)
    if not path.is_file():
        pytest.skip(f"needs {name}: SINKSCOPE_SHARED is {folder}, which has no data/{name}")
    return path
