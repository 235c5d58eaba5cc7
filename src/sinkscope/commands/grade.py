"""`sinkscope grade`: grade the saved answers of an evaluation; no model is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from sinkscope.commands.evaluate import show, watching
from sinkscope.errors import InputError
from sinkscope.tasks import registry
from sinkscope.tasks.evaluate import collect
from sinkscope.tasks.grading import grade_run
from sinkscope.tasks.records import RunFolder
from sinkscope.tasks.task import Task


def grade(path: Path, again: bool, data: Path | None, sandbox: str) -> None:
    """Grades what has no grade yet, or with `again` everything, and prints the result."""
    settings = RunFolder.read(path).settings
    task = task_of(settings, data, sandbox)
    errors = Console(stderr=True)
    with RunFolder.write(path, settings) as run:
        with watching(errors, f"grading {task.name}:{task.scheme.name}") as told:
            grade_run(run, task, again, progress=told)
        found = collect(run)
    show(Console(), found)


def task_of(settings: dict[str, Any], data: Path | None = None, sandbox: str = "auto") -> Task:
    """The task that a run's settings name, with its scheme."""
    known = settings.get("task")
    if not isinstance(known, dict) or "task" not in known:
        raise InputError("the run's settings name no task: it was not made by `sinkscope evaluate`")
    name = known["task"]
    if name not in registry.TASKS:
        raise InputError(
            f"the run's task {name!r} is not one of sinkscope's: grade it with grading.grade_run and its Task"
        )
    return registry.get(f"{name}:{known['scheme']['name']}", None, data, sandbox)
