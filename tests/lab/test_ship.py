"""The result table of a finished study becomes what ships with the organisms."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from lab.ship import ship

from sinkscope.errors import InputError
from sinkscope.study import shipped, spec


def test_a_finished_study_can_be_shipped(tmp_path: Path) -> None:
    folder = tmp_path / "shelf"
    (folder / "scratch").mkdir(parents=True)
    with pytest.raises(InputError, match="finish the study first"):
        ship(tmp_path, "a GPU", folder)
    (tmp_path / "tables").mkdir()
    calls = {"calls": [{"when": "2026-01-03T10:00:00"}]}
    (tmp_path / "manifest.json").write_text(json.dumps(calls), encoding="utf-8")
    shutil.copy(spec.BUILTIN / "full.toml", tmp_path / "study.toml")
    row = {"model": "organism/scratch", "task": "word_problems", "policy": "top:1", "n": 200, "accuracy": 0.5, "low": 0.4,
           "high": 0.6, "weights": "abc", "difference": None}  # fmt: skip
    pd.DataFrame([row]).to_parquet(tmp_path / "tables" / "results.parquet")
    assert [path.name for path in ship(tmp_path, "a GPU", folder)] == ["results.json"]
    (first,) = shipped.read(["organism/scratch"], {"organism/scratch": "abc"}, folder)
    assert first.label == "shipped result of 2026-01-03, a GPU, sinkscope study full"
    (shown,) = first.rows
    assert (shown["policy"], shown["scope"], shown["effect"], shown["n"]) == ("top:1", "head", "hide", 200)
    assert "difference" not in shown, "not a number"
