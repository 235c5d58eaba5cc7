"""`python -m sinkscope.study`: answers on a machine that has torch and little else, the rest elsewhere."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
from tests.study import small

from sinkscope.errors import SinkscopeError
from sinkscope.study.__main__ import the_rest

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
for folder in sys.argv[1:]:
    sys.argv = ["study", f"{{folder}}/study/small.toml", "--out", f"{{folder}}/out", "--device", "cpu"]
    runpy.run_module("sinkscope.study", run_name="__main__")
"""


class Bare(NamedTuple):
    """Folders with a study and its answers, and what was printed while they were computed."""

    whole: Path
    answers_alone: Path
    printed: str


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """The answers of two studies: one that also has traces, and one that does not. One process computes both."""
    whole, answers_alone = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("answers")
    small.write_study(whole / "study", models=("llada",))
    blocks = ["[decodings.short]", "llada = { length = 8, steps = 4, block = 4 }"]
    for kind, policies in (("evaluate", ["none", "top:1"]), ("replay", ["top:1"])):
        blocks += [f"[[{kind}]]", 'task = "word_problems"', 'decodings = ["short"]', "samples = 2"]
        blocks += [f"policies = {json.dumps(policies)}"]
    small.write_blocks(answers_alone / "study", ("llada",), "\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-c", BARE, "study", str(whole), str(answers_alone)],
        capture_output=True, text=True, env=small.environment(), cwd=small.ROOT, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Bare(whole, answers_alone, done.stdout)


@pytest.mark.slow
def test_answers_are_computed_on_a_bare_machine_and_finished_here(bare: Bare, tmp_path: Path) -> None:
    study, out = bare.whole / "study" / "small.toml", bare.whole / "out"
    assert "14 answers computed" in bare.printed
    saved = sorted(out.glob("cells/*/shards/*/generations.jsonl"))
    assert len(saved) == 4
    assert not any(path.read_text() for path in out.glob("cells/*/shards/*/grades.jsonl"))
    before = [path.read_text() for path in saved]
    small.run_here(study, out, "--no-report")
    assert [path.read_text() for path in saved] == before
    call = json.loads((out / "manifest.json").read_text())["calls"][0]
    assert (call["answers_computed"], call["answers_graded_later"]) == (2 + 1, 12)
    small.run_here(study, tmp_path / "whole", "--no-report")
    small.assert_same(out, tmp_path / "whole")


def test_the_line_for_the_rest_has_what_answers_follow_from() -> None:
    given = argparse.Namespace(
        name="ladder", model=[], runs=Path("my runs"), samples=8, data=["gsm8k=a.jsonl"], dtype="float32"
    )
    line = shlex.join(the_rest(given, Path("out")))
    assert line == (
        "sinkscope study ladder --out out --runs 'my runs' --samples 8 --data gsm8k=a.jsonl --dtype float32"
    )


@pytest.mark.slow
def test_tables_are_made_where_the_model_is_not(bare: Bare, tmp_path: Path) -> None:
    """Records travel, models that are folders need not: what is known of them is in the study's folder."""
    study, out = bare.answers_alone / "study" / "small.toml", bare.answers_alone / "out"
    model, whole = study.parent / "llada", tmp_path / "whole"
    small.run_here(study, whole, "--no-report")
    away = model.rename(tmp_path / "away")
    model.mkdir()
    (model / "training.json").write_text("{}")  # what is small of a model may be there
    small.run_here(study, out, "--no-report")
    for name in ("results", "replay"):
        old, new = (pd.read_parquet(folder / "tables" / f"{name}.parquet") for folder in (whole, out))
        pd.testing.assert_frame_equal(old, new)
    shutil.rmtree(next(out.glob("cells/*/shards/*")))
    with pytest.raises(SinkscopeError, match="its model is not on this machine"):
        small.run_here(study, out, "--no-report")
    shutil.rmtree(model)
    away.rename(model)
    small.run_here(study, out, "--no-report")
