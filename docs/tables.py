"""Tables of the site whose numbers come from tables of the laboratory: they are made when the site is built.

A page has a comment where the table goes. Its first line names CSV files of the repository, read one after the other; the rest is
TOML:

    <!-- table: lab/ladder/ladder.csv
    where = 'task == "text"'               # which rows of the files, as a pandas query
    rows = ["objective", "policy"]         # the columns of the files that name a row of the table
    columns = ["parameters"]               # and those that name a column; left out: a column for each value
    values = { damage = "nats lost" }      # what is shown, and its heading
    names.parameters = { 842976 = "0.8M" } # words for what a column has: only that is shown, in this order
    digits = 2
    signed = true                          # a plus before what is above zero
    bold = "damage_p_holm"                 # p-values: bold where one is under 0.05
    before = "answer"                      # a column whose words stand before the number
    words = { "not shown" = "undecided" }  # other words for some of them
    usual = 200                            # the usual n: where the column n has another one, it stands behind
    -->

Behind a value stands its interval where the files have one (`damage_low` and `damage_high`; for the first value also `low` and
`high`). Rows of the files that have the same names fall into one cell: their mean and Student's 95 % interval over them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from sinkscope.statistics.interval import mean_interval

ROOT = Path(__file__).resolve().parents[1]
MARKER = re.compile(r"^<!-- table: (?P<files>[^\n]+)\n(?P<options>.*?)^-->$", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Every marker of a page becomes its table."""
    return MARKER.sub(lambda marker: table(marker["files"], **tomllib.loads(marker["options"])), markdown)


@dataclass(frozen=True)
class Format:
    """How the numbers of a table are written."""

    digits: int = 2
    signed: bool = False
    bold: str = ""
    before: str = ""
    usual: int = 0
    words: dict[str, str] = field(default_factory=dict)

    def cell(self, rows: pd.DataFrame, value: str, low: str, high: str) -> str:
        """What one cell shows of some rows of the files; low, high: the columns that an interval of the value is in."""
        rows = rows[rows[value].notna()]
        if rows.empty:
            return ""
        if len(rows) > 1:
            return self._written(*mean_interval([float(number) for number in rows[value]]))
        row = rows.iloc[0]
        ends = [row[end] for end in (low, high) if end in row and pd.notna(row[end])]
        text = self._written(float(row[value]), *ends)
        text = f"**{text}**" if self.bold and row[self.bold] < 0.05 else text
        text += (
            f" (n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{int(row['n'])})" if self.usual and row["n"] != self.usual else ""
        )
        return f"{self.words.get(row[self.before], row[self.before])} {text}" if self.before else text

    def _written(self, value: float, *interval: float) -> str:
        ends = ",\N{NO-BREAK SPACE}".join(f"{end:.{self.digits}f}" for end in interval)
        number = f"{value:{'+' if self.signed else ''}.{self.digits}f}"
        return f"{number} [{ends}]".removesuffix(" []").replace("-", "−")


def table(
    files: str,
    rows: Sequence[str],
    values: dict[str, str],
    columns: Sequence[str] = (),
    where: str = "",
    names: dict[str, dict[str, str]] | None = None,
    title: str = "",
    **options: Any,
) -> str:
    """The Markdown of one table; arguments as the module says."""
    data = pd.concat([pd.read_csv(ROOT / file) for file in files.split()])
    data = data.query(where, engine="python") if where else data
    for column in (*rows, *columns):
        texts = data[column].fillna("").astype(str)
        words = (names or {}).get(column, {text: text for text in texts})
        data = data.assign(**{column: pd.Categorical(texts.map(words), dict.fromkeys(words.values()))})
    data = data.dropna(subset=[*rows, *columns])
    if data.empty:
        raise ValueError(f"{files} has no row with what the table asks for: {where or names}")
    written = Format(**options)
    plain = next(iter(values)) if f"{next(iter(values))}_low" not in data else ""
    heads = [(label, value) for label in _labels(data, columns) for value in values]
    titles = [", ".join(filter(None, (*label, values[value]))) for label, value in heads]
    lines = [[title, *titles], ["---"] * (1 + len(heads))]
    for name in _labels(data, rows):
        of_row = _with(data, rows, name)
        lines.append([", ".join(filter(None, name))])
        for label, value in heads:
            stem = "" if value == plain else f"{value}_"
            lines[-1].append(written.cell(_with(of_row, columns, label), value, f"{stem}low", f"{stem}high"))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _labels(data: pd.DataFrame, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """What stands in these columns together, each once, in the order of their names; without columns, one empty label."""
    if not columns:
        return [()]
    ordered = data.sort_values(list(columns))[list(columns)]
    return list(dict.fromkeys(ordered.itertuples(index=False, name=None)))


def _with(data: pd.DataFrame, columns: Sequence[str], label: tuple[str, ...]) -> pd.DataFrame:
    """The rows that have these words in these columns."""
    for column, word in zip(columns, label, strict=True):
        data = data[data[column] == word]
    return data
