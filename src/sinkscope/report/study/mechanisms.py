"""Sections of measurements that some studies have: replays of recorded runs, and pairs of traces with and without it."""

from __future__ import annotations

from typing import Any

from sinkscope.report.study.markup import Safe, details, join, link, section, table, tag
from sinkscope.report.study.numbers import cited, missing, number
from sinkscope.report.study.source import Source
from sinkscope.report.study.words import note

SETTINGS = (
    "family", "dtype", "weights", "task", "task_version", "scheme", "decoding", "seeds", "cell", "model", "policy",
    "decoding_name",
)  # fmt: skip
MOST = 200
"""Rows that the page shows of a table; the file has all."""


def mechanisms(source: Source) -> Safe | None:
    """The section; None for studies without replays and pairs."""
    parts = {
        name: plain_table(source, name, note(name)) for name in ("replay", "pairs") if name in source.frames
    }
    if not parts:
        return None
    if "pairs" in parts:
        parts["pairs"] = details(f"pairs of traces, {len(source.frames['pairs'])} rows", parts["pairs"])
    return section("mechanisms", "Single steps and pairs", tag("p", note("single_steps")), *parts.values())


def plain_table(source: Source, name: str, caption: str) -> Safe:
    """A table of the study as it is, without the columns that only repeat settings; the first rows of a long one."""
    frame = source.frames[name]
    columns = [column for column in map(str, frame.columns) if column not in SETTINGS]
    body = []
    for at, row in list(source.rows(name))[:MOST]:
        setting = " · ".join(str(row[column]) for column in ("decoding_name", "policy") if column in row)
        who = tag("span", row["model"], tag("small", setting))
        body.append([who, *(_cell(name, at, column, row.get(column)) for column in columns)])
    cut = f"; the first {MOST} of {len(frame)} rows" if len(frame) > MOST else ""
    words = join([f"{caption}{cut}. Data: ", link(f"tables/{name}.csv")])
    return table(words, ("model", *columns), body)


def _cell(name: str, at: int, column: str, value: Any) -> Safe | str:
    if missing(value):
        return "–"
    text = number(value, ".3g") if isinstance(value, float) else str(value)
    return cited(text, name, at, column) if isinstance(value, (int, float)) else text
