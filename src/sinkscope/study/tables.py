"""The tables of a study, from records and partial results alone. No model; the same records give the same tables, bit for bit.

results        one row per model, task, decoding and policy: n, accuracy, interval, differences, control, settings
records        one row per answer
sinks          what `sinkscope.summary` says about each set of traces
depth          sinks by layer
diagnosis      the verdicts on each model, with their evidence
replay         what a policy changes at single steps of a run that was made without it
pairs          what changed between traces without and with a policy
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sinkscope.errors import InputError
from sinkscope.study.cell import Cell
from sinkscope.study.store import Store
from sinkscope.tasks.evaluate import Evaluation, record_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from sinkscope.study.comparison import Table

ORDER = ("model", "task", "decoding_name", "policy")


@dataclass(frozen=True)
class Tables:
    """All tables by name, and what must be said beside them."""

    frames: dict[str, pd.DataFrame]
    notes: tuple[str, ...]


def build(store: Store, cells: Sequence[Cell]) -> Tables:
    """All tables of a finished study."""
    evaluations = {cell.id: evaluation(store, cell) for cell in cells if cell.kind == "evaluate"}
    parts = {cell.id: partials(store, cell) for cell in cells if cell.kind == "trace"}
    frames: dict[str, Any] = {}
    notes: list[str] = []
    if evaluations:
        frames["results"], notes = results(cells, evaluations)
        frames["records"] = records(cells, evaluations)
    if parts:
        frames["sinks"], frames["depth"] = sinks(cells, parts), depth(cells, parts)
    frames["diagnosis"] = diagnosis(cells, evaluations, parts)
    replays = [cell for cell in cells if cell.kind == "replay"]
    if replays:
        frames["replay"] = replay(store, replays)
    changed = pairs(store, [cell for cell in cells if cell.kind == "trace"])
    if changed is not None:
        frames["pairs"] = changed
    return Tables({name: frame for name, frame in frames.items() if len(frame)}, tuple(notes))


def evaluation(store: Store, cell: Cell) -> Evaluation:
    """The graded answers of a cell."""
    answers = store.answers(cell)
    missing = cell.answers - len(answers)
    if missing > 0:
        raise InputError(
            f"{cell.title} lacks {missing} of {cell.answers} answers; run the same command again"
        )
    settings = store.settings(cell.id)
    rows = [record_of(row, grade, settings) for row, grade in answers.values() if grade is not None]
    return Evaluation(tuple(rows), settings)


def partials(store: Store, cell: Cell) -> xr.Dataset:
    """The analysis of all traces of a cell."""
    from sinkscope.sinks import merge
    from sinkscope.study.analysis import load

    rows = [row for row, _ in store.answers(cell, graded=False).values()]
    found = [load(store.analysis_file(cell.id, row.index, row.seed)) for row in rows]
    return merge(found, relabel=True)


def _about(cell: Cell) -> dict[str, Any]:
    """The settings that every row carries."""
    model = cell.identity["model"]
    return {
        "model": cell.model.name, "family": model["family"], "dtype": model["dtype"], "weights": model["weights"],
        "task": cell.identity["task"]["task"], "task_version": cell.identity["task"].get("version", ""),
        "scheme": cell.identity["task"]["scheme"]["name"], "decoding_name": cell.decoding_name, "decoding": cell.decoding,
        "policy": cell.policy, "seeds": json.dumps(list(cell.seeds)), "cell": cell.id,
    }  # fmt: skip


# ---- accuracies ----------------------------------------------------------------------------------


def comparisons(cells: Sequence[Cell], evaluations: dict[str, Evaluation]) -> dict[tuple[str, str], Table]:
    """(decoding, task) → the comparison of all models and policies under it."""
    from sinkscope.study.comparison import compare_runs

    groups: dict[tuple[str, str], list[Evaluation]] = defaultdict(list)
    for cell in cells:
        if cell.kind == "evaluate":
            groups[cell.decoding_name, cell.identity["task"]["task"]].append(evaluations[cell.id])
    return {key: compare_runs(runs) for key, runs in groups.items()}


def results(cells: Sequence[Cell], evaluations: dict[str, Evaluation]) -> tuple[pd.DataFrame, list[str]]:
    """The result table; settings in every row."""
    import pandas as pd

    from sinkscope.study.comparison import control, control_name

    by_name: dict[tuple[str, str, str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.kind == "evaluate":
            name = cell.policy if control(cell.policy) is None else control_name(cell.policy)
            by_name[cell.decoding_name, cell.identity["task"]["task"], cell.model.name, name].append(cell)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for (decoding, task), table in comparisons(cells, evaluations).items():
        notes += [
            note for note in table.notes if " documents detect " not in note
        ]  # each row says it, column detectable
        frame = table.frame()
        own = {(row["model"], row["policy"]): row for row in frame.to_dict("records")}
        for (model, policy), row in own.items():
            used = by_name[decoding, task, str(model), str(policy)]
            about = _about(used[0])
            beside = next(
                (
                    one
                    for (other, _), one in own.items()
                    if (other, one["control_of"], one["match"]) == (model, policy, "count")
                ),
                None,
            )
            base = own.get((model, "none"))
            flat = {str(name): value for name, value in row.items() if name not in about}
            rows.append(
                {
                    **about,
                    "policy": policy,
                    "cell": " ".join(cell.id for cell in used),
                    **flat,
                    **_beside(
                        used,
                        beside,
                        evaluations,
                        by_name[decoding, task, str(model), str(beside["policy"])] if beside else [],
                    ),
                    "detectable": None
                    if base is None
                    else detectable(int(row["n"]), float(base["accuracy"])),
                }
            )
    return pd.DataFrame(rows), list(dict.fromkeys(notes))


def detectable(n: int, accuracy: float) -> float:
    """The smallest difference of two unrelated runs that n documents detect with 80 % power.

    The accuracy is drawn a little towards ½ (one right and one wrong answer more): a share of 0 or 1 in a few documents does
    not mean that nothing varies.
    """
    from sinkscope.statistics import minimal_detectable_effect

    return minimal_detectable_effect(n, (n * accuracy + 1) / (n + 2)) if n > 1 else 1.0


def _beside(
    used: list[Cell], beside: dict[Any, Any] | None, evaluations: dict[str, Evaluation], controls: list[Cell]
) -> dict[str, Any]:
    """The control of a row: its accuracy and what it hid, and the paired difference to it."""
    from sinkscope.statistics import align, compare

    empty = dict.fromkeys(
        ("control", "control_draws", "control_accuracy", "control_hidden_share", "over_control", "over_control_low",
         "over_control_high")
    )  # fmt: skip
    if beside is None or not controls:
        return empty
    mean: dict[str, float] = defaultdict(float)
    for cell in controls:
        for document, score in evaluations[cell.id].scores().items():
            mean[document] += score / len(controls)
    found = compare(*align(evaluations[used[0].id].scores(), mean, ("the policy", "its control")))
    return {
        "control": beside["policy"],
        "control_draws": int(beside["draws"]),
        "control_accuracy": beside["accuracy"],
        "control_hidden_share": beside["hidden_share"],
        "over_control": found.difference,
        "over_control_low": found.interval.low,
        "over_control_high": found.interval.high,
    }


def records(cells: Sequence[Cell], evaluations: dict[str, Evaluation]) -> pd.DataFrame:
    """Every answer, with its cell's settings."""
    import pandas as pd

    frames = []
    for cell in cells:
        if cell.kind == "evaluate":
            frame = evaluations[cell.id].table()
            for place, (name, value) in enumerate(_about(cell).items()):
                if name not in frame:
                    frame.insert(place, name, value)
            frames.append(frame)
    return pd.concat([frame.dropna(axis=1, how="all") for frame in frames], ignore_index=True)


# ---- traces --------------------------------------------------------------------------------------


def sinks(cells: Sequence[Cell], parts: dict[str, xr.Dataset]) -> pd.DataFrame:
    """`ss.summary` of the traces of each cell."""
    from sinkscope.sinks import summary

    return _stacked([(cell, summary(parts[cell.id])) for cell in cells if cell.id in parts], parts)


def depth(cells: Sequence[Cell], parts: dict[str, xr.Dataset]) -> pd.DataFrame:
    """Sinks by layer, over the traces of each cell."""
    from sinkscope.sinks.depth import depth_table

    return _stacked([(cell, depth_table(parts[cell.id])) for cell in cells if cell.id in parts], parts)


def _stacked(frames: list[tuple[Cell, pd.DataFrame]], parts: dict[str, xr.Dataset]) -> pd.DataFrame:
    import pandas as pd

    found = []
    for cell, frame in frames:
        frame = frame.copy()
        frame.attrs = {}
        about = {"traces": cell.group, "samples": int(parts[cell.id].sizes["sample"]), **_about(cell)}
        for place, (name, value) in enumerate(about.items()):
            frame.insert(place, name, value)
        found.append(frame)
    return pd.concat(found, ignore_index=True)


def diagnosis(
    cells: Sequence[Cell], evaluations: dict[str, Evaluation], parts: dict[str, xr.Dataset]
) -> pd.DataFrame:
    """The verdicts on each model, from its unmasked traces and its accuracies on the first task of the study."""
    import pandas as pd

    from sinkscope.sinks import diagnose

    found = []
    for model in dict.fromkeys(cell.model.name for cell in cells):
        own = [cell for cell in cells if cell.model.name == model]
        traced = [parts[cell.id] for cell in own if cell.id in parts and cell.policy == "none"]
        first = next((cell for cell in own if cell.kind == "evaluate"), None)
        scores: dict[str, Any] = {}
        if first is not None:
            same = [
                cell for cell in own
                if cell.kind == "evaluate" and (cell.task, cell.decoding) == (first.task, first.decoding)
            ]  # fmt: skip
            scores = {cell.policy: evaluations[cell.id] for cell in same}
        windows = [
            name for name in scores if name.startswith("window:") and "," not in name and "&" not in name
        ]
        window = windows[0] if windows else ""
        verdict = diagnose(
            traced[:1] or None,
            unmasked=scores.get("none"),
            top1=scores.get("top:1"),
            random1=scores.get("random(top:1)"),
            window=scores.get(window),
            window_first=scores.get(f"{window},first=4") if window else None,
        )
        frame = verdict.table
        frame.insert(0, "model", model)
        found.append(frame)
    return pd.concat(found, ignore_index=True)


def replay(store: Store, cells: Sequence[Cell]) -> pd.DataFrame:
    """Means over documents of what a policy changes step by step."""
    import pandas as pd

    rows = []
    for cell in cells:
        found = [row for row, _ in store.answers(cell, graded=False).values()]
        row: dict[str, Any] = {**_about(cell), "n": len(found)}
        for name in ("kl", "confidence_change", "flipped", "changed", "hidden_share", "sinks_hit"):
            values = [one.more[name] for one in found if one.more.get(name) is not None]
            row[name] = sum(values) / len(values) if values else None
        rows.append(row)
    return pd.DataFrame(rows)


def pairs(store: Store, cells: Sequence[Cell]) -> pd.DataFrame | None:
    """What changed between the traces without and with a policy of the same documents."""
    import pandas as pd

    from sinkscope.sinks import compare_traces, mechanisms
    from sinkscope.trace.trace import Trace

    plain = {
        (cell.model, cell.task, cell.decoding, cell.group): cell for cell in cells if cell.policy == "none"
    }
    found = []
    for cell in cells:
        base = plain.get((cell.model, cell.task, cell.decoding, cell.group))
        if cell.policy == "none" or base is None:
            continue
        for row, _ in store.answers(cell, graded=False).values():
            a, b = (Trace.open(store.trace_file(one.id, row.index, row.seed)) for one in (base, cell))
            frame = mechanisms(compare_traces(a, b))
            frame.attrs = {}
            for place, (name, value) in enumerate({**_about(cell), "document": row.document}.items()):
                if name not in frame:
                    frame.insert(place, name, value)
            found.append(frame)
    return pd.concat(found, ignore_index=True) if found else None


# ---- files ---------------------------------------------------------------------------------------


def write(store: Store, tables: Tables) -> None:
    """tables/NAME.parquet and .csv, each at once."""
    import io

    from sinkscope.study.store import write_bytes, write_text

    for name, frame in tables.frames.items():
        plain = frame.copy()
        plain.attrs = {}
        buffer = io.BytesIO()
        plain.to_parquet(buffer, index=False)
        write_bytes(store.root / "tables" / f"{name}.parquet", buffer.getvalue())
        write_text(store.root / "tables" / f"{name}.csv", plain.to_csv(index=False))
