"""The cost of cells (forward passes, storage, time), and the number of documents that a budget of time allows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sinkscope.base.errors import InputError
from sinkscope.base.files import read_json, write_atomically
from sinkscope.study import documents
from sinkscope.study.cells import Cell, outline
from sinkscope.study.deciding import Decides, deciding
from sinkscope.study.facts import Facts, facts_of
from sinkscope.study.spec import Study, has_auto

if TYPE_CHECKING:
    from sinkscope.study.executors import Executor
    from sinkscope.study.worker import WorkerSettings

UNKNOWN_PROMPT = 64
"""Tokens of a prompt, where nothing is known about it yet."""


def passes(cell: Cell) -> int:
    """Forward passes of an answer, at most."""
    each = cell.experiment.decoding.passes
    if cell.kind == "inspect":  # two generations, and what is looked at and patched
        return 2 * each + 20 * cell.looks
    # A replay: with and without, and what compares them.
    return each * (1 if cell.kind != "replay" else 3 if cell.exact else 5)


def forwards(cell: Cell) -> int:
    return cell.answers * passes(cell)


def storage(cell: Cell, facts: Facts) -> int:
    """Bytes that a cell leaves on disk, roughly: 2 kB per record, and the arrays of a trace in half precision."""
    records, capture = 2048 * cell.answers, cell.capture
    if cell.kind == "inspect" or not cell.keep:  # statistics alone
        return records + (64 << 10) * cell.answers
    if capture is None:
        return records
    steps = -(-passes(cell) // capture.every)
    keys = UNKNOWN_PROMPT + cell.experiment.decoding.new_tokens
    heads = 1 if capture.level == "layers" else facts.heads
    arrays = 1 + 3 * capture.by_query + 2 * capture.anatomy + 2 * (cell.experiment.policy is not None)
    each = 2 * steps * facts.layers * heads * keys * arrays + 24 * steps * keys
    if capture.level == "maps":
        each += 2 * steps * facts.layers * facts.heads * keys * keys
    return records + each * cell.answers


# ---- speed ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Speed:
    """Seconds for one forward pass of one answer, measured with all workers busy: without and with a policy, recorded."""

    plain: float
    masked: float
    traced: float

    def of(self, cell: Cell) -> float:
        """Seconds for one forward pass of a cell."""
        if cell.kind in ("trace", "maps"):
            return self.traced
        return self.plain if cell.experiment.policy is None else self.masked


Speeds = Mapping[str, Speed]
"""By the model's name; empty when nothing was measured."""


def measure(executor: Executor, cells: Sequence[Cell]) -> dict[str, Speed]:
    """The speed of each model of the cells, with all workers busy."""
    from sinkscope.study.worker import Measurement

    first = {cell.model.name: cell for cell in reversed(cells)}
    jobs = [Measurement(first[name]) for name in dict.fromkeys(cell.model.name for cell in cells)]
    speeds: dict[str, Speed] = {}
    executor.run(jobs, lambda job, result: speeds.update({job.cell.model.name: result}))
    return speeds


def work(cell: Cell, speeds: Speeds) -> float:
    """The work in one answer of a cell: seconds where they were measured, else forward passes, by what they may cost."""
    return passes(cell) * speeds.get(cell.model.name, Speed(plain=1.0, masked=2.0, traced=3.0)).of(cell)


def seconds(cells: Iterable[Cell], speeds: Speeds, workers: int) -> float:
    """Wall seconds for cells, spread over workers."""
    return sum(forwards(cell) * speeds[cell.model.name].of(cell) for cell in cells) / max(1, workers)


def choose_samples(study: Study, facts: Mapping[str, Facts], speeds: Speeds, workers: int) -> int:
    """The documents per cell for "auto": as many as the budget's seconds allow, within its bounds.

    Rounded down to a multiple of 8, so that two measurements of nearly the same speed agree more often.
    """
    least = study.budget.least
    once, twice = (seconds(outline(study, facts, count, exact=False), speeds, workers) for count in (least, 2 * least))
    each = (twice - once) / least
    fixed = once - each * least
    count = int((study.budget.seconds - fixed) / each) if each > 0 else study.budget.most
    return max(study.budget.least, min(study.budget.most, count - count % 8))


def save_speeds(path: Path, speeds: Speeds) -> None:
    """Keep a measurement, so that a study that goes on says the same."""
    data = {name: dataclasses.asdict(speed) for name, speed in speeds.items()}
    write_atomically(path, json.dumps(data, indent=1) + "\n")


def load_speeds(path: Path) -> dict[str, Speed]:
    """Read a measurement; empty where there is none, or the file cannot be read: it only decides on an estimate."""
    with suppress(InputError):
        speeds: dict[str, Speed] = read_json(path, "remove it", kind=Mapping[str, Speed])
        return speeds
    return {}


def sentences(asked: Study, resolved: Study, speeds: Speeds) -> list[str]:
    """The number of documents, the rule that chose them and the smallest effect they detect, for people.

    `asked`: the study as it was given; `resolved`: with "auto" replaced by a number.
    """
    counts = sorted({grid.samples for grid in resolved.evaluate if isinstance(grid.samples, int)})
    why, budget = ", as the study says.", asked.budget
    if has_auto(asked) and speeds:
        each = (f"{name} {1000 * speed.plain:.0f}/{1000 * speed.masked:.0f} ms" for name, speed in speeds.items())
        why = (
            f": as many as fit in {budget.seconds:g} s on all workers, {budget.least} to {budget.most}. A forward pass of one "
            f"answer takes, without and with a policy: {', '.join(each)}."
        )
    said = [f"{' or '.join(map(str, counts))} documents per cell{why}"] if counts else []
    if any(grid.batches for grid in resolved.evaluate):
        said.append(" ".join(documents.sentences(resolved)))
    return [*said, *map(smallest_effect, counts)]


def smallest_effect(documents: int) -> str:
    """A sentence about the smallest difference that so many documents detect.

    >>> smallest_effect(16)[:69]
    '16 documents detect a difference of two accuracies from 0.50 on (at a'
    """
    from sinkscope.statistics import minimal_detectable_effect

    if documents < 2:
        return "One document detects no difference."
    worst, best = (minimal_detectable_effect(documents, accuracy) for accuracy in (0.5, 0.95))
    return (
        f"{documents} documents detect a difference of two accuracies from {worst:.2f} on (at an accuracy of 0.5; from "
        f"{best:.2f} on at 0.95; 80 % power, unrelated runs; runs that agree need less)."
    )


# ---- a study before it runs ----------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """The cost of one model. `seconds` is None when it could not be measured here."""

    model: str
    cells: int
    answers: int
    forwards: int
    storage: int
    seconds: float | None


@dataclass(frozen=True)
class StudyEstimate:
    """The cost of a study.

    Attributes:
        samples: the number for "auto"; None: nothing is "auto", or not all models could be measured and the least was taken.
        missing: models that are not on this machine. decides: what each part can decide (`deciding`).
    """

    lines: tuple[Line, ...]
    samples: int | None
    workers: int
    missing: tuple[str, ...]
    speeds: Speeds
    decides: tuple[Decides, ...] = ()


def estimate(study: Study, settings: WorkerSettings) -> StudyEstimate:
    """The cost of a study. Models that are here are measured for some seconds each; nothing is downloaded or written."""
    facts = {model.name: facts_of(model, settings.device, fetch=False) for model in study.models}
    local = [name for name, known in facts.items() if known.here]
    speeds: Speeds = {}
    workers = 1
    if local:
        from sinkscope.study.executors import LocalExecutor

        executor = LocalExecutor(replace(settings, modules=study.modules))
        try:
            here = [cell for cell in outline(study, facts, exact=False) if cell.model.name in local]
            speeds = measure(executor, here)
        finally:
            executor.close()
        workers = executor.workers
    # A model that was not timed may take any time, so no number of samples can be promised.
    promised = has_auto(study) and len(speeds) == len(study.models)
    samples = choose_samples(study, facts, speeds, workers) if promised else None
    cells = outline(study, facts, samples, exact=False)
    lines = []
    for name in facts:
        mine = [cell for cell in cells if cell.model.name == name]
        counts = len(mine), sum(cell.answers for cell in mine), sum(map(forwards, mine))
        time = seconds(mine, speeds, workers) if name in speeds else None
        lines.append(Line(name, *counts, sum(storage(cell, facts[name]) for cell in mine), time))
    missing = tuple(name for name in facts if name not in local)
    return StudyEstimate(tuple(lines), samples, workers, missing, speeds, tuple(deciding(cells)))
