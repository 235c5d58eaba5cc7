"""What a study says about its size; who gets which job; what must be installed."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.study.test_cells import CELL

from sinkscope.errors import InputError
from sinkscope.statistics import minimal_detectable_effect
from sinkscope.study import plan, run, sizing, spec
from sinkscope.study.executors import Queue
from sinkscope.study.shard import Shard
from sinkscope.study.spec import StudyModel
from sinkscope.study.store import Store

SPEEDS = {
    "organism/scratch": plan.Speed(0.0204, 0.0311, 0.07),
    "organism/causal": plan.Speed(0.002, 0.006, 0.01),
}


def test_the_default_study_says_number_rule_and_smallest_effect() -> None:
    study = plan.with_samples(spec.read("organisms"), 24)
    number, rule, effect = sizing.said(study, SPEEDS)
    assert number.startswith("24 documents per cell: what a speed measurement allows, between 16 and 64")
    assert "organism/scratch 20/31 ms, organism/causal 2/6 ms" in number
    assert "whole batches of 8 with equally long prompts (by the tokenizer of organism/causal)" in rule
    assert f"{minimal_detectable_effect(24):.2f} at an accuracy of 0.5" in effect


def test_a_study_with_a_number_says_it_without_a_measurement() -> None:
    number, effect = sizing.said(spec.read("full"), {})
    assert number == "200 documents per cell, as the study says."
    assert "200 documents detect" in effect
    assert sizing.smallest_effect(1) == "One document detects no difference."


def test_the_measurement_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert sizing.load(store) == {}
    sizing.save(store, SPEEDS)
    assert sizing.load(store) == SPEEDS
    store.check_new()  # a kill before study.toml leaves it, and the folder is still new
    (tmp_path / sizing.FILE).write_text("{", encoding="utf-8")
    assert sizing.load(store) == {}


def test_the_model_with_the_most_work_comes_first_and_small_jobs_last() -> None:
    def shards(name: str, works: list[float]) -> list[Shard]:
        cell = replace(CELL, model=StudyModel(name), identity={"name": name})
        return [Shard(cell, i, i + 1, work) for i, work in enumerate(works)]

    queue = Queue([*shards("small", [1.0, 1.0, 1.0]), *shards("large", [9.0, 8.0])])
    order = []
    warm: StudyModel | None = None
    while (job := queue.take(warm, ())) is not None:
        warm = job.cell.model
        order.append((job.cell.model.source, job.work))  # type: ignore[union-attr]
    assert order == [("large", 9.0), ("large", 8.0), ("small", 1.0), ("small", 1.0), ("small", 1.0)]


@pytest.mark.parametrize(("report", "named"), [(True, "zarr, matplotlib"), (False, "zarr")])
def test_what_is_not_installed_is_said_before_anything_else(
    report: bool, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = importlib.util.find_spec

    def find(name: str, *rest: Any) -> Any:
        return None if name in ("zarr", "matplotlib") else real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(InputError, match=f"a study needs {named}, not installed here: pip install zarr"):
        run.run_study(spec.read("full"), tmp_path / "out", report=report)
    assert not (tmp_path / "out").exists()
