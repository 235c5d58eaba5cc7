"""`python -m sinkscope.study`: answers on a machine that has torch and little else, the rest elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.study import small

pytestmark = pytest.mark.timeout(900)

ABSENT = (
    "pandas",
    "pyarrow",
    "xarray",
    "zarr",
    "typer",
    "rich",
    "matplotlib",
    "loky",
    "threadpoolctl",
    "scipy",
)
BARE = f"""
import importlib.abc, importlib.util, runpy, sys
look = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name.partition(".")[0] in {ABSENT!r} else look(name, *more)
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
sys.argv = sys.argv[1:]
runpy.run_module("sinkscope.study", run_name="__main__")
"""


@pytest.mark.slow
def test_answers_are_computed_on_a_bare_machine_and_finished_here(tmp_path: Path) -> None:
    study, out = small.write_study(tmp_path / "study", models=("llada",)), tmp_path / "out"
    words = [sys.executable, "-c", BARE, "study", str(study), "--out", str(out), "--device", "cpu"]
    done = subprocess.run(
        words, capture_output=True, text=True, env=small.environment(), cwd=small.ROOT, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "12 answers computed" in done.stdout
    saved = sorted(out.glob("cells/*/shards/*/generations.jsonl"))
    assert len(saved) == 3
    assert not any(path.read_text() for path in out.glob("cells/*/shards/*/grades.jsonl"))
    before = [path.read_text() for path in saved]
    small.run_here(study, out, "--no-report")
    assert [path.read_text() for path in saved] == before
    call = json.loads((out / "manifest.json").read_text())["calls"][0]
    assert (call["answers_computed"], call["answers_graded_later"]) == (2 + 2 + 1, 12)
    small.run_here(study, tmp_path / "whole", "--no-report")
    small.assert_same(out, tmp_path / "whole")
