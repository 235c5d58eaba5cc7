"""Running a study: what is missing is done, then tables, figures and the report are made from what is there.

    from sinkscope.study import run, spec
    run.run_study(spec.read("organisms"), "study")

The same call goes on where it was stopped. `watch` is told what happens; the command line draws it.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError
from sinkscope.study import drawings, exemplars, plan, shipped, sizing, tables
from sinkscope.study.cell import SCIENCE, Cell
from sinkscope.study.executors import Event, Executor, Place, make
from sinkscope.study.lease import LeaseHeldError
from sinkscope.study.shard import Shard, cut
from sinkscope.study.spec import Grid, Study
from sinkscope.study.store import Store, write_text
from sinkscope.study.worker import Measurement
from sinkscope.tasks.task import digest
from sinkscope.version import __version__

OUTPUT = "output/4"
"""Count up when the same records would give other tables, figures or another report."""

SHARD_ANSWERS = 64


class Watch:
    """What a run tells; this one keeps silent."""

    def say(self, text: str) -> None:
        """A line for people."""

    def begin(self, work: float, done: float) -> None:
        """Work to do, in seconds as estimated, or forward passes; and how much of it is there."""

    def advance(self, done: float, cells: str) -> None:
        """How much of the work is done, and what was worked on last."""

    def end(self) -> None:
        """No more progress."""


@dataclass(frozen=True)
class Outcome:
    """A finished study."""

    root: Path
    study: Study
    frames: Mapping[str, Any]
    notes: tuple[str, ...]
    shipped: tuple[shipped.Shipped, ...]
    computed: int  # answers that were computed in this call
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
    watch: Watch | None = None,
    report: bool = True,
) -> Outcome:
    """Runs a study into a folder, or what is missing of it, and makes its tables and report.

    Args:
        on: "local", "ray" or "slurm". options: of that executor.
        workers: at a time; None: one per GPU, else one per core.
        shard: answers in a shard. Shards and executor may change between two calls.
        report: False stops after the tables; a later call makes figures and report.
    """
    watch = watch or Watch()
    check_libraries(report)
    study, left_out = gradable(study, sandbox)
    for text in left_out:
        watch.say(text)
    store = Store(Path(out).resolve())
    store.check_new()
    store.check_study(study)
    facts = {model.name: plan.facts_of(model, device) for model in study.models}
    begun = time.monotonic()
    try:
        with store.lease():
            memory = max((one.parameters for one in facts.values()), default=0) * 6 + 300_000_000
            place = Place(store.root, device, workers, batch_size, memory, options or {})
            work = _Work(store, study, facts, on, place, shard, sandbox, watch, report, left_out=left_out)
            return work.do(begun)
    except LeaseHeldError as error:
        who = f"process {error.holder.get('pid', '?')} on {error.holder.get('host', '?')}"
        raise InputError(
            f"another command ({who}) is running the study in {out}; watch it with: sinkscope status {out}"
        ) from error


@dataclass
class _Work:
    """One call of `run_study`."""

    store: Store
    study: Study
    facts: Mapping[str, plan.Facts]
    on: str
    place: Place
    shard: int
    sandbox: str
    watch: Watch
    report: bool = True
    left_out: tuple[str, ...] = ()
    computed: int = 0
    timings: dict[str, float] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    _executor: Executor | None = None

    def do(self, begun: float) -> Outcome:
        try:
            speeds = self._resolve()
            cells = plan.identify(plan.outline(self.study, self.facts, sandbox=self.sandbox), self.facts)
            self.store.check_foreign(cells)
            self.store.add_cells(cells)
            self.said = sizing.said(self.study, speeds)
            for text in self.said if cut(cells, self.store, self.shard) else ():
                self.watch.say(text)
            self._compute(cells, speeds)
            second = plan.identify(exemplars.cells_of(self.study, self.store, cells), self.facts)
            self.store.check_foreign([*cells, *second], second=True)
            if second:
                if cut(second, self.store, self.shard):
                    self.watch.say(exemplars.RULE)
                self.store.add_cells(second)
                self._compute(second, speeds)
        finally:
            if self._executor is not None:
                self._executor.close()
        self.timings["computing"] = round(time.monotonic() - begun, 2)
        return self._finish([*cells, *second], begun)

    @property
    def executor(self) -> Executor:
        """Made when it is first needed: a finished study starts no worker."""
        if self._executor is None:
            self._executor = make(self.on, self.place)
        return self._executor

    def _resolve(self) -> Mapping[str, plan.Speed]:
        """Fixes the number of documents, once, and writes study.toml."""
        known = self.store.study()
        if known is not None:
            self.study = known
            return sizing.load(self.store)
        speeds: Mapping[str, plan.Speed] = {}
        if plan.has_auto(self.study):
            begun = time.monotonic()
            self.executor.begin(len(self.study.models))
            speeds = measure(self.executor, plan.outline(self.study, self.facts, sandbox=self.sandbox))
            samples = plan.choose_samples(self.study, self.facts, speeds, self.executor.workers)
            self.study = plan.with_samples(self.study, samples)
            sizing.save(self.store, speeds)
            self.timings["measuring"] = round(time.monotonic() - begun, 2)
        self.store.write_study(self.study)
        return speeds

    def _compute(self, cells: Sequence[Cell], speeds: Mapping[str, plan.Speed]) -> None:
        """Does all that is missing; a shard that was lost is found missing, and done."""
        shards = cut(cells, self.store, self.shard)
        if not shards:
            return
        weights = {cell.id: weight(cell, speeds) for cell in cells}
        there = {cell.id: len(self.store.done_keys(cell)) for cell in cells}
        total = sum(weights[cell.id] * cell.answers for cell in cells)
        before = sum(weights[cell.id] * there[cell.id] for cell in cells)
        self.watch.begin(total, before)
        news: dict[str, float] = {}
        first = {shard.name: there_before(self.store, shard) for shard in shards}

        def report(event: Event) -> None:
            shard = event.job
            if not isinstance(shard, Shard):
                return
            done = shard.size if event.finished else min(event.done, shard.size)
            new = weights[shard.cell.id] * max(0, done - first[shard.name])
            news[shard.name] = max(news.get(shard.name, 0.0), new)
            self.watch.advance(before + sum(news.values()), shard.cell.title)

        try:
            # Long shards first, so that no worker ends long after the others.
            shards = [replace(one, work=weights[one.cell.id] * one.size) for one in shards]
            self.executor.run(sorted(shards, key=lambda one: -one.work), report)
        finally:
            self.watch.end()
            after = {cell.id: len(self.store.done_keys(cell)) for cell in cells}
            self.computed += sum(after.values()) - sum(there.values())
        left = cut(cells, self.store, self.shard)
        if left:
            raise InputError(
                f"{len(left)} shards are not complete, such as {left[0].cell.title}; run the same command again"
            )

    def _finish(self, cells: Sequence[Cell], begun: float) -> Outcome:
        """Tables, figures, report, manifest; nothing of it when they are there already for the same records."""
        import pandas as pd

        from sinkscope.report.study import write_report

        inputs = digest(
            [OUTPUT, SCIENCE, __version__, sorted(cell.id for cell in cells), shipped_digest(self.study)]
        )
        old = read_manifest(self.store)
        names = old.get("tables", {})
        if (
            old.get("inputs") == inputs
            and not self.computed
            and all((self.store.root / "tables" / f"{name}.parquet").is_file() for name in names)
            and (self.store.root / "report.html").is_file()
        ):
            frames = {name: pd.read_parquet(self.store.root / "tables" / f"{name}.parquet") for name in names}
            return Outcome(
                self.store.root,
                self.study,
                frames,
                tuple(old.get("notes", ())),
                tuple(self._shipped()),
                0,
                old,
            )
        self.watch.say("tables")
        start = time.monotonic()
        with drawings.Drawing(self.store, cells if self.report else ()) as drawing:
            found = tables.build(self.store, cells)
            tables.write(self.store, found)
            self.timings["tables"] = round(time.monotonic() - start, 2)
            start = time.monotonic()
            drawn = drawing.finish() if self.report else drawings.Drawn((), {})
        self.timings["figures"] = round(time.monotonic() - start, 2)
        self.timings["whole command"] = round(time.monotonic() - begun, 2)
        manifest = self._manifest(cells, found, inputs if self.report else "", drawn, old)
        if self.report:
            write_report(self.store.root, manifest)
        else:  # one of other records would not belong to these tables
            (self.store.root / "report.html").unlink(missing_ok=True)
        write_text(self.store.root / "manifest.json", json.dumps(manifest, indent=1) + "\n")
        return Outcome(
            self.store.root,
            self.study,
            found.frames,
            (*self.left_out, *found.notes),
            tuple(self._shipped()),
            self.computed,
            manifest,
        )

    def _shipped(self) -> list[shipped.Shipped]:
        digests = {name: one.weights or "" for name, one in self.facts.items()}
        return shipped.read([model.source for model in self.study.models], digests)

    def _manifest(
        self,
        cells: Sequence[Cell],
        found: tables.Tables,
        inputs: str,
        drawn: drawings.Drawn,
        old: Mapping[str, Any],
    ) -> dict[str, Any]:
        call = {
            "when": datetime.now(timezone.utc).isoformat(timespec="seconds"), "on": self.on, "host": platform.node(),
            "machine": platform.machine(), "workers": getattr(self._executor, "workers", 0),
            "answers_computed": self.computed, "seconds": self.timings,
        }  # fmt: skip
        return {
            "study": self.study.name,
            "inputs": inputs,
            "science": SCIENCE,
            "versions": versions(),
            "models": {name: vars(one) for name, one in self.facts.items()},
            "cells": {cell.id: cell.title for cell in cells},
            "documents": {cell.id: cell.answers for cell in cells},
            "samples": self.said,
            "traced_documents": f"even ranks by length of question among the first {plan.TRACED_FROM}",
            "exemplars": exemplars.RULE,
            "tables": {name: len(frame) for name, frame in found.frames.items()},
            "figures": [path for path, _ in drawn.figures],
            "figures_left_out": dict(drawn.left_out),
            "notes": [*self.left_out, *found.notes],
            "calls": [*old.get("calls", []), call],
        }


def gradable(study: Study, kind: str = "auto") -> tuple[Study, tuple[str, ...]]:
    """The study without evaluations that run model-written code, where programs cannot be confined; and a line for each.

    Raises InputError with instructions when nothing else is left.
    """
    from sinkscope.tasks import registry, sandbox

    def runs_code(grid: Grid) -> bool:
        names = [grid.task] if isinstance(grid.task, str) else list(grid.task.values())
        return any(registry.get(name.partition(":")[0], "causal").runs_code for name in names)

    coded = [grid for grid in study.evaluate if runs_code(grid)]
    if not coded:
        return study, ()
    try:
        sandbox.check(kind)
    except InputError as error:
        kept = tuple(grid for grid in study.evaluate if grid not in coded)
        if not (kept or study.trace or study.replay):
            raise
        names = sorted({str(grid.task) for grid in coded})
        return replace(study, evaluate=kept), (f"left out: {', '.join(names)}, because {error}",)
    return study, ()


def measure(executor: Executor, cells: Sequence[Cell]) -> dict[str, plan.Speed]:
    """The speed of each model, with all workers busy."""
    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(cell.model.name, cell)
    found: dict[str, plan.Speed] = {}

    def report(event: Event) -> None:
        if event.finished:
            found[event.job.cell.model.name] = event.result

    executor.run([Measurement(cell) for cell in first.values()], report)
    return found


def check_libraries(report: bool = True) -> None:
    """Says what is missing for tables and report before hours of computing; generating alone needs none of these."""
    from importlib.util import find_spec

    needed = ["pandas", "pyarrow", "xarray", "zarr", *(["matplotlib"] if report else [])]
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise InputError(
            f"a study needs {', '.join(missing)}, not installed here: pip install {' '.join(missing)} (pip install sinkscope "
            "brings all that is needed)"
        )


def there_before(store: Store, shard: Shard) -> int:
    """Answers of a shard that are there already."""
    cell = shard.cell
    places = {place: number for number, place in enumerate(cell.documents)}
    rows = [row for row, _ in store.answers(cell, graded=cell.kind == "evaluate").values()]
    numbers = [places[row.index] * len(cell.seeds) + cell.seeds.index(row.seed) for row in rows]
    return sum(shard.start <= number < shard.stop for number in numbers)


def weight(cell: Cell, speeds: Mapping[str, plan.Speed]) -> float:
    """The work in one answer of a cell: seconds where they were measured, else forward passes, traces counted three times."""
    passes = plan.forwards(cell) / max(1, cell.answers)
    if cell.model.name in speeds:
        return passes * speeds[cell.model.name].of(cell)
    return passes * (3.0 if cell.capture else 1.0 if cell.policy == "none" else 2.0)


def shipped_digest(study: Study) -> str:
    """Changes when other results ship with the models."""
    found = []
    for model in study.models:
        folder = shipped.SHELF / model.source.removeprefix("organism/")
        files = [folder / name for name in ("accuracy.json", "results.json")]
        found += [path.read_text(encoding="utf-8") for path in files if path.is_file()]
    return digest(found)


def read_manifest(store: Store) -> dict[str, Any]:
    """manifest.json; empty when there is none yet."""
    try:
        data = json.loads((store.root / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def versions() -> dict[str, str]:
    """What the results were made with."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"sinkscope": __version__, "python": platform.python_version()}
    for name in ("torch", "transformers", "tokenizers", "numpy", "pandas", "xarray", "zarr"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
