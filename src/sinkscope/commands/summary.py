"""`sinkscope summary`: what a person wants to read first about a trace."""

from __future__ import annotations

from pathlib import Path

from sinkscope import sinks
from sinkscope.commands.output import say, show_json, show_table
from sinkscope.sink_rule import EPSILON
from sinkscope.trace.trace import Trace


def summary(path: Path, epsilon: float = EPSILON, rule: str = "auto", json: bool = False) -> None:
    """Prints the summary table of a trace, with intervals over prompts where there are several."""
    trace = Trace.open(path)
    table = sinks.summary(trace, epsilon=epsilon, rule=rule)
    if json:
        show_json(table)
        return
    rows, section = [], None
    for row in table.to_dict("records"):
        known = row["low"] == row["low"]
        interval = f"{row['low']:.3g} … {row['high']:.3g}" if known else ""
        value = "unknown" if row["value"] != row["value"] else f"{row['value']:.3g}"
        note = f" ({row['note']})" if row["note"] else ""
        first = "" if row["section"] == section else row["section"]
        rows.append((first, row["measure"], value, interval, row["unit"] + note))
        section = row["section"]
    say(repr(trace))
    show_table(("", "measure", "value", "95 % over prompts", "unit"), rows)
