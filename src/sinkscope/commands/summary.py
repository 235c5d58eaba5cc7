"""`sinkscope summary`: what a person wants to read first about a trace."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from sinkscope.trace.trace import Trace


def summarise(path: Path) -> None:
    """Prints the summary table of a trace, with intervals over prompts where there are several."""
    from sinkscope.sinks import summary

    trace = Trace.open(path)
    console = Console()
    table = Table(
        "", "measure", "value", "95 % over prompts", "unit", title=repr(trace), title_justify="left"
    )
    section = None
    for row in summary(trace).to_dict("records"):
        known = row["low"] == row["low"]
        interval = f"{row['low']:.3g} … {row['high']:.3g}" if known else ""
        value = "unknown" if row["value"] != row["value"] else f"{row['value']:.3g}"
        note = f" ({row['note']})" if row["note"] else ""
        table.add_row(
            row["section"] if row["section"] != section else "",
            row["measure"],
            value,
            interval,
            row["unit"] + note,
        )
        section = row["section"]
    console.print(table)
