"""The folder of a finished study: all that a report is made from. Nothing is computed again.

Tables, the manifest, the figures and the data behind them, and the recordings of the exemplars. Which recordings are drawn and
what table 1 prints is chosen here alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from sinkscope.errors import InputError
from sinkscope.files import read_json
from sinkscope.report.study.numbers import missing
from sinkscope.study import shipped, spec
from sinkscope.study.store import CellFile, Store
from sinkscope.text import read_csv

if TYPE_CHECKING:
    from sinkscope.report.study.claims import Judged
    from sinkscope.report.study.evidence import ModelEvidence

TABLES = (
    "results", "records", "sinks", "depth", "diagnosis", "replay", "pairs", "likelihood", "passages", "inspection", "holdings",
    "reuse", "ladder", "ladder_sinks", "ladder_interventions", "evidence", "earlier_records", "earlier_pairs", "skills",
    "skill_losses",
)  # fmt: skip
LEFT_OUT = "left_out.json"
Row = dict[str, Any]


@dataclass(frozen=True)
class StudySource:
    """A finished study.

    Attributes:
        frames: table → DataFrame whose index is the row in the Parquet file.
        manifest: manifest.json.
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
        return {name: str(facts.get("family", "")) for name, facts in self.manifest.get("models", {}).items()}

    @property
    def notes(self) -> list[str]:
        """Remarks that belong beside the tables."""
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

    def groups(self, table: str, *columns: str) -> Iterator[list[tuple[int, Row]]]:
        """The rows of a table that have a model and these columns in common, models in the study's order."""
        for model in self.models:
            found: dict[tuple[Any, ...], list[tuple[int, Row]]] = {}
            for at, row in self.rows(table, model=model):
                found.setdefault(tuple(row[name] for name in columns), []).append((at, row))
            yield from found.values()

    def traced(self, model: str) -> list[tuple[int, Row]]:
        """The summary of a model's first set of traces without a policy."""
        return self._first("sinks", model)

    def layers(self, model: str) -> list[tuple[int, Row]]:
        """The layers of the same traces."""
        return self._first("depth", model)

    def _first(self, table: str, model: str) -> list[tuple[int, Row]]:
        rows = [
            (at, row)
            for at, row in self.rows(table, model=model, policy="none")
            if missing(row.get("reuse"))  # the exact ones
        ]
        return [(at, row) for at, row in rows if row["cell"] == rows[0][1]["cell"]]

    def measures(self, *sections: str) -> dict[str, dict[str, tuple[int, Row]]]:
        """Model → measure → (row number, row) of these sections of its summary; models without any are left out."""
        by_model = {
            model: {
                str(row["measure"]): (at, row) for at, row in self.traced(model) if row["section"] in sections
            }
            for model in self.models
        }
        return {model: rows for model, rows in by_model.items() if rows}

    def figure(self, name: str) -> Path | None:
        """figures/NAME; None where it was not drawn."""
        path = self.root / "figures" / name
        return path if path.is_file() else None

    def data(self, stem: str) -> pd.DataFrame | None:
        """The data behind a figure, figures/STEM.csv."""
        path = self.figure(f"{stem}.csv")
        return None if path is None else read_csv(path)

    @property
    def figures_left_out(self) -> dict[str, str]:
        """Figure → why it could not be drawn."""
        path = self.figure(LEFT_OUT)
        kept: dict[str, str] = (
            {}
            if path is None
            else read_json(path, "remove it, and draw the figures again", kind=Mapping[str, str])
        )
        return kept

    @property
    def accuracies(self) -> pd.DataFrame | None:
        """Rows of table 1: task, policy, model, accuracy, stderr. With several decodings each task names its own."""
        results = self.frames.get("results")
        if results is None:
            return None
        rows = results[["task", "policy", "model", "accuracy", "stderr"]].copy()
        if results["decoding_name"].nunique() > 1:
            rows["task"] = results["task"] + ", " + results["decoding_name"]
        return rows

    @cached_property
    def shipped(self) -> list[shipped.Shipped]:
        """Results that came with the models."""
        known = self.manifest.get("models", {})
        digests = {
            model.source: str(known.get(model.name, {}).get("weights") or "") for model in self.study.models
        }
        return shipped.read([model.source for model in self.study.models], digests)

    @cached_property
    def evidence(self) -> list[ModelEvidence]:
        """What decides on claims."""
        from sinkscope.report.study.evidence import collect

        return collect(self)

    @cached_property
    def judged(self) -> Judged:
        """The judgements on the paper's claims, made once for all sections."""
        from sinkscope.report.study.claims import judge

        return judge(self.evidence)

    @cached_property
    def exemplars(self) -> dict[str, Path]:
        """Model → the recording of its exemplar: the document that was chosen for maps, else the first that was traced."""
        paths: dict[str, Path] = {}
        for model, cell in self._traced_cells.items():
            files = sorted((self.root / "traces" / cell).glob("*.zarr.zip"))
            chosen = {path.name for path in self._maps_of(cell)}
            if files:
                paths[model] = next((path for path in files if path.name in chosen), files[0])
        return paths

    @cached_property
    def maps(self) -> dict[str, Path]:
        """Model → the full maps of its exemplar, where they were recorded."""
        paths = {model: self._maps_of(cell) for model, cell in self._traced_cells.items()}
        return {model: files[0] for model, files in paths.items() if files}

    @cached_property
    def _cells(self) -> dict[str, CellFile]:
        return Store(self.root).known_cells()

    @property
    def _traced_cells(self) -> dict[str, str]:
        """Model → the cell of its first set of traces."""
        return {model: str(rows[0][1]["cell"]) for model in self.models if (rows := self.traced(model))}

    def _maps_of(self, cell: str) -> list[Path]:
        traced = self._cells.get(cell)
        return [
            path
            for other, twin in self._cells.items()
            if traced is not None and twin["identity"]["kind"] == "maps" and _block(twin) == _block(traced)
            for path in sorted((self.root / "traces" / other).glob("*.zarr.zip"))
        ]


def _block(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    """The settings that the maps of exemplars share with the traces that they were chosen from."""
    identity = cell["identity"]
    return cell.get("group"), *(identity.get(name) for name in ("model", "task", "decoding", "policy"))


def read(folder: Path) -> StudySource:
    """The study in a folder."""
    store = Store(folder)
    study = store.study() if folder.is_dir() else None
    if study is None:
        raise InputError(
            f"{folder} is not the folder of a study: it has no study.toml; run sinkscope study first"
        )
    if not store.manifest_file.exists():
        raise InputError(f"the study in {folder} is not finished: it has no manifest.json; run it again")
    return StudySource(folder, study, store.tables(TABLES), store.manifest())
