"""Text that others wrote (tokens, names, paths, answers), made safe for a terminal, a page or a spreadsheet."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from sinkscope.base.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters by which a spreadsheet takes a cell for a formula."""


def visible(text: str) -> str:
    """The text with control and direction characters spelled out; line breaks and tabs stay.

    >>> visible("a\\x1b[31mb\\u202e")
    'a⟨U+001B⟩[31mb⟨U+202E⟩'
    """
    unseen = {c for c in set(text) - set("\n\t") if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    return "".join(f"⟨U+{ord(c):04X}⟩" if c in unseen else c for c in text)


def csv_text(frame: pd.DataFrame) -> str:
    """A table as CSV in which no text is a formula: an apostrophe stands before those that would be; numbers stay."""

    def safe(cell: Any) -> Any:
        return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell

    texts = {str(name): list(map(safe, values)) for name, values in frame.items() if values.dtype.kind not in "biufcM"}
    return str(frame.assign(**texts).to_csv(index=False))


def html_table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A small table for a notebook; every cell is escaped, and the first of each row is its heading."""

    def cell(tag: str, value: object) -> str:
        return f'<{tag} style="text-align:left;vertical-align:top">{escape(visible(str(value)))}</{tag}>'

    top = f"<thead><tr>{''.join(cell('th', name) for name in head)}</tr></thead>" if head else ""
    body = "".join(
        f"<tr>{cell('th', first)}{''.join(cell('td', value) for value in rest)}</tr>" for first, *rest in rows
    )
    return f"<table><caption><b>{escape(visible(title))}</b></caption>{top}<tbody>{body}</tbody></table>"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns under each other, two spaces between."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """NAME=VALUE as often as it was given."""
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"{flag} is written as NAME=VALUE, got {text!r}")
        values[name] = value
    return values


def listed(words: Iterable[str], most: int = 0) -> str:
    """Words one after the other; of a long list the first ones, and how many more there are.

    >>> listed(["a", "b", "c"]), listed("abcdefgh", 4)
    ('a, b and c', 'a, b, c, d and 4 more')
    """
    named = list(words) or [""]
    if most and len(named) > most + 1:
        named[most:] = [f"{len(named) - most} more"]
    *first, last = named
    return f"{', '.join(first)} and {last}" if first else last
