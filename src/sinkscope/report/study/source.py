"""What a report is made from: the folder of a finished study, and nothing else.

Tables, the data behind the figures, the manifest, and the recordings of the exemplars. Nothing is computed again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from sinkscope.errors import InputError
from sinkscope.study import shipped, spec
from sinkscope.study.store import Store

TABLES = ("results", "records", "sinks", "depth", "diagnosis", "replay", "pairs")
Row = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """A finished study.

    Attributes:
        frames: table → DataFrame whose index is the row in the Parquet file.
        manifest: manifest.json, or what will be written there.
    """

    root: Path
    study: spec.Study
    frames: Mapping[str, pd.DataFrame]
    manifest: Mapping[str, Any]

    @property
    def models(self) -> list[str]:
        """Names of the models, in the study's order."""
        return [model.name for model in self.study.models]

    @property
    def families(self) -> dict[str, str]:
        """Model → family."""
        return {name: str(one.get("family", "")) for name, one in self.manifest.get("models", {}).items()}

    @property
    def notes(self) -> list[str]:
        """What must be said beside the tables."""
        return [str(note) for note in self.manifest.get("notes", [])]

    def rows(self, table: str, **wanted: Any) -> Iterator[tuple[int, Row]]:
        """(row number, row) of a table where these columns have these values; none when there is no such table."""
        frame = self.frames.get(table)
        if frame is None:
            return
        for column, value in wanted.items():
            frame = frame[frame[column] == value]
        for at, row in zip(frame.index, frame.to_dict("records"), strict=True):
            yield int(at), {str(name): value for name, value in row.items()}

    def traced(self, model: str) -> list[tuple[int, Row]]:
        """The summary of a model's first set of traces without a policy."""
        return self._first("sinks", model)

    def layers(self, model: str) -> list[tuple[int, Row]]:
        """The layers of the same traces."""
        return self._first("depth", model)

    def _first(self, table: str, model: str) -> list[tuple[int, Row]]:
        found = list(self.rows(table, model=model, policy="none"))
        return [(at, row) for at, row in found if row["cell"] == found[0][1]["cell"]]

    def data(self, stem: str) -> pd.DataFrame | None:
        """The data behind a figure, figures/STEM.csv."""
        path = self.root / "figures" / f"{stem}.csv"
        return pd.read_csv(path) if path.is_file() else None

    @cached_property
    def shipped(self) -> list[shipped.Shipped]:
        """Results that came with the models."""
        known = self.manifest.get("models", {})
        digests = {
            model.source: str(known.get(model.name, {}).get("weights") or "") for model in self.study.models
        }
        return shipped.read([model.source for model in self.study.models], digests)

    @cached_property
    def exemplars(self) -> dict[str, Path]:
        """Model → the recording of its exemplar: the document that was chosen for maps, else the first that was traced."""
        found: dict[str, Path] = {}
        for model, cell in self._traced_cells.items():
            files = sorted((self.root / "traces" / cell).glob("*.zarr.zip"))
            chosen = {path.name for path in self._maps_of(cell)}
            if files:
                found[model] = next((path for path in files if path.name in chosen), files[0])
        return found

    @cached_property
    def maps(self) -> dict[str, Path]:
        """Model → the full maps of its exemplar, where they were recorded."""
        found = {model: self._maps_of(cell) for model, cell in self._traced_cells.items()}
        return {model: paths[0] for model, paths in found.items() if paths}

    @cached_property
    def _cells(self) -> dict[str, dict[str, Any]]:
        return Store(self.root).known_cells()

    @property
    def _traced_cells(self) -> dict[str, str]:
        """Model → the cell of its first set of traces."""
        return {model: str(rows[0][1]["cell"]) for model in self.models if (rows := self.traced(model))}

    def _maps_of(self, cell: str) -> list[Path]:
        return [
            path
            for other, twin in self._cells.items()
            if twin["identity"].get("kind") == "maps" and _block(twin) == _block(self._cells[cell])
            for path in sorted((self.root / "traces" / other).glob("*.zarr.zip"))
        ]


def _block(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the maps of exemplars share with the traces that they were chosen from."""
    identity = cell["identity"]
    return cell.get("group"), *(identity.get(name) for name in ("model", "task", "decoding", "policy"))


def read(folder: Path, manifest: Mapping[str, Any] | None = None) -> Source:
    """The study in a folder; manifest: when manifest.json is not written yet."""
    store = Store(folder)
    study = store.study() if folder.is_dir() else None
    if study is None:
        raise InputError(
            f"{folder} is not the folder of a study: it has no study.toml; run sinkscope study first"
        )
    if manifest is None:
        path = folder / "manifest.json"
        if not path.is_file():
            raise InputError(f"the study in {folder} is not finished: it has no manifest.json; run it again")
        manifest = json.loads(path.read_text(encoding="utf-8"))
    frames = {
        name: pd.read_parquet(path)
        for name in TABLES
        if (path := folder / "tables" / f"{name}.parquet").is_file()
    }
    return Source(folder, study, frames, manifest)
