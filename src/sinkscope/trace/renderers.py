"""How a trace is shown: functions that `sinkscope/__init__.py` names here, because reports lie above traces."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

RENDERERS: dict[str, str] = {}
"""Form → "module:function": "html" (write a page), "widget" (for a notebook), "preview" (HTML at the end of a cell)."""


def renderer(form: str) -> Callable[..., Any]:
    """The function that shows a trace in a form; imported when it is first asked for."""
    function: Callable[..., Any] = resolve_name(RENDERERS[form])
    return function
