"""`sinkscope summary`: what a person wants to read first about a trace."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sinkscope.text import visible
from sinkscope.trace.trace import Trace

UNFOLDED = 10_000
"""Columns of a console that is no terminal: lines in a pipe or file are never folded."""


def summarise(path: Path) -> None:
    """Prints the summary table of a trace, with intervals over prompts where there are several."""
    from sinkscope.sinks import summary

    trace = Trace.open(path)
    console = Console() if sys.stdout.isatty() else Console(width=UNFOLDED)
    table = Table("", "measure", "value", "95 % over prompts", "unit")
    section = None
    for row in summary(trace).to_dict("records"):
        known = row["low"] == row["low"]
        interval = f"{row['low']:.3g} … {row['high']:.3g}" if known else ""
        value = "unknown" if row["value"] != row["value"] else f"{row['value']:.3g}"
        note = f" ({row['note']})" if row["note"] else ""
        first = "" if row["section"] == section else row["section"]
        cells = (first, row["measure"], value, interval, row["unit"] + note)
        table.add_row(*(Text(visible(str(cell))) for cell in cells))
        section = row["section"]
    console.print(Text(visible(repr(trace))), soft_wrap=True)
    console.print(table)
