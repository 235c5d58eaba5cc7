"""`sinkscope evaluate`: answer a task's documents, grade them, print accuracy with everything that it depends on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import sinkscope as ss
from sinkscope.base.checks import one_of, whole
from sinkscope.base.errors import InputError
from sinkscope.cli import options
from sinkscope.cli.inputs import decoding_of
from sinkscope.cli.options import SOURCE_HELP, argument, option, refuse, switch
from sinkscope.cli.output import Watch, check_target, confirm, say, show_result, table, working

_TASK = (
    "word_problems, small_code, battery (battery:logic: one skill), gsm8k (gsm8k:paper-llada: a named scheme), humaneval; text: "
    "nats per token; blimp, piqa, sciq, arc_easy, hellaswag: choices by likelihood; or a .jsonl file of questions and answers"
)
_GRADE = "grade the saved answers of an evaluation or a study, without a model, as often as you like"
_OUT = "the run's folder; the same command resumes where it was stopped"
_SIZE = "answers at a time, or auto; no result depends on it"
_SEED = "may be repeated for a decoding that samples; default: 0"


def evaluate(
    context: typer.Context,
    source: Annotated[str | None, argument("MODEL", SOURCE_HELP)] = None,
    task: Annotated[str | None, option("TASK", _TASK)] = None,
    limit: Annotated[int | None, option("N", "only the first N documents; default: all")] = None,
    policy: options.Policy = None,
    extra: options.Extra = None,
    decoding: options.DecodingText = None,
    length: options.Length = None,
    steps: options.Steps = None,
    out: Annotated[Path | None, option("FOLDER", _OUT)] = None,
    data: options.Data = None,
    batch_size: Annotated[str, option("N", _SIZE)] = "auto",
    seed: Annotated[list[int] | None, option("N", _SEED)] = None,
    no_grade: Annotated[bool, switch("--no-grade", "only generate; grade later, or elsewhere")] = False,
    grade: Annotated[Path | None, option("FOLDER", _GRADE, "--grade")] = None,
    again: Annotated[bool, switch("--again", "with --grade: also what has a grade already")] = False,
    sandbox: options.Sandbox = "auto",
    yes: options.Yes = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    json: options.Json = False,
) -> None:
    """Answer a task's documents and grade them, or only grade what is saved."""
    from sinkscope.models.load import family_of, find
    from sinkscope.tasks.answer import answer, items
    from sinkscope.tasks.evaluate import decoding_options, evaluated, prepare
    from sinkscope.tasks.experiment import Experiment, ModelIdentity
    from sinkscope.tasks.records import RunFolder
    from sinkscope.tasks.sandbox import UnconfinedWarning
    from sinkscope.tasks.sandbox.rungs import KINDS
    from sinkscope.tasks.task import ACCURACY

    one_of("--sandbox", sandbox, KINDS)
    warnings.simplefilter("ignore", UnconfinedWarning)  # said in a line of its own
    if grade is not None:
        refuse(
            context, "is not for answers that are saved: leave it out, or --grade",
            but=("grade", "again", "data", "sandbox", "yes", "json"),
        )  # fmt: skip
        grade_saved(grade, again, data, sandbox, yes, json)
        return
    refuse(context, "is for answers that are saved: with --grade FOLDER", "again")
    if source is None or task is None:
        raise InputError("give a MODEL and --task TASK, or --grade FOLDER for answers that are saved")
    rule, extras = None if policy is None else ss.parse_policy(policy), options.extras_of(extra)
    number = int(batch_size) if batch_size.isdecimal() else batch_size
    size: Any = "auto" if number == "auto" else whole("--batch-size", number, 1)
    if no_grade and out is None:
        raise InputError("--no-grade keeps answers for later; say where with --out")
    if out is not None:
        check_target(out, "--out", folder=True)
    family = family_of(find(source, revision)).name
    chosen = prepare(family, task, data, sandbox, not no_grade)
    if chosen.runs_code and not no_grade:
        announce(sandbox, yes)
    seeds = tuple(seed or (0,))
    selected = items(chosen, limit, seeds)  # reads the documents: a file that is missing is said now
    with working(f"loading {source}"):
        model = ss.load(source, device, dtype, revision)
    loop = decoding_of(model, decoding, length, steps, decoding_options(chosen, family))
    experiment = Experiment(ModelIdentity.of(model), chosen, loop, rule, extras, seeds)
    try:
        shares = chosen.settings().get("measure", ACCURACY) == ACCURACY
        with Watch(chosen.name) as watch:
            progress = answers_of(watch, shares and not no_grade)
            if out is not None and no_grade:
                with RunFolder.write(out, experiment.settings) as run:
                    answer(model, experiment, selected, run, size, False, progress)
            else:
                evaluation = evaluated(model, experiment, out, limit, size, progress)
    except KeyboardInterrupt:
        if out is not None:
            say(f"stopped; the same command goes on from what is in {out}", stderr=True)
        raise
    if no_grade:
        line = f"answers, to grade with `sinkscope evaluate --grade {out}`: {out}"
        show_result(json, {"answers": len(selected), "folder": out}, [line])
    else:
        result(evaluation, json, out)


def grade_saved(run: Path, again: bool, data: Path | None, sandbox: str, yes: bool, json: bool) -> None:
    """Grade what has no grade yet, or with `again` everything, and print the result."""
    from sinkscope.tasks.evaluation import open_evaluation
    from sinkscope.tasks.grading import grade_folders, run_folders, task_of
    from sinkscope.tasks.records import RunFolder

    tasks = [task_of(RunFolder.read(folder).settings, data, sandbox) for folder in run_folders(run)]
    if any(task.runs_code for task in tasks):
        announce(sandbox, yes)
    with Watch(f"grading {', '.join(sorted({task.name for task in tasks}))}") as watch:
        done = grade_folders(run, again, data, sandbox, answers_of(watch))
    if list(done) == [run]:
        result(open_evaluation(run), json)
        return
    answers = [grade for grades in done.values() for grade in grades]
    right = sum(grade.passed for grade in answers)
    lines = [f"{len(answers)} answers in {len(done)} folders are graded, {right} of them right"]
    if (run / "study.toml").is_file():
        lines.append("the same `sinkscope study` command again makes tables and report from them")
    show_result(json, {"folders": len(done), "answers": len(answers), "right": right}, lines)


def announce(sandbox: str, yes: bool) -> None:
    """Say how model-written programs are confined; where they are not, that is confirmed first."""
    from sinkscope.tasks.sandbox import reason

    if sandbox == "none" and not yes:
        confirm(reason(sandbox), "--yes")
    else:
        say(reason(sandbox), stderr=True)


def result(evaluation: ss.Evaluation, json: bool, folder: Path | None = None) -> None:
    """Print the result, one line for each thing that it depends on, or as JSON."""
    from sinkscope.tasks.evaluation import summary

    low, high = evaluation.interval
    data = {
        evaluation.measure: evaluation.value, "stderr": evaluation.stderr, "low": low, "high": high,
        "documents": evaluation.n, "seeds": evaluation.seeds, "settings": evaluation.settings, "folder": folder,
        "records": evaluation.table(),
    }  # fmt: skip
    for outcome in evaluation.extras.values():
        data |= outcome.facts()
    saved = [] if folder is None else [f"answers and grades: {folder}"]
    show_result(json, data, [table(("", ""), summary(evaluation)), *saved])


def answers_of(watch: Watch, graded: bool = True) -> Callable[[int, int, int], None]:
    """What shows answers that are there, with the accuracy so far."""

    def tell(done: int, right: int, total: int) -> None:
        accuracy = f" accuracy {right / done:.3f}" if graded and done else ""
        watch.tell(done, total, f"{done}/{total}{accuracy}")

    return tell
