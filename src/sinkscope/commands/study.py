"""`sinkscope study`: the whole experiment in one command; the same command goes on where it was stopped."""

from __future__ import annotations

import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from sinkscope.commands.output import confirm, console, say, show_json
from sinkscope.errors import InputError
from sinkscope.study import run, spec
from sinkscope.study.cells import expanded
from sinkscope.study.draw import with_draws
from sinkscope.study.estimate import (
    Line,
    StudyEstimate,
    cheapest,
    estimate,
    gpu_hours,
    gpu_names,
    gpu_source,
    sentences,
    together,
)
from sinkscope.study.executors import Place
from sinkscope.study.facts import present
from sinkscope.study.ladder import UNITS
from sinkscope.study.status import read as read_status
from sinkscope.study.trained_runs import trained_runs
from sinkscope.tasks import registry
from sinkscope.tasks.sandbox import UnconfinedWarning, reason
from sinkscope.tasks.task import ACCURACY, NATS
from sinkscope.text import aligned, pairs, visible

if TYPE_CHECKING:
    from sinkscope.report.study.claims import Tally

WITH_INTERVAL = "with its interval"
REUSE_TITLE = "{model}, {task}, decoding {decoding_name}: approximate steps"
REUSE = (
    ("reuse", "reuse", ""), ("accuracy", "accuracy", ".3f"), ("− exact", "difference", "+.3f"),
    ("− random", "over_random", "+.3f"), ("work saved", "work_saved", ".1%"), ("time saved", "time_saved", ".1%"),
    ("tokens equal", "tokens_equal", ".3f"), ("KL, nats", "kl", ".3g"),
)  # fmt: skip
LADDER_TITLE = "{task}: {unit} lost, mean over seeds (95 % interval over seeds)"
LADDER = (
    ("objective", "objective", ""), ("parameters", "parameters", ","), ("intervention", "intervention", ""),
    ("policy", "policy", ""), ("seeds", "seeds", ""), ("unmasked", "unmasked", ".2f"), ("damage", "damage", WITH_INTERVAL),
    ("− control", "beyond_count", WITH_INTERVAL), ("concluded", "conclusion", ""),
)  # fmt: skip


def study(
    name: str = "organisms",
    out: Path | None = None,
    plan: bool = False,
    model: Sequence[str] | None = None,
    runs: Path | None = None,
    task: str | None = None,
    samples: int | None = None,
    epsilon: float | None = None,
    rule: str | None = None,
    data: Sequence[str] | None = None,
    on: str = "local",
    workers: int | None = None,
    shard: int = run.SHARD_ANSWERS,
    option: Sequence[str] | None = None,
    sandbox: str = "auto",
    yes: bool = False,
    device: str = "auto",
    dtype: str | None = None,
    no_report: bool = False,
    json: bool = False,
) -> None:
    """Estimate or run a study; with `json` one document on stdout."""
    wanted = spec.changed(
        name,
        model or (),
        task,
        samples,
        dtype,
        pairs(data or (), "--data"),
        {} if runs is None else trained_runs(runs),
        epsilon,
        rule,
    )
    wanted, left_out = present(wanted)
    if left_out:
        say(left_out, stderr=True)
    out = out or Path(f"study-{wanted.name}")
    options = pairs(option or (), "--option")
    if plan:
        show_plan(wanted, Place(out, device, workers, options=options), out, json)
        return
    if not no_report:
        run.check_libraries(("matplotlib",))
    if (
        sandbox == "none"
        and not yes
        and any(registry.get(task).runs_code for grid in wanted.evaluate for task in grid.tasks)
    ):
        confirm(reason(sandbox), "--yes")
    progress = Bar()
    warnings.simplefilter("ignore", UnconfinedWarning)  # run_study says it in a line of its own
    # A scheduler's SIGTERM, and a Ctrl-C also where a shell had it ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        outcome = run.run_study(wanted, out, on, device, workers, shard, "auto", sandbox, options, progress)
        report = update_report(outcome.root, not no_report, progress)
    except KeyboardInterrupt:
        progress.end()
        say_stopped(out)
        sys.exit(130)
    finally:
        progress.end()
    show_outcome(outcome, out, report, json)


def update_report(root: Path, wanted: bool, progress: run.Progress) -> Path | None:
    """Figures and report of a finished study, drawn unless they are newer than its tables.

    Not wanted: a report of other tables is removed.
    """
    from sinkscope.report.study import make_report

    report, manifest = root / "report.html", root / "manifest.json"
    fresh = report.is_file() and report.stat().st_mtime_ns >= manifest.stat().st_mtime_ns
    if fresh:
        return report
    if not wanted:
        report.unlink(missing_ok=True)
        return None
    progress.say("drawing figures and report")
    return make_report(root)


class Bar(run.Progress):
    """Progress with time left, on stderr; a plain line every ten seconds where that is no terminal."""

    def __init__(self) -> None:
        self.console = console(stderr=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._begun, self._said, self._start, self._total = 0.0, 0.0, 0.0, 1.0

    def say(self, text: str) -> None:
        self.console.print(visible(text), soft_wrap=True)

    def begin(self, work: float, done: float) -> None:
        self._begun = self._said = time.monotonic()
        self._start, self._total = done, work
        if self.console.is_terminal:
            self._bar = Progress(
                BarColumn(bar_width=30), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"), TextColumn("{task.fields[cell]}", markup=False),
                console=self.console, transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task("study", total=work, left="", cell="")
            self._bar.update(self._task, completed=done)

    def advance(self, done: float, cell: str) -> None:
        spent = time.monotonic() - self._begun
        rate = (done - self._start) / spent if spent > 0 else 0.0
        left = f"{duration((self._total - done) / rate)} left" if rate > 0 else ""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, left=left, cell=visible(cell))
        elif time.monotonic() - self._said > 10:
            self._said = time.monotonic()
            self.say(f"{done / self._total:.0%} done, {left}, {cell}")

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(75)
    '1:15 min'
    """
    if seconds < 60:
        return f"{max(0, seconds):.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)}:{int(seconds % 60):02d} min"
    return f"{seconds / 3600:.1f} h"


def say_stopped(out: Path) -> None:
    """After a Ctrl-C: the answers that are safe, and how to go on."""
    try:
        status = read_status(out)
        say(f"stopped: {status.done} of {status.wanted} answers are done and safe in {out}", stderr=True)
    except InputError:
        say("stopped before anything was computed", stderr=True)
    say("the same command goes on from here", stderr=True)


# ---- the end of a study --------------------------------------------------------------------------


def show_outcome(outcome: run.Outcome, out: Path, report: Path | None, json: bool = False) -> None:
    """A verdict for each model, accuracies by model and policy, notes, and where the report is."""
    sentences_by_model = verdicts(outcome.frames.get("diagnosis"))
    decided = claims(outcome.root)
    if json:
        show_json(
            {
                "study": outcome.study.name, "folder": out, "report": report, "answers_computed": outcome.computed,
                "verdicts": sentences_by_model, "claims": decided.counts, "results": outcome.frames.get("results"),
                "likelihood": outcome.frames.get("likelihood"), "reuse": outcome.frames.get("reuse"), "notes": outcome.notes,
                "not_graded": [entry._asdict() for entry in outcome.not_graded],
            }
        )  # fmt: skip
        return
    say(*(f"{model}: {sentence}" for model, sentence in sentences_by_model.items()), "")
    for name in ("results", "likelihood"):
        say(*result_lines(outcome.frames.get(name), outcome.study))
    reuse, ladder = outcome.frames.get("reuse"), outcome.frames.get("ladder")
    say(*text_tables(reuse, ("model", "task", "decoding_name"), REUSE_TITLE, REUSE))
    if ladder is not None:  # skills one by one: tables/ladder.csv
        ladder = ladder[~ladder["task"].str.startswith("battery:")]
        ladder = ladder.assign(unit=ladder["measure"].map(UNITS))
    say(*text_tables(ladder, ["task", "unit"], LADDER_TITLE, LADDER))
    say(*outcome.notes, *([decided.sentence] if decided.sentence else []))
    computed = f"{outcome.computed} answers computed" if outcome.computed else "nothing was left to compute"
    say(f"{computed}; tables: {out}/tables")
    if report is not None:
        say(f"report: {out}/report.html")
    else:
        say("no figures and no report; the same command without --no-report makes them")


def claims(root: Path) -> Tally:
    """How many of the paper's claims the study in a folder decides."""
    from sinkscope.report.study.claims import tally
    from sinkscope.report.study.source import read

    return tally(read(root).judged)


def verdicts(diagnosis: Any) -> dict[str, str]:
    """Model → the verdict in one sentence."""
    from sinkscope.report.study.summary import sentence

    findings: dict[str, dict[str, tuple[str, str]]] = {}
    for row in [] if diagnosis is None else diagnosis.to_dict("records"):
        findings.setdefault(row["model"], {})[row["question"]] = (row["verdict"], row["evidence"])
    return {model: sentence(questions) for model, questions in findings.items()}


def result_lines(results: Any, wanted: spec.Study) -> list[str]:
    """Accuracies or nats, a row for each model and a column for each policy, the count-matched control in brackets."""
    if results is None:
        return []
    measure = ACCURACY if ACCURACY in results else NATS
    words = {ACCURACY: "accuracy", NATS: "nats per token"}[measure]
    lines: list[str] = []
    for (task, decoding), group in results.groupby(["task", "decoding_name"], sort=False):
        rows = [row for row in group.to_dict("records") if not isinstance(row["control_of"], str)]
        cells = {(row["model"], row["policy"]): result(row, measure) for row in rows}
        named = [policy for grid in wanted.evaluate for policy in expanded(grid.policies, 1)]
        policies = [name for name in dict.fromkeys(named) if any(row["policy"] == name for row in rows)]
        models = [model.name for model in wanted.models if any(row["model"] == model.name for row in rows)]
        table = [["model", *policies]]
        table += [[model, *(cells.get((model, policy), "") for policy in policies)] for model in models]
        counts = sorted({int(row["n"]) for row in rows})
        controlled = any(isinstance(row["control"], str) for row in rows)
        about = f"{task}, decoding {decoding}, {' or '.join(map(str, counts))} documents: {words}"
        about += " (of the control that hides the same number of random keys)" if controlled else ""
        lines += [about, *aligned(table), ""]
    return lines


def text_tables(
    table: Any, by: Sequence[str], title: str, columns: Sequence[tuple[str, str, str]]
) -> list[str]:
    """A table of the study in lines, one for each group of rows.

    Args:
        by: columns whose values a group shares. title: of a group, with their names in braces.
        columns: heading, name, and format of the number: "" for text, WITH_INTERVAL for a value with its interval.
    """
    lines: list[str] = []
    for _, group in () if table is None else table.groupby(list(by), sort=False):
        rows = group.to_dict("records")
        body = [[_cell(row, name, form) for _, name, form in columns] for row in rows]
        lines += [title.format(**rows[0]), *aligned([[words for words, *_ in columns], *body]), ""]
    return lines


def _cell(row: Mapping[str, Any], name: str, form: str) -> str:
    value = row.get(name)
    if not form:
        return str(value) or "–"
    if value is None or value != value:
        return "–" if form == WITH_INTERVAL else ""
    if form != WITH_INTERVAL:
        return format(value, form)
    low, high = (row[f"{name}_{end}"] for end in ("low", "high"))
    return f"{value:+.2f}" + ("" if low != low else f" ({low:+.2f} to {high:+.2f})")


def result(row: Mapping[str, Any], measure: str) -> str:
    """An accuracy or nats, and that of the control in brackets."""
    control = f" ({row[f'control_{measure}']:.2f})" if isinstance(row["control"], str) else ""
    return f"{row[measure]:.2f}{control}"


# ---- before a study ------------------------------------------------------------------------------


def show_plan(wanted: spec.Study, place: Place, out: Path, json: bool = False) -> None:
    """The cost of a study."""
    with console(stderr=True).status("measuring the models that are here"):
        cost = estimate(wanted, place)
    if json:
        show_json({"study": wanted.name, "models": cost.lines, "samples": cost.samples, "workers": cost.workers,
                   "missing": cost.missing, "speeds": cost.speeds, "gpu_hours": hours_by_model(cost)})  # fmt: skip
        return
    lines = plan_lines(cost)
    if cost.missing:
        lines.append(
            f"not on this machine, so their time here is not known: {', '.join(cost.missing)}. Running the study fetches them"
        )
    least = wanted.budget.least
    if spec.has_auto(wanted) and cost.samples is None:
        lines.append(f"documents per cell: {least}, the least, as not all models could be measured")
    resolved = spec.with_samples(wanted, cost.samples or least)
    lines += sentences(wanted, resolved if cost.missing else with_draws(resolved, cost.facts), cost.speeds)
    lines += gpu_lines(cost)
    lines.append(f"nothing was computed or written. Run it: leave out --plan (--out {out})")
    say(*lines)


def plan_lines(cost: StudyEstimate) -> list[str]:
    """The cost of each model and of all, aligned."""
    head = ["model", "cells", "answers", "forward passes", "storage", "time here"]
    rows = [[*head, *(["GPU-hours"] if cost.gpu else [])]]

    def row(name: str, lines: Sequence[Line]) -> list[str]:
        known = [line.seconds for line in lines if line.seconds is not None]
        whole = sum(known) if len(known) == len(lines) else None
        cells = [
            name,
            str(sum(line.cells for line in lines)),
            f"{sum(line.answers for line in lines):,}",
            f"{sum(line.forwards for line in lines):,}",
            size(sum(line.storage for line in lines)),
            "not known" if whole is None else duration(whole),
        ]
        if cost.gpu:
            cells.append("" if whole is None else f"{whole * cost.workers / 3600:.2f}")
        return cells

    rows += [row(line.model, [line]) for line in cost.lines]
    rows.append(row("all", cost.lines))
    workers = f", {cost.workers} workers" if cost.speeds else ""
    return [f"study {cost.study.name}{workers}", *aligned(rows)]


def hours_by_model(cost: StudyEstimate) -> dict[str, dict[str, float | None]]:
    """Model → GPU → hours; models that are too small for an estimate, and mixtures of experts, are left out."""
    table = {}
    for line in cost.lines:
        mine = [cell for cell in cost.cells if cell.model.name == line.model]
        hours = {gpu: gpu_hours(mine, cost.facts, gpu) for gpu in gpu_names()}
        if any(value is not None for value in hours.values()):
            table[line.model] = hours
    return table


def gpu_lines(cost: StudyEstimate) -> list[str]:
    """GPU-hours of each model on named GPUs, and the cheapest runs that decide on each claim."""
    from sinkscope.report.study.claims import needs

    table = hours_by_model(cost)
    if not table:
        return []
    names = gpu_names()
    rows = [["GPU-hours", *names]]
    rows += [[model, *(_hours(hours[gpu]) for gpu in names)] for model, hours in table.items()]
    if len(table) == len(cost.lines):
        rows.append(["all", *(_hours(gpu_hours(cost.cells, cost.facts, gpu)) for gpu in names)])
    claims = [["claim", "runs", "documents", *names[:2], "for"]]
    subsets = cheapest(cost.cells, needs())
    for subset in subsets:
        what, reason = subset.power, subset.missing and f"not in this study, {subset.missing}"
        hours = [
            _hours(gpu_hours(subset.cells, cost.facts, gpu)) if subset.cells else "" for gpu in names[:2]
        ]
        claims.append(
            [what.claim, str(len(subset.cells)), str(what.documents), *hours, reason or what.effect]
        )
    union = together(subsets)
    whole = [_hours(gpu_hours(union, cost.facts, gpu)) for gpu in names[:2]]
    claims.append(["all of these", str(len(union)), "", *whole, ""])
    return [
        "", *aligned(rows), gpu_source(), "",
        "The cheapest runs that decide on each claim on accuracies with 80 % power (docs/report.md), and their GPU-hours:",
        *aligned(claims),
        f"Such a subset is a study file of your own with these policies; --samples {max(s.power.documents for s in subsets)} "
        "takes fewer documents of this one.", "",
    ]  # fmt: skip


def _hours(value: float | None) -> str:
    return "not known" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def size(count: int) -> str:
    """Bytes for people.

    >>> size(1_500_000)
    '1.5 MB'
    """
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count / 1000:.0f} kB"
