"""`--plan`: cells, forward passes, storage, and time where a measurement is possible, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sinkscope.study import plan
from sinkscope.study.cell import Cell
from sinkscope.study.executors import Place
from sinkscope.study.spec import Study


@dataclass(frozen=True)
class Line:
    """What one model takes. `seconds` is None when it is not here and could not be measured."""

    model: str
    cells: int
    answers: int
    forwards: int
    storage: int
    seconds: float | None
    gpu: bool


@dataclass(frozen=True)
class Plan:
    """A study before it runs. `samples`: what "auto" became; None: it was not measured, and the least was taken."""

    study: Study
    cells: tuple[Cell, ...]
    lines: tuple[Line, ...]
    samples: int | None
    workers: int
    missing: tuple[str, ...]
    speeds: Mapping[str, plan.Speed]


def make_plan(study: Study, place: Place, measured: bool = True) -> Plan:
    """Plans a study; models that are here are measured for some seconds each, nothing is downloaded or written."""
    facts = {model.name: plan.facts_of(model, place.device, fetch=False) for model in study.models}
    here = [model for model in study.models if facts[model.name].here]
    speeds, workers = (
        _speeds(replace(study, models=tuple(here)), facts, place) if measured and here else ({}, 1)
    )
    samples = None
    if plan.has_auto(study) and here and len(speeds) == len(study.models):
        samples = plan.choose_samples(study, facts, speeds, workers)
    cells = plan.outline(study, facts, samples)
    lines = [_line(model.name, cells, facts, speeds, workers) for model in study.models]
    missing = tuple(model.name for model in study.models if not facts[model.name].here)
    return Plan(study, tuple(cells), tuple(lines), samples, workers, missing, speeds)


def _speeds(
    study: Study, facts: Mapping[str, plan.Facts], place: Place
) -> tuple[Mapping[str, plan.Speed], int]:
    """The speed of the models that are here, without their blocks being complete."""
    from sinkscope.study.local import LocalExecutor
    from sinkscope.study.run import measure

    names = {model.name for model in study.models}
    whole = [
        cell
        for grid_cells in (plan.outline(study, facts),)
        for cell in grid_cells
        if cell.model.name in names
    ]
    executor = LocalExecutor(place)
    try:
        return measure(executor, whole), executor.workers
    finally:
        executor.close()


def _line(
    name: str,
    cells: Sequence[Cell],
    facts: Mapping[str, plan.Facts],
    speeds: Mapping[str, plan.Speed],
    workers: int,
) -> Line:
    own = [cell for cell in cells if cell.model.name == name]
    return Line(
        model=name,
        cells=len(own),
        answers=sum(cell.answers for cell in own),
        forwards=sum(map(plan.forwards, own)),
        storage=sum(plan.storage(cell, facts[name]) for cell in own),
        seconds=plan.seconds(own, speeds, workers) if name in speeds else None,
        gpu=_on_gpu(),
    )


def _on_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())
