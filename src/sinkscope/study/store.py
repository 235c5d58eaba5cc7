"""The folder of a study.

    study.toml            the study as resolved
    speed.json            the measurement that the number of documents follows from
    models.json           what is known of the models, for machines that have the records but not the models
    cells/ID/cell.json    what the cell is; ID is the hash of all that can change its result
    cells/ID/shards/A-B/  records of some answers of the cell: append-only, one writer (see tasks.records)
    traces/ID/            recorded generations, one file each, and the statistics of each
    tables/ manifest.json what is made of the records; the report adds figures/ and report.html
    lock                  held by the command that runs the study

Shards may be cut anew at any time: the records of a cell are those of all its shards together. Links inside of the folder are
refused: a folder from somebody else must not lead a command to files outside of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from sinkscope.base.errors import CheckpointError, InputError
from sinkscope.base.files import MisfitError, differences, read_json, reading, write_atomically
from sinkscope.study import spec
from sinkscope.study.cells import Cell
from sinkscope.study.facts import Facts, facts_of
from sinkscope.tasks.records import ANSWER_AGAIN, Generation, Grade, Key, RunFolder

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from sinkscope.inspection.survey import Part

Answer = tuple[Generation, Grade | None]

LEFT_BY_A_KILL = ("lock", "lock.holder", "slurm", "speed.json")
"""Files that a command leaves when it is killed at its start, besides .part files."""

ABOUT = "about"
MADE_AGAIN = "it is made of the records, which are safe: remove it, and the same study command makes it again"


class _Identity(TypedDict):
    kind: str


class CellFile(TypedDict):
    """What cell.json holds, besides names for people; see `Cell.as_data`."""

    id: str
    title: str
    model: str
    answers: int
    identity: _Identity


class _KeptFacts(TypedDict):
    asked: Mapping[str, Any]
    facts: Facts


class Manifest(TypedDict, total=False):
    """What is read of manifest.json; see `run`."""

    inputs: str
    models: Mapping[str, Mapping[str, Any]]
    tables: Mapping[str, int]
    digests: Mapping[str, str]
    calls: tuple[Mapping[str, Any], ...]


class Store:
    """Paths and records of a study's folder. Reading needs no lock, and reads a file again only after it has changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.study_file, self.speed_file = root / "study.toml", root / "speed.json"
        self.manifest_file = root / "manifest.json"
        self.models_file = root / "models.json"
        self._runs: dict[Path, tuple[list[tuple[int, int]], RunFolder]] = {}

    # ---- paths

    def table_file(self, name: str) -> Path:
        return self.root / "tables" / f"{name}.parquet"

    def cell_folder(self, cell_id: str) -> Path:
        return self.root / "cells" / cell_id

    def shard_folder(self, cell_id: str, start: int, stop: int) -> Path:
        """The folder of records of some answers of a cell."""
        return self.cell_folder(cell_id) / "shards" / f"{start:06d}-{stop:06d}"

    def trace_file(self, cell_id: str, index: int, seed: int) -> Path:
        """The recorded generation of a document."""
        return self.root / "traces" / cell_id / f"{index:06d}-{seed}.zarr.zip"

    def statistics_file(self, cell_id: str, index: int, seed: int) -> Path:
        """The mergeable statistics of a recorded generation, from which tables are made."""
        return self.root / "traces" / cell_id / f"{index:06d}-{seed}.analysis.npz"

    def complete(self, cell: Cell, index: int, seed: int) -> bool:
        """Whether the file is there that an answer is not complete without; of most kinds the record is all."""
        if cell.kind == "inspect" or not cell.keep:
            return self.statistics_file(cell.id, index, seed).is_file()
        return cell.kind not in ("trace", "maps") or self.trace_file(cell.id, index, seed).is_file()

    def refuse_links(self, path: Path) -> Path:
        """The path, when no part of it below the study's folder is a link."""
        for item in (path, *path.parents):
            if item == self.root:
                break
            if item.is_symlink():
                raise InputError(
                    f"{item} is a link, and links in the folder of a study are not followed; put the real file or folder there"
                )
        return path

    # ---- the study

    def study(self) -> spec.Study | None:
        """The study as resolved, without importing anything that it names; None in a new folder."""
        if not self.study_file.is_file():
            return None
        try:
            return spec.from_data(spec.read_data(self.study_file), str(self.study_file), names=False)
        except InputError as error:
            raise InputError(f"{error}; restore it from a copy: the records beside it are as they were") from error

    def resolved(self, asked: spec.Study) -> spec.Study:
        """The study as asked, with what this folder has fixed: numbers for "auto", and the order of its models.

        Sections and models may be added; results of those that are taken away would be foreign (`check_foreign`).
        """
        stored = self.study()
        if stored is None:
            return asked
        before = {kind: iter(getattr(stored, kind)) for kind in spec.SECTIONS}

        def counted(kind: str, grid: spec.Grid) -> spec.Grid:
            old = next(before[kind], grid)
            return replace(grid, samples=old.samples) if grid.samples == "auto" else grid

        # New ones last: documents may follow the first one's prompts.
        there = [model for model in stored.models if model in asked.models]
        models = (*there, *(model for model in asked.models if model not in there))
        return spec.each_section(asked, counted, models=models)

    def manifest(self) -> dict[str, Any]:
        """manifest.json; empty when there is none yet."""
        if not self.manifest_file.exists():
            return {}
        return dict(read_json(self.manifest_file, MADE_AGAIN, kind=Manifest))

    def tables(self, names: Iterable[str]) -> dict[str, pd.DataFrame]:
        """Those of these tables that are there, which must be as the study wrote them."""
        import pandas as pd

        written, frames = self.manifest().get("digests", {}), {}
        for path in filter(Path.is_file, map(self.table_file, names)):
            with reading(path, MADE_AGAIN):
                if digest_of(path) != written.get(path.stem, digest_of(path)):
                    raise MisfitError("it is not as the study wrote it")
                frames[path.stem] = pd.read_parquet(path)
        return frames

    def check_new(self) -> None:
        """Refuse to start a study in a folder that holds something else."""
        if self.root.exists() and not self.root.is_dir():
            raise InputError(f"{self.root} is a file; give a folder with --out")
        if not self.study_file.exists() and (strange := self.strange()):
            raise InputError(
                f"{self.root} is no folder of a study (it has no study.toml) and holds {', '.join(strange[:3])}; "
                "give another --out"
            )

    def strange(self) -> list[str]:
        """Names in the folder besides those that a command leaves when it is killed at its start."""
        names = sorted(path.name for path in self.root.iterdir()) if self.root.is_dir() else []
        return [name for name in names if name not in LEFT_BY_A_KILL and not name.startswith(".")]

    def write_study(self, study: spec.Study) -> None:
        """Write study.toml: when the study begins, and when models are added."""
        _write_if_other(self.study_file, spec.to_toml(study).encode())

    def facts(self, study: spec.Study, device: str) -> dict[str, Facts]:
        """About each model; of one that is elsewhere, what was known when its answers were computed."""
        before: dict[str, _KeptFacts] = {}
        if self.models_file.is_file():
            file = self.refuse_links(self.models_file)
            before = read_json(file, "restore it from a copy", kind=Mapping[str, _KeptFacts])
        facts = {}
        for model in study.models:
            try:
                facts[model.name] = facts_of(model, device)
            except CheckpointError:
                entry = before.get(model.name)
                if entry is None or entry["asked"] != dataclasses.asdict(model):
                    raise
                facts[model.name] = entry["facts"]
        return facts

    def write_facts(self, study: spec.Study, facts: Mapping[str, Facts]) -> None:
        asked = {model.name: {"asked": model, "facts": facts[model.name]} for model in study.models}
        text = json.dumps(asked, indent=1, default=dataclasses.asdict)
        _write_if_other(self.refuse_links(self.models_file), (text + "\n").encode())

    # ---- cells

    def add_cells(self, cells: Sequence[Cell]) -> None:
        for cell in cells:
            file = self.refuse_links(self.cell_folder(cell.id) / "cell.json")
            if not file.exists():
                write_atomically(file, json.dumps(cell.as_data(), indent=1, sort_keys=True) + "\n")

    def known_cells(self) -> dict[str, CellFile]:
        """The content of every cell.json, by id; folders without one were never begun."""
        cells = {}
        for file in sorted(self.root.glob("cells/*/cell.json")):
            advice = "restore it from a copy, or move its folder away; other cells are as they were"
            cell = read_json(file, advice, kind=CellFile)
            if cell["id"] != file.parent.name:
                raise InputError(f"{file} is of the cell {cell['id']}, not of its folder's name: {advice}")
            cells[file.parent.name] = cell
        return cells

    def check_foreign(self, cells: Sequence[Cell]) -> None:
        """Refuse results that do not belong to these cells, with the difference to the nearest one named."""
        planned = {cell.id: cell for cell in cells}
        for name, data in self.known_cells().items():
            identity = data["identity"]
            if name in planned:
                if identity != planned[name].identity:
                    raise InputError(f"cells/{name} is not what its name says; remove it")
                continue
            every = (list(differences(identity, cell.identity)) for cell in cells)
            near = min(every, key=len, default=["it is of no cell here"])
            raise InputError(
                f"{self.root}/cells/{name} ({data['title']}) holds foreign results: {'; '.join(near[:3])}. Results are "
                "not mixed: give another --out, or remove that folder"
            )

    # ---- records

    def runs(self, cell_id: str) -> list[RunFolder]:
        """The folders of records of a cell that were begun, in order."""
        runs = []
        for file in sorted(self.cell_folder(cell_id).glob("shards/*/settings.json")):
            folder = self.refuse_links(file).parent
            logs = [self.refuse_links(folder / name) for name in ("generations.jsonl", "grades.jsonl")]
            stats = (log.stat() for log in logs if log.exists())
            state = [(stat.st_mtime_ns, stat.st_size) for stat in stats]
            if folder not in self._runs or self._runs[folder][0] != state:
                self._runs[folder] = (state, RunFolder.read(folder))
            runs.append(self._runs[folder][1])
        return runs

    def answers(self, cell_id: str) -> dict[Key, Answer]:
        """The answers of a cell by (document, seed), in the order of the task, each with its grade if it has one.

        Shards that overlap, after a change of their number, must agree word for word.
        """
        answers: dict[Key, Answer] = {}
        for run in self.runs(cell_id):
            grades = {grade.key: grade for grade in run.grades}
            for row in run.generations:
                if row.key in answers and answers[row.key][0].output != row.output:
                    raise InputError(
                        f"{run.path} and another shard of its cell have different answers to {row.document}: the results "
                        "were mixed; remove one of them"
                    )
                if row.key not in answers or answers[row.key][1] is None:
                    answers[row.key] = (row, grades.get(row.key))
        return dict(sorted(answers.items(), key=lambda pair: (pair[1][0].index, pair[0][1])))

    def generations(self, cell: Cell) -> list[Generation]:
        """The answers of a cell without their grades."""
        return [row for row, _ in self.answers(cell.id).values()]

    def answered(self, cell: Cell) -> int:
        """How many answers of a cell are there; recorded ones when their file is there too."""
        answers, documents = self.generations(cell), set(cell.documents)
        for row in answers:
            if row.index not in documents or row.seed not in cell.experiment.seeds:
                raise InputError(
                    f"cells/{cell.id} holds an answer to {row.document} as number {row.index} with seed {row.seed}, which "
                    f"{cell.title} does not ask for: {ANSWER_AGAIN}"
                )
        return sum(self.complete(cell, row.index, row.seed) for row in answers)


def _write_if_other(path: Path, data: bytes) -> None:
    """Write a file whose content is not this already: a finished study that is called again stays as it is."""
    if not (path.is_file() and path.read_bytes() == data):
        write_atomically(path, data)


def digest_of(path: Path) -> str:
    """What tells one content of a table from another."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def statistics_bytes(part: xr.Dataset) -> bytes:
    """Statistics as one .npz: arrays, and a JSON text with dimensions, coordinates and attributes."""
    about = {
        "dims": {str(name): [str(dim) for dim in part[name].dims] for name in part.variables},
        "coords": [str(name) for name in part.coords],
        "attrs": dict(part.attrs),
    }
    arrays = {str(name): np.asarray(part[name].values) for name in part.variables}
    return _npz({**arrays, ABOUT: np.asarray(json.dumps(about))})


def load_statistics(path: Path) -> xr.Dataset:
    """Statistics from `statistics_bytes`."""
    import xarray

    from sinkscope.sinks.sink_statistics import FORMAT

    with reading(path, "remove it and its trace, and run the same command again"):
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(str(file[ABOUT]))
            if about["attrs"]["format"] != FORMAT:
                raise MisfitError("another version of sinkscope wrote it")
            arrays = {name: (tuple(dims), file[name]) for name, dims in about["dims"].items()}
        coords = {name: arrays.pop(name) for name in about["coords"]}
        return xarray.Dataset(arrays, coords=coords, attrs=about["attrs"])


def part_bytes(part: Part) -> bytes:
    """What the inspection of one generation gave as one .npz, of arrays called by their `Name` as a JSON list."""
    return _npz({json.dumps(name, ensure_ascii=False): value for name, value in part.items()})


def _npz(arrays: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def load_part(path: Path) -> Part:
    """What `part_bytes` wrote."""
    from sinkscope.inspection.survey import Name

    with reading(path, "remove it, and run the same command again"), np.load(path, allow_pickle=False) as file:
        return {Name(*json.loads(name)): file[name] for name in file.files}
