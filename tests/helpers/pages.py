"""Tables of the docs, for tests that compare their numbers with the data they come from."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def tables(page: str) -> list[tuple[str, str, str, str]]:
    """Head of the first column, first cell, head and text of every other cell."""
    found: list[tuple[str, str, str, str]] = []
    heads: list[str] = []
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and heads and cells[0] != "---":
            found += [(heads[0], cells[0], *pair) for pair in zip(heads[1:], cells[1:], strict=True)]
        heads = (heads or cells) if cells else []
    return found
