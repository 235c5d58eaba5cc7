"""`sinkscope evaluate`: answer a task's documents, grade them, print accuracy with everything that it depends on."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import TextColumn

from sinkscope.commands.output import bar, confirm, say, show_json, show_pairs, working
from sinkscope.commands.trace import make_decoding
from sinkscope.errors import InputError
from sinkscope.models.load import load
from sinkscope.policies import parse_policy
from sinkscope.reuse import as_reuse
from sinkscope.tasks.answer import items
from sinkscope.tasks.evaluate import decoding_options, family_of, prepare, write_answers
from sinkscope.tasks.evaluate import evaluate as run_evaluation
from sinkscope.tasks.evaluation import Evaluation, summary
from sinkscope.tasks.sandbox import UnconfinedWarning, reason
from sinkscope.tasks.task import ACCURACY


def evaluate(
    source: str,
    task: str,
    policy: str | None,
    reuse: str | None,
    limit: int | None,
    out: Path | None,
    data: Path | None,
    batch_size: str,
    seed: Sequence[int] | None,
    grade: bool,
    sandbox: str,
    yes: bool,
    device: str,
    dtype: str,
    revision: str | None,
    json: bool,
    decoding: dict[str, Any],
) -> None:
    """Answer and grade. Everything that can be wrong without a model is said before one is loaded."""
    warnings.simplefilter("ignore", UnconfinedWarning)  # said in a line of its own
    rule = None if policy is None else parse_policy(policy)
    approximate = as_reuse(reuse)
    size = _batch_size(batch_size)
    if not grade and out is None:
        raise InputError("--no-grade keeps answers for later; say where with --out")
    family = family_of(source, revision)
    chosen = prepare(family, task, data, sandbox, grade)
    if chosen.runs_code and grade:
        announce(sandbox, yes)
    items(chosen, limit)  # reads the documents: a file that is missing is said now
    with working(f"loading {source}"):
        model = load(source, device, dtype, revision)
    loop = make_decoding(model, {**decoding_options(chosen, family), **decoding})
    seeds = tuple(seed or (0,))
    try:
        shares = chosen.settings().get("measure", ACCURACY) == ACCURACY
        with watching(f"{chosen.name}:{chosen.scheme.name}", grade and shares) as progress:
            if out is not None and not grade:
                keys = write_answers(
                    model, chosen, loop, rule, out, limit, seeds, size, False, progress, approximate
                )
            else:
                evaluation = run_evaluation(
                    model, chosen, loop, rule, limit, size, out, seeds, progress=progress, reuse=approximate
                )
    except KeyboardInterrupt:
        if out is not None:
            say(f"stopped; the same command goes on from what is in {out}", stderr=True)
        raise
    if grade:
        show(evaluation, json, out)
    elif json:
        show_json({"answers": len(keys), "folder": out})
    else:
        say(f"answers, to grade with `sinkscope grade {out}`: {out}")


def announce(sandbox: str, yes: bool) -> None:
    """Say how model-written programs are confined; where they are not, that is confirmed first."""
    if sandbox == "none" and not yes:
        confirm(reason(sandbox), "--yes")
    else:
        say(reason(sandbox), stderr=True)


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
        saved = evaluation.work_saved
        show_json(
            {
                evaluation.measure: evaluation.value, "stderr": evaluation.stderr, "low": low, "high": high,
                "documents": evaluation.n, "seeds": evaluation.seeds, "settings": evaluation.settings, "folder": folder,
                "records": evaluation.table(), **({} if saved is None else {"work_saved": saved}),
            }
        )  # fmt: skip
        return
    show_pairs(dict(summary(evaluation)))
    if folder is not None:
        say(f"answers and grades: {folder}")


@contextmanager
def watching(what: str, graded: bool = True) -> Iterator[Callable[[int, int, int], None]]:
    """A bar on stderr with the running accuracy and the time left; into a pipe, a line for every tenth."""
    shown = bar("{task.description}", [TextColumn("{task.fields[accuracy]}")])
    task = shown.add_task(what, total=None, accuracy="")
    begin = time.monotonic()
    first: list[int] = []
    tenths: set[int] = set()

    def tell(done: int, right: int, total: int) -> None:
        accuracy = f"accuracy {right / done:.3f}" if graded and done else ""
        if not first:
            first.append(done)  # what was there already tells nothing about speed
            shown.reset(task, total=total, completed=done, accuracy=accuracy)
        shown.update(task, completed=done, total=total, accuracy=accuracy)
        tenth = 10 * done // max(1, total)
        if not shown.console.is_terminal and tenth not in tenths:
            tenths.add(tenth)
            passed, new = time.monotonic() - begin, done - first[0]
            left = f", {passed / new * (total - done):.0f} s left" if new else ""
            say(f"{what}: {done}/{total} {accuracy}{left}", stderr=True)

    with shown:
        yield tell
