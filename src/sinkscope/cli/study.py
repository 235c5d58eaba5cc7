"""`sinkscope study`: the whole experiment in one command; the same command goes on where it was stopped."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sinkscope.base.checks import one_of
from sinkscope.base.errors import InputError
from sinkscope.cli import options
from sinkscope.cli.options import argument, option, refuse, switch
from sinkscope.cli.output import Watch, confirm, duration, say, show_result, table, working

if TYPE_CHECKING:
    from sinkscope.study import run, spec
    from sinkscope.study.estimate import StudyEstimate
    from sinkscope.study.status import StudyStatus
    from sinkscope.study.worker import WorkerSettings

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
    from sinkscope.base.text import pairs
    from sinkscope.study import spec
    from sinkscope.study.facts import present
    from sinkscope.study.plugged import models_in
    from sinkscope.study.run import run_study
    from sinkscope.study.status import read
    from sinkscope.study.worker import WorkerSettings
    from sinkscope.tasks import registry
    from sinkscope.tasks.sandbox import reason
    from sinkscope.tasks.sandbox.rungs import KINDS

    if status:
        refuse(context, "does not go with --status", but=("name", "out", "status", "json"))
        show_status(read(folder_of(name, out)), json)
        return
    if name is None:
        refuse(context, "of which study? `sinkscope study` lists them", but=("json",))
        list_studies(json)
        return
    one_of("--sandbox", sandbox, KINDS)
    sweep = {} if runs is None else models_in(runs)
    data_files = pairs(data or (), "--data")
    wanted = spec.changed(name, model or (), task, samples, dtype, data_files, sweep, epsilon, rule)
    wanted, left_out = present(wanted)
    if left_out:
        say(left_out, stderr=True)
    out = out or Path(f"study-{wanted.name}")
    executor_options = pairs(option_ or (), "--option")
    if plan:
        show_plan(wanted, WorkerSettings(out, device, workers, options=executor_options), out, json)
        return
    # Programs that models write run at the very end; whether they may is asked before the first model is loaded.
    runs_code = any(registry.get(task, "causal").runs_code for grid in wanted.evaluate for task in grid.tasks)
    if sandbox == "none" and not yes and runs_code:
        confirm(reason(sandbox), "--yes")
    progress = _progress()
    with stopped_safely(out, progress):
        outcome = run_study(wanted, out, on, device, workers, shard, "auto", sandbox, executor_options, progress)
        report = update_report(outcome.root, not no_report, progress)
    from sinkscope.cli.study_outcome import outcome_data, outcome_lines

    show_result(json, outcome_data(outcome, out, report), outcome_lines(outcome, out, report))


@contextmanager
def stopped_safely(out: Path, progress: run.Progress) -> Iterator[None]:
    """After a Ctrl-C, what is safe is said, and the command ends."""
    from sinkscope.study.status import read
    from sinkscope.tasks.sandbox import UnconfinedWarning

    warnings.simplefilter("ignore", UnconfinedWarning)  # run_study says it in a line of its own
    # A scheduler's SIGTERM, and a Ctrl-C also where a shell had it ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        progress.end()
        try:
            status = read(out)
            say(f"stopped: {status.done} of {status.wanted} answers are done and safe in {out}", stderr=True)
        except InputError:
            say("stopped before anything was computed", stderr=True)
        say("the same command goes on from here", stderr=True)
        sys.exit(130)
    finally:
        progress.end()


def update_report(root: Path, wanted: bool, progress: run.Progress) -> Path | None:
    """The report of a finished study, made unless it is newer than its tables.

    Not wanted: a report of other tables is removed.
    """
    from sinkscope.report.study import make_report

    report, manifest = root / "report.html", root / "manifest.json"
    if report.is_file() and report.stat().st_mtime_ns >= manifest.stat().st_mtime_ns:
        return report
    if not wanted:
        report.unlink(missing_ok=True)
        return None
    progress.say("drawing the report")
    return make_report(root)


def _progress() -> run.Progress:
    """What a study says while it runs, on stderr."""
    from sinkscope.study import run

    class Shown(run.Progress):
        watch: Watch | None = None

        def say(self, text: str) -> None:
            say(text, stderr=True)

        def begin(self, work: float, done: float) -> None:
            self.work, self.watch = work, Watch("study").__enter__()
            self.advance(done, "")

        def advance(self, done: float, cell: str) -> None:
            if self.watch is not None:
                self.watch.tell(done, self.work, cell)

        def end(self) -> None:
            if self.watch is not None:
                self.watch.__exit__()

    return Shown()


# ---- without running it --------------------------------------------------------------------------


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


def show_status(study: StudyStatus, json: bool = False) -> None:
    """Print how far a study is."""
    data = {
        "study": study.study, "folder": study.root, "answers": study.done, "wanted": study.wanted,
        "not_graded": study.not_graded, "running": study.running, "seconds_since_last_record": study.idle,
        "report": study.report, "cells": study.cells,
    }  # fmt: skip
    show_result(json, data, status_lines(study))


def status_lines(study: StudyStatus) -> Iterator[object]:
    """A row for each cell that is not finished, a line for each model, and last a line about the whole."""
    # A finished cell is in the line of its model alone: a study has hundreds of them.
    rows = [
        (
            cell.id[:8], f"{cell.title}{' ◂ in work' if cell.working else ''}", f"{cell.done}/{cell.wanted}",
            f"{cell.right / cell.graded:.0%}" if cell.right is not None and cell.graded else "",
        )
        for cell in study.cells
        if cell.done < cell.wanted
    ]  # fmt: skip
    if rows:
        yield f"study {study.study}: cells that are not finished"
        yield table(("cell", "what", "answers", "right"), rows)
    for model in dict.fromkeys(cell.model for cell in study.cells):
        cells = [cell for cell in study.cells if cell.model == model]
        finished = sum(cell.done >= cell.wanted for cell in cells)
        answers = f"{sum(cell.done for cell in cells)}/{sum(cell.wanted for cell in cells)}"
        yield f"{model}: {finished} of {len(cells)} cells finished, {answers} answers"
    if study.not_graded:
        yield f"{study.not_graded} answers are not graded; grade them with: sinkscope evaluate --grade {study.root}"
    runs = ""
    if study.running:
        runs = f"; running: {study.running}"
        runs += "" if study.idle is None else f", last record {study.idle:.0f} s ago"
    elif study.done < study.wanted or study.report is None:
        runs = "; nobody is running it: the same command as before goes on"
    share = study.done / study.wanted if study.wanted else 0.0
    yield f"study {study.study}: {study.done} of {study.wanted} answers ({share:.0%}){runs}"
    if study.report is not None:
        yield f"report: {study.report}"


def show_plan(wanted: spec.Study, settings: WorkerSettings, out: Path, json: bool = False) -> None:
    """Print the cost of a study."""
    from sinkscope.study.estimate import estimate

    with working("measuring the models that are here"):
        cost = estimate(wanted, settings)
    names = ("samples", "workers", "missing", "speeds", "decides")
    data = {"study": wanted.name, "models": cost.lines, **{name: getattr(cost, name) for name in names}}
    show_result(json, data, plan_lines(wanted, cost, out))


def plan_lines(wanted: spec.Study, cost: StudyEstimate, out: Path) -> Iterator[str]:
    """The cost of each model and of all, what follows from it, and what cannot be run here."""
    from rich.filesize import decimal

    from sinkscope.base.text import aligned
    from sinkscope.study import spec
    from sinkscope.study.documents import SIZES
    from sinkscope.study.estimate import sentences
    from sinkscope.tasks import registry

    rows = [["model", "cells", "answers", "forward passes", "storage", "time here"]]
    for name, costs in [*((line.model, [line]) for line in cost.lines), ("all", cost.lines)]:
        counts = (sum(getattr(line, key) for line in costs) for key in ("cells", "answers", "forwards"))
        seconds = [line.seconds for line in costs if line.seconds is not None]
        time = duration(sum(seconds)) if len(seconds) == len(costs) else "not known"
        rows.append([name, *(f"{count:,}" for count in counts), decimal(sum(line.storage for line in costs)), time])
    yield f"study {cost.study.name}{f', {cost.workers} workers' if cost.speeds else ''}"
    yield from aligned(rows)
    if cost.missing:
        missing = f"not on this machine, so their time here is not known: {', '.join(cost.missing)}"
        yield f"{missing}. Running the study fetches them"
    least = wanted.budget.least
    if spec.has_auto(wanted) and cost.samples is None:
        yield f"documents per cell: {least}, the least, as not all models could be measured"
    yield from sentences(wanted, spec.with_samples(wanted, cost.samples or least), cost.speeds)
    yield from cost.decides
    for task in SIZES.keys() & {registry.base_and_scheme(name)[0] for grid in wanted.grids for name in grid.tasks}:
        try:
            registry.get(task, data=wanted.data.get(task)).documents(1)
        except InputError as error:
            yield f"here it cannot be run: {error}"
    yield f"nothing was computed or written. Run it: leave out --plan (--out {out})"
