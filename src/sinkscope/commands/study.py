"""`sinkscope study`: the whole experiment in one command; the same command goes on where it was stopped."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from sinkscope.errors import InputError
from sinkscope.study import spec
from sinkscope.study.executors import Place
from sinkscope.study.planned import Line, Plan
from sinkscope.study.run import SHARD_ANSWERS, Outcome, Watch, run_study
from sinkscope.study.status import read as read_status


@dataclass(frozen=True)
class Request:
    """What the command line asked for."""

    name: str = "organisms"
    out: Path | None = None
    models: tuple[str, ...] = ()
    task: str | None = None
    samples: int | None = None
    data: tuple[str, ...] = ()
    on: str = "local"
    device: str = "auto"
    dtype: str | None = None
    workers: int | None = None
    shard: int = SHARD_ANSWERS
    sandbox: str = "auto"
    options: tuple[str, ...] = ()
    plan: bool = False
    report: bool = True


def study(request: Request) -> None:
    """Plans or runs a study."""
    wanted = resolve(request)
    out = request.out or Path(f"study-{wanted.name}")
    options = pairs(request.options, "--option")
    if request.plan:
        show_plan(wanted, Place(out, request.device, request.workers, options=options), out)
        return
    console = Console(stderr=True)
    watch = Progressing(console)
    # A scheduler's SIGTERM, and a Ctrl-C also where a shell had it ignored.
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.default_int_handler)
    try:
        outcome = run_study(
            wanted, out, request.on, request.device, request.workers, request.shard, "auto", request.sandbox, options, watch,
            request.report,
        )  # fmt: skip
    except KeyboardInterrupt:
        watch.end()
        say_stopped(console, out)
        sys.exit(130)
    finally:
        watch.end()
    show_outcome(Console(), outcome, out)


def resolve(request: Request) -> spec.Study:
    """The study with what the command line changes about it."""
    data = spec.read_data(request.name)
    if request.models:
        data["models"] = list(request.models)
        for kind in ("evaluate", "trace", "replay"):
            for grid in data.get(kind, []):
                if grid.get("models"):
                    grid["models"] = [name for name in grid["models"] if name in request.models]
            data[kind] = [grid for grid in data.get(kind, []) if grid.get("models") != []]
    if request.task is not None:
        for kind in ("evaluate", "trace", "replay"):
            for grid in data.get(kind, []):
                grid["task"] = request.task
    if request.samples is not None:
        for grid in data.get("evaluate", []):
            grid["samples"] = request.samples
    found = spec.from_data(data, request.name)
    if not found.models:
        raise InputError(
            f"study {found.name} is for any one model: name it with --model, such as --model organism/scratch"
        )
    if request.dtype is not None:
        found = replace(found, models=tuple(replace(model, dtype=request.dtype) for model in found.models))
    return replace(found, data={**found.data, **pairs(request.data, "--data")})


def pairs(texts: tuple[str, ...], flag: str) -> dict[str, str]:
    """NAME=VALUE as often as it was given."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"{flag} is written as NAME=VALUE, got {text!r}")
        found[name] = value
    return found


class Progressing(Watch):
    """Progress with time left, on stderr; plain lines every ten seconds where it is no terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._begun, self._said, self._start, self._total = 0.0, 0.0, 0.0, 1.0

    def say(self, text: str) -> None:
        self.console.print(Text(text))

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

    def advance(self, done: float, cells: str) -> None:
        spent = time.monotonic() - self._begun
        rate = (done - self._start) / spent if spent > 0 else 0.0
        left = f"{duration((self._total - done) / rate)} left" if rate > 0 else ""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, left=left, cell=cells)
        elif time.monotonic() - self._said > 10:
            self._said = time.monotonic()
            self.say(f"{done / self._total:.0%} done, {left}, {cells}")

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None


def duration(seconds: float) -> str:
    """Time for people.

    >>> duration(75)
    '1:15 min'
    """
    if seconds < 60:
        return f"{max(0, seconds):.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)}:{int(seconds % 60):02d} min"
    return f"{seconds / 3600:.1f} h"


def say_stopped(console: Console, out: Path) -> None:
    """What is done after a Ctrl-C, and how to go on."""
    try:
        found = read_status(out)
        console.print(Text(f"stopped: {found.done} of {found.wanted} answers are done and safe in {out}"))
    except InputError:
        console.print(Text("stopped before anything was computed"))
    console.print("the same command goes on from here")


def show_outcome(console: Console, outcome: Outcome, out: Path) -> None:
    """The result table, what ships beside it, and where the report is."""
    console.print(Text(result_text(outcome)), soft_wrap=True)
    for note in outcome.notes:
        console.print(Text(note), soft_wrap=True)
    if outcome.shipped:
        own = policies_of(outcome)
        for one in outcome.shipped:
            console.print(Text(f"{one.label} (not computed here):"), soft_wrap=True)
            for line in shipped_lines(one.rows, own):
                console.print(Text(line), soft_wrap=True)
    else:
        console.print("no full-size results ship with these models")
    what = f"{outcome.computed} answers computed" if outcome.computed else "nothing was left to compute"
    console.print(Text(f"{what}; tables: {out}/tables"), soft_wrap=True)
    if (outcome.root / "report.html").is_file():
        console.print(Text(f"report: {out}/report.html"), soft_wrap=True)
    else:
        console.print("no figures and no report; the same command without --no-report makes them")


def result_text(outcome: Outcome) -> str:
    """The result table as aligned text."""
    from sinkscope.report.study.numbers import SHOWN, setting, shown

    if "results" not in outcome.frames:
        return "the study has no accuracies; see the tables"
    lines: list[str] = []
    for _, own in outcome.frames["results"].groupby(["task", "model", "decoding_name"], sort=False):
        rows = own.to_dict("records")
        lines += ["", f"{rows[0]['model']} · {rows[0]['task']}", setting(rows[0])]
        cells = [[title for _, title in SHOWN], *([shown(row, name) for name, _ in SHOWN] for row in rows)]
        lines += aligned(cells)
    return "\n".join(lines[1:])


def policies_of(outcome: Outcome) -> set[tuple[str, str]]:
    """Tasks and policies that the study has accuracies of."""
    if "results" not in outcome.frames:
        return set()
    rows = outcome.frames["results"].to_dict("records")
    return {(str(row["task"]), str(row["policy"])) for row in rows}


def shipped_lines(rows: Sequence[Mapping[str, Any]], own: set[tuple[str, str]]) -> list[str]:
    """What ships for tasks and policies of the study; a whole masking table would bury what was computed."""
    same = [row for row in rows if (row["task"], row["policy"]) in own]
    lines = [shipped_text(row) for row in same]
    left = len(rows) - len(same)
    if left:
        what = "row" if left == 1 else "rows"
        lines.append(
            f"  {left} {what} of other policies or tasks: the report has them all, and so has the model's card"
        )
    return lines


def shipped_text(row: Mapping[str, Any]) -> str:
    """One shipped row in a line."""
    text = f"  {row['model']} · {row['task']} · {row['policy']}: {row['accuracy']:.3f}"
    text += f" [{row['low']:.3f}, {row['high']:.3f}], n = {row['n']}"
    if row.get("difference") is not None:
        text += (
            f", − none {row['difference']:+.3f} [{row['difference_low']:+.3f}, {row['difference_high']:+.3f}]"
        )
    if row.get("hidden_share") is not None:
        text += f", {row['hidden_share']:.1%} of the attention hidden"
    return text


def show_plan(wanted: spec.Study, place: Place, out: Path) -> None:
    """What a study will take."""
    from sinkscope.study import sizing
    from sinkscope.study.plan import has_auto, with_samples
    from sinkscope.study.planned import make_plan

    with Console(stderr=True).status("measuring the models that are here"):
        found = make_plan(wanted, place)
    lines = [plan_text(found)]
    if found.missing:
        lines.append(
            f"not on this machine, so their time is not known: {', '.join(found.missing)}. Running the study fetches them; "
            "plan again where they are for an estimate of time"
        )
    if has_auto(wanted) and found.samples is None:
        lines.append(
            f"documents per cell: {wanted.budget.least}, the least, as not all models could be measured"
        )
    lines += sizing.said(with_samples(wanted, found.samples or wanted.budget.least), found.speeds)
    lines.append(f"nothing was computed or written. Run it: leave out --plan (--out {out})")
    for line in lines:
        Console().print(Text(line), soft_wrap=True)


def plan_text(found: Plan) -> str:
    """The plan as aligned text: a line for each model, and one for all."""
    gpu = any(line.gpu for line in found.lines)
    rows = [
        [
            "model",
            "cells",
            "answers",
            "forward passes",
            "storage",
            "time here",
            *(["GPU-hours"] if gpu else []),
        ]
    ]

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
        if gpu:
            cells.append("" if whole is None else f"{whole * found.workers / 3600:.2f}")
        return cells

    rows += [row(line.model, [line]) for line in found.lines]
    rows.append(row("all", found.lines))
    workers = f", {found.workers} workers" if found.speeds else ""
    return f"study {found.study.name}{workers}\n" + "\n".join(aligned(rows))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns under each other, two spaces between."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def size(count: int) -> str:
    """Bytes for people.

    >>> size(1_500_000)
    '1.5 MB'
    """
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count / 1000:.0f} kB"
