"""How a trace is shown: functions that `sinkscope/__init__.py` registers, because reports lie above traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sinkscope.errors import InputError

renderers: dict[str, Callable[..., Any]] = {}
"""Form → function: "html" (write a page), "widget" (for a notebook), "preview" (HTML at the end of a cell)."""


def renderer(form: str) -> Callable[..., Any]:
    """The function that shows a trace in a form."""
    if form not in renderers:
        raise InputError(f"nothing is registered that shows a trace as {form}; import sinkscope first")
    return renderers[form]
