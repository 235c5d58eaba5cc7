"""The tables of a study, from its records alone. No model; the same records give the same tables, bit for bit.

results        one row per model, task, decoding and policy: n, accuracy, interval, differences, control, settings
records        one row per answer
likelihood     the same as results for texts that were read: nats per token
passages       one row per text that was read
skills         the battery: one row per model, policy, skill and difficulty; and per skill, where the difficulty is empty
skill_losses   what a policy costs each skill beyond its control, at equal unmasked accuracy; see `study.skills`
sinks          `sinkscope.summary` of each set of traces
depth          sinks by layer
diagnosis      the verdicts on each model, with their evidence
reuse          approximate steps: each rule beside the exact loop and beside as many other keys; see `reuse_table`
reuse_records  one row per answer under a rule
agreement      one row per comparison of a run under a rule with the exact one
replay         the changes by a policy at single steps of a run that was made without it
inspection     measures of the inside at sinks and at their controls
holdings       what follows from them, in sentences
pairs          the changes between traces without and with a policy
ladder         training runs of a sweep (`sinkscope.study.ladder`): damage by objective, size, intervention and scope, over seeds
ladder_runs, ladder_profiles   each run's damage, and its sinks; ladder_sinks: those over seeds
ladder_interventions   each intervention against none; ladder_trends: what changes with size
replicates     models of one group (the same training, other seeds): means over models, with intervals over models
not_graded     evaluations whose answers could not be graded on this machine
evidence       earlier studies of the same models: how much was computed here as well, and is the same
earlier_records, earlier_pairs   their graded answers and pairs of traces; `sinks` and `depth` have their traces in them
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from sinkscope.errors import InputError
from sinkscope.files import write_atomically
from sinkscope.statistics import align, bounded, compare, mean_interval
from sinkscope.study import evidence_check, ladder, trained_runs
from sinkscope.study.cells import Cell
from sinkscope.study.comparison import compare_runs, holm_over
from sinkscope.study.names import pooled
from sinkscope.study.reuse_table import reuse_table
from sinkscope.study.skills import skill_sentences, skill_tables
from sinkscope.study.store import Store
from sinkscope.study.trace_tables import (
    depth,
    diagnosis,
    inspection,
    pairs,
    replay,
    sinks,
    trace_statistics,
    with_columns,
)
from sinkscope.tasks.evaluation import Evaluation, record_of, settings_of
from sinkscope.tasks.task import ACCURACY, NATS
from sinkscope.text import csv_text

LEAST_MODELS = 3
"""Models from which on there is an interval; with fewer nothing is concluded."""
REPLICATED = (
    "nll", "accuracy", "difference", "effect_count", "effect_mass", "hidden_share", "sinks_hit", "strongest_hit", "sink_removed"
)  # fmt: skip
"""Columns of `likelihood` and `results`; see there."""
SETTING = ("task", "decoding_name", "policy")


class NotGraded(NamedTuple):
    """A cell with answers that have no grade."""

    cell: str
    title: str
    model: str
    task: str
    policy: str
    answers: int
    why: str


@dataclass(frozen=True)
class Tables:
    """All tables by name, and sentences that belong beside them."""

    frames: dict[str, pd.DataFrame]
    notes: tuple[str, ...]


Grades = Mapping[str, Sequence[bool | None]]
"""Id of a cell → for each of its answers, in order, whether it is right; None: it has no grade."""


def grades_of(store: Store, cells: Sequence[Cell]) -> dict[str, list[bool | None]]:
    """The grades of each cell."""
    return {
        cell.id: [None if grade is None else grade.passed for _, grade in store.answers(cell.id).values()]
        for cell in cells
    }


def not_graded(cells: Sequence[Cell], grades: Grades) -> tuple[NotGraded, ...]:
    """The evaluations with answers that have no grade."""
    return tuple(
        NotGraded(
            cell.id, cell.title, cell.model.name, cell.task, cell.policy, grades[cell.id].count(None),
            "model-written programs cannot be confined on this machine",
        )
        for cell in cells
        if cell.kind == "evaluate" and None in grades[cell.id]
    )  # fmt: skip


def build(
    store: Store,
    cells: Sequence[Cell],
    ungraded: Sequence[NotGraded] = (),
    known: evidence_check.Known | None = None,
) -> Tables:
    """All tables of a finished study; cells that are not graded have no accuracy and are left out of `results`.

    known: evidence of earlier studies; its traces are merged with those of this study.
    """
    left_out = {entry.cell for entry in ungraded}
    traced = [cell for cell in cells if cell.kind == "trace"]
    replayed = [cell for cell in cells if cell.kind == "replay" and cell.reuse == "none"]
    exact = [cell for cell in cells if cell.reuse == "none"]
    evaluations = {
        cell.id: evaluation(store, cell)
        for cell in cells
        if cell.kind == "evaluate" and cell.id not in left_out
    }
    statistics = {cell.id: trace_statistics(store, cell, known) for cell in traced}
    frames: dict[str, Any] = {}
    notes: list[str] = []
    frames |= approximate(store, cells, evaluations)
    evaluations = {cell.id: evaluations[cell.id] for cell in exact if cell.id in evaluations}
    graded = {name: found for name, found in evaluations.items() if found.measure == ACCURACY}
    read = {name: found for name, found in evaluations.items() if name not in graded}
    for table, rows, own in (("results", "records", graded), ("likelihood", "passages", read)):
        if own:
            frames[table], said = results(exact, own)
            frames[rows] = records(exact, own)
            notes += said
    skilled = skill_tables(exact, graded)
    frames |= skilled
    notes += skill_sentences(skilled)
    if statistics:
        frames["sinks"], frames["depth"] = sinks(traced, statistics), depth(traced, statistics)
    if exact:
        frames["diagnosis"] = diagnosis(exact, graded, statistics)
    if replayed:
        frames["replay"] = replay(store, replayed)
    inspected = [cell for cell in cells if cell.kind == "inspect"]
    if inspected:
        frames["inspection"], frames["holdings"] = inspection(store, inspected)
    changed = pairs(store, [cell for cell in traced if cell.reuse == "none"])
    if changed is not None:
        frames["pairs"] = changed
    frames |= of_runs(store, cells, frames)
    groups = {cell.model.name: cell.model.group for cell in cells if cell.model.group}
    if groups:
        frames["replicates"] = replicates(groups, frames)
    if known is not None:
        frames |= evidence_check.tables(known, cells)
        notes += known.sentences()
    if ungraded:
        frames["not_graded"] = pd.DataFrame(ungraded)
    for task in sorted({entry.task for entry in ungraded}):
        answers = sum(entry.answers for entry in ungraded if entry.task == task)
        why = next(entry.why for entry in ungraded if entry.task == task)
        notes.append(
            f"{task}: {answers} answers are not graded here, because {why}. Grade them with: sinkscope grade {store.root}"
        )
    return Tables({name: frame for name, frame in frames.items() if len(frame)}, tuple(notes))


def of_runs(
    store: Store, cells: Sequence[Cell], frames: Mapping[str, pd.DataFrame]
) -> dict[str, pd.DataFrame]:
    """The tables on training runs, for a study of several: models in folders of their own that have a training.json.

    What those files say is kept in runs.json beside the records, so that the tables can be made again without the models.
    """
    models = {cell.model.name: Path(cell.model.source) for cell in cells}
    runs = trained_runs.known_runs(store.refuse_links(store.root / "runs.json"), models)
    if len(runs) < 2:
        return {}
    names = ("results", "sinks", "skills", "likelihood")
    return ladder.tables(runs, *(frames.get(name) for name in names))


def evaluation(store: Store, cell: Cell) -> Evaluation:
    """The graded answers of a cell."""
    answers = store.answers(cell.id)
    missing = cell.answers - len(answers)
    if missing > 0:
        raise InputError(
            f"{cell.title} lacks {missing} of {cell.answers} answers; run the same command again"
        )
    settings = settings_of(store.runs(cell.id)[0])
    rows = [record_of(row, grade, settings) for row, grade in answers.values() if grade is not None]
    return Evaluation(tuple(rows), settings)


# ---- accuracies ----------------------------------------------------------------------------------


def results(cells: Sequence[Cell], evaluations: dict[str, Evaluation]) -> tuple[pd.DataFrame, list[str]]:
    """The result table, settings in every row, and notes. Each task and decoding is compared by itself."""
    groups: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.id in evaluations:
            groups[cell.decoding_name, cell.identity["task"]["task"]].append(cell)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for group in groups.values():
        table = compare_runs([evaluations[cell.id] for cell in group])
        notes += table.notes
        draws: dict[tuple[str, str], list[Cell]] = defaultdict(list)
        for cell in group:
            draws[cell.model.name, pooled(cell.policy)].append(cell)
        compared = {(str(row["model"]), str(row["policy"])): row for row in table.frame().to_dict("records")}
        controls = {
            (model, row["control_of"]): name
            for (model, name), row in compared.items()
            if row["match"] == "count"
        }
        for (model, policy), row in compared.items():
            used = draws[model, policy]
            about = used[0].columns() | {"policy": policy, "cell": " ".join(cell.id for cell in used)}
            name = controls.get((model, policy), "")
            rows.append(
                about
                | {str(key): value for key, value in row.items() if key not in about}
                | _beside(used[0], compared.get((model, name)), draws.get((model, name), []), evaluations)
            )
    return holm_over(pd.DataFrame(rows)), list(dict.fromkeys(notes))


def _beside(
    cell: Cell,
    beside: Mapping[Any, Any] | None,
    controls: Sequence[Cell],
    evaluations: Mapping[str, Evaluation],
) -> dict[str, Any]:
    """The count-matched control of a row: its accuracy (or nats), the attention it hid, and the paired difference to it."""
    measure = evaluations[cell.id].measure
    if beside is None:
        own = ("control", "control_draws", f"control_{measure}", "control_hidden_share")
        return dict.fromkeys((*own, *bounded("over_control")))
    mean: dict[str, float] = defaultdict(float)
    for draw in controls:
        for document, score in evaluations[draw.id].scores().items():
            mean[document] += score / len(controls)
    pair = align(evaluations[cell.id].scores(), mean, ("the policy", "its control"))
    paired = compare(*pair, shares=measure == ACCURACY)
    return {
        "control": beside["policy"],
        "control_draws": int(beside["draws"]),
        f"control_{measure}": beside[measure],
        "control_hidden_share": beside["hidden_share"],
        **bounded("over_control", paired.difference, *paired.interval),
    }


def records(cells: Sequence[Cell], evaluations: Mapping[str, Evaluation]) -> pd.DataFrame:
    """Every answer, with its cell's settings."""
    frames = []
    for cell in cells:
        if cell.id in evaluations:
            frame = evaluations[cell.id].table()
            if evaluations[cell.id].measure == NATS:  # nothing was answered, and nothing graded
                frame = frame.drop(
                    columns=["prompt", "output", "extracted", "passed", "reason", "ties", "sandbox"]
                )
            frames.append(with_columns(frame, cell.columns()))
    return pd.concat([frame.dropna(axis=1, how="all") for frame in frames], ignore_index=True)


# ---- approximate steps ---------------------------------------------------------------------------


def approximate(
    store: Store, cells: Sequence[Cell], evaluations: Mapping[str, Evaluation]
) -> dict[str, pd.DataFrame]:
    """The tables on reuse rules; none in a study without any."""
    reused = [cell for cell in cells if cell.reuse != "none"]
    if not reused:
        return {}
    agreed = {
        cell.id: [row for row, _ in store.answers(cell.id).values()]
        for cell in reused
        if cell.kind == "replay"
    }
    frames = {"reuse": reuse_table(cells, evaluations, agreed)}
    if any(cell.id in evaluations for cell in reused):
        frames["reuse_records"] = records(reused, evaluations)
    rows = [
        {
            **cell.columns(), "n": 1, "document": row.document, "steps": row.steps, "forwards": row.forwards, **row.more,
        }
        for cell in reused
        for row in agreed.get(cell.id, ())
    ]  # fmt: skip
    if rows:
        frames["agreement"] = pd.DataFrame(rows)
    return frames


# ---- models of one group ---------------------------------------------------------------------------


def replicates(groups: Mapping[str, str], frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """A row for each group, task, decoding, policy and measure.

    The intervals of other tables are over documents, for one model; another training would have other weights, so what is said
    about a training needs these.

    Args:
        groups: model → its group; models without one are left out.
        frames: tables of the study, of which `likelihood`, `results` and `sinks` are read.

    Returns:
        table: which one it comes from. models: how many. value: the mean over models; low, high: Student's 95 % interval over
        models, empty with fewer than LEAST_MODELS; least, most: the smallest and largest model.
    """
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for table in ("likelihood", "results", "sinks"):
        for row in frames[table].to_dict("records") if table in frames else ():
            if not groups.get(row["model"]):
                continue
            key = (table, groups[row["model"]], *(str(row[name]) for name in SETTING))
            long = "measure" in row
            for measure, value in (
                [(row["measure"], row["value"])] if long else ((n, row.get(n)) for n in REPLICATED)
            ):
                if value is not None and value == value:
                    found[(*key, str(measure))].append(float(value))
    rows = []
    for (table, group, *place, measure), values in found.items():
        low, high = mean_interval(values)[1:] if len(values) >= LEAST_MODELS else (float("nan"),) * 2
        rows.append({
            "group": group, **dict(zip(SETTING, place, strict=True)), "table": table, "measure": measure, "models": len(values),
            "value": sum(values) / len(values), "low": float(low), "high": float(high), "least": min(values), "most": max(values),
        })  # fmt: skip
    return pd.DataFrame(rows)


# ---- files ---------------------------------------------------------------------------------------


def write(store: Store, tables: Tables) -> None:
    """Write tables/NAME.parquet and .csv; a table that the study no longer has is removed."""
    folder = store.refuse_links(store.root / "tables")
    for old in folder.glob("*"):
        if old.suffix in (".parquet", ".csv") and old.stem not in tables.frames:
            old.unlink()
    for name, frame in tables.frames.items():
        plain = with_columns(frame, {})
        buffer = io.BytesIO()
        plain.to_parquet(buffer, index=False)
        write_atomically(store.table_file(name), buffer.getvalue())
        write_atomically(folder / f"{name}.csv", csv_text(plain))
