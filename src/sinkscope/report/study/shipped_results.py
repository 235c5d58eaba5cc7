"""Results that came with the models: larger tables, made elsewhere, labelled with date and machine, and never mixed with ours."""

from __future__ import annotations

from typing import Any

from sinkscope.report.study.curves import SERIES, panel
from sinkscope.report.study.markup import Safe, details, figure, table, tag
from sinkscope.report.study.numbers import missing, number
from sinkscope.report.study.svg import key
from sinkscope.study.shipped import Shipped

MANY = 6
"""Rows from which on a table is folded."""

COLUMNS = (
    ("accuracy", "accuracy (Wilson 95 %)", ".3f"), ("difference", "− none (paired 95 %)", "+.3f"),
    ("effect_count", "− count-matched control", "+.3f"), ("effect_mass", "− mass-matched control", "+.3f"),
)  # fmt: skip
SHARES = (("hidden_share", "attention hidden"), ("sinks_hit", "sinks hit"))


def shipped_results(shipped: list[Shipped]) -> Safe:
    """The part below the study's own results."""
    parts: list[Any] = [tag("h3", "Shipped with the models, not computed here")]
    if not shipped:
        parts.append(tag("p", "No full-size results ship with these models."))
    pictures = [
        (one, rows) for one in shipped for rows in _by_task(one) if panel("", list(enumerate(rows)), False)[0]
    ]
    if pictures:
        parts.append(_curves(pictures))
    for one in shipped:
        made = _table(one)
        parts.append(made if len(one.rows) < MANY else details(f"{one.rows[0]['model']}: {one.label}", made))
    return tag("div", *parts, class_="shipped")


def _by_task(one: Shipped) -> list[list[dict[str, Any]]]:
    found: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for row in one.rows:
        found.setdefault((row.get("task"), row.get("decoding_name")), []).append(row)
    return list(found.values())


def _curves(pictures: list[tuple[Shipped, list[dict[str, Any]]]]) -> Safe:
    panels, used = [], set()
    for one, rows in pictures:
        title = f"{rows[0]['model']}, {rows[0]['task']}"
        plot, shown = panel(f"{title}: {one.label}", list(enumerate(rows)), False)
        used |= shown
        panels.append(
            tag("div", tag("p", title, class_="panel-title"), tag("p", one.label, class_="quiet"), plot)
        )
    entries = [(kind, shape, words) for name, kind, shape, words in SERIES if name in used]
    return figure(
        tag("div", tag("div", *panels, class_="panels-row"), key(entries)),
        "Accuracy as more keys are taken, from the larger tables that came with these weights.",
        "as above, on more documents and with more draws of each control; date and machine stand over each panel.",
        "Anything about this machine or this run: these numbers were not computed here, and no claim above rests on them.",
    )


def _table(one: Shipped) -> Safe:
    rows = one.rows
    values = [column for column in COLUMNS if any(not missing(row.get(column[0])) for row in rows)]
    shares = [column for column in SHARES if any(not missing(row.get(column[0])) for row in rows)]
    head = ("policy", "task", "n", *(title for _, title, _ in values), *(title for _, title in shares))
    body = [
        [
            row.get("policy"), row.get("task"), _many(row), *(_interval(row, name, form) for name, _, form in values),
            *(number(row.get(name), ".1%") for name, _ in shares),
        ]
        for row in rows
    ]  # fmt: skip
    return table(f"{rows[0]['model'] if rows else ''}: {one.label}", head, body)


def _many(row: dict[str, Any]) -> str:
    draws = row.get("draws")
    return f"{row.get('n')}" + (f", {int(draws)} draws" if not missing(draws) and draws and draws > 1 else "")


def _interval(row: dict[str, Any], name: str, form: str) -> str:
    value = row.get(name)
    if missing(value):
        return ""
    stem = "" if name == "accuracy" else f"{name}_"
    low, high = row.get(f"{stem}low"), row.get(f"{stem}high")
    text = number(value, form)
    return text if missing(low) else f"{text} ({number(low, form)} to {number(high, form)})"
