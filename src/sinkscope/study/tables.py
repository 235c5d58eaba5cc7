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
ladder_interventions   each intervention against none
not_graded     evaluations whose answers could not be graded on this machine
evidence       earlier studies of the same models: how much was computed here as well, and is the same
earlier_records, earlier_pairs   their graded answers and pairs of traces; `sinks` and `depth` have their traces in them
"""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.files import write_atomically
from sinkscope.inspection.holdings import holdings
from sinkscope.inspection.survey import survey_table
from sinkscope.policies import Window
from sinkscope.sinks import compare_traces, diagnose, mechanisms, merge, summary
from sinkscope.sinks.depth import depth_table
from sinkscope.statistics import align, compare
from sinkscope.study import evidence_check, ladder
from sinkscope.study.cells import Cell
from sinkscope.study.comparison import compare_runs, holm_over, pooled
from sinkscope.study.skills_table import skill_sentences, skill_tables
from sinkscope.study.store import Store, load_part, load_statistics
from sinkscope.tasks.evaluate import Evaluation, record_of
from sinkscope.tasks.task import ACCURACY, NATS, scheme_name
from sinkscope.text import csv_text
from sinkscope.trace.trace import Trace


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
    skilled = skill_tables(exact, graded, {cell.id: _about(cell) for cell in exact})
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
    runs = ladder.known_runs(store.refuse_links(store.root / "runs.json"), models)
    if len(runs) < 2:
        return {}
    return ladder.tables(runs, frames.get("results"), frames.get("sinks"), frames.get("skills"))


def evaluation(store: Store, cell: Cell) -> Evaluation:
    """The graded answers of a cell."""
    answers = store.answers(cell.id)
    missing = cell.answers - len(answers)
    if missing > 0:
        raise InputError(
            f"{cell.title} lacks {missing} of {cell.answers} answers; run the same command again"
        )
    settings = store.settings(cell.id)
    rows = [record_of(row, grade, settings) for row, grade in answers.values() if grade is not None]
    return Evaluation(tuple(rows), settings)


def trace_statistics(store: Store, cell: Cell, known: evidence_check.Known | None = None) -> xr.Dataset:
    """The statistics of all traces of a cell, and of those of earlier studies of other documents."""
    rows = [row for row, _ in store.answers(cell.id).values()]
    parts = [load_statistics(store.statistics_file(cell.id, row.index, row.seed)) for row in rows]
    earlier = None if known is None else known.traces(cell)
    if earlier is not None:
        here = {row.document for row in rows}
        others = [place for place, document in enumerate(earlier.documents) if document not in here]
        name = parts[0].attrs["model"]  # the weights are the same, wherever they lie
        parts += [earlier.statistics.isel(sample=others).assign_attrs(model=name)] if others else []
    return merge(parts, relabel=True).assign_attrs(here=len(rows))


def _about(cell: Cell) -> dict[str, Any]:
    """The settings that every row carries."""
    model = cell.identity["model"]
    return {
        "model": cell.model.name, "family": model["family"], "dtype": model["dtype"], "weights": model["weights"],
        "task": cell.identity["task"]["task"], "task_version": cell.identity["task"].get("version", ""),
        "scheme": scheme_name(cell.identity["task"]), "decoding_name": cell.decoding_name, "decoding": cell.decoding,
        "policy": cell.policy, "seeds": json.dumps(list(cell.seeds)), "cell": cell.id,
        **({} if cell.reuse == "none" else {"reuse": cell.reuse}),
    }  # fmt: skip


def _with_columns(frame: pd.DataFrame, columns: Mapping[str, Any]) -> pd.DataFrame:
    """A copy of the table with these columns in front, those that it has already left as they are."""
    frame = frame.copy()
    frame.attrs = {}
    for place, (name, value) in enumerate(columns.items()):
        if name not in frame:
            frame.insert(place, name, value)
    return frame


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
            about = _about(used[0]) | {"policy": policy, "cell": " ".join(cell.id for cell in used)}
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
    empty = dict.fromkeys(
        ("control", "control_draws", f"control_{measure}", "control_hidden_share", "over_control", "over_control_low",
         "over_control_high")
    )  # fmt: skip
    if beside is None:
        return empty
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
        "over_control": paired.difference,
        "over_control_low": paired.interval.low,
        "over_control_high": paired.interval.high,
    }


def records(cells: Sequence[Cell], evaluations: dict[str, Evaluation]) -> pd.DataFrame:
    """Every answer, with its cell's settings."""
    frames = []
    for cell in cells:
        if cell.id in evaluations:
            frame = evaluations[cell.id].table()
            if evaluations[cell.id].measure == NATS:  # nothing was answered, and nothing graded
                frame = frame.drop(
                    columns=["prompt", "output", "extracted", "passed", "reason", "ties", "sandbox"]
                )
            frames.append(_with_columns(frame, _about(cell)))
    return pd.concat([frame.dropna(axis=1, how="all") for frame in frames], ignore_index=True)


# ---- approximate steps ---------------------------------------------------------------------------


def approximate(
    store: Store, cells: Sequence[Cell], evaluations: Mapping[str, Evaluation]
) -> dict[str, pd.DataFrame]:
    """The tables on reuse rules; none in a study without any."""
    import pandas as pd

    from sinkscope.study.reuse_table import reuse_table

    reused = [cell for cell in cells if cell.reuse != "none"]
    graded = {
        cell.id: evaluations[cell.id] for cell in cells if cell.kind == "evaluate" and cell.id in evaluations
    }
    agreed = {
        cell.id: [row for row, _ in store.answers(cell.id).values()]
        for cell in reused
        if cell.kind == "replay"
    }
    if not reused:
        return {}
    about = {cell.id: _about(cell) for cell in cells}
    frames = {"reuse": reuse_table(cells, graded, agreed, about)}
    answered = {cell.id: graded[cell.id] for cell in reused if cell.id in graded}
    if answered:
        frames["reuse_records"] = records(reused, dict(answered))
    rows = [
        {
            **about[cell.id],
            "n": 1,
            "document": row.document,
            "steps": row.steps,
            "forwards": row.forwards,
            **row.more,
        }
        for cell in reused
        for row in agreed.get(cell.id, ())
    ]
    if rows:
        frames["agreement"] = pd.DataFrame(rows)
    return frames


# ---- traces --------------------------------------------------------------------------------------


def sinks(cells: Sequence[Cell], statistics: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """`ss.summary` of the traces of each cell."""
    return _stacked(cells, statistics, summary)


def depth(cells: Sequence[Cell], statistics: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """Sinks by layer, over the traces of each cell."""
    return _stacked(cells, statistics, depth_table)


def _stacked(
    cells: Sequence[Cell],
    statistics: Mapping[str, xr.Dataset],
    table: Callable[[xr.Dataset], pd.DataFrame],
) -> pd.DataFrame:
    frames = []
    for cell in cells:
        samples = int(statistics[cell.id].sizes["sample"])
        here = statistics[cell.id].attrs.get("here", samples)
        about = {"traces": cell.group, "samples": samples, "here": here, **_about(cell)}
        frames.append(_with_columns(table(statistics[cell.id]), about))
    return pd.concat(frames, ignore_index=True)


def diagnosis(
    cells: Sequence[Cell], evaluations: Mapping[str, Evaluation], statistics: Mapping[str, xr.Dataset]
) -> pd.DataFrame:
    """The verdicts on each model, from its unmasked traces and its accuracies on the first task of the study."""
    frames = []
    for model in dict.fromkeys(cell.model.name for cell in cells):
        mine = [cell for cell in cells if cell.model.name == model]
        traced = [statistics[cell.id] for cell in mine if cell.id in statistics and cell.policy == "none"]
        graded = [cell for cell in mine if cell.id in evaluations]
        scores = {
            cell.policy: evaluations[cell.id]
            for cell in graded
            if (cell.task, cell.decoding) == (graded[0].task, graded[0].decoding)
        }
        policies = [cell.parsed_policy() for cell in graded if cell.policy in scores]
        windows = [
            policy for policy in policies if isinstance(policy, Window) and policy == Window(policy.width)
        ]
        verdict = diagnose(
            traced[:1] or None,
            unmasked=scores.get("none"),
            top1=scores.get("top:1"),
            random1=scores.get("random(top:1)"),
            window=scores.get(str(windows[0])) if windows else None,
            window_first=scores.get(str(replace(windows[0], first=4))) if windows else None,
        )
        frames.append(_with_columns(verdict.table, {"model": model}))
    return pd.concat(frames, ignore_index=True)


def replay(store: Store, cells: Sequence[Cell]) -> pd.DataFrame:
    """Means over documents of the changes by a policy, step by step."""
    rows = []
    for cell in cells:
        answers = [row for row, _ in store.answers(cell.id).values()]
        means: dict[str, Any] = {**_about(cell), "n": len(answers)}
        for name in ("kl", "confidence_change", "flipped", "changed", "hidden_share", "sinks_hit"):
            values = [row.more[name] for row in answers if row.more.get(name) is not None]
            means[name] = sum(values) / len(values) if values else None
        rows.append(means)
    return pd.DataFrame(rows)


def inspection(store: Store, cells: Sequence[Cell]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The measures of each inspected cell, and the answers of the rules over them."""
    measures, answers = [], []
    for cell in cells:
        rows = [row for row, _ in store.answers(cell.id).values()]
        table = survey_table([load_part(store.statistics_file(cell.id, row.index, row.seed)) for row in rows])
        flags = [dict(row.more.get("void") or {}) for row in rows]
        void = {name: why for name, why in flags[0].items() if all(name in flag for flag in flags)}
        measures.append(_with_columns(table, _about(cell)))
        answers.append(_with_columns(pd.DataFrame(holdings(table, void)), _about(cell)))
    return pd.concat(measures, ignore_index=True), pd.concat(answers, ignore_index=True)


def pairs(store: Store, cells: Sequence[Cell]) -> pd.DataFrame | None:
    """The changes between the traces without and with a policy of the same documents."""

    def block(cell: Cell) -> tuple[Any, ...]:
        return (cell.model, cell.task, cell.decoding, cell.group)

    plain = {block(cell): cell for cell in cells if cell.policy == "none"}
    frames = []
    for cell in cells:
        base = plain.get(block(cell))
        if cell.policy == "none" or base is None:
            continue
        for row, _ in store.answers(cell.id).values():
            without, under = (
                Trace.open(store.trace_file(recorded.id, row.index, row.seed)) for recorded in (base, cell)
            )
            changes = mechanisms(compare_traces(without, under))
            frames.append(_with_columns(changes, {**_about(cell), "document": row.document}))
    return pd.concat(frames, ignore_index=True) if frames else None


# ---- files ---------------------------------------------------------------------------------------


def write(store: Store, tables: Tables) -> None:
    """Write tables/NAME.parquet and .csv; a table that the study no longer has is removed."""
    folder = store.refuse_links(store.root / "tables")
    for old in folder.glob("*"):
        if old.suffix in (".parquet", ".csv") and old.stem not in tables.frames:
            old.unlink()
    for name, frame in tables.frames.items():
        plain = _with_columns(frame, {})
        buffer = io.BytesIO()
        plain.to_parquet(buffer, index=False)
        write_atomically(store.table_file(name), buffer.getvalue())
        write_atomically(folder / f"{name}.csv", csv_text(plain))
