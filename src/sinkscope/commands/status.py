"""`sinkscope status`: how far a study is, also while it runs."""

from __future__ import annotations

from pathlib import Path

from sinkscope.commands.output import say, show_json, show_table
from sinkscope.study.status import CellStatus, Status, read


def status(folder: Path, json: bool = False) -> None:
    """A row for each cell that is not finished, a line for each model, and last a line about the whole."""
    study = read(folder)
    if json:
        show_json(
            {
                "study": study.study, "folder": study.root, "answers": study.done, "wanted": study.wanted,
                "not_graded": study.not_graded, "running": study.running, "seconds_since_last_record": study.idle,
                "report": study.report, "cells": study.cells,
            }
        )  # fmt: skip
        return
    rest = [cell for cell in study.cells if cell.done < cell.wanted]
    if rest:
        rows = [
            (cell.id[:8], f"{cell.title}{' ◂ in work' if cell.working else ''}", f"{cell.done}/{cell.wanted}", _right(cell))
            for cell in rest
        ]  # fmt: skip
        title = f"study {study.study}: cells that are not finished"
        show_table(("cell", "what", "answers", "right"), rows, title)
    for model in dict.fromkeys(cell.model for cell in study.cells):
        cells = [cell for cell in study.cells if cell.model == model]
        finished = sum(cell.done >= cell.wanted for cell in cells)
        answers = f"{sum(cell.done for cell in cells)}/{sum(cell.wanted for cell in cells)}"
        say(f"{model}: {finished} of {len(cells)} cells finished, {answers} answers")
    if study.not_graded:
        say(f"{study.not_graded} answers are not graded; grade them with: sinkscope grade {folder}")
    say(last_line(study))
    if study.report is not None:
        say(f"report: {study.report}")


def _right(cell: CellStatus) -> str:
    return f"{cell.right / cell.graded:.0%}" if cell.right is not None and cell.graded else ""


def last_line(study: Status) -> str:
    """The study in one line: how much is done, and who runs it."""
    share = study.done / study.wanted if study.wanted else 0.0
    line = f"study {study.study}: {study.done} of {study.wanted} answers ({share:.0%})"
    if study.running:
        line += f"; running: {study.running}"
        if study.idle is not None:
            line += f", last record {study.idle:.0f} s ago"
    elif study.done < study.wanted or study.report is None:
        line += "; nobody is running it: the same command as before goes on"
    return line
