"""The names of the tasks: a line here, `ss.register`, or an entry point; a module of ours is imported when it is asked for."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from sinkscope.errors import InputError, nearest
from sinkscope.registry import Registry

if TYPE_CHECKING:
    from sinkscope.tasks.task import Task

TASKS = {  # name: module with a function `task(scheme, family, data)`, or module:function
    "word_problems": "sinkscope.tasks.word_problems",
    "small_code": "sinkscope.tasks.small_code",
    "battery": "sinkscope.tasks.battery.task",
    "gsm8k": "sinkscope.tasks.gsm8k",
    "humaneval": "sinkscope.tasks.humaneval",
    "text": "sinkscope.tasks.text",
    **{
        name: f"sinkscope.tasks.choices:{name}" for name in ("blimp", "piqa", "sciq", "arc_easy", "hellaswag")
    },
}


def _name_of(thing: object) -> str:
    name = getattr(thing, "name", None)
    if not isinstance(name, str) or not name or not callable(getattr(thing, "documents", None)):
        raise InputError(
            f"a task is registered as an object with a name, documents, prompt and grade, got {thing!r}"
        )
    return name


REGISTERED: Registry[Task] = Registry("task", "sinkscope.tasks", _name_of)
"""Tasks of other packages."""


def names() -> list[str]:
    """The tasks that `get` knows."""
    return [*TASKS, *REGISTERED]


def get(name: str, family: str | None = None, data: str | Path | None = None, sandbox: str = "auto") -> Task:
    """The task called `name`, or `name:scheme` for another wording and grading than the family's default.

    `family`: the model's, which chooses the default scheme. `data`: a JSON-lines file in the original format;
    None: the hub. `sandbox`: for tasks that run code, "none" only by explicit choice.

    >>> get("gsm8k:dream-instruct").scheme.family
    'dream'
    """
    base, _, scheme = name.partition(":")
    made: Task
    if base in REGISTERED:
        made = REGISTERED[base]
        if scheme not in ("", made.scheme.name) or data is not None:
            raise InputError(
                f"the task {base!r} was registered as it is: it takes no other scheme and no data file"
            )
    elif base in TASKS:
        module, _, function = TASKS[base].partition(":")
        make = getattr(import_module(module), function or "task")
        made = make(scheme=scheme or None, family=family, data=data)
    else:
        raise InputError(f"unknown task {base!r}: {nearest(base, names())}")
    if sandbox != "auto" and made.runs_code and hasattr(made, "sandbox"):
        made = replace(made, sandbox=sandbox)  # type: ignore[type-var]
    return made
