"""What tables of the page hold: numbers that say where they come from, cells, and tables from the declared columns of a study.

`data-at="results/12/accuracy"` on the page is row 12 of tables/results.parquet, column accuracy; an interval names its bounds
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sinkscope.study.plugged import Column
from sinkscope.study.shown import numbers_of, text_of

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


def value(row: Row, table: str, at: int, form: str = ".3g", name: str = "value") -> Cell:
    """A number and its interval: 0.19 (0.07 to 0.43)."""
    text, columns = numbers_of(row, name, form)
    return Cell(text or NONE, " ".join(f"{table}/{at}/{column}" for column in columns))


def columns_table(
    caption: str, columns: Sequence[Column], rows: Iterable[tuple[int, Row]], table: str, **small: Any
) -> Table:
    """A table with declared columns. small: column → what gives the line below its text, from the text."""

    def cell(at: int, row: Row, column: Column) -> Cell:
        if not column.words:
            return value(row, table, at, column.form, column.name)
        text = text_of(row, column)
        below = small[column.name](text) if column.name in small else ""
        return Cell(text, small=(below,) if below else ())

    body = [[cell(at, row, column) for column in columns] for at, row in rows]
    return Table(caption, [column.heading for column in columns], body, f"tables/{table}.csv")
