"""Tables of a study as people read them: each column declared once, with its heading and form, for terminal and report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from sinkscope.base.text import aligned
from sinkscope.study.comparison import untested
from sinkscope.study.plugged import Column, ShownTable
from sinkscope.tasks.task import ACCURACY, NATS

MASKED = (
    Column("attention removed", "hidden_share", ".1%"), Column("sinks masked", "sinks_hit", ".0%"),
    Column("strongest sink masked", "strongest_hit", ".0%"), Column("of the sinks’ attention removed", "sink_removed", ".0%"),
)  # fmt: skip
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
        *MASKED, Column("keys", "key_share", ".1%"), Column("paper (arXiv 2510.15731)", "paper", ".2f"),
    ),
    by=("task", "model"),
)  # fmt: skip
LIKELIHOOD = ShownTable(
    "likelihood",
    "{model} · {task}:{scheme} · {n} texts; a positive difference is a loss\n{decoding}",
    (
        Column("policy", "policy"), Column("draws", "draws", ".0f"), Column("nats per token", NATS, ".3f", interval=True),
        *TESTED, *MASKED, Column("keys", "key_share", ".1%"),
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
REUSE = ShownTable(
    "reuse",
    "{model}, {task}, decoding {decoding_name}: approximate steps",
    (
        Column("reuse", "reuse"), Column("accuracy", ACCURACY, ".3f"), Column("− exact", "difference", "+.3f"),
        Column("− random", "over_random", "+.3f"), Column("− nearest", "over_recent", "+.3f"),
        Column("work saved", "work_saved", ".1%"), Column("time saved", "time_saved", ".1%"),
        Column("tokens equal", "tokens_equal", ".3f"), Column("− random", "tokens_equal_over_random", "+.3f"),
        Column("first step that differs", "first_step", ".0f"), Column("KL, nats", "kl", ".3g"),
    ),
    by=("model", "task", "decoding_name"),
)  # fmt: skip


def lines(shown: ShownTable, table: pd.DataFrame | None) -> list[str]:
    """A table in lines, one block for each group of rows, without columns that are empty; none where there is no such table."""
    said: list[str] = []
    rows = table if shown.rows is None or table is None else shown.rows(table)
    groups = [] if rows is None else rows.groupby(list(shown.by), sort=False) if shown.by else [((), rows)]
    for _, group in groups:
        records: list[Any] = group.to_dict("records")
        columns = [
            column for column in shown.columns if not column.form or group.get(column.name, pd.Series()).notna().any()
        ]
        body = [[cell(row, column) for column in columns] for row in records]
        said += [shown.caption.format(**records[0]), *aligned([[column.heading for column in columns], *body]), ""]
    return said


def cell(row: Mapping[str, Any], column: Column) -> str:
    """A value as people read it, with its interval where the column has one."""
    value = row.get(column.name)
    if not column.form:
        return str(value or "") or "–"
    if value is None or value != value:
        return "–" if column.interval else ""
    stem = "" if column.name in (ACCURACY, NATS) else f"{column.name}_"
    low, high = (row.get(f"{stem}{end}") if column.interval else None for end in ("low", "high"))
    known = low is not None and low == low
    return format(value, column.form) + (f" ({low:{column.form}} to {high:{column.form}})" if known else "")


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
