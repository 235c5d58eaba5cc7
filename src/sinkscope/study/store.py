"""The folder of a study.

    study.toml            the study as resolved
    speed.json            the measurement that the number of documents follows from
    models.json           what is known of models that are folders, for machines that have the records but not the models
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
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkscope.errors import InputError
from sinkscope.files import differences, write_atomically
from sinkscope.locks import Lock
from sinkscope.study import spec
from sinkscope.study.cells import Cell
from sinkscope.study.facts import Facts, is_folder
from sinkscope.tasks.records import Generation, Grade, RunFolder

if TYPE_CHECKING:
    import xarray as xr

Answer = tuple[Generation, Grade | None]
Key = tuple[str, int]
"""A document's id and a seed."""

LEFT_BY_A_KILL = ("lock", "lock.holder", "slurm", "speed.json")
"""Files that a command leaves when it is killed at its start, besides .part files."""

ABOUT = "about"


class Store:
    """Paths and records of a study's folder. Reading needs no lock, and reads a file again only after it has changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.study_file, self.speed_file = root / "study.toml", root / "speed.json"
        self.manifest_file = root / "manifest.json"
        self.models_file = root / "models.json"
        self._runs: dict[Path, tuple[tuple[int, ...], RunFolder]] = {}

    # ---- paths

    def table_file(self, name: str) -> Path:
        """tables/NAME.parquet."""
        return self.root / "tables" / f"{name}.parquet"

    def cell_folder(self, cell_id: str) -> Path:
        """cells/ID."""
        return self.root / "cells" / cell_id

    def shard_folder(self, cell_id: str, start: int, stop: int) -> Path:
        """The folder of records of some answers of a cell."""
        return self.cell_folder(cell_id) / "shards" / f"{start:06d}-{stop:06d}"

    def trace_file(self, cell_id: str, place: int, seed: int) -> Path:
        """The recorded generation of a document."""
        return self.root / "traces" / cell_id / f"{place:06d}-{seed}.zarr.zip"

    def statistics_file(self, cell_id: str, place: int, seed: int) -> Path:
        """The mergeable statistics of a recorded generation, from which tables are made."""
        return self.root / "traces" / cell_id / f"{place:06d}-{seed}.analysis.npz"

    def result_file(self, cell: Cell, place: int, seed: int) -> Path | None:
        """The file that an answer is not complete without; None: its record is all."""
        if cell.kind == "inspect" or not cell.keep:
            return self.statistics_file(cell.id, place, seed)
        return self.trace_file(cell.id, place, seed) if cell.kind in ("trace", "maps") else None

    def lock(self) -> Lock:
        """The right to run the study."""
        return Lock(self.root / "lock")

    def refuse_links(self, path: Path) -> Path:
        """The path, when no part of it below the study's folder is a link."""
        for part in (path, *path.parents):
            if part == self.root:
                break
            if part.is_symlink():
                raise InputError(
                    f"{part} is a link, and links in the folder of a study are not followed; put the real file or folder there"
                )
        return path

    # ---- the study

    def study(self) -> spec.Study | None:
        """The study as resolved, without importing anything that it names; None in a new folder."""
        if not self.study_file.is_file():
            return None
        return spec.from_data(spec.read_data(self.study_file), str(self.study_file), names=False)

    def resolved(self, asked: spec.Study) -> spec.Study:
        """The study of this folder, with the data files, modules and evidence of this call; the given one in a new folder."""
        known = self.study()
        if known is None:
            return asked
        changed: dict[str, Any] = {name: getattr(asked, name) for name in spec.OF_THE_CALL}
        names = {model.name for model in known.models}
        if names <= {
            model.name for model in asked.models
        }:  # new ones last: documents may follow the first one's prompts
            changed["models"] = (*known.models, *(model for model in asked.models if model.name not in names))
        return replace(known, **changed)

    def manifest(self) -> dict[str, Any]:
        """manifest.json; empty when there is none yet."""
        try:
            data = json.loads(self.manifest_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

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

    def check_study(self, wanted: spec.Study) -> None:
        """Refuse a folder of another study, with the difference named; "auto" agrees with any number, and no draw with any.

        Models may be added: no result depends on those that are added.
        """
        known = self.study()
        if known is None:
            return
        old, new = spec.to_data(known), spec.to_data(wanted)
        for kind in spec.BLOCKS:
            for known_block, new_block in zip(old[kind], new[kind], strict=False):
                if new_block["samples"] == "auto" and isinstance(known_block["samples"], int):
                    new_block["samples"] = known_block["samples"]
                new_block["drawn"] = new_block["drawn"] or known_block["drawn"]
        for data in (old, new):
            for name in spec.NOT_IN_RECORDS:
                data.pop(name)
            for kind in spec.BLOCKS:
                data[kind] = {str(number): block for number, block in enumerate(data[kind])}
            data["models"] = {model["name"]: model for model in data["models"]}
        new["models"] = {name: new["models"][name] for name in old["models"] if name in new["models"]}
        different = list(differences(old, new))
        if different:
            raise InputError(
                f"{self.root} holds another study: {'; '.join(different[:3])}. Give another --out, or the same study"
            )

    def write_study(self, study: spec.Study) -> None:
        """Write study.toml: when the study begins, and when models are added."""
        _write_if_other(self.study_file, spec.to_toml(study).encode())

    def facts(self, model: spec.StudyModel) -> Facts | None:
        """What an earlier call knew of a model that is a folder; None: nothing, or under other settings."""
        if not self.models_file.is_file():
            return None
        self.refuse_links(self.models_file)
        try:
            known = json.loads(self.models_file.read_text(encoding="utf-8")).get(model.name)
            if known is None or known["asked"] != dataclasses.asdict(model):
                return None
            return Facts(**known["facts"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(f"{self.models_file} is damaged ({error}): restore it from a copy") from error

    def write_facts(self, study: spec.Study, facts: Mapping[str, Facts]) -> None:
        """Keep what is known of models that are folders here; of folders that are elsewhere, what was known stays."""
        known = {
            model.name: {"asked": dataclasses.asdict(model), "facts": dataclasses.asdict(facts[model.name])}
            for model in study.models
            if is_folder(model) or self.facts(model) is not None
        }
        if known:
            text = json.dumps(known, indent=1) + "\n"
            _write_if_other(self.refuse_links(self.models_file), text.encode())

    # ---- cells

    def add_cells(self, cells: Sequence[Cell]) -> None:
        """Make the folders of cells."""
        for cell in cells:
            file = self.refuse_links(self.cell_folder(cell.id) / "cell.json")
            if not file.exists():
                write_atomically(file, json.dumps(cell.as_data(), indent=1, sort_keys=True) + "\n")

    def known_cells(self) -> dict[str, dict[str, Any]]:
        """The content of every cell.json, by id; folders without one were never begun."""
        cells = {}
        for file in sorted(self.root.glob("cells/*/cell.json")):
            try:
                cells[file.parent.name] = json.loads(file.read_text(encoding="utf-8"))
            except (ValueError, RecursionError) as error:
                raise InputError(
                    f"{file} is damaged ({error}): restore it from a copy, or remove its folder"
                ) from error
        return cells

    def check_foreign(self, cells: Sequence[Cell], second: bool = False) -> None:
        """Refuse results that do not belong to these cells, with the difference to the nearest one named.

        Maps of exemplars are cells of a second pass; they are looked at when that pass is planned (`second`).
        """
        wanted = {cell.id: cell for cell in cells}
        for known, data in self.known_cells().items():
            identity = data.get("identity", {})
            if known in wanted:
                if identity != wanted[known].identity:
                    raise InputError(f"cells/{known} is not what its name says; remove it")
                continue
            if (identity.get("kind") == "maps") != second:
                continue
            every = (list(differences(identity, cell.identity)) for cell in cells)
            near = min(every, key=len, default=["it is of no cell here"])
            raise InputError(
                f"{self.root}/cells/{known} ({data.get('title')}) holds foreign results: {'; '.join(near[:3])}. Results are "
                "not mixed: give another --out, or remove that folder"
            )

    # ---- records

    def runs(self, cell_id: str) -> list[RunFolder]:
        """The folders of records of a cell that were begun, in order."""
        runs = []
        for file in sorted(self.cell_folder(cell_id).glob("shards/*/settings.json")):
            folder = file.parent
            logs = [folder / "generations.jsonl", folder / "grades.jsonl"]
            for path in (file, *logs):
                self.refuse_links(path)
            stats = [log.stat() for log in logs if log.exists()]
            signature = tuple(number for stat in stats for number in (stat.st_mtime_ns, stat.st_size))
            if folder not in self._runs or self._runs[folder][0] != signature:
                self._runs[folder] = (signature, RunFolder.read(folder))
            runs.append(self._runs[folder][1])
        return runs

    def answers(self, cell_id: str) -> dict[Key, Answer]:
        """The answers of a cell by (document, seed), in the order of the task, each with its grade if it has one.

        Shards that overlap, after a change of their number, must agree word for word.
        """
        answers: dict[Key, Answer] = {}
        for run in self.runs(cell_id):
            grades = {(grade.document, grade.seed): grade for grade in run.grades}
            for row in run.generations:
                key = (row.document, row.seed)
                if key in answers and answers[key][0].output != row.output:
                    raise InputError(
                        f"{run.path} and another shard of its cell have different answers to {row.document}: the results "
                        "were mixed; remove one of them"
                    )
                if key not in answers or answers[key][1] is None:
                    answers[key] = (row, grades.get(key))
        return dict(sorted(answers.items(), key=lambda pair: (pair[1][0].index, pair[0][1])))

    def settings(self, cell_id: str) -> dict[str, Any]:
        """The settings that the records of a cell were made with."""
        for run in self.runs(cell_id):
            return run.settings
        raise InputError(f"cells/{cell_id} has no records yet")

    def answered(self, cell: Cell) -> set[int]:
        """The answers of a cell that are there, by their number in `cell.items`; recorded ones when their file is there too."""
        places = {place: number for number, place in enumerate(cell.documents)}
        seeds = {seed: number for number, seed in enumerate(cell.seeds)}
        return {
            places[row.index] * len(seeds) + seeds[row.seed]
            for row, _ in self.answers(cell.id).values()
            if row.index in places and row.seed in seeds
            if (file := self.result_file(cell, row.index, row.seed)) is None or file.is_file()
        }


def _write_if_other(path: Path, data: bytes) -> None:
    """Write a file whose content is not this already: a finished study that is called again stays as it is."""
    if not (path.is_file() and path.read_bytes() == data):
        write_atomically(path, data)


def statistics_bytes(part: xr.Dataset, compressed: bool = True) -> bytes:
    """Statistics as one .npz: arrays, and a JSON text with dimensions, coordinates and attributes."""
    about = {
        "dims": {str(name): [str(dim) for dim in part[name].dims] for name in part.variables},
        "coords": [str(name) for name in part.coords],
        "attrs": dict(part.attrs),
    }
    arrays: dict[str, Any] = {str(name): np.asarray(part[name].values) for name in part.variables}
    arrays[ABOUT] = np.asarray(json.dumps(about))
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)
    return buffer.getvalue()


def load_statistics(path: Path | io.BytesIO) -> xr.Dataset:
    """Statistics from `statistics_bytes`."""
    import xarray

    try:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(str(file[ABOUT]))
            arrays = {name: (tuple(dims), file[name]) for name, dims in about["dims"].items()}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} is damaged ({error}); remove it and its trace, and run the same command again"
        ) from error
    coords = {name: arrays.pop(name) for name in about["coords"]}
    return xarray.Dataset(arrays, coords=coords, attrs=about["attrs"])


def save_part(part: dict[str, Any], path: Path) -> None:
    """Write what the inspection of one generation gave (see inspection.survey) as one .npz."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{name.replace("/", "|"): value for name, value in part.items()})
    write_atomically(path, buffer.getvalue())


def load_part(path: Path) -> dict[str, Any]:
    """Read what `save_part` wrote."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name.replace("|", "/"): file[name] for name in file.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is damaged ({error}); remove it, and run the same command again") from error
