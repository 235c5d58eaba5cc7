"""Markup that is safe by construction: every plain string is escaped, and only this module's own functions make markup.

Characters that are invisible or turn the direction of the text are spelled out, so that a hostile name can neither become
markup nor disguise what stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from sinkscope.text import visible

LONGEST = 2_000
"""Characters of one text that are shown; what is cut is said."""

VOID = frozenset(
    {"br", "wbr", "hr", "img", "meta", "rect", "line", "circle", "path", "polyline", "polygon", "use"}
)


class Safe(str):
    """Markup, not text."""

    __slots__ = ()


def spelled(text: str) -> str:
    """Text whose control and direction characters are written out, cut to `LONGEST` characters.

    >>> spelled("a\\u202eb")
    'a⟨U+202E⟩b'
    """
    cut = f"… ({len(text):,} characters)" if len(text) > LONGEST else ""
    return visible(text[:LONGEST]) + cut


def safe(value: Any) -> Safe:
    """Markup as it is; anything else as escaped text; None is nothing."""
    if isinstance(value, Safe):
        return value
    return Safe("" if value is None else escape(spelled(str(value)), quote=True))


def listing(text: str) -> Safe:
    """A file's text, whole, as it stands."""
    return tag("pre", Safe("\n".join(safe(line) for line in text.split("\n"))))


def join(parts: Iterable[Any], between: str = "") -> Safe:
    """Parts one after the other."""
    return Safe(safe(between).join(safe(part) for part in parts))


def tag(name: str, *children: Any, **attributes: Any) -> Safe:
    """An element. Attribute names: class_ for class, hyphens as underscores; None leaves an attribute out.

    >>> tag("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{safe(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID and not children:
        return Safe(f"<{name}{given}/>")
    return Safe(f"<{name}{given}>{join(children)}</{name}>")


def breakable(name: Any) -> Safe:
    """A name that may go on in the next line behind a slash, as those of models have.

    >>> breakable("organism/causal")
    'organism/<wbr/>causal'
    """
    return safe(name) if isinstance(name, Safe) else join(str(name).split("/"), Safe(f"/{tag('wbr')}"))


def figure(picture: Any, seen: str, computed: str, not_shown: str, data: Any = None) -> Safe:
    """A picture with a caption that says what is seen, how it was computed, and what it does not show."""
    parts = [
        tag("p", tag("b", "What is seen."), " ", seen),
        tag("p", tag("b", "How it was computed."), " ", computed[:1].upper() + computed[1:]),
        tag("p", tag("b", "What it does not show."), " ", not_shown),
    ]
    if data is not None:
        parts.append(tag("p", "Data: ", data))
    return tag("figure", picture, tag("figcaption", *parts))


def panels(pictures: Iterable[tuple[Any, Any]]) -> Safe:
    """Pictures side by side, each under its title."""
    made = [tag("div", tag("p", title, class_="panel-title"), picture) for title, picture in pictures]
    return tag("div", *made, class_="panels-row")


def link(path: str) -> Safe:
    """A link to a file of the study's folder."""
    return tag("a", path, href=path)


def table(
    caption: Any, head: Iterable[Any], rows: Iterable[Iterable[Any]], kind: str = "", headed: bool = True
) -> Safe:
    """A table with a caption and scoped headings; `headed`: the first cell of a row is its heading."""
    names = list(head)
    top = tag("tr", *(tag("th", breakable(name), scope="col") for name in names))
    body = []
    for row in rows:
        cells = list(row)
        first = [tag("th", cells[0], scope="row")] if headed and cells else []
        rest = zip(names[len(first) :], cells[len(first) :], strict=False)
        body.append(tag("tr", *first, *(_cell(cell, str(name)) for name, cell in rest)))
    inner = tag("table", tag("caption", caption), tag("thead", top), tag("tbody", *body), class_=kind or None)
    # Focusable, so that a keyboard can scroll a wide table.
    label = "table" if isinstance(caption, Safe) else str(caption)
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=label)


def _cell(value: Any, name: str) -> Safe:
    """A cell that knows its column: on a narrow screen rows stand below each other, and the name before each value."""
    kind = "number" if isinstance(value, Safe) and "data-at=" in value else None
    return tag("td", value, class_=kind, data_label=name or None)


def details(summary: Any, *children: Any) -> Safe:
    """A part that is folded until it is opened."""
    return tag("details", tag("summary", summary), *children)
