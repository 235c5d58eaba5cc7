"""`sinkscope evaluate`: answer a task's documents, grade them, print accuracy with everything that it depends on."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from sinkscope.errors import InputError
from sinkscope.policies import parse_policy
from sinkscope.tasks.evaluate import (
    Evaluation,
    check_seeds,
    collect,
    decoding_options,
    family_of,
    prepare,
    run_settings,
    summary,
)
from sinkscope.tasks.records import RunFolder


@dataclass(frozen=True)
class Request:
    """What the command line asked for; `decoding` holds decoding options by name, None where not given."""

    source: str
    task: str
    policy: str | None
    limit: int | None
    out: Path | None
    data: Path | None
    batch_size: str
    seeds: tuple[int, ...]
    grade: bool
    sandbox: str
    decoding: dict[str, Any]
    device: str
    dtype: str
    revision: str | None


def evaluate(request: Request) -> None:
    """Runs the request. Everything that can be wrong without a model is said before one is loaded."""
    policy = None if request.policy is None else parse_policy(request.policy)
    batch_size = _batch_size(request.batch_size)
    if not request.grade and request.out is None:
        raise InputError("--no-grade keeps answers for later; say where with --out")
    family = family_of(request.source, request.revision)
    task = prepare(family, request.task, request.data, request.sandbox, request.grade)
    from sinkscope.tasks.answer import answer, items

    items(task, request.limit)  # reads the documents: a file that is missing is said now
    from sinkscope.commands.trace import make_decoding
    from sinkscope.models.load import load

    errors = Console(stderr=True)
    with errors.status(f"loading {request.source}"):
        model = load(request.source, request.device, request.dtype, request.revision)
    given = {name: value for name, value in request.decoding.items() if value is not None}
    decoding = make_decoding(model, {**decoding_options(task, family), **given})
    wanted = items(task, request.limit, check_seeds(request.seeds, decoding, policy))
    with tempfile.TemporaryDirectory(prefix="sinkscope-") as scratch:
        folder = request.out or Path(scratch, "run")
        with RunFolder.write(folder, run_settings(model, task, decoding, policy)) as run:
            try:
                with watching(errors, f"{task.name}:{task.scheme.name}", request.grade) as told:
                    answer(model, task, wanted, decoding, policy, run, batch_size, request.grade, told)
            except KeyboardInterrupt:
                if request.out is not None:
                    errors.print(Text(f"stopped; the same command goes on from what is in {request.out}"))
                raise
            found = collect(run, {item.key for item in wanted}) if request.grade else None
    console = Console()
    if found is not None:
        show(console, found)
    if request.out is not None:
        done = (
            "answers and grades"
            if request.grade
            else f"answers, to grade with `sinkscope grade {request.out}`"
        )
        console.print(Text(f"{done}: {request.out}"))


def _batch_size(text: str) -> Any:
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--batch-size should be a whole number of at least 1, or auto, got {text!r}")
    return int(text)


def show(console: Console, found: Evaluation) -> None:
    """The result, one line for each thing that it depends on."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in summary(found):
        table.add_row(Text(name), Text(value))
    console.print(table)


@contextmanager
def watching(console: Console, what: str, graded: bool = True) -> Iterator[Callable[[int, int, int], None]]:
    """A bar with the running accuracy and the time left; where nobody looks on, a line for every tenth."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task(what, total=None, accuracy="")
    begin = time.monotonic()
    first: list[int] = []
    tenths: set[int] = set()

    def tell(done: int, right: int, total: int) -> None:
        accuracy = f"accuracy {right / done:.3f}" if graded and done else ""
        if not first:
            first.append(done)  # what was there already tells nothing about speed
            bar.reset(task, total=total, completed=done, accuracy=accuracy)
        bar.update(task, completed=done, total=total, accuracy=accuracy)
        tenth = 10 * done // max(1, total)
        if not console.is_terminal and tenth not in tenths:
            tenths.add(tenth)
            passed, new = time.monotonic() - begin, done - first[0]
            left = f", {passed / new * (total - done):.0f} s left" if new else ""
            console.print(Text(f"{what}: {done}/{total} {accuracy}{left}"))

    with bar:
        yield tell
