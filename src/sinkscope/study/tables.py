"""The tables of a study, from its records alone. No model; the same records give the same tables, bit for bit.

results        one row per model, task, decoding and policy: n, accuracy, interval, differences, control, settings
records        one row per answer
likelihood     the same as results for texts that were read: nats per token
passages       one row per text that was read
skills         the battery: one row per model, policy, skill and difficulty; and per skill, where the difficulty is empty
skill_losses   what a policy costs each skill beyond its control, at equal unmasked accuracy; see `study.skills`
sinks          `sinkscope.summary` of each set of traces
depth          sinks by layer
thresholds     `sinkscope.summary` of the traces without a policy by several thresholds ε and rules
sensitivity    the verdicts on traces by each of these: one row for each claim, set of traces, ε and rule
diagnosis      the verdicts on each model (`ss.diagnose`); claims: those on the paper's claims; needs: whether the model needs
               each head's strongest sink, with the shares of attention and of the strongest sinks that its mask took
KIND_records   one row per answer under an extra of this kind (`sinkscope.base.extras`)
agreement      one row per comparison of a run under an extra with the exact one
replay         the changes by a policy at single steps of a run that was made without it
inspection     measures of the inside at sinks and at their controls
holdings       the verdicts that follow from them
pairs          the changes between traces without and with a policy
calibration    confidence against right tokens in such pairs, by tenths of confidence
replicates     models of one group (the same training, other seeds): means over models, with intervals over models
left_out       where a model did a task too badly to be asked under other policies
not_graded     evaluations whose answers could not be graded on this machine

Plug-ins add theirs (`plugged`).
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from sinkscope.base.errors import InputError
from sinkscope.base.files import write_atomically
from sinkscope.base.masked import MASK, Masked
from sinkscope.base.text import csv_text
from sinkscope.inspection.survey import probe_names, survey_table
from sinkscope.sinks import calibration, compare_traces, mechanisms, merge, summary
from sinkscope.sinks.calibration import by_thirds
from sinkscope.sinks.depth import depth_table
from sinkscope.sinks.summary_table import settings_table
from sinkscope.statistics import mean_interval
from sinkscope.study.cells import Cell
from sinkscope.study.comparison import compare_runs, holm_over
from sinkscope.study.measured import Studied, collect, diagnoses, needs, studied
from sinkscope.study.names import pooled
from sinkscope.study.plugged import PLUGINS
from sinkscope.study.skills import skill_tables
from sinkscope.study.store import Store, load_part, load_statistics
from sinkscope.tasks.evaluation import Evaluation, record_of, settings_of
from sinkscope.tasks.registry import guessed
from sinkscope.tasks.task import ACCURACY, NATS
from sinkscope.trace.trace import Trace
from sinkscope.verdicts import UNKNOWN, Measure, wording
from sinkscope.verdicts.holdings import measures_of
from sinkscope.verdicts.questions import held, judge, sensitivity

Frames = Mapping[str, pd.DataFrame]
Evaluated = list[tuple[Cell, Evaluation]]
LEAST_MODELS = 3
"""Models from which on there is an interval; with fewer nothing is concluded."""
REPLICATED = (NATS, ACCURACY, "difference", "effect_count", "effect_mass", *MASK)
"""Columns of `likelihood` and `results`; see there."""
TAKEN = Masked.REMOVED, Masked.STRONGEST
"""What the table `needs` says about its mask."""
NOT_CONFINED = "model-written programs cannot be confined on this machine"


def build(store: Store, cells: Sequence[Cell]) -> dict[str, pd.DataFrame]:
    """All tables of a finished study; cells that are not graded have no accuracy and are left out of `results`."""
    ungraded = not_graded(store, cells)
    left_out = {row["cell"] for row in ungraded}
    evaluated = [
        (cell, evaluation(store, cell)) for cell in cells if cell.kind == "evaluate" and cell.id not in left_out
    ]
    exact = [cell for cell in cells if cell.exact]
    frames: dict[str, pd.DataFrame] = {}
    for measure, table, rows in ((ACCURACY, "results", "records"), (NATS, "likelihood", "passages")):
        measured = [(cell, told) for cell, told in evaluated if cell.exact and told.measure == measure]
        frames |= {table: results(measured), rows: records(measured)} if measured else {}
    frames |= under_extras(store, cells, evaluated)
    frames |= skill_tables(frames["records"]) if "records" in frames else {}
    for kind, make in (("trace", traced), ("replay", replay), ("inspect", inspection), ("trace", pairs)):
        chosen = [cell for cell in cells if cell.kind == kind and (cell.exact or make is traced)]
        frames |= make(store, chosen) if chosen else {}
    frames |= plugged(store, cells, frames) | verdicts(frames, studied(exact))
    groups = {cell.model.name: cell.model.group for cell in cells if cell.model.group}
    frames["replicates"] = replicates(groups, frames)
    frames |= {"not_graded": pd.DataFrame(ungraded), "left_out": pd.DataFrame(under_floor(store, cells))}
    return {name: frame for name, frame in frames.items() if len(frame)}


def grades_of(store: Store, cell: Cell) -> list[bool | None]:
    """For each answer of a cell, in order, whether it is right; None: it has no grade."""
    return [None if grade is None else grade.passed for _, grade in store.answers(cell.id).values()]


def not_graded(store: Store, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The evaluations with answers that have no grade."""
    evaluated = [cell for cell in cells if cell.kind == "evaluate"]
    return [
        {
            "cell": cell.id, "title": cell.title, "model": cell.model.name, "task": cell.task, "policy": cell.policy,
            "answers": count, "why": NOT_CONFINED,
        }
        for cell in evaluated
        if (count := grades_of(store, cell).count(None))
    ]  # fmt: skip


def under_floor(store: Store, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Where a model does a task too badly for other policies to be asked: its accuracy without one, and the section's floor."""
    asked = [cell for cell in cells if cell.floor and cell.policy == "none" and cell.kind == "evaluate"]
    rows = []
    for cell in asked:
        answers = store.answers(cell.id)
        right = [grade.passed for _, grade in answers.values() if grade is not None]
        guess = guessed(cell.task, (document for document, _ in answers))
        floor = guess + cell.floor * (1 - guess)
        if len(right) == cell.answers and sum(right) < floor * len(right):
            row = {"model": cell.model.name, "task": cell.task, "n": len(right)}
            rows.append(row | {"accuracy": sum(right) / len(right), "floor": floor})
    return rows


def verdicts(frames: Frames, models: Mapping[str, Studied]) -> dict[str, pd.DataFrame]:
    """`diagnosis`, `needs`, `claims` and `sensitivity`: a row for each verdict, which the first three also have whole."""
    measured = collect(frames, models)
    judged = {
        "diagnosis": [verdict for of_model in diagnoses(measured).values() for verdict in of_model],
        "needs": list(needs(measured).values()),
        "claims": [one for row in judge(measured).values() for of_model in row.values() for one in of_model],
    }
    rows = {name: list(map(wording.stored, told)) for name, told in judged.items()}
    rows["needs"] = [
        row | {share.name.lower(): (verdict.number(Measure[share.name]) or UNKNOWN).value for share in TAKEN}
        for row, verdict in zip(rows["needs"], judged["needs"], strict=True)
    ]
    rows["sensitivity"] = [
        wording.row(verdict) | {"epsilon": epsilon, "rule": rule} for epsilon, rule, verdict in sensitivity(measured)
    ]
    return {name: pd.DataFrame(told).rename(columns={"subject": "model"}) for name, told in rows.items()}


def plugged(store: Store, cells: Sequence[Cell], frames: Frames) -> dict[str, pd.DataFrame]:
    """The tables that plug-ins make of those of the study."""
    models = {cell.model.name: Path(cell.model.source) for cell in cells}
    extra: dict[str, pd.DataFrame] = {}
    for plugin in PLUGINS.values():
        tables = plugin.build(models, frames, store.refuse_links(store.root / f"{plugin.name}.json"))
        extra |= {name: frame for name, frame in tables.items() if plugin.owns(name)}
    return extra


def evaluation(store: Store, cell: Cell) -> Evaluation:
    """The graded answers of a cell."""
    answers = store.answers(cell.id)
    missing = cell.answers - len(answers)
    if missing > 0:
        raise InputError(f"{cell.title} lacks {missing} of {cell.answers} answers; run the same command again")
    settings = settings_of(store.runs(cell.id)[0])
    rows = (record_of(row, grade, settings) for row, grade in answers.values() if grade is not None)
    return Evaluation(tuple(rows), settings)


def results(evaluated: Evaluated) -> pd.DataFrame:
    """The result table, with settings in every row. Each task and decoding is compared by itself."""
    groups: dict[tuple[str, str], Evaluated] = defaultdict(list)
    for cell, answers in evaluated:
        groups[cell.decoding_name, cell.experiment.settings["task"]["task"]].append((cell, answers))
    rows: list[dict[str, Any]] = []
    for group in groups.values():
        draws: dict[tuple[str, str], list[Cell]] = defaultdict(list)
        for cell, _ in group:
            draws[cell.model.name, pooled(cell.policy)].append(cell)
        for row in compare_runs([answers for _, answers in group]).to_dict("records"):
            used = draws[row["model"], row["policy"]]
            about = used[0].columns() | {"policy": row["policy"], "cell": " ".join(cell.id for cell in used)}
            rows.append(about | {str(name): value for name, value in row.items() if name not in about})
    return holm_over(pd.DataFrame(rows))


def records(evaluated: Evaluated) -> pd.DataFrame:
    """Every answer, with its cell's settings."""
    frames = []
    for cell, answers in evaluated:
        frame = answers.table()
        if answers.measure == NATS:  # nothing was answered, and nothing graded
            frame = frame.drop(columns=["prompt", "output", "extracted", "passed", "reason", "ties", "sandbox"])
        frames.append(with_columns(frame, cell.columns()).dropna(axis=1, how="all"))
    return pd.concat(frames, ignore_index=True)


def under_extras(store: Store, cells: Sequence[Cell], evaluated: Evaluated) -> dict[str, pd.DataFrame]:
    """The answers under each kind of extra, and the comparisons with exact runs; none in a study without any."""
    frames: dict[str, pd.DataFrame] = {}
    for name in dict.fromkeys(name for cell in cells for name in cell.experiment.extras):
        acting = [(cell, answers) for cell, answers in evaluated if name in cell.experiment.extras]
        frames |= {f"{name}_records": records(acting)} if acting else {}
    compared = [
        {**cell.columns(), "n": 1, "document": row.document, "steps": row.steps, "forwards": row.forwards, **row.more}
        for cell in cells
        if cell.kind == "replay" and not cell.exact
        for row in store.generations(cell)
    ]
    return frames | ({"agreement": pd.DataFrame(compared)} if compared else {})


# ---- recordings ----------------------------------------------------------------------------------


def traced(store: Store, cells: Sequence[Cell]) -> dict[str, pd.DataFrame]:
    """`sinks`: `ss.summary` of the traces of each cell; `depth`: sinks by layer; `thresholds`: by several ε and rules."""
    statistics = {}
    for cell in cells:
        files = (store.statistics_file(cell.id, row.index, row.seed) for row in store.generations(cell))
        statistics[cell.id] = merge(list(map(load_statistics, files)), relabel=True)
    makers = (("sinks", summary), ("depth", depth_table), ("thresholds", settings_table))
    return {name: stacked(cells, statistics, make) for name, make in makers}


def stacked(
    cells: Sequence[Cell], statistics: Mapping[str, xr.Dataset], table: Callable[[xr.Dataset], pd.DataFrame]
) -> pd.DataFrame:
    """A table of the statistics of each cell (by its id), one under the other."""
    frames = []
    for cell in cells:
        samples = int(statistics[cell.id].sizes["sample"])
        about = {"traces": cell.group, "samples": samples, **cell.columns()}
        frames.append(with_columns(table(statistics[cell.id]), about))
    return pd.concat(frames, ignore_index=True)


def replay(store: Store, cells: Sequence[Cell]) -> dict[str, pd.DataFrame]:
    """`replay`: means over documents of the changes by a policy, step by step."""
    names = ("kl", "confidence_change", "flipped", "changed", *MASK)
    rows = []
    for cell in cells:
        measures = pd.DataFrame([row.more for row in store.generations(cell)]).reindex(columns=list(names))
        means = measures.astype(float).mean()
        rows.append(cell.columns() | {"n": len(measures)} | means.astype(object).where(means.notna(), None).to_dict())
    return {"replay": pd.DataFrame(rows)}


def inspection(store: Store, cells: Sequence[Cell]) -> dict[str, pd.DataFrame]:
    """`inspection`: the measures of each inspected cell; `holdings`: the verdicts on them."""
    frames: dict[str, list[pd.DataFrame]] = {"inspection": [], "holdings": []}
    for cell in cells:
        rows = store.generations(cell)
        table = survey_table([load_part(store.statistics_file(cell.id, row.index, row.seed)) for row in rows])
        flags = [dict(row.more.get("void") or {}) for row in rows]
        void = {name: why for name, why in flags[0].items() if all(name in flag for flag in flags)}
        frames["inspection"].append(with_columns(table, cell.columns()))
        verdicts = held(measures_of(table, void, cell.model.name), probe_names())
        listed = [wording.stored(verdict) | {"evidence": wording.held(verdict)} for verdict in verdicts]
        frames["holdings"].append(with_columns(pd.DataFrame(listed), cell.columns()))
    return {name: pd.concat(made, ignore_index=True) for name, made in frames.items()}


def pairs(store: Store, cells: Sequence[Cell]) -> dict[str, pd.DataFrame]:
    """`pairs`: the changes between the traces without and with a policy of the same documents; `calibration`."""

    def section(cell: Cell) -> tuple[Any, ...]:
        return (cell.model, cell.task, cell.experiment.decoding, cell.group)

    plain = {section(cell): cell for cell in cells if cell.experiment.policy is None and cell.keep}
    frames: dict[str, list[pd.DataFrame]] = {"pairs": [], "calibration": []}
    for cell in cells:
        base = plain.get(section(cell))
        if cell.experiment.policy is None or base is None or not cell.keep:
            continue
        counts = []
        for row in store.generations(cell):
            files = (store.trace_file(recorded.id, row.index, row.seed) for recorded in (base, cell))
            without, under = map(Trace.open, files)
            compared = compare_traces(without, under, **cell.sinks)
            about = {**cell.columns(), "document": row.document}
            frames["pairs"].append(with_columns(mechanisms(compared), about))
            counts.append(by_thirds(compared))
        whole = calibration(xr.concat(counts, dim="sample"))
        frames["calibration"].append(with_columns(whole, cell.columns()))
    return {name: pd.concat(made, ignore_index=True) for name, made in frames.items() if made}


# ---- over models ---------------------------------------------------------------------------------


def replicates(groups: Mapping[str, str], frames: Frames) -> pd.DataFrame:
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
    setting = ["model", "task", "decoding_name", "policy"]
    tables = [frames[name].assign(table=name) for name in ("likelihood", "results", "sinks") if name in frames]
    if not groups or not tables:
        return pd.DataFrame()
    # A row per measure, as the table of sinks has already.
    long = [
        frame
        if "measure" in frame
        else frame.melt(
            [*setting, "table"], [n for n in REPLICATED if n in frame], var_name="measure", value_name="value"
        )
        for frame in tables
    ]
    every = pd.concat([frame[[*setting, "table", "measure", "value"]] for frame in long], ignore_index=True)
    every = every.assign(group=every["model"].map(groups), value=every["value"].astype(float)).dropna()

    def bound(values: pd.Series, column: int) -> float:
        return mean_interval(values)[column] if len(values) >= LEAST_MODELS else float("nan")

    low, high = (partial(bound, column=column) for column in (1, 2))
    over_models = every.groupby(["group", *setting[1:], "table", "measure"], sort=False)["value"]
    return over_models.agg(models="size", value="mean", low=low, high=high, least="min", most="max").reset_index()


# ---- files ---------------------------------------------------------------------------------------


def write(store: Store, frames: Frames) -> None:
    """Write tables/NAME.parquet and .csv; a table that the study no longer has is removed."""
    folder = store.refuse_links(store.root / "tables")
    for old in folder.glob("*"):
        if old.suffix in (".parquet", ".csv") and old.stem not in frames:
            old.unlink()
    for name, frame in frames.items():
        plain = with_columns(frame, {})
        buffer = io.BytesIO()
        plain.to_parquet(buffer, index=False)
        write_atomically(store.table_file(name), buffer.getvalue())
        write_atomically(folder / f"{name}.csv", csv_text(plain))


def with_columns(frame: pd.DataFrame, columns: Mapping[str, Any]) -> pd.DataFrame:
    """A copy of the table with these columns in front, those that it has already left as they are."""
    frame = frame.copy()
    frame.attrs = {}
    for column, (name, value) in enumerate(columns.items()):
        if name not in frame:
            frame.insert(column, name, value)
    return frame
