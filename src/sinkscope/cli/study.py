"""`sinkscope study`: the whole experiment in one command; the same command goes on where it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sinkscope.base.checks import one_of
from sinkscope.base.errors import InputError
from sinkscope.cli import options
from sinkscope.cli.options import argument, option, refuse, switch
from sinkscope.cli.output import confirm, say, show_result, table

_NAME = "a study that comes with sinkscope, or a .toml file; with --status also a study's folder; left out: list them"
_RUNS = "the folder of a training sweep, whose runs are the models (needs sinkscope-train)"
_OPTION = "for ray (address) or slurm (slurm_partition, …); may be repeated"
_REPORT = "stop after the tables; the same command without it does the rest"


def study(
    context: typer.Context,
    name: Annotated[str | None, argument("STUDY", _NAME)] = None,
    out: Annotated[Path | None, option("FOLDER", "the study's folder; default: study-NAME")] = None,
    plan: Annotated[bool, switch("--plan", "print forward passes, storage and time, and stop")] = False,
    status: Annotated[bool, switch("--status", "say how far it is, also while it runs, and stop")] = False,
    model: Annotated[list[str] | None, option("MODEL", "in place of the study's; may be repeated")] = None,
    runs: Annotated[Path | None, option("FOLDER", _RUNS)] = None,
    task: Annotated[str | None, option("TASK", "in place of the study's, as of evaluate")] = None,
    samples: Annotated[int | None, option("N", "documents per cell in place of the study's")] = None,
    epsilon: options.Epsilon = None,
    rule: Annotated[str | None, option("RULE", "what a sink is in its traces, as of show")] = None,
    data: Annotated[list[str] | None, option("TASK=FILE", "a task's JSON lines; may be repeated")] = None,
    on: Annotated[str, option("NAME", "local, here (this process), ray or slurm")] = "local",
    workers: Annotated[int | None, option("N", "at a time; default: one per GPU, else per core")] = None,
    shard: Annotated[int, option("N", "answers in a unit of work; may change between two runs")] = 64,
    option_: Annotated[list[str] | None, option("NAME=VALUE", _OPTION, "--option")] = None,
    sandbox: options.Sandbox = "auto",
    yes: options.Yes = False,
    device: options.Device = "auto",
    dtype: Annotated[str | None, option("NAME", "in place of the study's")] = None,
    no_report: Annotated[bool, switch("--no-report", _REPORT)] = False,
    json: options.Json = False,
) -> None:
    """Run a whole study, or what is still missing: evaluations, traces, tables, report."""
    if name is None and not status:
        refuse(context, "of which study? `sinkscope study` lists them", but=("json",))
        list_studies(json)
        return
    from sinkscope.base.text import pairs
    from sinkscope.cli import study_output
    from sinkscope.study import spec
    from sinkscope.study.facts import present
    from sinkscope.study.plugged import models_in
    from sinkscope.study.run import run_study
    from sinkscope.study.worker import WorkerSettings
    from sinkscope.tasks import registry
    from sinkscope.tasks.sandbox import reason
    from sinkscope.tasks.sandbox.rungs import KINDS

    if status or name is None:
        refuse(context, "does not go with --status", but=("name", "out", "status", "json"))
        study_output.show_status(folder_of(name, out), json)
        return
    one_of("--sandbox", sandbox, KINDS)
    sweep = {} if runs is None else models_in(runs)
    data_files = pairs(data or (), "--data")
    study = spec.changed(name, model or (), task, samples, dtype, data_files, sweep, epsilon, rule)
    study, left_out = present(study)
    if left_out:
        say(left_out, stderr=True)
    out = out or Path(f"study-{study.name}")
    executor_options = pairs(option_ or (), "--option")
    if plan:
        study_output.show_plan(study, WorkerSettings(out, device, workers, options=executor_options), out, json)
        return
    # Programs that models write run at the very end; whether they may is asked before the first model is loaded.
    runs_code = any(registry.get(task, "causal").runs_code for grid in study.evaluate for task in grid.tasks)
    if sandbox == "none" and not yes and runs_code:
        confirm(reason(sandbox), "--yes")
    progress = study_output.Shown()
    with study_output.stopped_safely(out, progress):
        outcome = run_study(study, out, on, device, workers, shard, "auto", sandbox, executor_options, progress)
        report = study_output.update_report(outcome.root, not no_report, progress)
    study_output.show_outcome(outcome, out, report, json)


def list_studies(json: bool) -> None:
    """The studies that come with sinkscope and with plug-ins."""
    from sinkscope.study import spec

    studies = [{"study": name, "about": str(spec.read_data(name).get("about", ""))} for name in spec.builtin()]
    how = "run one: sinkscope study NAME; what it costs: --plan; on your own model: sinkscope study quick --model MODEL"
    listed = table(("study", "about"), [tuple(each.values()) for each in studies])
    show_result(json, studies, ["Studies", listed, how])


def folder_of(name: str | None, out: Path | None) -> Path:
    """The folder of a study that was named, or whose folder was."""
    if out is None and name is None:
        raise InputError("--status of which study? give its folder, or its name")
    named, default = Path(name or ""), Path(f"study-{name}")
    return out or (default if default.is_dir() and not (named / "study.toml").is_file() else named)
