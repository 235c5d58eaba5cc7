"""Sections that are tables of the study, each with its picture.

Skills, what sinks hold, what plug-ins add, every answer; and measurements that some
studies have: replays of recorded runs, and pairs of traces with and without a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from sinkscope.report.study import charts
from sinkscope.report.study.cells import NONE, Cell, Row, Table, columns_table
from sinkscope.report.study.drawing import holdings_name
from sinkscope.report.study.matrix import by_answer
from sinkscope.report.study.source import StudySource
from sinkscope.sinks.compare import DESTINATIONS
from sinkscope.statistics import Estimate, mean_interval
from sinkscope.study.plugged import Column, StudyPlugin
from sinkscope.study.shown import SKILLS, estimate
from sinkscope.verdicts import Measure, Verdict, wording
from sinkscope.verdicts.holdings import KIND
from sinkscope.verdicts.verdict import point
from sinkscope.verdicts.wording import missing, number, shown

Rows = Sequence[tuple[int, Row]]
Marks = Mapping[str, Estimate]
"""Line of a chart → its value."""
SETTINGS = (
    "family", "dtype", "weights", "task", "task_version", "scheme", "decoding", "seeds", "cell", "model", "policy",
    "decoding_name",
)  # fmt: skip
MOST = 200
"""Rows that the page shows of a table; the file has all."""
MOST_TEXT = 400_000
"""Characters of answers that the page shows."""


def skills(source: StudySource) -> dict[str, Any] | None:
    """What masking costs each skill of the battery beyond random keys; None without the battery, or without enough controls."""
    groups = []
    if "verdict" not in source.frames.get(SKILLS.name, ()):
        return None
    for rows in source.groups(SKILLS.name, "scheme", *SKILLS.by):
        first, named = rows[0][1], [(at, row) for at, row in rows if row["skill"]]
        losses = {str(row["skill"]): estimate(row, "beyond") for _, row in named}
        title = f"{first['model']}, {first['policy']}: loss of each skill beyond its control"
        chart = charts.lines(losses, border=0.0, label="lost beyond random keys", title=title) if losses else None
        verdict = Verdict.from_json(first["verdict"])
        groups.append((first, verdict, chart, columns_table("Skill by skill", SKILLS.columns, named, "skill_losses")))
    return {"groups": groups} if groups else None


def inspection(source: StudySource) -> dict[str, Any] | None:
    """What sinks hold: answers of rules, each with its number, and patches beside their controls; None without [[inspect]]."""
    if "verdict" not in source.frames.get("holdings", ()):
        return None
    names = source.inspected
    verdicts_of = {
        (str(row["question"]), name): (at, Verdict.from_json(row["verdict"]))
        for name, part in names.items()
        for at, row in source.rows("holdings", model=part["model"].iloc[0], task=part["task"].iloc[0])
    }
    asked = dict.fromkeys(question for question, _ in verdicts_of)
    body = [[question, *(_answer(verdicts_of.get((question, name))) for name in names)] for question in asked]
    caption = "Yes and no need the whole 95 % interval, widened by a quarter, on one side of the limit, and 20 prompts"
    return {
        "kinds": by_answer({name: verdicts_of[KIND, name][1] for name in names if (KIND, name) in verdicts_of}),
        "pictures": [holdings_name(name) for name in names],
        "answers": Table(caption, ("question", *names), body, "tables/holdings.csv"),
        "measures": plain_table(source, "inspection", "95 % intervals over prompts; layer −1: mean over layers"),
    }  # fmt: skip


def _answer(known: tuple[int, Verdict] | None) -> Cell | str:
    if known is None:
        return NONE
    at, verdict = known
    value = verdict.estimate.value
    exact = () if missing(value) else (Cell(number(value, ".3g"), f"holdings/{at}/value"),)
    return Cell(wording.answer(verdict), small=(*exact, wording.held(verdict)))


def plugged(source: StudySource, plugin: StudyPlugin) -> dict[str, Any] | None:
    """What a plug-in adds: its tables, the first of each with its figure's name; None where the study has none of its tables."""
    shown = [
        ("" if at else one.figure, columns_table(one.caption.format(**rows[0][1]), one.columns, rows, one.name))
        for one in plugin.report
        for at, rows in enumerate(source.groups(one.name, *one.by))
    ]
    return {"about": plugin.about, "shown": shown} if shown else None


def mechanisms(source: StudySource) -> dict[str, Any] | None:
    """Replays, and pairs of traces; None for studies without them."""
    captions = {
        "replay": "Single steps of a run that was made without a policy, computed again under it. kl: divergence of the "
        "predictions, in nats; flipped: share of them whose best candidate changed; changed: share of the selections",
        "pairs": "What changed between the traces of a document without and with a policy (ss.compare_traces)",
        "calibration": "Confidence against right tokens, in such pairs: by tenths of confidence, all, and by thirds of the steps",
    }
    parts = {
        name: plain_table(source, name, caption)
        for name, caption in captions.items()
        if len(source.frames.get(name, ()))
    }
    told: dict[str, Any] = {"tables": parts, "calibrated": calibrated(source.frames.get("calibration"))}
    by = ["model", "decoding_name", "policy"]
    told["replayed"] = _charts(
        source, "replay", by[:2], _replayed, label="share of predictions changed at once", **charts.SHARE
    )
    told["moved"] = _charts(source, "pairs", by, _moved, label="change of the share of attention", border=0.0)
    return told if parts else None


def _replayed(rows: Rows) -> Marks:
    """Policy → the share of predictions that it changes at once."""
    return {str(row["policy"]): point(float(row["flipped"])) for _, row in rows if not missing(row["flipped"])}


def _moved(rows: Rows) -> Marks:
    """Where attention goes → the change of its share, over documents."""
    values = {
        name: [row["value"] for _, row in rows if row["measure"] == Measure.FLOW.named(name)] for name in DESTINATIONS
    }
    return {name: mean_interval(np.array(each)) for name, each in values.items() if each}


def _charts(
    source: StudySource, table: str, by: Sequence[str], marks: Callable[[Rows], Marks], **options: Any
) -> list[tuple[str, Markup]]:
    """A chart for each setting, under its name, of the rows of a table; of those that have any marks."""
    made = ((", ".join(str(rows[0][1][name]) for name in by), marks(rows)) for rows in source.groups(table, *by))
    return [
        (setting, charts.lines(values, title=f"{setting}: {options['label']}", **options))
        for setting, values in made
        if values
    ]


def calibrated(table: pd.DataFrame | None) -> list[str]:
    """Whether a masked model is wrong or unsure: a sentence for each model, decoding and policy of the table `calibration`."""
    if table is None:
        return []
    whole = table[table["low_edge"].isna() & table.get("third", table["low_edge"]).isna()]
    said = []
    for (model, decoding, policy), rows in whole.groupby(["model", "decoding_name", "policy"], sort=False):
        runs = {str(row["run"]): row for row in rows.to_dict("records")}
        if not runs.keys() >= {"masked", "without"} or runs["masked"]["confidence"] < 0:  # negative: no probability
            continue
        shares = []
        for row in (runs["masked"], runs["without"]):
            right = shown(Estimate(row["right"], row["right_low"], row["right_high"]), "share")
            shares.append(f"{right} of the likeliest tokens are right at a mean confidence of {row['confidence']:.0%}")
        said.append(f"{model}, {decoding}, under {policy}: {shares[0]}; without it {shares[1]}.")
    return said


def plain_table(source: StudySource, name: str, caption: str) -> Table:
    """A table of the study as it is, without the columns that only repeat settings; the first rows of a long one."""
    frame = source.frames[name]
    numbers = {str(column): kind.kind in "fiu" for column, kind in frame.dtypes.items()}
    columns = [Column(column, column, ".3g" if numbers[column] else "") for column in numbers if column not in SETTINGS]
    cut = f"; the first {MOST} of {len(frame)} rows" if len(frame) > MOST else ""
    rows = list(source.rows(name))[:MOST]
    table = columns_table(caption + cut, columns, rows, name)
    who = [
        Cell(
            str(row["model"]), small=tuple(str(row[column]) for column in ("decoding_name", "policy") if column in row)
        )
        for _, row in rows
    ]
    body = [[first, *cells] for first, cells in zip(who, table.rows, strict=True)]
    return replace(table, head=("model", *table.head), rows=body)


def answers(source: StudySource) -> dict[str, Any] | None:
    """Every answer as far as the page has room; None for a study without any."""
    shown: list[dict[str, Any]] = []
    frame = source.frames.get("records")
    if frame is None or "output" not in frame:
        return None
    room = MOST_TEXT
    for _, row in source.rows("records"):
        room -= len(str(row["output"])) + len(str(row["prompt"])) + 200
        if room < 0:
            break
        shown.append(row)
    return {"rows": shown, "all": len(frame)} if shown else None
