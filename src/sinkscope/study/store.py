"""The folder of a study.

    study.toml            the study as resolved
    cells/ID/cell.json    what the cell is; ID is the hash of all that can change its result
    cells/ID/shards/A-B/  records of the answers number A to B: a run folder, append-only, one writer (see tasks.records)
    traces/ID/            recorded generations, one file each
    tables/ figures/ report.html manifest.json
    lease                 held by the command that runs the study

Shards may be cut anew at any time: the records of a cell are those of all its shards together.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError
from sinkscope.study import spec
from sinkscope.study.cell import Cell, differences
from sinkscope.study.lease import Lease, is_held
from sinkscope.tasks.records import Generation, Grade, RunFolder

Answer = tuple[Generation, Grade | None]
Key = tuple[str, int]


@dataclass(frozen=True)
class Store:
    """Paths and records of a study's folder. Reading needs no lease."""

    root: Path

    # ---- paths

    @property
    def study_file(self) -> Path:
        """study.toml."""
        return self.root / "study.toml"

    def cell_folder(self, cell_id: str) -> Path:
        """cells/ID."""
        return self.root / "cells" / cell_id

    def shard_folder(self, cell_id: str, start: int, stop: int) -> Path:
        """The run folder of some answers of a cell."""
        return self.cell_folder(cell_id) / "shards" / f"{start:06d}-{stop:06d}"

    def trace_file(self, cell_id: str, place: int, seed: int) -> Path:
        """The recorded generation of a document."""
        return self.root / "traces" / cell_id / f"{place:06d}-{seed}.zarr.zip"

    def analysis_file(self, cell_id: str, place: int, seed: int) -> Path:
        """The partial result of a recorded generation: sums and counts that tables are made from."""
        return self.root / "traces" / cell_id / f"{place:06d}-{seed}.analysis.npz"

    def lease(self) -> Lease:
        """The right to run the study."""
        return Lease(self.root / "lease")

    @property
    def running(self) -> bool:
        """Whether a command seems to be at work on it."""
        return is_held(self.root / "lease")

    # ---- the study

    def study(self) -> spec.Study | None:
        """The study as resolved; None in a new folder."""
        return spec.read(self.study_file) if self.study_file.is_file() else None

    def check_new(self) -> None:
        """Refuses to start a study in a folder that holds something else."""
        if self.root.exists() and not self.root.is_dir():
            raise InputError(f"{self.root} is a file; give a folder with --out")
        if not self.study_file.exists() and self.root.is_dir():
            # What a command that was killed at its start leaves, besides .part files.
            own = ("lease", "slurm", "speed.json")
            names = sorted(path.name for path in self.root.iterdir())
            strange = [name for name in names if name not in own and not name.startswith(".")]
            if strange:
                raise InputError(
                    f"{self.root} is no folder of a study (it has no study.toml) and holds {', '.join(strange[:3])}; "
                    "give another --out"
                )

    def check_study(self, wanted: spec.Study) -> None:
        """Refuses a folder of another study, with the difference named; "auto" agrees with any number."""
        known = self.study()
        if known is None:
            return
        old, new = spec.to_data(known), spec.to_data(wanted)
        for data in (old, new):
            for name in ("budget", "data", "about"):
                data.pop(name)
        for kind in ("evaluate", "trace", "replay"):
            for a, b in zip(old[kind], new[kind], strict=False):
                if b["samples"] == "auto" and isinstance(a["samples"], int):
                    b["samples"] = a["samples"]
            old[kind], new[kind] = ({str(i): one for i, one in enumerate(data[kind])} for data in (old, new))
        for data in (old, new):
            data["models"] = {one["name"]: one for one in data["models"]}
        found = list(differences(old, new))
        if found:
            raise InputError(
                f"{self.root} holds another study: {'; '.join(found[:3])}. Give another --out, or the same study"
            )

    def write_study(self, study: spec.Study) -> None:
        """Writes study.toml, once."""
        write_text(self.study_file, spec.to_toml(study))

    # ---- cells

    def add_cells(self, cells: Sequence[Cell]) -> None:
        """Makes the folders of cells."""
        for cell in cells:
            file = self.cell_folder(cell.id) / "cell.json"
            if not file.exists():
                write_text(file, json.dumps(cell.as_data(), indent=1, sort_keys=True) + "\n")

    def known_cells(self) -> dict[str, dict[str, Any]]:
        """What cell.json says, by id; folders without one were never begun."""
        found = {}
        for file in sorted(self.root.glob("cells/*/cell.json")):
            try:
                found[file.parent.name] = json.loads(file.read_text(encoding="utf-8"))
            except ValueError as error:
                raise InputError(
                    f"{file} is damaged ({error}): restore it from a copy, or remove its folder"
                ) from error
        return found

    def check_foreign(self, cells: Sequence[Cell], second: bool = False) -> None:
        """Refuses results that do not belong to these cells, with the nearest one's difference named.

        Maps of exemplars are cells of a second pass; they are looked at when that pass is planned (`second`).
        """
        wanted = {cell.id: cell for cell in cells}
        for found, data in self.known_cells().items():
            identity = data.get("identity", {})
            if found in wanted:
                if identity != wanted[found].identity:
                    raise InputError(f"cells/{found} is not what its name says; remove it")
                continue
            if (identity.get("kind") == "maps") != second:
                continue
            near = min(
                (list(differences(identity, cell.identity)) for cell in cells),
                key=len,
                default=["it is of no cell here"],
            )
            raise InputError(
                f"{self.root}/cells/{found} ({data.get('title')}) holds foreign results: {'; '.join(near[:3])}. Results are "
                "not mixed: give another --out, or remove that folder"
            )

    # ---- records

    def shard_folders(self, cell_id: str) -> list[Path]:
        """The run folders of a cell that were begun, in order."""
        return sorted(path.parent for path in self.cell_folder(cell_id).glob("shards/*/settings.json"))

    def answers(self, cell: Cell | str, graded: bool = True) -> dict[Key, Answer]:
        """The answers of a cell by (document, seed), in the order of the task.

        An answer counts when it is graded (evaluations; `graded`). Shards that overlap, after a change of their number, must
        agree word for word.
        """
        cell_id = cell if isinstance(cell, str) else cell.id
        found: dict[Key, Answer] = {}
        for folder in self.shard_folders(cell_id):
            run = RunFolder.read(folder)
            grades = {(grade.document, grade.seed): grade for grade in run.grades}
            for row in run.generations:
                key = (row.document, row.seed)
                if graded and key not in grades:
                    continue
                if key in found and found[key][0].output != row.output:
                    raise InputError(
                        f"{folder} and another shard of its cell have different answers to {row.document}: the results "
                        "were mixed; remove one of them"
                    )
                found.setdefault(key, (row, grades.get(key)))
        return dict(sorted(found.items(), key=lambda pair: (pair[1][0].index, pair[0][1])))

    def settings(self, cell_id: str) -> dict[str, Any]:
        """The settings that the records of a cell were made with."""
        for folder in self.shard_folders(cell_id):
            return RunFolder.read(folder).settings
        raise InputError(f"cells/{cell_id} has no records yet")

    def done(self, cells: Sequence[Cell]) -> dict[str, set[Key]]:
        """Cell id → the answers that are there, with their files."""
        return {cell.id: self.done_keys(cell) for cell in cells}

    def done_keys(self, cell: Cell) -> set[Key]:
        """The (document, seed) of a cell that are complete."""
        found = self.answers(cell, graded=cell.kind == "evaluate")
        if cell.kind not in ("trace", "maps"):
            return set(found)
        return {
            key for key, (row, _) in found.items() if self.trace_file(cell.id, row.index, row.seed).is_file()
        }


def write_text(path: Path, text: str) -> None:
    """A file that is either not there or complete."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """A file that is either not there or complete, also after a power cut."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(
            f"cannot write {path} ({error}): make room and run the same command again"
        ) from error
