"""The result table of a finished study becomes what ships with the organisms."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from lab.ship import ship

from sinkscope.errors import InputError
from sinkscope.study import shipped


def test_a_finished_study_can_be_shipped(tmp_path: Path) -> None:
    folder = tmp_path / "shelf"
    (folder / "scratch").mkdir(parents=True)
    with pytest.raises(InputError, match="finish the study first"):
        ship(tmp_path, "a GPU", folder)
    (tmp_path / "tables").mkdir()
    row = {"model": "organism/scratch", "task": "word_problems", "policy": "top:1", "n": 200, "accuracy": 0.5, "low": 0.4,
           "high": 0.6, "weights": "abc", "difference": None}  # fmt: skip
    pd.DataFrame([row]).to_parquet(tmp_path / "tables" / "results.parquet")
    assert [path.name for path in ship(tmp_path, "a GPU", folder)] == ["results.json"]
    (first,) = shipped.read(["organism/scratch"], {"organism/scratch": "abc"}, folder)
    assert "a GPU, study full" in first.label
    assert first.rows[0]["policy"] == "top:1"
