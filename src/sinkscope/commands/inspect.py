"""`sinkscope inspect`: what the sinks of a model hold, from a trace or from prompts of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sinkscope.commands.output import bar, refuse_existing, say, show_json, show_table, working
from sinkscope.commands.trace import load_model_of, make_decoding
from sinkscope.errors import InputError
from sinkscope.files import write_atomically
from sinkscope.generation.generate import generate
from sinkscope.inspection.inspect import Inspection, inspect_run, run_of_trace
from sinkscope.models.load import load
from sinkscope.models.model import Model
from sinkscope.models.prompts import pad
from sinkscope.tasks.evaluate import decoding_for, decoding_options, prepare
from sinkscope.tasks.grading import can_grade
from sinkscope.tasks.prompting import decode_answer, encode_prompt
from sinkscope.text import csv_text
from sinkscope.trace.trace import Trace


def inspect(
    source: str,
    task: list[str] | None,
    limit: int,
    looks: int,
    out: Path | None,
    force: bool,
    device: str,
    dtype: str,
    revision: str | None,
    json: bool,
    decoding: dict[str, Any],
) -> None:
    """Inspect, print what was found, and write table and picture where `out` says."""
    if out is not None and not force:
        refuse_existing(out / "inspection.csv", "--out")
    if source.endswith((".zarr.zip", ".partial")):
        trace = Trace.open(Path(source))
        found = _of_trace(load_model_of(trace, device, dtype, revision), trace, looks)
    else:
        if limit < 2:
            raise InputError("--limit should be at least 2: patches take their vectors from another prompt")
        with working(f"loading {source}"):
            model = load(source, device, dtype, revision)
        found = _of_tasks(model, task or ["word_problems"], limit, looks, decoding)
    files = [] if out is None else _write(found, out)
    if json:
        known = {"model": found.model, "holdings": found.holdings, "void": found.void, "table": found.table}
        show_json({**known, "files": files})
        return
    show_table(
        ("question", "answer", "on what it rests"),
        [(holding.question, holding.answer, holding.sentence) for holding in found.holdings],
        f"What the sinks of {found.model} hold",
    )
    say(*(f"void: {name}: {why}" for name, why in found.void.items()))
    say(*(f"written: {path}" for path in files))


def _of_trace(model: Model, trace: Trace, looks: int) -> Inspection:
    run = run_of_trace(model, trace)
    if run.states.shape[1] < 2:
        raise InputError(
            "this trace has one prompt; patches need a second one: record several, or give a model and --task"
        )
    with _watching("inspecting") as tell:
        return inspect_run(model, run, looks, progress=tell)


def _of_tasks(model: Model, tasks: list[str], limit: int, looks: int, given: dict[str, Any]) -> Inspection:
    rows: list[list[int]] = []
    documents: list[Any] = []
    options: dict[str, Any] = {}
    for number, name in enumerate(tasks):
        task = prepare(model.family, name, grade=False)
        share = limit // len(tasks) + (number < limit % len(tasks))
        for document in task.documents(share):
            rows.append(list(encode_prompt(model, task.prompt(document), task.scheme).ids))
            documents.append((task, document))
        if decoding_for(task, model.family).generates:  # a text that is read has a beginning to go on with
            options = options or decoding_options(task, model.family)
    decoding = make_decoding(model, {**options, **given})
    batch = pad(model, rows)
    seeds = list(range(len(rows)))
    with _watching("generating") as tell:
        run = generate(
            model, batch.ids, decoding, seed=seeds, attention_mask=None if batch.real is None else batch.real.long(),
            progress=lambda done, expected, _: tell(done, expected),
        )  # fmt: skip
    labels: dict[str, list[Any]] = {"task": [task.name for task, _ in documents]}
    labels["right"] = _right(model, run.sequences[:, run.prompt :], documents)
    with _watching("inspecting") as tell:
        return inspect_run(model, run, looks, labels, progress=tell)


def _right(model: Model, answers: torch.Tensor, documents: list[Any]) -> list[float]:
    """1 or 0 for each answer; NaN where its task cannot be graded on this machine."""
    grades: dict[int, float] = {}
    for name in dict.fromkeys(task.name for task, _ in documents):
        places = [place for place, (task, _) in enumerate(documents) if task.name == name]
        task = documents[places[0]][0]
        if not can_grade(task):
            continue
        texts = [decode_answer(model, answers[place].tolist(), task.scheme) for place in places]
        verdicts = task.grade_many(
            [(documents[place][1], text) for place, text in zip(places, texts, strict=True)]
        )
        grades |= {place: float(verdict.passed) for place, verdict in zip(places, verdicts, strict=True)}
    return [grades.get(place, float("nan")) for place in range(len(documents))]


def _write(found: Inspection, out: Path) -> list[Path]:
    from sinkscope.report.figures.holdings import plot_holdings

    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "inspection.csv", csv_text(found.table))
    return [
        out / "inspection.csv",
        *plot_holdings(found.table, f"What the sinks of {found.model} hold").save(out),
    ]


@contextmanager
def _watching(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr."""
    with bar(what) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, expected: shown.update(task, completed=done, total=expected)
