"""Traces in a notebook: a picture for a trace at the end of a cell, and the viewer as a widget.

The widget is the viewer's page in a sandboxed frame, so that neither changes the other's style or script. `widget.state` is
what the view shows, kept in step both ways: read it after clicking, or set it to go somewhere. A notebook that is exported
without its kernel keeps a picture in the widget's place.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sinkscope.base.errors import InputError
from sinkscope.base.text import html_table, visible
from sinkscope.report.html import asset, viewer_page

LEAST_HEIGHT = 200
FACTS = ("model", "revision", "family", "dtype", "decoding", "policy", "seed", "weights_digest")


def trace_preview(trace: Any) -> str:
    """Facts about a trace and its heat map (step × position, mean over layers and heads), as HTML."""
    from sinkscope.report.figures.heat_map import plot_heat_map

    about = trace.attributes
    rows = [(name, about[name]) for name in FACTS if about.get(name) not in (None, "")]
    rows.append(("size", ", ".join(f"{name} {size}" for name, size in trace.dataset.sizes.items())))
    picture = plot_heat_map({visible(str(about.get("model") or "trace")): trace}, width=7.0)
    return f"<div>{html_table('sinkscope trace', (), rows)}{picture.image()}</div>"


def trace_widget(trace: Any, other: Any = None, heads: Sequence[tuple[int, int]] = (), height: int = 760) -> Any:
    """An anywidget with the view of a trace, beside another if given. heads: (layer, head) to embed in full; height: pixels."""
    if not isinstance(height, int) or height < LEAST_HEIGHT:
        raise InputError(f"height should be a number of pixels of at least {LEAST_HEIGHT}, got {height!r}")
    widget = _widget_class()(page=viewer_page(trace, other, heads, hosted=True), height=height)
    widget.traces = [one for one in (trace, other) if one is not None]
    return widget


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

        # What is synchronised: the page once, and what it shows after every click, from either side.
        _esm = asset("viewer/widget.js")
        page = traitlets.Unicode().tag(sync=True)
        height = traitlets.Int(760).tag(sync=True)
        state = traitlets.Dict().tag(sync=True)
        traces: Sequence[Any] = ()

        def _repr_mimebundle_(self, **options: Any) -> Any:
            """The widget, and a picture for pages without a kernel: exported notebooks fall back to it."""
            bundle = super()._repr_mimebundle_(**options)
            data = bundle[0] if isinstance(bundle, tuple) else bundle
            if data is not None:
                note = html.escape(
                    "A picture of the view; run the cell to explore it, or export it with trace.to_html."
                )
                data["text/html"] = "".join(map(trace_preview, self.traces)) + f"<p><small>{note}</small></p>"
            return bundle

    return TraceWidget
