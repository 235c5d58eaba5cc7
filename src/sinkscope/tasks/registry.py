"""The names of the tasks: a line here, `ss.register`, or an entry point; a module of ours is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sinkscope.base.errors import InputError, nearest
from sinkscope.base.extras import EXTRAS
from sinkscope.base.registry import Registry

if TYPE_CHECKING:
    from sinkscope.tasks.task import Task

Thing = TypeVar("Thing")

GUESSED = {"blimp": 0.5, "piqa": 0.5, "sciq": 0.25, "arc_easy": 0.25, "hellaswag": 0.25}
"""Choices by likelihood: the accuracy of guessing."""
TASKS = {  # name: module with a function `task(scheme, family, data)`, or module:function
    "word_problems": "sinkscope.tasks.word_problems",
    "small_code": "sinkscope.tasks.small_code",
    "battery": "sinkscope.tasks.battery",
    "gsm8k": "sinkscope.tasks.gsm8k",
    "humaneval": "sinkscope.tasks.humaneval",
    "text": "sinkscope.tasks.text",
    **{name: f"sinkscope.tasks.choices:{name}" for name in GUESSED},
}


def _name_of(thing: object) -> str:
    name = getattr(thing, "name", None)
    if not isinstance(name, str) or not name or not callable(getattr(thing, "documents", None)):
        raise InputError(f"a task is registered as an object with a name, documents, prompt and grade, got {thing!r}")
    return name


REGISTERED: Registry[Task] = Registry("task", "sinkscope.tasks", _name_of)
"""Tasks of other packages."""


def base_and_scheme(name: str) -> tuple[str, str]:
    """A task's own name and its scheme, "" for the default one.

    >>> base_and_scheme("gsm8k:zero-shot")
    ('gsm8k', 'zero-shot')
    """
    base, _, scheme = name.partition(":")
    return base, scheme


def is_file(name: str) -> bool:
    """Whether a task's name is that of a file of one's own; a scheme may stand behind it."""
    return base_and_scheme(name)[0].endswith((".jsonl", ".jsonl.gz"))


def names() -> list[str]:
    return [*TASKS, *REGISTERED]


def clusters(task: str, documents: Iterable[str]) -> list[str]:
    """What each document (by its id) is alike to others in: pairs of BLiMP in their paradigm; elsewhere each is by itself."""
    of_pairs = base_and_scheme(task)[0] == "blimp"
    return [name.rpartition("-")[0] if of_pairs else name for name in documents]


def guessed(task: str, documents: Iterable[str]) -> float:
    """The accuracy of guessing; of the battery, whose skills differ, the mean over these documents (their ids)."""
    base, _ = base_and_scheme(task)
    if base != "battery":
        return GUESSED.get(base, 0.0)
    from sinkscope.tasks.battery import stratum_of

    strata = [stratum for stratum in map(stratum_of, documents) if stratum]
    return sum(stratum.guessed for stratum in strata) / max(1, len(strata))


def get(name: str, family: str | None = None, data: str | Path | None = None, sandbox: str = "auto") -> Task:
    """The task called `name`, or `name:scheme` for another wording and grading than the family's default.

    A name that ends in .jsonl is a file of one's own (see `own`). `family`: the model's, which chooses the default scheme.
    `data`: a JSON-lines file in the original format; None: the hub. `sandbox`: for tasks that run code, "none" only by
    explicit choice.

    >>> get("gsm8k:dream-instruct").scheme.family
    'dream'
    """
    base, scheme = base_and_scheme(name)
    task: Task
    if is_file(name):
        from sinkscope.tasks import own

        if data is not None:
            raise InputError(f"the task {base} is a file already, and --data {data} was given too: leave it out")
        return own.task(base, scheme or None, family)
    if base in REGISTERED:
        task = REGISTERED[base]
        if scheme not in ("", task.scheme.name) or data is not None:
            raise InputError(f"the task {base!r} was registered as it is: it takes no other scheme and no data file")
    elif base in TASKS:
        module, _, function = TASKS[base].partition(":")
        make = getattr(import_module(module), function or "task")
        task = make(scheme=scheme or None, family=family, data=data)
    else:
        raise InputError(f"unknown task {base!r}: {nearest(base, names())}, or a .jsonl file of your own")
    if sandbox != "auto" and task.runs_code and hasattr(task, "sandbox"):
        # A copy: a registered task is shared by everyone who asks for it.
        task = replace(task, sandbox=sandbox)  # type: ignore[type-var]
    return task


def register(thing: Thing) -> Thing:
    """Register a policy, a decoding or an extra (a class), a family (an object) or a task (an object), and return it.

    Can be used as a decorator. Registered things are known to `--policy`, to `parse_policy`, to studies and their workers
    (a study file names the modules to import) like our own. An installed package can announce the same things through the
    entry-point groups `sinkscope.policies`, `.decodings`, `.families`, `.tasks`, and that of its kind of extra; then nothing has
    to be called.

    >>> import sinkscope as ss
    >>> from dataclasses import dataclass
    >>> @ss.register
    ... @dataclass(frozen=True)
    ... class MaskLast(ss.FixedRule):
    ...     k: int
    ...     word = "last"
    ...     def columns(self, layer, visibility, device):
    ...         import torch
    ...         index = torch.arange(visibility.keys, device=device)
    ...         return (index >= visibility.keys - self.k)[None, None]
    >>> str(ss.parse_policy("last:3"))
    'last:3'
    """
    from sinkscope.decoding.base import DECODINGS, Decoding
    from sinkscope.models.family import FAMILIES, Family
    from sinkscope.policies.policy import POLICIES, Policy
    from sinkscope.tasks.task import Task

    anything: Any = thing
    kind = thing if isinstance(thing, type) else object
    if issubclass(kind, Policy):
        POLICIES.add(anything)
    elif issubclass(kind, Decoding):
        DECODINGS.add(anything)
    elif kind is not object and any(extra.add(kind) for extra in EXTRAS.values()):
        pass
    elif isinstance(thing, Family):
        FAMILIES.add(anything)
    elif isinstance(thing, Task):
        REGISTERED.add(anything)
    else:
        raise InputError(
            "register takes the class of a policy, a decoding or an extra, a family or a task, got "
            f"{thing!r}; see CONTRIBUTING on adding one"
        )
    return thing
