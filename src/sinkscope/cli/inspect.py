"""`sinkscope inspect`: what the sinks of a model hold, from a trace or from prompts of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinkscope.base.checks import whole
from sinkscope.base.errors import InputError
from sinkscope.cli import options
from sinkscope.cli.inputs import decoding_of
from sinkscope.cli.options import argument, option, refuse
from sinkscope.cli.trace import load_model_of

if TYPE_CHECKING:
    from sinkscope.generation.run import Run
    from sinkscope.inspection.inspect import Inspection
    from sinkscope.models.model import Model

_SOURCE = "a trace of several prompts, or a model: a folder, a hub id, an organism"
_TASK = "where prompts come from; may be repeated; default: word_problems"


def inspect(
    context: typer.Context,
    source: Annotated[str, argument("TRACE|MODEL", _SOURCE)],
    task: Annotated[list[str] | None, option("TASK", _TASK)] = None,
    limit: Annotated[int, option("N", "prompts, over all tasks")] = 64,
    decoding: options.DecodingText = None,
    length: options.Length = None,
    steps: options.Steps = None,
    looks: Annotated[int, option("N", "steps of each run that are inspected, evenly spread")] = 2,
    out: Annotated[Path | None, option("FOLDER", "write the table and a picture here")] = None,
    force: options.Force = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    json: options.Json = False,
) -> None:
    """Say what the sinks of a model hold: lens, patches, probes, movement, with controls and intervals over prompts."""
    from sinkscope.cli.output import Watch, check_target, say, show_json, show_table, working
    from sinkscope.inspection.inspect import inspect_run, run_of_trace
    from sinkscope.models.load import load
    from sinkscope.trace.trace import Trace
    from sinkscope.verdicts import wording

    whole("--looks", looks, 1)
    if out is not None:  # now, and not after minutes of computing
        check_target(out, "--out", folder=True)
        check_target(out / "inspection.csv", "--out", force)
    if source.endswith((".zarr.zip", ".partial")):
        refuse(
            context, "is not for a trace, whose prompts and steps are there: leave it out",
            "task", "limit", "decoding", "length", "steps",
        )  # fmt: skip
        trace = Trace.open(Path(source))
        model = load_model_of(trace, device, dtype, revision)
        run, labels = run_of_trace(model, trace), None
        if len(run.sequences) < 2:
            raise InputError(
                "this trace has one prompt; patches need a second one: record several, or give a model and --task"
            )
        _tell_few(len(run.sequences))
    else:
        if limit < 2:
            raise InputError("--limit should be at least 2: patches take their vectors from another prompt")
        _tell_few(limit)
        with working(f"loading {source}"):
            model = load(source, device, dtype, revision)
        run, labels = _answers(model, task or ["word_problems"], limit, (decoding, length, steps))
    with Watch("inspecting") as watch:
        inspection = inspect_run(model, run, looks, labels, progress=watch.tell)
    files = [] if out is None else _write(inspection, out)
    if json:
        holdings = [verdict.data() for verdict in inspection.holdings]
        show_json(
            {
                "model": inspection.model, "holdings": holdings, "void": inspection.void, "table": inspection.table,
                "files": files,
            }
        )  # fmt: skip
        return
    show_table(
        ("question", "answer", "evidence"),
        [(verdict.question, wording.answer(verdict), wording.held(verdict)) for verdict in inspection.holdings],
        f"What the sinks of {inspection.model} hold",
    )
    say(*(f"void: {name}: {why}" for name, why in inspection.void.items()))
    say(*(f"written: {path}" for path in files))


def _tell_few(prompts: int) -> None:
    from sinkscope.cli.output import say
    from sinkscope.verdicts.holdings import LEAST

    if prompts < LEAST:
        say(f"{prompts} prompts: every verdict will be undecided, because they need {LEAST} or more", stderr=True)


def _answers(
    model: Model, tasks: list[str], limit: int, given: tuple[str | None, int | None, int | None]
) -> tuple[Run, dict[str, list[Any]]]:
    """Answers to the first documents of some tasks, and their labels: the task, and whether they are right."""
    from sinkscope.cli.output import Watch
    from sinkscope.generation.generate import generate
    from sinkscope.models.prompts import pad
    from sinkscope.tasks.evaluate import decoding_for, decoding_options, prepare
    from sinkscope.tasks.prompting import encode_prompt

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
    batch = pad(model, rows)
    with Watch("generating") as watch:
        run = generate(
            model, batch.ids, decoding_of(model, *given, options), seed=list(range(len(rows))), attention_mask=batch.real,
            progress=lambda done, expected, _: watch.tell(done, expected),
        )  # fmt: skip
    labels: dict[str, list[Any]] = {"task": [task.name for task, _ in documents]}
    labels["right"] = _right(model, run.answers, documents)
    return run, labels


def _right(model: Model, answers: list[list[int]], documents: list[Any]) -> list[float]:
    """1 or 0 for each answer; NaN where its task cannot be graded on this machine."""
    from sinkscope.tasks.grading import can_grade
    from sinkscope.tasks.prompting import decode_answer

    right = [float("nan")] * len(documents)
    for name in dict.fromkeys(task.name for task, _ in documents):
        numbers = [number for number, (task, _) in enumerate(documents) if task.name == name]
        task = documents[numbers[0]][0]
        if can_grade(task):
            texts = [decode_answer(model, answers[number], task.scheme) for number in numbers]
            pairs = [(documents[number][1], text) for number, text in zip(numbers, texts, strict=True)]
            for number, mark in zip(numbers, task.grade_many(pairs), strict=True):
                right[number] = float(mark.passed)
    return right


def _write(inspection: Inspection, out: Path) -> list[Path]:
    from sinkscope.base.files import write_atomically
    from sinkscope.base.text import csv_text
    from sinkscope.report.figures.holdings import plot_holdings

    write_atomically(out / "inspection.csv", csv_text(inspection.table))
    picture = plot_holdings(inspection.table, f"What the sinks of {inspection.model} hold")
    return [out / "inspection.csv", *picture.save(out)]
