"""`sinkscope status`: how far a study is, also while it runs."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sinkscope.study import status as studies


def show(folder: Path) -> None:
    """One line per cell, and one about the whole."""
    found = studies.read(folder)
    table = Table("cell", "what", "answers", "right", title=f"study {found.study.name}", title_justify="left")
    for cell in found.cells:
        right = "" if cell.right is None or not cell.done else f"{cell.right / cell.done:.0%}"
        mark = " ◂" if cell.working else ""
        table.add_row(cell.id[:8], Text(cell.title + mark), f"{cell.done}/{cell.wanted}", right)
    console = Console()
    console.print(table)
    share = found.done / found.wanted if found.wanted else 0.0
    line = f"{found.done} of {found.wanted} answers ({share:.0%})"
    if found.running:
        line += f"; running: {found.running}"
    elif found.done < found.wanted or found.report is None:
        line += "; nobody is running it: the same command as before goes on"
    if found.idle is not None and found.running:
        line += f"; last record {found.idle:.0f} s ago"
    console.print(Text(line))
    if found.report is not None:
        console.print(Text(f"report: {found.report}"))
