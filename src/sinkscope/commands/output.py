"""How commands print: lines, tables and bars for people, one JSON document for programs.

Everything printed may hold text that nobody checked: tokens, paths, names of models. No markup in it is interpreted, and
characters that steer a terminal are shown as their codes. Into a pipe, nothing is folded. Results go to stdout, progress
to stderr.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.status import Status
from rich.table import Table
from rich.text import Text

from sinkscope.errors import InputError
from sinkscope.text import visible


def console(stderr: bool = False) -> Console:
    """A console that takes text as it is: no markup, no emoji codes, no folding unless a terminal is at the other end."""
    plain = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not plain.is_terminal:
        plain.width = 100_000
    return plain


def say(*lines: object, stderr: bool = False) -> None:
    """Print lines as they are."""
    target = console(stderr)
    for line in lines:
        target.print(visible(str(line)), soft_wrap=True)


def working(text: str) -> Status:
    """A spinner on stderr with a text, while a `with` block runs."""
    return console(stderr=True).status(Text(visible(text)))  # a string would be read as markup


def bar(text: str, middle: Sequence[ProgressColumn] = (), end: Sequence[ProgressColumn] = ()) -> Progress:
    """A bar on stderr: a text, the count, `middle`, the time left, `end`."""
    start = (TextColumn(text, markup=False), BarColumn(bar_width=24), MofNCompleteColumn())
    columns = (*start, *middle, TimeRemainingColumn(), *end)
    return Progress(*columns, console=console(stderr=True), transient=True)


def confirm(warning: str, flag: str) -> None:
    """Ask on the terminal, and go on only after a yes; where nobody can be asked, `flag` must have been given."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InputError(f"{warning}. Nobody can be asked here: confirm it with {flag}")
    if not typer.confirm(visible(f"{warning}. Go on?"), err=True):
        raise InputError("not confirmed; nothing was run")


def refuse_existing(path: Path, flag: str) -> None:
    """Refuse to replace a file that --force was not given for."""
    if path.exists():
        raise InputError(f"{path} exists already; give another {flag}, or --force to replace it")


def numbers(text: str, flag: str, what: str) -> list[int]:
    """`12,13` → [12, 13]."""
    words = [word for word in text.replace(" ", "").split(",") if word]
    if not all(word.isdecimal() for word in words):
        raise InputError(f"{flag} should be {what}, got {text!r}")
    return [int(word) for word in words]


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", *, header: bool = True
) -> None:
    """Print a table; on a terminal it is fitted to the width, elsewhere each row is one line."""
    table = Table(*columns, show_header=header)
    for row in rows:
        table.add_row(*("" if cell is None else visible(str(cell)) for cell in row))
    if title:
        say(title)  # as a title of rich's table it would be folded to the table's width
    console().print(table)


def show_pairs(pairs: Mapping[str, object], title: str = "") -> None:
    """Print names and values, a pair per row."""
    show_table(("", ""), pairs.items(), title, header=False)


def show_json(value: object) -> None:
    """Print one JSON document: dataclasses and mappings as objects, tables as lists of rows, unknown numbers as null."""
    text = json.dumps(plain_data(value), indent=1, ensure_ascii=False, allow_nan=False)
    if visible(text) != text:
        text = "".join(c if visible(c) == c else json.dumps(c)[1:-1] for c in text)
    print(text)


def plain_data(value: Any) -> Any:
    """A value as JSON has it; NaN and infinities become None.

    >>> from pathlib import Path
    >>> plain_data({"accuracy": float("nan"), 1: (Path("a"), 2)})
    {'accuracy': None, '1': ['a', 2]}
    """
    if hasattr(value, "to_dict") and hasattr(value, "columns"):  # a pandas DataFrame
        return [plain_data(row) for row in value.to_dict("records")]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain_data(entry) for name, entry in value.items()}
    if hasattr(value, "tolist"):  # an array or a number of numpy or torch
        return plain_data(value.tolist())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_data(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)
