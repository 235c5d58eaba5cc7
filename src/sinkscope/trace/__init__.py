"""Traces: everything recorded about one generation, as labelled arrays in memory or streamed to disk."""

RENDERERS: dict[str, str] = {}
"""Form → "module:function" that shows a trace: "html" (a page), "widget" (for a notebook), "preview" (HTML at the end of a cell).

Named in `sinkscope/__init__.py`, because reports lie above traces.
"""
