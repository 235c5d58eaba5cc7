"""Results that ship with the organisms: shown with their date, only for the same weights, and taken from a finished study."""

from __future__ import annotations

import json
from pathlib import Path

from sinkscope.study import shipped, spec
from sinkscope.study.facts import facts_of


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


def test_what_really_ships_can_be_read() -> None:
    models = spec.read("organisms").models
    digests = {model.source: facts_of(model, "cpu").weights or "" for model in models}
    read = shipped.read([model.source for model in models], digests)
    rows = [row for result in read for row in result.rows]
    assert {row["model"] for row in rows} == {model.source for model in models}
    assert {"none", "top:1", "random(top:1)"} <= {row["policy"] for row in rows}
    for row in rows:
        assert {"model", "task", "policy", "n", "accuracy", "low", "high"} <= row.keys()
        assert row["n"] >= 200
        assert 0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1


def test_the_digest_of_what_ships_follows_its_files(tmp_path: Path) -> None:
    models = ["organism/scratch", "elsewhere"]
    before = shipped.digest_of(models, shelf(tmp_path))
    (tmp_path / "scratch" / "accuracy.json").write_text("{}")
    assert shipped.digest_of(models, tmp_path) != before
