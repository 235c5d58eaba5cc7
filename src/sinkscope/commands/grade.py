"""`sinkscope grade`: grade the saved answers of an evaluation, or of a whole study; no model is needed."""

from __future__ import annotations

import warnings
from pathlib import Path

from sinkscope.commands.evaluate import announce, show, watching
from sinkscope.commands.output import say, show_json
from sinkscope.tasks.evaluation import open_evaluation
from sinkscope.tasks.grading import grade_folders, run_folders, task_of
from sinkscope.tasks.records import RunFolder
from sinkscope.tasks.sandbox import UnconfinedWarning


def grade(run: Path, again: bool, data: Path | None, sandbox: str, yes: bool, json: bool) -> None:
    """Grade what has no grade yet, or with `again` everything, and print the result."""
    warnings.simplefilter("ignore", UnconfinedWarning)  # said in a line of its own
    tasks = [task_of(RunFolder.read(folder).settings, data, sandbox) for folder in run_folders(run)]
    if any(task.runs_code for task in tasks):
        announce(sandbox, yes)
    with watching(f"grading {', '.join(sorted({task.name for task in tasks}))}") as progress:
        done = grade_folders(run, again, data, sandbox, progress)
    if list(done) == [run]:
        show(open_evaluation(run), json)
        return
    answers = [grade for grades in done.values() for grade in grades]
    right = sum(grade.passed for grade in answers)
    if json:
        show_json({"folders": len(done), "answers": len(answers), "right": right})
    else:
        say(f"{len(answers)} answers in {len(done)} folders are graded, {right} of them right")
        if (run / "study.toml").is_file():
            say("the same `sinkscope study` command again makes tables and report from them")
