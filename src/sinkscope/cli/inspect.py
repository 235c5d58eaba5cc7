"""`sinkscope inspect`: what the sinks of a model hold, from a trace or from prompts of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sinkscope as ss
from sinkscope.base.checks import whole
from sinkscope.base.errors import InputError
from sinkscope.cli import options
from sinkscope.cli.inputs import decoding_of
from sinkscope.cli.options import argument, option, refuse
from sinkscope.cli.output import Watch, check_target, say, show_result, table, working
from sinkscope.cli.trace import load_model_of

if TYPE_CHECKING:
    from sinkscope.inspection.inspect import Inspection
    from sinkscope.tasks.task import Task

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
    from sinkscope.inspection.inspect import inspect_run, run_of_trace
    from sinkscope.models.load import family_of, find
    from sinkscope.verdicts import wording
    from sinkscope.verdicts.holdings import LEAST

    whole("--looks", looks, 1)
    if out is not None:  # now, and not after minutes of computing
        check_target(out, "--out", folder=True)
        check_target(out / "inspection.csv", "--out", force)
    trace, too_few = None, "--limit should be at least 2: patches take their vectors from another prompt"
    if source.endswith((".zarr.zip", ".partial")):
        refuse(
            context, "is not for a trace, whose prompts and steps are there: leave it out",
            "task", "limit", "decoding", "length", "steps",
        )  # fmt: skip
        trace = ss.Trace.open(Path(source))
        limit = trace.dataset.sizes["sample"]
        too_few = "this trace has one prompt; patches need a second one: record several, or give a model and --task"
    if limit < 2:
        raise InputError(too_few)
    if limit < LEAST:
        say(f"{limit} prompts: every verdict will be undecided, because they need {LEAST} or more", stderr=True)
    if trace is not None:
        model = load_model_of(trace, device, dtype, revision)
        run, labels = run_of_trace(model, trace), None
    else:
        asked = generated(task or ["word_problems"], family_of(find(source, revision)).name)
        with working(f"loading {source}"):
            model = ss.load(source, device, dtype, revision)
        run, labels = answers(model, asked, limit, (decoding, length, steps))
    with Watch("inspecting") as watch:
        inspection = inspect_run(model, run, looks, labels, progress=watch.tell)
    files = [] if out is None else _write(inspection, out)
    holdings = [(verdict.question, wording.answer(verdict), wording.held(verdict)) for verdict in inspection.holdings]
    data = {
        "model": inspection.model, "holdings": [verdict.data() for verdict in inspection.holdings], "void": inspection.void,
        "table": inspection.table, "files": files,
    }  # fmt: skip
    lines = [
        f"What the sinks of {inspection.model} hold", table(("question", "answer", "evidence"), holdings),
        *(f"void: {name}: {why}" for name, why in inspection.void.items()), *(f"written: {path}" for path in files),
    ]  # fmt: skip
    show_result(json, data, lines)


def generated(names: list[str], family: str) -> list[Task]:
    """The tasks of these names, of which choices are refused: a model is asked how likely they are, and writes nothing."""
    from sinkscope.tasks.choices import ChoiceTask
    from sinkscope.tasks.evaluate import prepare

    tasks = [prepare(family, name, grade=False) for name in names]
    for task in tasks:
        if isinstance(task, ChoiceTask):
            raise InputError(
                f"--task {task.name} has choices, which no answer is generated for; take word_problems, text or another task"
            )
    return tasks


def answers(
    model: ss.Model, asked: list[Task], limit: int, loop: tuple[str | None, int | None, int | None]
) -> tuple[ss.Run, dict[str, list[Any]]]:
    """Answers to the first documents of some tasks, and their labels: the task, and whether they are right.

    NaN stands where a task cannot be graded on this machine.
    """
    from sinkscope.models.prompts import pad
    from sinkscope.tasks.evaluate import decoding_for, decoding_options
    from sinkscope.tasks.grading import can_grade
    from sinkscope.tasks.prompting import decode_answer, encode_prompt

    shares = [limit // len(asked) + (number < limit % len(asked)) for number in range(len(asked))]
    documents = [(task, one) for task, share in zip(asked, shares, strict=True) for one in task.documents(share)]
    batch = pad(model, [list(encode_prompt(model, task.prompt(one), task.scheme).ids) for task, one in documents])
    # A text that is read has a beginning to go on with, and no options for that.
    generating = [task for task in asked if decoding_for(task, model.family).generates]
    options = next(filter(None, (decoding_options(task, model.family) for task in generating)), {})
    with Watch("generating") as watch:
        run = ss.generate(
            model, batch.ids, decoding_of(model, *loop, options), seed=list(range(len(documents))), attention_mask=batch.real,
            progress=lambda done, expected, _: watch.tell(done, expected),
        )  # fmt: skip
    right: list[float] = []
    for task in asked:
        all_answers = zip(documents, run.answers, strict=True)
        pairs = [(one, decode_answer(model, ids, task.scheme)) for (whose, one), ids in all_answers if whose is task]
        marks = [mark.passed for mark in task.grade_many(pairs)] if can_grade(task) else [float("nan")] * len(pairs)
        right += map(float, marks)
    return run, {"task": [task.name for task, _ in documents], "right": right}


def _write(inspection: Inspection, out: Path) -> list[Path]:
    from sinkscope.base.files import write_atomically
    from sinkscope.base.text import csv_text
    from sinkscope.report.figures.holdings import plot_holdings

    write_atomically(out / "inspection.csv", csv_text(inspection.table))
    picture = plot_holdings(inspection.table, f"What the sinks of {inspection.model} hold")
    return [out / "inspection.csv", *picture.save(out)]
