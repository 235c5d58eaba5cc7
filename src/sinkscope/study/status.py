"""How far a study is, from its folder alone; reads while it runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError
from sinkscope.study.lease import holder, is_held
from sinkscope.study.spec import Study
from sinkscope.study.store import Store


@dataclass(frozen=True)
class CellStatus:
    """One cell: answers there, wanted, and right where they are graded."""

    id: str
    title: str
    model: str
    done: int
    wanted: int
    right: int | None
    working: bool


@dataclass(frozen=True)
class Status:
    """A whole study."""

    root: Path
    study: Study
    cells: tuple[CellStatus, ...]
    running: str  # who runs it, "" for nobody
    idle: float | None  # seconds since the last record
    report: Path | None

    @property
    def done(self) -> int:
        """Answers that are there."""
        return sum(cell.done for cell in self.cells)

    @property
    def wanted(self) -> int:
        """Answers of all cells that are known."""
        return sum(cell.wanted for cell in self.cells)


def read(folder: str | Path) -> Status:
    """The status of the study in a folder."""
    store = Store(Path(folder).resolve())
    study = store.study()
    if study is None:
        raise InputError(f"{folder} is no folder of a study: it has no study.toml (yet)")
    known = sorted(store.known_cells().items(), key=lambda pair: str(pair[1]["title"]))
    cells = [_cell(store, name, data) for name, data in known]
    lease = store.root / "lease"
    who = holder(lease) if is_held(lease) else None
    running = f"process {who.get('pid')} on {who.get('host')}" if who else ""
    changed = [path.stat().st_mtime for path in store.root.glob("cells/*/shards/*/generations.jsonl")]
    report = store.root / "report.html"
    return Status(
        store.root, study, tuple(cells), running, time.time() - max(changed) if changed else None,
        report if report.is_file() else None,
    )  # fmt: skip


def _cell(store: Store, name: str, data: dict[str, Any]) -> CellStatus:
    graded = data["identity"]["kind"] == "evaluate"
    answers = store.answers(name, graded=graded)
    right = sum(grade.passed for _, grade in answers.values() if grade is not None) if graded else None
    leases = store.cell_folder(name).glob("shards/*.lease")
    return CellStatus(
        name, str(data["title"]), str(data["model"]), len(answers), int(data["answers"]), right,
        any(is_held(path) for path in leases),
    )  # fmt: skip
