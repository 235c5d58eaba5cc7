"""The viewer inside a notebook: the same page in a sandboxed frame, so that neither changes the other's style or script.

`widget.state` is what the view shows, kept in step both ways: read it after clicking, or set it to go somewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from sinkscope.errors import InputError

LEAST_HEIGHT = 200


def trace_widget(
    trace: Any, other: Any = None, heads: Sequence[tuple[int, int]] = (), height: int = 760
) -> Any:
    """An anywidget with the view of a trace, beside another if given. heads: (layer, head) to embed in full; height: pixels."""
    from sinkscope.report.html import viewer_page

    if not isinstance(height, int) or height < LEAST_HEIGHT:
        raise InputError(f"height should be a number of pixels of at least {LEAST_HEIGHT}, got {height!r}")
    made = _widget_class()
    return made(page=viewer_page(trace, other, heads, hosted=True), height=height)


@lru_cache(maxsize=1)
def _widget_class() -> Any:
    """The class, made when it is first needed: anywidget is an extra."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise InputError(
            "the view in a notebook needs anywidget, which is not installed: pip install 'sinkscope[notebook]' "
            "(or write a file: trace.to_html('trace.html'))"
        ) from error

    class TraceWidget(anywidget.AnyWidget):  # type: ignore[misc]
        """The view of a trace. state: step, layer, head, key (indices; −1: mean, or none), score, and the traces a and b."""

        _esm = (files("sinkscope.report") / "viewer" / "widget.js").read_text(encoding="utf-8")
        page = traitlets.Unicode().tag(sync=True)
        height = traitlets.Int(760).tag(sync=True)
        state = traitlets.Dict().tag(sync=True)

    return TraceWidget
