"""Running a study: the missing answers are computed and graded, then tables are made of all that is there.

    from sinkscope.study import run, spec
    outcome = run.run_study(spec.read("organisms"), "study")
    outcome.frames["results"]

The same call goes on where it was stopped. `sinkscope.report.study.make_report` makes the report from the folder.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.base.checks import whole
from sinkscope.base.errors import InputError
from sinkscope.base.files import check_writable, write_atomically
from sinkscope.base.locks import LockHeldError, locked
from sinkscope.base.version import __version__
from sinkscope.study import documents, estimate
from sinkscope.study.cells import SCIENCE, Cell, identify, outline
from sinkscope.study.executors import Executor, executor_class
from sinkscope.study.facts import Facts
from sinkscope.study.plugged import PLUGINS
from sinkscope.study.spec import Study, has_auto, import_modules, with_samples
from sinkscope.study.store import Store, digest_of
from sinkscope.study.worker import Shard, WorkerSettings, cut
from sinkscope.tasks.records import RunFolder
from sinkscope.tasks.task import digest

if TYPE_CHECKING:
    import pandas as pd

OUTPUT = "output/16"
"""Count up when the same records would give other tables, figures or another report."""

SHARD_ANSWERS = 64
LIBRARIES = "torch", "transformers", "tokenizers", "numpy", "pandas", "xarray", "zarr"


class Progress:
    """Hears of what happens in a run; this one does nothing."""

    def say(self, text: str) -> None: ...

    def begin(self, work: float, done: float) -> None:
        """Work to do, in seconds as estimated, or forward passes; and how much of it is there."""

    def advance(self, done: float, cell: str) -> None:
        """The work that is done, and the cell that was worked on last."""

    def end(self) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """A finished study.

    Attributes:
        frames: table → DataFrame; `not_graded` lists the evaluations whose answers could not be graded on this machine.
        computed: answers that were computed in this call.
    """

    root: Path
    study: Study
    frames: Mapping[str, pd.DataFrame]
    computed: int


def run_study(
    study: Study,
    out: str | os.PathLike[str],
    on: str = "local",
    device: str = "auto",
    workers: int | None = None,
    shard: int = SHARD_ANSWERS,
    batch_size: Any = "auto",
    sandbox: str = "auto",
    options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run a study into a folder, or what is missing of it, and make its tables.

    Everything that can be wrong without computing is said before the folder is made and the first model is loaded.

    Args:
        on: "local", "here", "ray" or "slurm". options: of that executor.
        workers: at a time; None: one per GPU, else one per core.
        shard: answers in a shard. Shards and executor may change between two calls.
        sandbox: how programs that models wrote are confined. Where they cannot be, answers are kept and not graded.
    """
    whole("shard", shard, 1)
    progress = progress or Progress()
    executor: Any = executor_class(on)
    import_modules(study.modules)
    store = Store(Path(out).resolve())
    store.check_new()
    check_writable(store.root)
    resolved = store.resolved(study)
    facts = store.facts(resolved, device)
    cells = identify(outline(resolved, facts, sandbox=sandbox))
    if line := sandbox_line(cells, sandbox):
        progress.say(line)
    memory = max((known.parameters for known in facts.values()), default=0) * 6 + 300_000_000
    settings = WorkerSettings(store.root, device, workers, batch_size, memory, study.modules, options or {})
    executor.check(settings)
    new = not store.root.exists()
    try:
        with locked(store.root / "lock"):
            try:
                start = functools.partial(executor, settings)
                return _Run(store, study, resolved, facts, cells, on, start, shard, sandbox, progress).do()
            finally:
                # A study that was refused before it began leaves no folder, unless something else is in it.
                if new and not store.study_file.exists() and not store.strange():
                    shutil.rmtree(store.root, ignore_errors=True)
    except LockHeldError as error:
        raise InputError(
            f"another command ({error}) is running the study in {out}; watch it with: sinkscope study --status {out}"
        ) from error


@dataclass
class _Run:
    """One call of `run_study`.

    Attributes:
        asked: the study as it was given; study: as this folder has it, with "auto" replaced by a number.
        start: makes the executor, when it is first needed: a finished study starts no worker.
    """

    store: Store
    asked: Study
    study: Study
    facts: Mapping[str, Facts]
    cells: list[Cell]
    on: str
    start: Callable[[], Executor]
    shard: int
    sandbox: str
    progress: Progress
    speeds: estimate.Speeds = field(default_factory=dict)
    size: Sequence[str] = ()
    begun: float = field(default_factory=time.monotonic)
    computed: int = 0
    graded: int = 0
    timings: dict[str, float] = field(default_factory=dict)

    def do(self) -> Outcome:
        """Compute what is missing, and make the tables."""
        from sinkscope.study.tables import under_floor

        try:
            self._count()
            self.store.check_foreign(self.cells)
            self.store.write_study(self.study)
            self.store.write_facts(self.study, self.facts)
            self.size = estimate.sentences(self.asked, self.study, self.speeds)
            # Accuracies that others wait for; of a model that is under a floor, nothing more is asked there.
            first = [cell for cell in self.cells if cell.floor and cell.policy == "none"]
            self._compute(first)
            self._grade()
            under = {(row["model"], row["task"]) for row in under_floor(self.store, first)}
            waiting = [cell for cell in self.cells if cell.floor and cell.policy != "none"]
            left_out = {cell.id for cell in waiting if (cell.model.name, cell.task) in under}
            self.cells = [cell for cell in self.cells if cell.id not in left_out]
            self._compute(self.cells)
        finally:
            if "executor" in vars(self):
                self.executor.close()
        self._grade()
        self.timings["computing"] = round(time.monotonic() - self.begun, 2)
        return self._finish()

    @functools.cached_property
    def executor(self) -> Executor:
        return self.start()

    def _count(self) -> None:
        """The number of documents follows from a measurement; it is fixed once, in study.toml."""
        if not has_auto(self.study):
            self.speeds = estimate.load_speeds(self.store.speed_file)
            return
        self.speeds = estimate.measure(self.executor, self.cells)
        estimate.save_speeds(self.store.speed_file, self.speeds)
        self.timings["measuring"] = round(time.monotonic() - self.begun, 2)
        samples = estimate.choose_samples(self.study, self.facts, self.speeds, self.executor.workers)
        self.study = with_samples(self.study, samples)
        self.cells = identify(outline(self.study, self.facts, sandbox=self.sandbox))

    def _compute(self, cells: Sequence[Cell]) -> None:
        """Compute all answers of these cells that are missing; a shard that was lost is found missing, and done."""
        self.store.add_cells(cells)
        there = {cell.id: self.store.answered(cell) for cell in cells}
        shards = cut(cells, there, self.shard)
        if not shards:
            return
        for line in () if self.computed else self.size:
            self.progress.say(line)
        each = {cell.id: estimate.work(cell, self.speeds) for cell in self.cells}
        answers = dict(there)

        def work(shard: Shard) -> float:
            return each[shard.cell.id] * len(shard.numbers)

        def done() -> float:
            return sum(each[cell] * count for cell, count in answers.items())

        def look(working: Sequence[Any]) -> None:
            """Count what shards have done. Overlapping ones may hold an answer twice, so no more is counted than is wanted."""
            for shard in working:
                with suppress(OSError):
                    logs = self.store.cell_folder(shard.cell.id).glob("shards/*/generations.jsonl")
                    lines = min(shard.cell.answers, sum(log.read_bytes().count(b"\n") for log in logs))
                    if lines > answers[shard.cell.id]:
                        answers[shard.cell.id] = lines
                        self.progress.advance(done(), shard.cell.said)

        # Those of one model together, which is then loaded once by each worker; long ones first, so that none ends late.
        total: dict[str, float] = defaultdict(float)
        for shard in shards:
            total[shard.cell.model.name] += work(shard)
        shards.sort(key=lambda one: (-total[one.cell.model.name], one.cell.model.name, -work(one)))
        self.progress.begin(sum(each[cell.id] * cell.answers for cell in self.cells), done())
        try:
            self.executor.run(shards, lambda shard, _: look([shard]), look)
        finally:
            self.progress.end()
            now = {cell.id: self.store.answered(cell) for cell in cells}
            self.computed += sum(now.values()) - sum(there.values())
        left = cut(cells, now, self.shard)
        if left:
            raise InputError(
                f"{len(left)} shards are not complete, such as {left[0].cell.title}; run the same command again"
            )

    def _grade(self) -> None:
        """Grade answers that were saved without a grade: by a worker without a sandbox, or before a kill."""
        from sinkscope.tasks.grading import can_grade, grade_run

        for cell in self.cells:
            answers = self.store.answers(cell.id) if cell.kind == "evaluate" else {}
            missing = {key for key, (_, grade) in answers.items() if grade is None}
            if not missing or not can_grade(task := cell.experiment.task):
                continue
            for run in self.store.runs(cell.id):
                if any(row.key in missing for row in run.generations):
                    with RunFolder.write(run.path, run.settings) as folder:
                        grade_run(folder, task)
            self.graded += len(missing)

    def _finish(self) -> Outcome:
        """Tables and manifest; what is there already for the same records is read, and made again where it is damaged."""
        from sinkscope.study import tables

        old: dict[str, Any] = {}
        frames: dict[str, Any] = {}
        try:
            old = self.store.manifest()
            frames = self.store.tables(old.get("tables", {}))
        except InputError as error:
            self.progress.say(f"made again: {error}")
        grades = {cell.id: tables.grades_of(self.store, cell) for cell in self.cells}
        inputs = digest([OUTPUT, SCIENCE, __version__, sorted(grades.items()), sorted(PLUGINS)])
        if old.get("inputs") == inputs and not self.computed and set(frames) == set(old.get("tables", {})):
            return Outcome(self.store.root, self.study, frames, 0)
        self.progress.say("making the tables")
        begun = time.monotonic()
        frames = tables.build(self.store, self.cells)
        tables.write(self.store, frames)
        self.timings["tables"] = round(time.monotonic() - begun, 2)
        self.timings["whole run"] = round(time.monotonic() - self.begun, 2)
        call = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"), "on": self.on, "host": platform.node(),
            "machine": platform.machine(),
            "workers": self.executor.workers if "executor" in vars(self) else 0, "sandbox": self.sandbox,
            "answers_computed": self.computed, "answers_graded_later": self.graded, "seconds": self.timings,
        }  # fmt: skip
        manifest = {
            "study": self.study.name,
            "inputs": inputs,
            "science": SCIENCE,
            "versions": {
                "sinkscope": __version__,
                "python": platform.python_version(),
                **{name: version(name) for name in LIBRARIES},
            },
            "models": {name: vars(known) for name, known in self.facts.items()},
            "cells": {cell.id: cell.title for cell in self.cells},
            "documents": {cell.id: cell.answers for cell in self.cells},
            "samples": list(self.size),
            "traced_documents": documents.TRACED_RULE,
            "exemplars": documents.EXEMPLAR_RULE,
            "tables": {name: len(frame) for name, frame in frames.items()},
            "digests": {name: digest_of(self.store.table_file(name)) for name in frames},
            "calls": [*old.get("calls", []), call],
        }
        write_atomically(self.store.manifest_file, json.dumps(manifest, indent=1) + "\n")
        return Outcome(self.store.root, self.study, frames, self.computed)


def sandbox_line(cells: Sequence[Cell], kind: str) -> str:
    """A line on how programs that models write are confined, or why they are not graded; "" in a study without any."""
    from sinkscope.tasks import sandbox

    coded = sorted({cell.task for cell in cells if cell.kind == "evaluate" and cell.experiment.task.runs_code})
    ungraded = "" if sandbox.available(kind) else f"answers to {', '.join(coded)} are kept and not graded here: "
    return ungraded + sandbox.reason(kind) if coded else ""
