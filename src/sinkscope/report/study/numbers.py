"""Numbers on the page: each says which cell of which table it is, so that a reader, or a test, can look it up.

`data-at="results/12/accuracy"` is row 12 of tables/results.parquet, column accuracy; an interval names two cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sinkscope.report.study.markup import Safe, tag
from sinkscope.tasks.task import ACCURACY, NATS

SHOWN = (
    ("policy", "policy"), ("n", "n"), ("accuracy", "accuracy"), ("interval", "Wilson 95 %"), ("difference", "− none"),
    ("difference_interval", "paired 95 %"), ("difference_p_holm", "p (Holm)"), ("control_accuracy", "control"),
    ("over_control", "− control"), ("over_interval", "paired 95 %"), ("hidden_share", "attention removed"),
    ("control_hidden_share", "by the control"), ("sinks_hit", "sinks masked"), ("strongest_hit", "strongest sink masked"),
    ("sink_removed", "attention on sinks removed"), ("key_share", "keys"),
)  # fmt: skip
"""Columns of the result table that people read: name, title."""

PAIRS = {
    "interval": ("low", "high"),
    "difference_interval": ("difference_low", "difference_high"),
    "over_interval": ("over_control_low", "over_control_high"),
}
SIGNED = ("difference", "over_control", "difference_interval", "over_interval")
SHARES = ("hidden_share", "control_hidden_share", "sinks_hit", "strongest_hit", "sink_removed", "key_share")


def missing(value: Any) -> bool:
    """None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def number(value: Any, form: str = ".3f") -> str:
    """A number as text; empty when there is none.

    >>> number(0.0434, ".1%")
    '4.3%'
    """
    if missing(value):
        return ""
    if not isinstance(value, (int, float)):
        return str(value)
    text = f"{value:{form}}".replace("-", "−")
    return text.lstrip("−+") if set(text) <= set("−+0.%") else text  # no zero below zero


def within(low: Any, high: Any, form: str = ".3f") -> str:
    """An interval as text; empty when one of its bounds is not known.

    >>> within(0.36, 2.91, ".2f"), within(0.0, float("nan"))
    ('0.36 to 2.91', '')
    """
    return "" if missing(low) or missing(high) else f"{number(low, form)} to {number(high, form)}"


def shown(row: Mapping[Any, Any], column: str) -> str:
    """One number of the result table as text."""
    sign = "+" if column in SIGNED else ""
    if column in PAIRS:
        low, high = (row.get(name) for name in PAIRS[column])
        return within(low, high, sign + ".2f")
    value = row.get(column)
    if missing(value):
        return ""
    if column in SHARES:
        return number(value, ".1%")
    if column == "control_accuracy":
        return f"{number(value)} ({int(row['control_draws'])}×)"
    return number(value, sign + ".3f") if isinstance(value, float) else str(value)


def setting(row: Mapping[Any, Any]) -> str:
    """The settings of a row in a line."""
    return (
        f"{row['family']}, {row['dtype']}, weights {str(row['weights'])[:12]}; {row['task_version']}, scheme {row['scheme']}; "
        f"{row['decoding']}; seeds {row['seeds']}; smallest detectable difference {number(row.get('detectable'), '.2f')}"
    )


def result(row: Mapping[Any, Any], at: int, column: str) -> Safe | str:
    """`shown`, with its place in the table."""
    text = shown(row, column)
    if not text or column == "policy":
        return text
    names = PAIRS.get(column, (column,))
    if column == "control_accuracy":
        names = (column, "control_draws")
    return cited(text, "results", at, *names)


def cited(text: str, table: str, at: int, *columns: str) -> Safe:
    """Text that shows the numbers of these columns, in this order."""
    return tag("span", text, data_at=" ".join(f"{table}/{at}/{column}" for column in columns))


def valued(row: Mapping[Any, Any], table: str, at: int, form: str = ".3g", stem: str = "") -> Safe | str:
    """A value with its interval, 0.19 (0.07 to 0.43), from the columns value, low, high, or STEM, STEM_low, STEM_high.

    What a table is about, an accuracy or nats per token, has its interval in low and high.
    """
    own = not stem or stem in (ACCURACY, NATS)
    names = (stem or "value", "low", "high") if own else (stem, f"{stem}_low", f"{stem}_high")
    value, low, high = (row.get(name) for name in names)
    if missing(value):
        return "–"
    interval = within(low, high, form)
    if not interval:
        return cited(number(value, form), table, at, names[0])
    return cited(f"{number(value, form)} ({interval})", table, at, *names)
