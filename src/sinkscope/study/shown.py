"""Tables of a study as people read them: each column declared once, with its heading and form, for terminal and report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from sinkscope.base.masked import MASK, Masked
from sinkscope.base.text import aligned
from sinkscope.statistics import Estimate
from sinkscope.study.comparison import untested
from sinkscope.study.plugged import VERDICT, Column, ShownTable
from sinkscope.tasks.task import ACCURACY, NATS
from sinkscope.verdicts import Verdict
from sinkscope.verdicts.wording import concluded, missing, number

MASKED = [Column(share.heading, share, ".1%" if share == Masked.REMOVED else ".0%") for share in MASK]
MASKED.append(Column(Masked.KEYS.heading, Masked.KEYS, ".1%"))
"""What a policy masked."""
TESTED = (
    Column("− none", "difference", "+.3f", interval=True), Column("p", "difference_p_holm", ".2g"),
    Column("− control", "over_control", "+.3f", interval=True), Column("− three controls", "effect_count", "+.3f", interval=True),
    Column("p", "effect_count_p_holm", ".2g"), Column("− three nearest in attention", "effect_mass", "+.3f", interval=True),
    Column("p", "effect_mass_p_holm", ".2g"),
)  # fmt: skip
"""Paired differences with 95 % intervals over documents; p after Holm over all tests of the table."""
RESULTS = ShownTable(
    "results",
    "{model} · {task}:{scheme} · {n} documents, which detect a difference of {detectable:.3f} (80 % power, unrelated runs)\n"
    "{decoding}",
    (
        Column("policy", "policy"), Column("draws", "draws", ".0f"), Column("accuracy", ACCURACY, ".3f", interval=True), *TESTED,
        *MASKED, Column("paper (arXiv 2510.15731)", "paper", ".2f"),
    ),
    by=("task", "model"),
)  # fmt: skip
LIKELIHOOD = ShownTable(
    "likelihood",
    "{model} · {task}:{scheme} · {n} texts; a positive difference is a loss\n{decoding}",
    (
        Column("policy", "policy"), Column("draws", "draws", ".0f"), Column("nats per token", NATS, ".3f", interval=True),
        *TESTED, *MASKED,
    ),
    by=("task", "model"),
)  # fmt: skip
SKILLS = ShownTable(
    "skill_losses",
    "{model}, battery, {policy} beside its {match}-matched control, skill by skill",
    (
        Column("skill", "skill"), Column("difficulties", "difficulties"), Column("unmasked", "accuracy", ".3f"),
        Column("right answers", "n", ".0f"), Column("kept", "kept", ".3f"),
        Column("kept with random keys", "control_kept", ".3f"), Column("lost beyond them", "beyond", "+.3f", interval=True),
        Column("apart from other skills", "apart", "+.3f", interval=True),
    ),
    by=("model", "decoding_name", "policy", "match"),
)  # fmt: skip


def lines(shown: ShownTable, table: pd.DataFrame | None) -> list[str]:
    """A table in lines, one block for each group of rows, without columns that are empty; none where there is no such table."""
    said: list[str] = []
    rows = table if shown.rows is None or table is None else shown.rows(table)
    groups = [] if rows is None else rows.groupby(list(shown.by), sort=False) if shown.by else [((), rows)]
    for _, group in groups:
        records: list[Any] = group.to_dict("records")
        columns = [
            column for column in shown.columns if column.words or group.get(column.name, pd.Series()).notna().any()
        ]
        body = [[cell(row, column) for column in columns] for row in records]
        said += [shown.caption.format(**records[0]), *aligned([[column.heading for column in columns], *body]), ""]
    return said


def cell(row: Mapping[str, Any], column: Column) -> str:
    """A cell of the terminal: a text, or a number, with its interval where the column has one."""
    if column.words:
        return text_of(row, column)
    return numbers_of(row, column.name, column.form, column.interval)[0] or ("–" if column.interval else "")


def text_of(row: Mapping[str, Any], column: Column) -> str:
    """The cell of a column without numbers: a text, or what a verdict concludes."""
    value = row.get(column.name)
    if missing(value) or not value:
        return "–"
    return concluded(Verdict.from_json(value)) if column.form == VERDICT else str(value)


def numbers_of(row: Mapping[str, Any], name: str, form: str, interval: bool = True) -> tuple[str, tuple[str, ...]]:
    """A number of a row, 0.19 (0.07 to 0.43) where it has an interval, and its columns; "" where it is missing."""
    if missing(row.get(name)):
        return "", ()
    columns = bounds(name) if interval and estimate(row, name).known else (name,)
    first, *ends = (number(row[column], form) for column in columns)
    return f"{first} ({' to '.join(ends)})" if ends else first, columns


def bounds(name: str) -> tuple[str, str, str]:
    """The columns of a number and its interval; what a table is about (its value, an accuracy, nats) has low and high."""
    return (name, "low", "high") if name in ("value", ACCURACY, NATS) else (name, f"{name}_low", f"{name}_high")


def estimate(row: Mapping[str, Any], name: str = "value") -> Estimate:
    """A number of a row with its interval."""
    numbers: list[Any] = [row.get(column) for column in bounds(name)]
    return Estimate(*(math.nan if missing(one) else float(one) for one in numbers))


def comparison(table: pd.DataFrame) -> str:
    """A table of `compare_runs`, and what could not be tested in it."""
    blocks = [
        line
        for shown, measure in ((RESULTS, ACCURACY), (LIKELIHOOD, NATS))
        if measure in table
        for line in lines(shown, table[table[measure].notna()])
    ]
    legend = (
        "intervals: 95 %, of differences paired over documents; p after Holm over all tests of this table; control: the mean "
        "of its draws"
    )
    return "\n".join([*blocks, legend, *untested(table)])
