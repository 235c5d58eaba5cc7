"""Results that ship with the organisms: shown with their date, only for the same weights, and taken from a finished study."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from sinkscope.commands.study import shipped_lines
from sinkscope.errors import InputError
from sinkscope.study import plan, shipped, spec


def shelf(folder: Path, **changes: object) -> Path:
    (folder / "scratch").mkdir(parents=True)
    one = {"n": 500, "accuracy": 0.9, "interval": [0.87, 0.92], "decoding": {"kind": "llada"}}
    data = {
        "digest": "abc",
        "date": "2026-01-02",
        "where": "a GPU",
        "tasks": {"word_problems": one, "other": {"monitor": {}}},
    }
    (folder / "scratch" / "accuracy.json").write_text(json.dumps({**data, **changes}))
    return folder


def test_shipped_accuracies_carry_their_date_and_place(tmp_path: Path) -> None:
    (found,) = shipped.read(
        ["organism/scratch", "organism/none", "elsewhere"], {"organism/scratch": "abc"}, shelf(tmp_path)
    )
    assert found.label == "shipped accuracy of 2026-01-02, a GPU"
    assert [(row["task"], row["n"], row["low"]) for row in found.rows] == [("word_problems", 500, 0.87)]


def test_results_of_other_weights_are_not_shown(tmp_path: Path) -> None:
    assert shipped.read(["organism/scratch"], {"organism/scratch": "def"}, shelf(tmp_path)) == []


def test_a_finished_study_can_be_shipped(tmp_path: Path) -> None:
    folder = shelf(tmp_path / "shelf")
    with pytest.raises(InputError, match="finish the study first"):
        shipped.write(tmp_path, "a GPU", folder)
    (tmp_path / "tables").mkdir()
    row = {"model": "organism/scratch", "task": "word_problems", "policy": "top:1", "n": 200, "accuracy": 0.5, "low": 0.4,
           "high": 0.6, "weights": "abc", "difference": None}  # fmt: skip
    pd.DataFrame([row]).to_parquet(tmp_path / "tables" / "results.parquet")
    assert [path.name for path in shipped.write(tmp_path, "a GPU", folder)] == ["results.json"]
    first, _ = shipped.read(["organism/scratch"], {"organism/scratch": "abc"}, folder)
    assert "study full" in first.label
    assert first.rows[0]["policy"] == "top:1"


def test_what_really_ships_can_be_read() -> None:
    models = spec.read("organisms").models
    digests = {model.source: plan.facts_of(model, "cpu").weights or "" for model in models}
    for one in shipped.read([model.source for model in models], digests):
        assert all(
            {"model", "task", "policy", "n", "accuracy", "low", "high"} <= row.keys() for row in one.rows
        )


def test_the_terminal_shows_what_ships_for_the_studys_own_policies_and_counts_the_rest() -> None:
    """A masking table has a hundred rows for each model; the computed ones must stay in sight."""
    rows = [
        {"model": "m", "task": task, "policy": policy, "accuracy": 0.5, "low": 0.4, "high": 0.6, "n": 500}
        for task in ("a", "b")
        for policy in ("none", "top:1", "top:5")
    ]
    lines = shipped_lines(rows, {("a", "none"), ("a", "top:1"), ("b", "none")})
    assert lines[:3] == [
        f"  m · {task} · {policy}: 0.500 [0.400, 0.600], n = 500"
        for task, policy in (("a", "none"), ("a", "top:1"), ("b", "none"))
    ]
    assert lines[3:] == [
        "  3 rows of other policies or tasks: the report has them all, and so has the model's card"
    ]
    assert len(shipped_lines(rows, {(row["task"], row["policy"]) for row in rows})) == 6
