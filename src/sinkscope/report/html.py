"""Pages in one file: the viewer's own script and style inlined, data as JSON that cannot become markup, no network.

Templates escape every text that is not markup of theirs. Characters that are invisible or turn the direction of the text are
spelled out, so that a hostile name can neither become markup nor disguise what stands beside it.

`viewer_page` is a whole page for one or two traces; `viewer_parts` gives a report the pieces to embed the same view.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from sinkscope.base.errors import InputError
from sinkscope.base.files import write_atomically
from sinkscope.base.sink_rule import EPSILON
from sinkscope.base.text import visible
from sinkscope.base.version import __version__

SCRIPTS = ("colour", "data", "pen", "pictures", "tokens", "panel", "difference", "viewer")
"""Files of the viewer, in the order in which they are joined: each uses what stands before it."""
LONGEST = 2_000
"""Characters of one text that a template shows; what is cut is said."""


class PageParts(NamedTuple):
    """The parts of a page that shows a view: put `style` and `script` into it once, each `body` where a view goes."""

    body: str
    style: str
    script: str


@cache
def asset(name: str) -> str:
    """A file of this package."""
    return (files("sinkscope.report") / name).read_text(encoding="utf-8")


def viewer_script() -> str:
    """The viewer as one script in its own scope; it mounts itself on every element with data-sinkscope."""
    joined = "\n".join(asset(f"viewer/{name}.js") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{joined}\n}})();\n'


def embedded_json(value: Any) -> str:
    """JSON for a script element: nothing in it can end the element, open a comment, or end a line of script."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    # A lone surrogate, from a broken tokenizer, is no valid UTF-8.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def content_policy(*, scripts: Sequence[str], styles: Sequence[str], connect: bool = False) -> str:
    """A Content-Security-Policy that allows exactly these inline scripts and styles, and no request at all.

    connect: allow requests to where the page came from, for a page that follows a generation.
    """
    allowed = {
        "script-src": " ".join(map(_digest, scripts)) or "'none'",
        "style-src": " ".join(map(_digest, styles)) or "'none'",
    }
    rules = ["default-src 'none'", *(f"{name} {value}" for name, value in allowed.items())]
    rules += ["connect-src 'self'"] if connect else []
    return "; ".join([*rules, "img-src data: blob:", "base-uri 'none'", "form-action 'none'"])


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def environment() -> Environment:
    """Templates that escape, and say when a name is missing."""
    folder = Path(__file__).parent
    return Environment(
        loader=FileSystemLoader([folder / "viewer", folder / "study" / "templates"]), autoescape=True,
        undefined=StrictUndefined, finalize=spelled, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip


def spelled(value: Any) -> Any:
    """What a template shows of a value: markup as it is; of a text nothing invisible, and at most `LONGEST` characters.

    >>> spelled("a\\u202eb")
    'a⟨U+202E⟩b'
    """
    if value is None or isinstance(value, Markup):
        return value or ""
    text = str(value)
    cut = f"… ({len(text):,} characters)" if len(text) > LONGEST else ""
    return visible(text[:LONGEST]) + cut


def page(
    title: str,
    body: str,
    *,
    scripts: Sequence[str] = (),
    styles: Sequence[str] = (),
    kind: str = "viewer",
    connect: bool = False,
) -> str:
    """A whole document. body is markup: escape everything in it that is not. kind: the class of the body element."""
    policy = content_policy(scripts=scripts, styles=styles, connect=connect)
    document = environment().get_template("document.jinja")
    return document.render(title=title, policy=policy, styles=styles, scripts=scripts, kind=kind, body=body) + "\n"


def viewer_parts(
    views: Sequence[dict[str, Any]],
    *,
    name: str = "trace",
    compare: bool = False,
    address: bool = True,
    inside: bool = False,
    hosted: bool = False,
    live: str = "",
) -> PageParts:
    """The view as parts of another page. views: from `sinkscope.report.payload.views`, of one trace or two.

    name: unique in the page. compare: open with the first two views side by side. address: keep the state in the URL;
    only one view of a page can. inside: keys work only where the view has the focus, as they should in a longer page.
    hosted: tell the window around this one what is shown, and follow it; for a frame in a notebook.
    live: an address that answers with newer views (`sinkscope.report.live`).
    """
    if not name.replace("-", "").isalnum():
        raise InputError(f"name should be letters, digits and hyphens, got {name!r}")
    if not views:
        raise InputError("there is nothing to show: give at least one view")
    other = next((i for i, view in enumerate(views) if view.get("other")), -1) if compare else -1
    data = embedded_json({"views": list(views), "compare": other, **({"live": live} if live else {})})
    body = (
        f'<div class="sinkscope" data-sinkscope="{name}-data" data-address="{"on" if address else "off"}"'
        f' data-keys="{"inside" if inside else "page"}"'
        f' data-host="{"on" if hosted else "off"}"></div>\n'
        f'<script type="application/json" id="{name}-data">{data}</script>'
    )
    return PageParts(body, asset("viewer/viewer.css"), viewer_script())


def viewer_page(
    trace: Any,
    other: Any = None,
    heads: Sequence[tuple[int, int]] = (),
    *,
    epsilon: float = EPSILON,
    samples: Sequence[int] | None = None,
    names: tuple[str | None, str | None] = (None, None),
    files: tuple[str, str] = ("", ""),
    hosted: bool = False,
) -> str:
    """One trace, or two side by side, as one HTML file. heads: (layer, head) labels to embed in full; hosted: for a frame."""
    from sinkscope.report.payload import mixed, views

    percent = other is not None and mixed((trace, other))
    options: dict[str, Any] = {"heads": heads, "epsilon": epsilon, "samples": samples, "percent": percent}
    embedded = views(trace, name=names[0], file=files[0], **options)
    if other is not None:
        beside = views(other, name=names[1], file=files[1], **options)
        embedded += [{**view, "other": True} for view in beside]
    parts = viewer_parts(embedded, compare=other is not None, address=not hosted, hosted=hosted)
    title = " and ".join(dict.fromkeys(str(view["name"]) for view in embedded))
    body = environment().get_template("page.jinja").render(view=parts.body, epsilon=epsilon, version=__version__)
    kind = "viewer hosted" if hosted else "viewer"
    return page(f"{title} · sinkscope", body, scripts=[parts.script], styles=[parts.style], kind=kind)


def write_viewer(path: str | os.PathLike[str], trace: Any, other: Any = None, **options: Any) -> Path:
    """Writes `viewer_page` to a file that ends in .html."""
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"the page should end in .html, got {str(path)!r}; try {target.name}.html")
    if not target.parent.is_dir():
        raise InputError(f"the folder {target.parent} does not exist; make it first")
    write_atomically(target, viewer_page(trace, other, **options))  # replaces a link, and does not follow it
    return target
