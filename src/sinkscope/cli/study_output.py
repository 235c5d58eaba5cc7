"""What `sinkscope study` prints: plan, status, progress, and at its end accuracies, a sentence for each model, warnings."""

from __future__ import annotations

import signal
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from sinkscope.base.errors import InputError
from sinkscope.base.extras import EXTRAS
from sinkscope.base.masked import Masked
from sinkscope.base.text import aligned
from sinkscope.cli.output import Watch, duration, say, show_result, table, working
from sinkscope.report.study import make_report
from sinkscope.report.study.source import diagnoses
from sinkscope.study import deciding, shown
from sinkscope.study.comparison import untested
from sinkscope.study.documents import SIZES
from sinkscope.study.estimate import StudyEstimate, estimate, sentences
from sinkscope.study.names import control, label, pooled
from sinkscope.study.plugged import PLUGINS
from sinkscope.study.run import Outcome, Progress
from sinkscope.study.spec import Study, has_auto, with_samples
from sinkscope.study.status import StudyStatus, read
from sinkscope.study.worker import WorkerSettings
from sinkscope.tasks import registry
from sinkscope.tasks.sandbox import UnconfinedWarning
from sinkscope.tasks.task import ACCURACY, NATS
from sinkscope.verdicts import Verdict, wording

WIDTH, LINES = 100, 30
TABLES = (("results", "records", ACCURACY, "right answers, % (95 % interval)"),
          ("likelihood", "passages", NATS, "nats per token (what is lost)"))  # fmt: skip
TAKEN = Masked.REMOVED, Masked.STRONGEST
FEWEST_WARNINGS = 2


def show_status(folder: Path, json: bool) -> None:
    """Print how far the study in a folder is."""
    study = read(folder)
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


def show_plan(study: Study, settings: WorkerSettings, out: Path, json: bool) -> None:
    """Print the cost of a study."""
    with working("measuring the models that are here"):
        cost = estimate(study, settings)
    names = ("samples", "workers", "missing", "speeds", "decides")
    data = {"study": study.name, "models": cost.lines, **{name: getattr(cost, name) for name in names}}
    show_result(json, data, plan_lines(study, cost, out))


def plan_lines(study: Study, cost: StudyEstimate, out: Path) -> Iterator[str]:
    """The cost of each model and of all, what follows from it, and what cannot be run here."""
    rows = [["model", "cells", "answers", "forward passes", "storage", "time here"]]
    for name, costs in [*((line.model, [line]) for line in cost.lines), ("all", cost.lines)]:
        counts = (sum(getattr(line, key) for line in costs) for key in ("cells", "answers", "forwards"))
        seconds = [line.seconds for line in costs if line.seconds is not None]
        time = duration(sum(seconds)) if len(seconds) == len(costs) else "not known"
        rows.append([name, *(f"{count:,}" for count in counts), decimal(sum(line.storage for line in costs)), time])
    yield f"study {study.name}{f', {cost.workers} workers' if cost.speeds else ''}"
    yield from aligned(rows)
    if cost.missing:
        missing = f"not on this machine, so their time here is not known: {', '.join(cost.missing)}"
        yield f"{missing}. Running the study fetches them"
    least = study.budget.least
    if has_auto(study) and cost.samples is None:
        yield f"documents per cell: {least}, the least, as not all models could be measured"
    yield from sentences(study, with_samples(study, cost.samples or least), cost.speeds)
    yield from deciding.sentences(cost.decides)
    for task in SIZES.keys() & {registry.base_and_scheme(name)[0] for grid in study.grids for name in grid.tasks}:
        try:
            registry.get(task, data=study.data.get(task)).documents(1)
        except InputError as error:
            yield f"here it cannot be run: {error}"
    yield f"nothing was computed or written. Run it: leave out --plan (--out {out})"


class Shown(Progress):
    """Says on stderr what a study does while it runs."""

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


@contextmanager
def stopped_safely(out: Path, progress: Progress) -> Iterator[None]:
    """After a Ctrl-C, what is safe is said, and the command ends."""
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


def update_report(root: Path, wanted: bool, progress: Progress) -> Path | None:
    """The report of a finished study, made unless it is newer than its tables.

    Not wanted: a report of other tables is removed.
    """
    report, manifest = root / "report.html", root / "manifest.json"
    if report.is_file() and report.stat().st_mtime_ns >= manifest.stat().st_mtime_ns:
        return report
    if not wanted:
        report.unlink(missing_ok=True)
        return None
    progress.say("drawing the report")
    return make_report(root)


def show_outcome(outcome: Outcome, out: Path, report: Path | None, json: bool) -> None:
    """Print what came out of a study."""
    names = ("results", "likelihood", *EXTRAS, "diagnosis", "needs", "claims", "not_graded")
    data = {
        "study": outcome.study.name, "folder": out, "report": report, "answers_computed": outcome.computed,
        **{name: outcome.frames.get(name) for name in names},
    }  # fmt: skip
    show_result(json, data, outcome_lines(outcome, out, report))


def outcome_lines(outcome: Outcome, out: Path, report: Path | None) -> list[str]:
    """Everything that is printed, without colours, in lines of at most about `WIDTH` characters where names are short.

    Of warnings as many as fill `LINES`, the size of a terminal.
    """
    frames = outcome.frames
    said = [line for wide in TABLES for line in _wide(outcome, *wide)]
    for plugged in (one for plugin in PLUGINS.values() for one in plugin.terminal):
        said += shown.lines(plugged, frames.get(plugged.name))
    verdicts = diagnoses(frames)
    for model in (one.name for one in outcome.study.models if one.name in verdicts):
        sentence = f"{_short(model)}: {wording.of_model(verdicts[model], brief=True)}"
        said += textwrap.wrap(sentence, WIDTH, subsequent_indent="  ")
    cautions = list(dict.fromkeys(_warnings(frames, out)))
    room = max(FEWEST_WARNINGS, LINES - len(said) - 5)
    more = [f"… and {len(cautions) - room} more, in the report"] if len(cautions) > room else []
    said += ["", *cautions[:room], *more] if cautions else []
    computed = f"{outcome.computed} answers computed" if outcome.computed else "nothing was left to compute"
    last = f"report: {out}/report.html" if report else "no report; the same command without --no-report makes it"
    return [*said, "", f"{computed}; tables: {out}/tables", last]


def _wide(outcome: Outcome, name: str, answers: str, measure: str, about: str) -> Iterator[str]:
    """Policies downwards in the study's order, models to the right, as many as fit; beside a single one what was masked."""
    results = outcome.frames.get(name)
    if results is None:
        return
    asked = outcome.frames[answers]
    order = list(dict.fromkeys(zip(asked["model"], map(pooled, asked["policy"]), strict=True)))
    several = results.groupby("task")["decoding_name"].nunique() > 1
    for key, group in results.groupby(["task", "decoding_name"], sort=False):
        task, decoding = map(str, key)
        rows = sorted(group.to_dict("records"), key=lambda row: order.index((row["model"], row["policy"])))
        # Two policies of one model with the same label are told apart by their texts.
        times = Counter((row["model"], _key(row)) for row in rows)
        twice = {head for (_, head), count in times.items() if count > 1}
        lines: dict[tuple[str, str], dict[str, dict[Any, Any]]] = {}
        for row in rows:
            head = (row["policy"], "") if _key(row) in twice else _key(row)
            lines.setdefault(head, {})[row["model"]] = row
        counts = " or ".join(map(str, sorted(set(group["n"]))))
        yield f"{task}{f', {decoding}' if several[task] else ''}, {counts} documents: {about}"
        models = [one.name for one in outcome.study.models if one.name in set(group["model"])]
        fit = max(1, (WIDTH - max(len(head) for head, _ in lines)) // 16)
        for start in range(0, len(models), fit):
            beside = models[start : start + fit]
            top = ["", *map(_short, beside)]
            body = [
                [head, *(_cell(line[one], measure) if one in line else "" for one in beside)]
                for (head, _), line in lines.items()
                if line.keys() & set(beside)
            ]
            if len(models) == 1:
                top += [share.heading for share in TAKEN]
                for cells, line in zip(body, lines.values(), strict=True):
                    cells += [wording.number(line[models[0]].get(share), ".0%") for share in TAKEN]
            yield from (*aligned([top, *body]), "")


def _short(model: str) -> str:
    """Without its owner, or the folders that it is in."""
    return model.rstrip("/").rpartition("/")[2]


def _key(row: dict[Any, Any]) -> tuple[str, str]:
    """The head of a policy's line; what a control stands beside is part of the key."""
    causal, kind = row["family"] == "causal", control(row["policy"])
    return label(row["policy"], causal), label(kind.like, causal) if kind else ""


def _cell(row: dict[Any, Any], measure: str) -> str:
    if measure == NATS:
        lost = row["difference"]
        return f"{row[NATS]:.2f}" + (f" ({round(lost, 2) + 0.0:+.2f})" if lost == lost else "")
    return f"{100 * row[ACCURACY]:.0f} ({100 * row['low']:.0f}–{100 * row['high']:.0f})"


def _warnings(frames: Any, out: Path) -> Iterator[str]:
    results = frames.get("results")
    if results is not None and results["detectable"].notna().any():
        worst = results["detectable"].max()
        yield f"with {results['n'].min()} documents, only differences of about {100 * worst:.0f} points or more can be shown"
    for row in frames["left_out"].to_dict("records") if "left_out" in frames else ():
        base, floor = (f"{100 * row[name]:.0f} %" for name in ("accuracy", "floor"))
        yield f"{_short(row['model'])}, {row['task']}: {base} right without a mask (floor {floor}), so masks were left out"
    for name in ("results", "likelihood"):
        yield from untested(frames[name]) if name in frames else ()
    for (task, why), rows in frames["not_graded"].groupby(["task", "why"]) if "not_graded" in frames else ():
        yield f"{rows['answers'].sum()} answers are not graded here: {task}, {why}; sinkscope evaluate --grade {out}"
    if "skill_losses" in frames:
        keys = ["model", "policy", "match", "verdict"]
        for model, policy, match, stored in frames["skill_losses"][keys].drop_duplicates().itertuples(index=False):
            said = "{} ({})".format(*(say(Verdict.from_json(stored)) for say in (wording.answer, wording.evidence)))
            yield f"battery, {model}, {policy} beside its {match}-matched control, skill by skill: {said}"
