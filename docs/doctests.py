"""For mkdocstrings: examples in docstrings are code, wherever they stand."""

from __future__ import annotations

from typing import Any

import griffe


class Fenced(griffe.Extension):
    """Puts a fence around every run of lines that begins with >>>."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with its examples as fenced blocks."""
    lines: list[str] = []
    inside = ""
    for line in [*text.splitlines(), ""]:
        indent = line[: len(line) - len(line.lstrip())]
        if not inside and line.lstrip().startswith(">>> "):
            inside = f"{indent}```"
            lines.append(f"{inside}pycon")
        elif inside and not line.strip():
            lines.append(inside)
            inside = ""
        lines.append(line)
    return "\n".join(lines).rstrip()
