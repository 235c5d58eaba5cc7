"""`sinkscope evaluate`: answer a task's documents, grade them, print accuracy with everything that it depends on."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sinkscope.commands.output import console, say, show_json, show_pairs, working
from sinkscope.errors import InputError
from sinkscope.policies import parse_policy
from sinkscope.reuse import as_reuse
from sinkscope.tasks import sandbox
from sinkscope.tasks.evaluate import (
    Evaluation,
    decoding_options,
    family_of,
    prepare,
    summary,
    write_answers,
)
from sinkscope.tasks.evaluate import evaluate as run_evaluation
from sinkscope.tasks.task import ACCURACY


@dataclass(frozen=True)
class Request:
    """A command line; `decoding` holds decoding options by name, None where not given."""

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
    json: bool = False
    reuse: str | None = None


def evaluate(request: Request) -> None:
    """Run the request. Everything that can be wrong without a model is said before one is loaded."""
    warnings.simplefilter("ignore", sandbox.UnconfinedWarning)  # said in a line of its own
    policy = None if request.policy is None else parse_policy(request.policy)
    reuse = as_reuse(request.reuse)
    batch_size = _batch_size(request.batch_size)
    if not request.grade and request.out is None:
        raise InputError("--no-grade keeps answers for later; say where with --out")
    family = family_of(request.source, request.revision)
    task = prepare(family, request.task, request.data, request.sandbox, request.grade)
    if task.runs_code and request.grade:
        say(sandbox.reason(request.sandbox), stderr=True)
    from sinkscope.tasks.answer import items

    items(task, request.limit)  # reads the documents: a file that is missing is said now
    from sinkscope.commands.trace import make_decoding
    from sinkscope.models.load import load

    with working(f"loading {request.source}"):
        model = load(request.source, request.device, request.dtype, request.revision)
    given = {name: value for name, value in request.decoding.items() if value is not None}
    decoding = make_decoding(model, {**decoding_options(task, family), **given})
    limit, out, seeds = request.limit, request.out, request.seeds
    try:
        shares = task.settings().get("measure", ACCURACY) == ACCURACY
        with watching(f"{task.name}:{task.scheme.name}", request.grade and shares) as progress:
            if out is not None and not request.grade:
                keys = write_answers(
                    model, task, decoding, policy, out, limit, seeds, batch_size, False, progress, reuse
                )
            else:
                evaluation = run_evaluation(
                    model,
                    task,
                    decoding,
                    policy,
                    limit,
                    batch_size,
                    out,
                    seeds,
                    progress=progress,
                    reuse=reuse,
                )
    except KeyboardInterrupt:
        if out is not None:
            say(f"stopped; the same command goes on from what is in {out}", stderr=True)
        raise
    if request.grade:
        show(evaluation, request.json, out)
    elif request.json:
        show_json({"answers": len(keys), "folder": out})
    else:
        say(f"answers, to grade with `sinkscope grade {out}`: {out}")


def _batch_size(text: str) -> Any:
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--batch-size should be a whole number of at least 1, or auto, got {text!r}")
    return int(text)


def show(evaluation: Evaluation, json: bool, folder: Path | None = None) -> None:
    """The result, one line for each thing that it depends on, or as JSON."""
    if json:
        low, high = evaluation.interval
        reused = evaluation.work_saved
        show_json(
            {
                evaluation.measure: evaluation.value, "stderr": evaluation.stderr, "low": low, "high": high,
                "documents": evaluation.n, "seeds": evaluation.seeds, "settings": evaluation.settings, "folder": folder,
                "records": evaluation.table(), **({} if reused is None else {"work_saved": reused}),
            }
        )  # fmt: skip
        return
    show_pairs(dict(summary(evaluation)))
    if folder is not None:
        say(f"answers and grades: {folder}")


@contextmanager
def watching(what: str, graded: bool = True) -> Iterator[Callable[[int, int, int], None]]:
    """A bar on stderr with the running accuracy and the time left; into a pipe, a line for every tenth."""
    errors = console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
        TimeRemainingColumn(),
        console=errors,
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
        if not errors.is_terminal and tenth not in tenths:
            tenths.add(tenth)
            passed, new = time.monotonic() - begin, done - first[0]
            left = f", {passed / new * (total - done):.0f} s left" if new else ""
            say(f"{what}: {done}/{total} {accuracy}{left}", stderr=True)

    with bar:
        yield tell
