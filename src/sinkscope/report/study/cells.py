"""What tables of the page hold: numbers that say where they come from, cells, and tables from the declared columns of a study.

`data-at="results/12/accuracy"` on the page is row 12 of tables/results.parquet, column accuracy; an interval names its bounds
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sinkscope.statistics import Estimate
from sinkscope.study.plugged import Column
from sinkscope.tasks.task import ACCURACY, NATS
from sinkscope.verdicts.wording import missing, number

Row = Mapping[str, Any]
NONE = "–"


class Cell(NamedTuple):
    """A text; at: the cells of the study's tables that its numbers are, in their order; small: a line below it."""

    text: str
    at: str = ""
    small: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table of the page; the first cell of a row is its heading. file: of the study's folder, with all of it."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    file: str = ""


def bounds(name: str) -> tuple[str, str, str]:
    """The columns of a number and its interval; what a table is about (its value, an accuracy, nats) has low and high."""
    return (name, "low", "high") if name in ("value", ACCURACY, NATS) else (name, f"{name}_low", f"{name}_high")


def estimate(row: Row, name: str = "value") -> Estimate:
    """A number of a row with its interval."""
    found: list[Any] = [row.get(column) for column in bounds(name)]
    return Estimate(*(float("nan") if missing(one) else float(one) for one in found))


def value(row: Row, table: str, at: int, form: str = ".3g", name: str = "value") -> Cell:
    """A number and its interval: 0.19 (0.07 to 0.43)."""
    if missing(row.get(name)):
        return Cell(NONE)
    shown = bounds(name) if estimate(row, name).known else (name,)
    first, *interval = (number(row[column], form) for column in shown)
    text = f"{first} ({' to '.join(interval)})" if interval else first
    return Cell(text, " ".join(f"{table}/{at}/{column}" for column in shown))


def columns_table(
    caption: str, columns: Sequence[Column], rows: Iterable[tuple[int, Row]], table: str, **small: Any
) -> Table:
    """A table with declared columns. small: column → what gives the line below its text, from the text."""

    def cell(at: int, row: Row, column: Column) -> Cell:
        if column.form:
            return value(row, table, at, column.form, column.name)
        text = NONE if missing(row.get(column.name)) else str(row[column.name]) or NONE
        below = small[column.name](text) if column.name in small else ""
        return Cell(text, small=(below,) if below else ())

    body = [[cell(at, row, column) for column in columns] for at, row in rows]
    return Table(caption, [column.heading for column in columns], body, f"tables/{table}.csv")
