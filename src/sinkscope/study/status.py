"""The progress of a study, read from its folder alone, also while it runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from sinkscope.base.errors import InputError
from sinkscope.base.locks import holder, is_held
from sinkscope.study.store import CellFile, Store


@dataclass(frozen=True)
class CellStatus:
    """One cell: answers that are there, wanted, graded and right (None where nothing is graded), and whether it is in work."""

    id: str
    title: str
    model: str
    done: int
    wanted: int
    graded: int | None
    right: int | None
    working: bool


@dataclass(frozen=True)
class StudyStatus:
    """A whole study.

    Attributes:
        running: the process that runs it, "" for none.
        idle: seconds since the last record; None before the first.
    """

    root: Path
    study: str
    cells: tuple[CellStatus, ...]
    running: str
    idle: float | None
    report: Path | None

    @property
    def done(self) -> int:
        return sum(cell.done for cell in self.cells)

    @property
    def wanted(self) -> int:
        return sum(cell.wanted for cell in self.cells)

    @property
    def not_graded(self) -> int:
        """Answers of evaluations that have no grade."""
        return sum(cell.done - cell.graded for cell in self.cells if cell.graded is not None)


def read(folder: str | Path) -> StudyStatus:
    """The status of the study in a folder."""
    store = Store(Path(folder).resolve())
    study = store.study()
    if study is None:
        raise InputError(f"{folder} is no folder of a study: it has no study.toml (yet)")
    cells = sorted(store.known_cells().items(), key=lambda pair: pair[1]["title"])
    lock = store.root / "lock"
    running = holder(lock) if is_held(lock) else ""
    logs = store.root.glob("cells/*/shards/*/generations.jsonl")
    changed = [path.stat().st_mtime for path in logs if path.is_file()]
    idle = time.time() - max(changed) if changed else None
    report = store.root / "report.html"
    statuses = tuple(_cell(store, cell_id, data) for cell_id, data in cells)
    return StudyStatus(store.root, study.name, statuses, running, idle, report if report.is_file() else None)


def _cell(store: Store, cell_id: str, data: CellFile) -> CellStatus:
    answers = store.answers(cell_id)
    grades = [grade.passed for _, grade in answers.values() if grade is not None]
    graded, right = (len(grades), sum(grades)) if data["identity"]["kind"] == "evaluate" else (None, None)
    working = any(is_held(run.path / "lock") for run in store.runs(cell_id))
    return CellStatus(cell_id, data["title"], data["model"], len(answers), data["answers"], graded, right, working)
