"""How commands print: lines, tables and bars for people, one JSON document for programs.

Everything printed may hold text that nobody checked: tokens, paths, names of models. No markup in it is interpreted, and
characters that steer a terminal are shown as their codes. Into a pipe, nothing is folded. Results go to stdout, progress
to stderr.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from sinkscope.base.errors import InputError
from sinkscope.base.text import visible

SECONDS = 10.0
"""Between two lines about progress, where they do not go to a terminal."""


def console(stderr: bool = False) -> Console:
    """A console that takes text as it is: no markup, no emoji codes, no folding unless a terminal is at the other end."""
    plain = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not plain.is_terminal:
        plain.width = 100_000
    return plain


def say(*lines: object, stderr: bool = False) -> None:
    """Print lines as they are, and tables: on a terminal fitted to its width, elsewhere each row is one line."""
    target = console(stderr)
    for line in lines:
        if isinstance(line, Table):
            target.print(line)
        else:
            target.print(visible(str(line)), soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table to say. columns: their headings, if any."""
    grid = Table(*columns, show_header=any(columns))
    for row in rows:
        grid.add_row(*("" if cell is None else visible(str(cell)) for cell in row))
    return grid


def show_result(json: bool, data: object, lines: Iterable[object]) -> None:
    """Print a result: for programs its data as one JSON document, for people lines and tables."""
    if json:
        show_json(data)
    else:
        say(*lines)


def working(text: str) -> AbstractContextManager[Any]:
    """A spinner on stderr with a text, while a `with` block runs."""
    return console(stderr=True).status(Text(visible(text)))  # a string would be read as markup


class Watch:
    """How far something is, on stderr: a bar with the time left; where that is no terminal, a line now and then and at the end.

    Args:
        what: what is done.
    """

    def __init__(self, what: str) -> None:
        self.what, self.console = what, console(stderr=True)
        start, note = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[note]}"))
        columns = (start, BarColumn(bar_width=24), TaskProgressColumn(), note)
        self._bar = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self._task = self._bar.add_task(what, total=None, note="")
        self._said: float | None = None
        self._first: tuple[float, float] | None = None  # what was there already tells nothing about speed

    def __enter__(self) -> Watch:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def tell(self, done: float, total: float | None, note: str = "") -> None:
        """So much of so much is done; note: stands beside it."""
        now = time.monotonic()
        begun, before = self._first = self._first or (now, done)
        if total and done > before:
            left = duration((now - begun) / (done - before) * (total - done))
            note = f"{left} left, {note}" if note else f"{left} left"
        note = visible(note.replace("\n", " "))
        self._bar.update(self._task, completed=done, total=total, note=note)
        over = total is not None and done >= total > before
        if not self.console.is_terminal and (over or now - (self._said or begun) >= SECONDS):
            self._said = now
            share = f"{done / total:.0%}" if total else f"{done:g} done"
            say(f"{self.what}: {share}, {note}", stderr=True)


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(75)
    '1:15 min'
    """
    if seconds < 60:
        return f"{max(0, seconds):.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)}:{int(seconds % 60):02d} min"
    return f"{seconds / 3600:.1f} h"


def confirm(warning: str, flag: str) -> None:
    """Ask on the terminal, and go on only after a yes; where nobody can be asked, `flag` must have been given."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InputError(f"{warning}. Nobody can be asked here: confirm it with {flag}")
    if not typer.confirm(visible(f"{warning}. Go on?"), err=True):
        raise InputError("not confirmed; nothing was run")


def check_target(path: Path, flag: str, force: bool = True, folder: bool = False) -> None:
    """Refuse, before anything is computed, a file or folder that cannot be written, or only with --force."""
    from sinkscope.base.files import check_writable

    if path.exists() and not force:
        raise InputError(f"{path} exists already; give another {flag}, or --force to replace it")
    if path.exists() and path.is_dir() != folder:
        raise InputError(f"{path} is a {'file' if folder else 'folder'}; give {flag} another name")
    check_writable(path if folder else path.parent)


def show_json(value: object) -> None:
    """Print one JSON document: dataclasses and mappings as objects, tables as lists of rows, unknown numbers as null.

    NaN and infinities, which JSON does not have, are written and read back as null.
    """
    plain = json.loads(json.dumps(value, default=_plain), parse_constant=lambda _: None)
    text = json.dumps(plain, indent=1, ensure_ascii=False)
    print(text if visible(text) == text else json.dumps(plain, indent=1))


def _plain(value: Any) -> Any:
    """What JSON does not know, as what it knows."""
    if hasattr(value, "to_dict") and hasattr(value, "columns"):  # a pandas DataFrame
        return value.to_dict("records")
    if dataclasses.is_dataclass(value):
        return vars(value)
    if hasattr(value, "tolist"):  # an array or a number of numpy or torch
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, (set, frozenset)) else str(value)
