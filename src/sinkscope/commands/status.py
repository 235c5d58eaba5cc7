"""`sinkscope status`: how far a study is, also while it runs."""

from __future__ import annotations

from pathlib import Path

from sinkscope.commands.output import say, show_json, show_table
from sinkscope.study import status


def show(folder: Path, json: bool = False) -> None:
    """A row for each cell that is not finished, a line for each model, and last a line about the whole."""
    found = status.read(folder)
    if json:
        show_json(
            {
                "study": found.study, "folder": found.root, "answers": found.done, "wanted": found.wanted,
                "not_graded": found.not_graded, "running": found.running, "seconds_since_last_record": found.idle,
                "report": found.report, "cells": found.cells,
            }
        )  # fmt: skip
        return
    rest = [cell for cell in found.cells if cell.done < cell.wanted]
    if rest:
        show_table(
            ("cell", "what", "answers", "right"),
            [
                (
                    cell.id[:8],
                    f"{cell.title}{' ◂ in work' if cell.working else ''}",
                    f"{cell.done}/{cell.wanted}",
                    f"{cell.right / cell.graded:.0%}" if cell.right is not None and cell.graded else "",
                )
                for cell in rest
            ],
            title=f"study {found.study}: cells that are not finished",
        )
    for model in dict.fromkeys(cell.model for cell in found.cells):
        cells = [cell for cell in found.cells if cell.model == model]
        finished = sum(cell.done >= cell.wanted for cell in cells)
        answers = f"{sum(cell.done for cell in cells)}/{sum(cell.wanted for cell in cells)}"
        say(f"{model}: {finished} of {len(cells)} cells finished, {answers} answers")
    if found.not_graded:
        say(f"{found.not_graded} answers are not graded; grade them with: sinkscope grade {folder}")
    say(last_line(found))
    if found.report is not None:
        say(f"report: {found.report}")


def last_line(found: status.Status) -> str:
    """The study in one line: how much is done, and who runs it."""
    share = found.done / found.wanted if found.wanted else 0.0
    line = f"study {found.study}: {found.done} of {found.wanted} answers ({share:.0%})"
    if found.running:
        line += f"; running: {found.running}"
        if found.idle is not None:
            line += f", last record {found.idle:.0f} s ago"
    elif found.done < found.wanted or found.report is None:
        line += "; nobody is running it: the same command as before goes on"
    return line
