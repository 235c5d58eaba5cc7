"""The folder of a finished study: all that a report is made from. Nothing is computed again.

Tables, the manifest, and the recordings of the exemplars. Which recordings are drawn is chosen here alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from sinkscope.base.errors import InputError
from sinkscope.base.extras import EXTRAS
from sinkscope.report.figures import in_memory
from sinkscope.study import spec
from sinkscope.study.plugged import PLUGINS
from sinkscope.study.store import CellFile, Store
from sinkscope.verdicts import Verdict
from sinkscope.verdicts.questions import CLAIMS
from sinkscope.verdicts.wording import bounded_below, missing

if TYPE_CHECKING:
    import xarray as xr

    from sinkscope.verdicts.questions import Judged

TABLES = (
    "results", "records", "sinks", "depth", "diagnosis", "needs", "claims", "replay", "pairs", "likelihood", "passages",
    "inspection", "holdings", "skills", "skill_losses", "not_graded", "left_out", "thresholds", "sensitivity",
    "calibration",
)  # fmt: skip
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
    def made(self) -> str:
        """The day of the last call that worked on it."""
        calls = self.manifest.get("calls") or [{}]
        return str(calls[-1].get("when", ""))[:10]

    def rows(self, table: str, **wanted: Any) -> Iterator[tuple[int, Row]]:
        """(row number, row) of a table where these columns have these values, models in the study's order; none without it."""
        frame = self.frames.get(table)
        if frame is None:
            return
        for column, value in wanted.items():
            frame = frame[frame[column] == value]
        if "model" in frame:
            order = {model: place for place, model in enumerate(self.models)}
            frame = frame.sort_values("model", key=lambda models: models.map(order), kind="stable")
        for at, row in zip(frame.index, frame.to_dict("records"), strict=True):
            yield int(at), {str(name): value for name, value in row.items()}

    def groups(self, table: str, *columns: str) -> Iterator[list[tuple[int, Row]]]:
        """The rows of a table that have these columns in common."""
        found: dict[tuple[Any, ...], list[tuple[int, Row]]] = {}
        for at, row in self.rows(table):
            found.setdefault(tuple(row[name] for name in columns), []).append((at, row))
        yield from found.values()

    @property
    def inspected(self) -> dict[str, pd.DataFrame]:
        """What was inspected, the model and where there are several the task, models in the study's order → its measures."""
        frame = self.frames.get("inspection")
        parts = {} if frame is None else dict(iter(frame.groupby(["model", "task"], sort=False)))
        several = len({task for _, task in parts}) > 1
        order = sorted(parts, key=lambda key: self.models.index(str(key[0])))
        return {f"{model} · {task}" if several else str(model): parts[model, task] for model, task in order}

    def traced(self, table: str, model: str) -> list[tuple[int, Row]]:
        """A table on a model's first set of traces without a policy, in exact steps: `sinks`, or by layer `depth`."""
        every = self.rows(table, model=model, policy="none")
        rows = [(at, row) for at, row in every if all(missing(row.get(name)) for name in EXTRAS)]
        return [(at, row) for at, row in rows if row["cell"] == rows[0][1]["cell"]]

    def measures(self, *sections: str) -> dict[str, dict[str, tuple[int, Row]]]:
        """Model → measure → (row number, row) of these sections of its summary; models without any are left out."""
        by_model = {
            model: {
                str(row["measure"]): (at, row) for at, row in self.traced("sinks", model) if row["section"] in sections
            }
            for model in self.models
        }
        return {model: rows for model, rows in by_model.items() if rows}

    @cached_property
    def judged(self) -> Judged:
        """The verdicts on the paper's claims."""
        told: dict[tuple[str, str], list[Verdict]] = {}
        for verdict in verdicts(self.frames, "claims"):
            told.setdefault((verdict.question, verdict.subject), []).append(verdict)
        models = [model for model in self.models if any(model == subject for _, subject in told)]
        return {claim.name: {model: tuple(told.get((claim.name, model), ())) for model in models} for claim in CLAIMS}

    @cached_property
    def diagnoses(self) -> dict[str, dict[str, Verdict]]:
        """Model → question → its verdict."""
        return diagnoses(self.frames)

    @cached_property
    def exemplars(self) -> dict[str, xr.Dataset]:
        """Model → the recording of its exemplar: the document that was chosen for maps, else the first that was traced."""
        found = {}
        for model, cell in self._traced_cells.items():
            files = sorted((self.root / "traces" / cell).glob("*.zarr.zip"))
            chosen = {path.name for path in self._maps_of(cell)}
            if files:
                found[model] = _opened(next((path for path in files if path.name in chosen), files[0]))
        return found

    @cached_property
    def heat_maps(self) -> dict[str, dict[str, Any]]:
        """Model → where its exemplar's attention goes, in the colours of both themes, its steps and its last position."""
        from sinkscope.report.figures.heat_map import heat_table
        from sinkscope.report.figures.look import RAMP, RAMP_DARK
        from sinkscope.report.study.charts import heat

        parts = heat_table(self.exemplars).groupby("trace", sort=False) if self.exemplars else ()
        return {
            str(model): {
                "light": heat(rows, RAMP), "dark": heat(rows, RAMP_DARK), "steps": rows["step"].nunique(),
                "last": int(rows["position"].max()),
            }
            for model, rows in parts
        }  # fmt: skip

    @cached_property
    def maps(self) -> dict[str, xr.Dataset]:
        """Model → the full maps of its exemplar, where they were recorded."""
        paths = {model: self._maps_of(cell) for model, cell in self._traced_cells.items()}
        return {model: _opened(files[0]) for model, files in paths.items() if files}

    @cached_property
    def _cells(self) -> dict[str, CellFile]:
        return Store(self.root).known_cells()

    @property
    def _traced_cells(self) -> dict[str, str]:
        """Model → the cell of its first set of traces."""
        return {model: str(rows[0][1]["cell"]) for model in self.models if (rows := self.traced("sinks", model))}

    def _maps_of(self, cell: str) -> list[Path]:
        traced = self._cells.get(cell)
        return [
            path
            for other, twin in self._cells.items()
            if traced is not None and twin["identity"]["kind"] == "maps" and _block(twin) == _block(traced)
            for path in sorted((self.root / "traces" / other).glob("*.zarr.zip"))
        ]


def verdicts(frames: Mapping[str, pd.DataFrame], table: str) -> list[Verdict]:
    """The verdicts of a table, as the study decided them."""
    texts = frames[table]["verdict"] if table in frames else ()
    return [bounded_below(Verdict.from_json(text)) for text in texts]


def diagnoses(frames: Mapping[str, pd.DataFrame]) -> dict[str, dict[str, Verdict]]:
    """Model → question → its verdict: what `ss.diagnose` says of its traces, and whether it needs its sinks."""
    told: dict[str, dict[str, Verdict]] = {}
    for verdict in (*verdicts(frames, "diagnosis"), *verdicts(frames, "needs")):
        told.setdefault(verdict.subject, {})[verdict.question] = verdict
    return told


def _opened(path: Path) -> xr.Dataset:
    from sinkscope.trace.trace import Trace

    return in_memory(Trace.open(path).dataset)


def _block(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    """The settings that the maps of exemplars share with the traces that they were chosen from."""
    identity = cell["identity"]
    return cell.get("group"), *(identity.get(name) for name in ("model", "task", "decoding", "policy"))


def read(folder: Path) -> StudySource:
    """The study in a folder."""
    store = Store(folder)
    study = store.study() if folder.is_dir() else None
    if study is None:
        raise InputError(f"{folder} is not the folder of a study: it has no study.toml; run sinkscope study first")
    if not store.manifest_file.exists():
        raise InputError(f"the study in {folder} is not finished: it has no manifest.json; run it again")
    manifest = store.manifest()
    plugged = [name for plugin in PLUGINS.values() for name in manifest.get("tables", {}) if plugin.owns(name)]
    return StudySource(folder, study, store.tables((*TABLES, *plugged)), manifest)
