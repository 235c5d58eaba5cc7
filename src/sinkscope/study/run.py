"""Running a study: the missing answers are computed and graded, then tables are made of all that is there.

    from sinkscope.study import run, spec
    outcome = run.run_study(spec.read("organisms"), "study")
    outcome.frames["results"]

The same call goes on where it was stopped. `sinkscope.report.study.make_report` draws figures and report from the folder.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import InputError
from sinkscope.files import reading, write_atomically
from sinkscope.locks import LockHeldError
from sinkscope.study import documents, draw, estimate, evidence, evidence_check, shipped
from sinkscope.study.cells import SCIENCE, Cell, identify, map_cells, outline
from sinkscope.study.executors import Executor, Place, executor_class
from sinkscope.study.facts import Facts, facts_of, is_folder
from sinkscope.study.shard import Shard, cut
from sinkscope.study.spec import Study, StudyModel, check_names, has_auto, with_samples
from sinkscope.study.store import Store, digest_of
from sinkscope.study.worker import Job
from sinkscope.tasks.records import ANSWER_AGAIN, RunFolder
from sinkscope.tasks.task import digest
from sinkscope.version import __version__

if TYPE_CHECKING:
    from sinkscope.study.tables import NotGraded

OUTPUT = "output/10"
"""Count up when the same records would give other tables, figures or another report."""

SHARD_ANSWERS = 64
LIBRARIES = ("pandas", "pyarrow", "xarray", "zarr")


class Progress:
    """Hears of what happens in a run; this one does nothing."""

    def say(self, text: str) -> None:
        """A line for people."""

    def begin(self, work: float, done: float) -> None:
        """Work to do, in seconds as estimated, or forward passes; and how much of it is there."""

    def advance(self, done: float, cell: str) -> None:
        """The work that is done, and the cell that was worked on last."""

    def end(self) -> None:
        """No more progress."""


@dataclass(frozen=True)
class Outcome:
    """A finished study.

    Attributes:
        frames: table → DataFrame.
        notes: sentences that belong beside the tables.
        not_graded: cells whose answers could not be graded on this machine.
        computed: answers that were computed in this call.
        manifest: the content of manifest.json.
    """

    root: Path
    study: Study
    frames: Mapping[str, Any]
    notes: tuple[str, ...]
    not_graded: tuple[NotGraded, ...]
    computed: int
    manifest: Mapping[str, Any] = field(default_factory=dict)


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
    tables: bool = True,
    traces: bool = False,
) -> Outcome:
    """Run a study into a folder, or what is missing of it, and make its tables.

    Everything that can be wrong without computing is said before the folder is made and the first model is loaded.

    Args:
        on: "local", "here", "ray" or "slurm". options: of that executor.
        workers: at a time; None: one per GPU, else one per core.
        shard: answers in a shard. Shards and executor may change between two calls.
        sandbox: how programs that models wrote are confined. Where they cannot be, answers are kept and not graded.
        tables: False computes the answers of evaluations and replays and stops: no grades, traces and tables, and none of the
            libraries that they need. The same call with tables, here or elsewhere, does the rest. Where all of a model's answers
            are there, its folder is not needed any more.
        traces: without tables, also traces, maps and inspections, which need pandas, xarray and zarr.
    """
    progress = progress or Progress()
    here = ("loky", "threadpoolctl") if on == "local" else ()
    needed = ("filelock", "tomli_w", *here, *(("pandas", "xarray", "zarr") if traces else ()))
    check_libraries(LIBRARIES if tables else needed)
    executor = executor_class(on)
    check_names(study)
    store = Store(Path(out).resolve())
    store.check_new()
    store.check_study(study)
    check_writable(store.root)
    facts = {model.name: _facts(store, model, device) for model in study.models}
    check_batches(store)
    cells = outline(store.resolved(study), facts, sandbox=sandbox)
    identify(cells, facts)  # reads the documents: a file that is missing is found now
    if tables and (line := sandbox_line(cells, sandbox)):
        progress.say(line)
    memory = max((known.parameters for known in facts.values()), default=0) * 6 + 300_000_000
    place = Place(store.root, device, workers, batch_size, memory, study.modules, options or {}, tables)
    executor.check(place)
    new = not store.root.exists()
    try:
        with store.lock():
            try:
                return _Run(
                    store, study, facts, executor, on, place, shard, sandbox, progress, tables, traces
                ).do()
            finally:
                # A study that was refused before it began leaves no folder, unless something else is in it.
                if new and not store.study_file.exists() and not store.strange():
                    shutil.rmtree(store.root, ignore_errors=True)
    except LockHeldError as error:
        who = f"process {error.holder.get('pid', '?')} on {error.holder.get('host', '?')}"
        raise InputError(
            f"another command ({who}) is running the study in {out}; watch it with: sinkscope status {out}"
        ) from error


def _facts(store: Store, model: StudyModel, device: str) -> Facts:
    """The facts about a model."""
    known = _known_only(store, model)
    return facts_of(model, device) if known is None else known


def _known_only(store: Store, model: StudyModel) -> Facts | None:
    """What was kept of a folder that was there when answers were computed, elsewhere; None: the model is here, or unknown."""
    return None if is_folder(model) else store.facts(model)


@dataclass
class _Run:
    """One call of `run_study`."""

    store: Store
    asked: Study
    facts: Mapping[str, Facts]
    executor_class: type[Any]
    on: str
    place: Place
    shard: int
    sandbox: str
    progress: Progress
    tables: bool = True
    traces: bool = False
    begun: float = field(default_factory=time.monotonic)
    computed: int = 0
    graded: int = 0
    timings: dict[str, float] = field(default_factory=dict)
    _executor: Executor | None = None

    def do(self) -> Outcome:
        try:
            study, speeds = self._resolve()
            cells = identify(outline(study, self.facts, sandbox=self.sandbox), self.facts)
            self.store.check_foreign(cells)
            self.store.write_study(study)
            self.store.add_cells(cells)
            self.store.write_facts(study, self.facts)
            if not self.tables and not self.traces:
                self._compute([cell for cell in cells if cell.kind in ("evaluate", "replay")], speeds, ())
                return Outcome(self.store.root, study, {}, (), (), self.computed)
            size = estimate.sentences(self.asked, study, speeds)
            # Which documents get maps follows from the traces; how much work that is does not.
            some = {cell.id: dict.fromkeys(cell.documents, 0.0) for cell in cells if cell.kind == "trace"}
            first, second = (_work(part, speeds) for part in (cells, map_cells(study, cells, some)))
            self._compute(cells, speeds, size, after=second)
            maps = identify(map_cells(study, cells, self._sinks(cells)), self.facts)
            self.store.check_foreign([*cells, *maps], second=True)
            self.store.add_cells(maps)
            self._compute(maps, speeds, [documents.EXEMPLAR_RULE], before=first)
        finally:
            if self._executor is not None:
                self._executor.close()
        if not self.tables:
            return Outcome(self.store.root, study, {}, (), (), self.computed)
        self._grade(cells)
        self.timings["computing"] = round(time.monotonic() - self.begun, 2)
        return self._finish(study, [*cells, *maps], size)

    @property
    def executor(self) -> Executor:
        """Made when it is first needed: a finished study starts no worker."""
        if self._executor is None:
            self._executor = self.executor_class(self.place)
        return self._executor

    def _resolve(self) -> tuple[Study, estimate.Speeds]:
        """The study with its documents, which are fixed once, in study.toml; and the speeds that their number follows from."""
        study, speeds = self.store.resolved(self.asked), {}
        if self.store.study_file.is_file():
            return study, estimate.load_speeds(self.store.speed_file)
        if has_auto(study):
            begun = time.monotonic()
            speeds = estimate.measure(self.executor, outline(study, self.facts, sandbox=self.sandbox))
            samples = estimate.choose_samples(study, self.facts, speeds, self.executor.workers)
            study = with_samples(study, samples)
            estimate.save_speeds(self.store.speed_file, speeds)
            self.timings["measuring"] = round(time.monotonic() - begun, 2)
        return draw.with_draws(study, self.facts), speeds

    def _compute(
        self,
        cells: Sequence[Cell],
        speeds: estimate.Speeds,
        lines: Sequence[str],
        before: float = 0.0,
        after: float = 0.0,
    ) -> None:
        """Compute all answers that are missing, after saying `lines`; a shard that was lost is found missing, and done.

        before, after: work of the study before and after these cells, so that its progress only grows.
        """
        there = {cell.id: self.store.answered(cell) for cell in cells}
        for cell in cells:
            if len(there[cell.id]) < cell.answers and _known_only(self.store, cell.model) is not None:
                raise InputError(
                    f"{cell.title} is not complete, and its model is not on this machine: finish it where "
                    f"{cell.model.source} is, or put the folder there"
                )
        shards = cut(cells, there, self.shard)
        if not shards:
            return
        for line in lines:
            self.progress.say(line)
        each = {cell.id: estimate.work(cell, speeds) for cell in cells}
        # Long shards first, so that no worker ends long after the others.
        shards = [replace(shard, work=each[shard.cell.id] * shard.size) for shard in shards]
        shards.sort(key=lambda shard: -shard.work)
        account = _Account(self.store, self.progress, each, there, shards, before)
        self.progress.begin(before + _work(cells, speeds) + after, account.start)
        try:
            self.executor.run(shards, account.finished, account.waiting)
        finally:
            self.progress.end()
            now = {cell.id: self.store.answered(cell) for cell in cells}
            self.computed += sum(map(len, now.values())) - sum(map(len, there.values()))
        left = cut(cells, now, self.shard)
        if left:
            raise InputError(
                f"{len(left)} shards are not complete, such as {left[0].cell.title}; run the same command again"
            )

    def _sinks(self, cells: Sequence[Cell]) -> dict[str, dict[int, float]]:
        """Traced cell → place of a document → its sinks per head and step, from which exemplars are chosen."""
        with reading("a record of a trace", ANSWER_AGAIN):
            return {
                cell.id: {
                    row.index: row.more["sinks_per_head"]
                    for row, _ in self.store.answers(cell.id).values()
                    if row.seed == cell.seeds[0]
                }
                for cell in cells
                if cell.kind == "trace"
            }

    def _grade(self, cells: Sequence[Cell]) -> None:
        """Grade answers that were saved without a grade: by a worker without a sandbox, or before a kill."""
        from sinkscope.tasks.grading import can_grade, grade_run

        for cell in cells:
            answers = self.store.answers(cell.id) if cell.kind == "evaluate" else {}
            missing = {key for key, (_, grade) in answers.items() if grade is None}
            if not missing or not can_grade(task := cell.parsed_task()):
                continue
            for run in self.store.runs(cell.id):
                if any((row.document, row.seed) in missing for row in run.generations):
                    with RunFolder.write(run.path, run.settings) as folder:
                        grade_run(folder, task)
            self.graded += len(missing)

    def _finish(self, study: Study, cells: Sequence[Cell], size: Sequence[str]) -> Outcome:
        """Tables and manifest; what is there already for the same records is read, and made again where it is damaged."""
        from sinkscope.study import tables

        old: dict[str, Any] = {}
        frames: dict[str, Any] = {}
        try:
            old = self.store.manifest()
            frames = self.store.tables(old.get("tables", {}))
        except InputError as error:
            self.progress.say(f"made again: {error}")
        shipped_results = shipped.digest_of([model.source for model in study.models])
        grades = tables.grades_of(self.store, cells)
        known = evidence.read(cells, [Path(name) for name in self.asked.evidence])
        earlier = {model: one.digest for model, one in known.items()}
        inputs = digest([OUTPUT, SCIENCE, __version__, sorted(grades.items()), shipped_results, earlier])
        not_graded = tables.not_graded(cells, grades)
        if old.get("inputs") == inputs and not self.computed and set(frames) == set(old.get("tables", {})):
            return Outcome(self.store.root, study, frames, tuple(old.get("notes", ())), not_graded, 0, old)
        self.progress.say("making the tables")
        begun = time.monotonic()
        checked = evidence_check.check(self.store, cells, known, draw.seeds(study))
        made = tables.build(self.store, cells, not_graded, checked)
        tables.write(self.store, made)
        self.timings["tables"] = round(time.monotonic() - begun, 2)
        self.timings["whole run"] = round(time.monotonic() - self.begun, 2)
        call = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"), "on": self.on, "host": platform.node(),
            "machine": platform.machine(), "workers": getattr(self._executor, "workers", 0), "sandbox": self.sandbox,
            "answers_computed": self.computed, "answers_graded_later": self.graded, "seconds": self.timings,
        }  # fmt: skip
        manifest = {
            "study": study.name,
            "inputs": inputs,
            "science": SCIENCE,
            "versions": versions(),
            "models": {name: vars(known) for name, known in self.facts.items()},
            "cells": {cell.id: cell.title for cell in cells},
            "documents": {cell.id: cell.answers for cell in cells},
            "samples": list(size),
            "traced_documents": draw.traced_sentence(study),
            "exemplars": documents.EXEMPLAR_RULE,
            "tables": {name: len(frame) for name, frame in made.frames.items()},
            "digests": {name: digest_of(self.store.table_file(name)) for name in made.frames},
            "not_graded": [entry._asdict() for entry in not_graded],
            "notes": list(made.notes),
            "calls": [*old.get("calls", []), call],
        }
        write_atomically(self.store.manifest_file, json.dumps(manifest, indent=1) + "\n")
        return Outcome(self.store.root, study, made.frames, made.notes, not_graded, self.computed, manifest)


def _work(cells: Sequence[Cell], speeds: estimate.Speeds) -> float:
    """The work of all answers of cells."""
    return sum(estimate.work(cell, speeds) * cell.answers for cell in cells)


@dataclass
class _Account:
    """The work that is done: finished shards as a whole, those in work by the lines of their records.

    start: work that is done before these cells.
    """

    store: Store
    progress: Progress
    each: Mapping[str, float]
    before: Mapping[str, set[int]]
    shards: Sequence[Shard]
    start: float = 0.0
    _new: dict[str, float] = field(default_factory=dict)
    _lines: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start += sum(self.each[cell] * len(numbers) for cell, numbers in self.before.items())
        self._lines = {shard.name: self._count(shard) for shard in self.shards}

    def finished(self, job: Job, result: Any) -> None:
        """A shard is done."""
        if isinstance(job, Shard):
            self._set(job, len(set(job.numbers) - self.before[job.cell.id]))

    def waiting(self, jobs: Sequence[Job]) -> None:
        """Shards are in work."""
        for job in jobs:
            if isinstance(job, Shard):
                self._set(job, self._count(job) - self._lines[job.name])

    def _set(self, shard: Shard, answers: int) -> None:
        new = self.each[shard.cell.id] * max(0, answers)
        if new > self._new.get(shard.name, 0.0):
            self._new[shard.name] = new
            self.progress.advance(self.start + sum(self._new.values()), shard.cell.title)

    def _count(self, shard: Shard) -> int:
        folder = self.store.shard_folder(shard.cell.id, shard.start, shard.stop)
        try:
            return (folder / "generations.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0


def sandbox_line(cells: Sequence[Cell], kind: str) -> str:
    """A line on how programs that models write are confined, or why they are not graded; "" in a study without any."""
    from sinkscope.tasks import sandbox

    coded = sorted({cell.task for cell in cells if cell.kind == "evaluate" and cell.parsed_task().runs_code})
    if not coded:
        return ""
    if sandbox.available(kind) is not None:
        return sandbox.reason(kind)
    return f"answers to {', '.join(coded)} are kept and not graded here: {sandbox.reason(kind)}"


def check_libraries(names: Sequence[str] = LIBRARIES) -> None:
    """Say what is missing before hours of computing; generating alone needs none of these."""
    from importlib.util import find_spec

    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise InputError(
            f"a study needs {', '.join(missing)}, not installed here: pip install {' '.join(missing)} (pip install sinkscope "
            "brings all that is needed)"
        )


def check_batches(store: Store) -> None:
    """Refuse a study whose documents follow from the prompts of a model that is known but not here."""
    study = store.study()
    if study is None or _known_only(store, first := study.models[0]) is None:
        return
    blocks = (*study.evaluate, *study.trace, *study.replay, *study.inspect)
    if any(block.batches and not block.drawn for block in blocks):
        raise InputError(
            f"the documents of this study were chosen by the lengths of {first.name}'s prompts, and {first.source} is not on "
            "this machine: put the folder there"
        )


def check_writable(root: Path) -> None:
    """Refuse a folder that cannot be made or written to."""
    folder = next(path for path in (root, *root.parents) if path.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{root} cannot be written: {folder} is read-only or no folder; give another --out")


def versions() -> dict[str, str]:
    """The versions that the results were made with."""
    from importlib.metadata import PackageNotFoundError, version

    numbers = {"sinkscope": __version__, "python": platform.python_version()}
    for name in ("torch", "transformers", "tokenizers", "numpy", "pandas", "xarray", "zarr"):
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:
            continue
    return numbers
