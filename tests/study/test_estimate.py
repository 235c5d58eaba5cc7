"""What a study says about its size; who gets which job; what must be installed."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.study.test_cells import CELL

from sinkscope.commands import study as command
from sinkscope.errors import InputError
from sinkscope.statistics import minimal_detectable_effect
from sinkscope.study import estimate, run, spec
from sinkscope.study.executors import Queue
from sinkscope.study.shard import Shard
from sinkscope.study.spec import StudyModel
from sinkscope.study.store import Store

SPEEDS = {
    "organism/scratch": estimate.Speed(0.0204, 0.0311, 0.07),
    "organism/causal": estimate.Speed(0.002, 0.006, 0.01),
}


def test_the_default_study_says_number_rule_and_smallest_effect() -> None:
    asked = spec.read("organisms")
    number, rule, effect = estimate.sentences(asked, spec.with_samples(asked, 24), SPEEDS)
    assert number.startswith(
        "24 documents per cell: as many as 250 s of computing on all workers allow, between 16 and 64."
    )
    assert "organism/scratch 20/31 ms, organism/causal 2/6 ms" in number
    assert "whole batches of 8 with equally long prompts (in tokens of organism/causal)" in rule
    assert f"{minimal_detectable_effect(24):.2f} at an accuracy of 0.5" in effect


def test_a_study_with_a_number_says_it_without_a_measurement() -> None:
    full = spec.read("full")
    number, effect = estimate.sentences(full, full, {})
    assert number == "200 documents per cell, as the study says."
    assert "200 documents detect" in effect
    assert estimate.smallest_effect(1) == "One document detects no difference."


def test_the_measurement_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert estimate.load_speeds(store.speed_file) == {}
    estimate.save_speeds(store.speed_file, SPEEDS)
    assert estimate.load_speeds(store.speed_file) == SPEEDS
    store.check_new()  # a kill before study.toml leaves it, and the folder is still new
    store.speed_file.write_text("{", encoding="utf-8")
    assert estimate.load_speeds(store.speed_file) == {}


def test_the_model_with_the_most_work_comes_first_and_small_jobs_last() -> None:
    def shards(name: str, works: list[float]) -> list[Shard]:
        cell = replace(CELL, model=StudyModel(name), identity={"name": name})
        return [Shard(cell, i, i + 1, (i,), work) for i, work in enumerate(works)]

    queue = Queue([*shards("small", [1.0, 1.0, 1.0]), *shards("large", [9.0, 8.0])])
    order = []
    warm: StudyModel | None = None
    while (job := queue.take(warm, ())) is not None:
        warm = job.cell.model
        order.append((job.cell.model.source, job.work))  # type: ignore[union-attr]
    assert order == [("large", 9.0), ("large", 8.0), ("small", 1.0), ("small", 1.0), ("small", 1.0)]


def test_a_study_of_four_documents_does_not_speak_of_a_measurement() -> None:
    """--plan measures speed for the time that it prints, also where nothing depends on it."""
    data = {
        "name": "s",
        "models": ["organism/scratch"],
        "evaluate": [{"task": "word_problems", "samples": 4}],
    }
    study = spec.from_data(data)
    number, effect = estimate.sentences(study, study, SPEEDS)
    assert number == "4 documents per cell, as the study says."
    assert effect.startswith("The smallest difference of two accuracies that 4 documents detect")


def test_missing_libraries_are_named_before_anything_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = importlib.util.find_spec

    def find(name: str, *rest: Any) -> Any:
        return None if name in ("zarr", "matplotlib") else real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(InputError, match="a study needs zarr, not installed here: pip install zarr"):
        run.run_study(spec.read("full"), tmp_path / "out")
    with pytest.raises(InputError, match="a study needs matplotlib, not installed here"):
        command.study("full", tmp_path / "out")
    assert not (tmp_path / "out").exists()
