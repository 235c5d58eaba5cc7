"""A machine without a sandbox: answers to tasks that run code are kept, shown as not graded, and graded later."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from tests.study import small

from sinkscope.study import status
from sinkscope.study.store import Store
from sinkscope.tasks.sandbox import rungs

WHY = "model-written programs cannot be confined on this machine"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Word problems and programs, two documents each."""
    blocks = [
        f"""[[evaluate]]\ntask = "{task}"\ndecodings = ["short"]\nsamples = 2\npolicies = ["none", "top:1"]"""
        for task in ("word_problems", "small_code")
    ]
    decoding = "[decodings.short]\nllada = { length = 8, steps = 4, block = 4 }"
    return small.write_blocks(tmp_path, ("llada",), "\n".join([decoding, *blocks]))


@pytest.mark.slow
def test_answers_are_kept_and_graded_later(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(rungs, "_candidates", lambda kind: [(rungs.NONE, "no rung")])
    rungs._tried.cache_clear()
    said = small.run_here(study, out, "--no-report")
    assert said.count("answers are not graded here") == 1
    assert WHY in said
    assert f"sinkscope evaluate --grade {out}" in said
    assert set(pd.read_parquet(out / "tables" / "results.parquet")["task"]) == {"word_problems"}
    listed = pd.read_parquet(out / "tables" / "not_graded.parquet")
    assert list(listed["policy"]) == ["none", "top:1"]
    assert list(listed["answers"]) == [2, 2]
    found = status.read(out)
    assert (found.done, found.wanted, found.not_graded) == (8, 8, 4)
    before_title = {cell.id: cell.title for cell in found.cells}
    answers = {cell.id: Store(out).answers(cell.id) for cell in found.cells}

    said = small.run_here(study, out, "--no-report", "--sandbox", "none", "--yes")
    assert "nothing was left to compute" in said
    assert "not graded" not in said
    assert set(pd.read_parquet(out / "tables" / "results.parquet")["task"]) == {"word_problems", "small_code"}
    manifest = json.loads((out / "manifest.json").read_text())
    assert not (out / "tables" / "not_graded.parquet").exists()
    assert [call["sandbox"] for call in manifest["calls"]] == ["auto", "none"]
    assert manifest["calls"][1]["answers_graded_later"] == 4
    for cell_id, before in answers.items():
        after = Store(out).answers(cell_id)
        assert {key: row for key, (row, _) in after.items()} == {key: row for key, (row, _) in before.items()}
        rung = "none" if "small_code" in before_title[cell_id] else ""
        assert [grade and grade.sandbox for _, grade in after.values()] == [rung] * len(after)
    rungs._tried.cache_clear()
