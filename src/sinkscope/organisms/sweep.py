"""A sweep: many training runs from one small file, several at once on one machine, each repeatable by one line.

    name = "ladder"
    seeds = [0, 1, 2]
    [base]                                  # options of every run, as `sinkscope train` calls them
    steps = 10000
    [[axes]]                                # lists are crossed with one another and with the seeds
    recipe = ["causal", "scratch"]
    size = ["1m", "3m"]
    [[axes]]
    recipe = "adapted"
    size = ["1m", "3m"]
    init = "causal"                         # the run of that recipe with the same size, seed and interventions

Runs that need another's weights wait for it. What is finished stays; the same command goes on with the rest. Documents are made
once for all runs that read the same ones.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sinkscope.checks import whole
from sinkscope.errors import InputError, nearest
from sinkscope.files import write_atomically
from sinkscope.organisms import corpus
from sinkscope.organisms.command import OPTIONS, as_line, check_options
from sinkscope.organisms.layout import write_json
from sinkscope.organisms.loop import STATE
from sinkscope.organisms.network import parameters_of
from sinkscope.organisms.recipe import CONTROLS, INTERVENTIONS, RECIPES, Recipe, recipe
from sinkscope.organisms.vocabulary import shipped

MEASURED = ((842_976, 171.0), (5_673_216, 377.0))
"""Parameters, and seconds of each of two runs side by side on one H200 for MEASURED_TOKENS tokens, 2026-11-16
(lab/organisms-runs.json: the sizes 1m and 6m). A plan draws a line through both."""
MEASURED_TOKENS = 655_360_000
KINDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
BESIDE_THE_RECIPE = ("init", "corpus", "corpus_share", "documents")
"""Options that change what is learned, and are not settings of a recipe."""


@dataclass(frozen=True)
class SweepRun:
    """One training run of a sweep.

    Attributes:
        name: of its folder. options: as `sinkscope train` takes them, without `init` where that is a run of the sweep.
        needs: the name of the run whose weights it starts from; None: no run of the sweep.
    """

    name: str
    recipe: str
    options: Mapping[str, Any]
    needs: str | None = None

    @property
    def settings(self) -> Recipe:
        """The recipe with these options."""
        known = {field.name for field in fields(Recipe)}
        return recipe(self.recipe, **{name: value for name, value in self.options.items() if name in known})

    def given(self, out: Path) -> dict[str, Any]:
        """All options of the run's own command, its folder under `out`."""
        start = {} if self.needs is None else {"init": str(out / self.needs)}
        return {"out": str(out / self.name), **self.options, **start}


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep in the order of its file: put the most informative ones first."""

    name: str
    runs: tuple[SweepRun, ...]


def read_sweep(path: str | Path) -> Sweep:
    """A sweep from its TOML file."""
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a sweep file that can be read: {error}") from error
    return sweep_of(data, str(path))


def sweep_of(data: Mapping[str, Any], where: str = "the sweep") -> Sweep:
    """A sweep from TOML data; every run's options are checked."""
    for name in data:
        if name not in ("name", "seeds", "base", "axes"):
            raise InputError(
                f"{where}: there is no {name!r}; {nearest(name, ('name', 'seeds', 'base', 'axes'))}"
            )
    seeds, base, blocks = data.get("seeds", [0]), data.get("base", {}), data.get("axes", [{}])
    if not isinstance(seeds, list) or not seeds:
        raise InputError(f"{where}: seeds should be a list such as [0, 1, 2], got {seeds!r}")
    tables = isinstance(blocks, list) and all(isinstance(block, Mapping) for block in blocks)
    if not isinstance(base, Mapping) or not tables or not blocks:
        raise InputError(f"{where}: base should be a table [base], and axes a list of tables [[axes]]")
    runs: dict[str, SweepRun] = {}
    for block in blocks:
        lists = {name: value if isinstance(value, list) else [value] for name, value in block.items()}
        for name in {"seed"} & {*base, *block}:
            raise InputError(f"{where}: give {name} for all runs at once, as seeds = [0, 1, 2]")
        for name, values in lists.items():
            if not values:
                raise InputError(f"{where}: the list of {name} is empty; leave it out, or name its values")
        for chosen in itertools.product(*lists.values()):
            for seed in seeds:
                options = {**base, **dict(zip(lists, chosen, strict=True)), "seed": whole("seeds", seed, 0)}
                run = _run(options, list(block), where)
                if run.name in runs and runs[run.name] != run:
                    raise InputError(f"{where}: two different runs are called {run.name}")
                runs[run.name] = run
    linked = {name: _linked(run, runs.values(), where) for name, run in runs.items()}
    known: dict[tuple[Any, ...], str] = {}
    for run in linked.values():
        check_options(run.options)
        # `settings` refuses what the recipe refuses, before anything is trained.
        learned = (run.settings, run.needs, *(run.options.get(name) for name in BESIDE_THE_RECIPE))
        same = known.setdefault(learned, run.name)
        if same != run.name:
            raise InputError(
                f"{where}: {same} and {run.name} would train the same model twice, which is not a replicate; leave one out"
            )
        _check_start(run, linked, where)
    return Sweep(str(data.get("name", "sweep")), tuple(linked.values()))


def _run(options: dict[str, Any], axes: Sequence[str], where: str) -> SweepRun:
    known = {"recipe": str, **OPTIONS}
    for name, value in options.items():
        if name not in known:
            raise InputError(f"{where}: a run has no option {name!r}; {nearest(name, known)}")
        kind = known[name]
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise InputError(f"{where}: {name} should be {KINDS[kind]}, got {value!r}")
    recipes = RECIPES | CONTROLS
    chosen = str(options.pop("recipe", None))
    if chosen not in recipes:
        raise InputError(f"{where}: unknown recipe {chosen!r}; {nearest(chosen, recipes)}")
    words = [chosen, *([options["size"]] if "size" in options else [])]
    if "init" in options and recipes[chosen].starts_from is None:
        words.append(f"from-{Path(options['init']).name}")
    for name in axes:
        if name not in ("recipe", "size", "init") and options[name] is not False:
            words.append(name if options[name] is True else f"{name}-{options[name]}")
    words.append(f"seed{options['seed']}")
    return SweepRun(re.sub(r"[^\w.-]+", "-", "-".join(words)), chosen, options)


def _linked(run: SweepRun, runs: Any, where: str) -> SweepRun:
    """The run with the name of the one that it starts from, where `init` names a recipe of the sweep."""
    init = run.options.get("init")
    if init not in {other.recipe for other in runs}:
        return run
    same = ("size", "seed", *INTERVENTIONS)
    fits = [
        other.name
        for other in runs
        if other.recipe == init and all(other.options.get(name) == run.options.get(name) for name in same)
    ]
    if len(fits) != 1:
        raise InputError(
            f"{where}: {run.name} starts from a run of {init} with the same size, seed and interventions, and the sweep has "
            f"{len(fits)} such runs; name a folder in init instead, or add the run"
        )
    options = {name: value for name, value in run.options.items() if name != "init"}
    return SweepRun(run.name, run.recipe, options, fits[0])


def _check_start(run: SweepRun, runs: Mapping[str, SweepRun], where: str) -> None:
    """Refuses runs that wait for one another."""
    seen = {run.name}
    while run.needs is not None:
        if run.needs in seen:
            raise InputError(
                f"{where}: {run.name} would start from weights that come of itself; change its init"
            )
        seen.add(run.needs)
        run = runs[run.needs]


# ---- before a sweep ------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedRun:
    """The cost of a run: weights, tokens read, and its share in minutes of an H200 that trains two at a time (see MEASURED)."""

    name: str
    parameters: int
    tokens: int
    minutes: float


def plan(sweep: Sweep) -> list[PlannedRun]:
    """The cost of every run; evaluation comes on top."""
    rows = []
    for run in sweep.runs:
        settings = run.settings
        count = parameters_of(settings.size, shipped(settings.layout).rows, settings.variant)
        (small, first), (large, second) = MEASURED
        seconds = first + (count - small) * (second - first) / (large - small)
        copies = 2 if settings.objective == "block" else 1  # of every row, in one pass
        minutes = copies * seconds * settings.tokens / MEASURED_TOKENS / 2 / 60
        rows.append(PlannedRun(run.name, count, settings.tokens, minutes))
    return rows


# ---- running it ----------------------------------------------------------------------------------


@dataclass
class SweepOutcome:
    """What became of the runs: names of those that are finished, and the last line of what failed."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def run_sweep(
    sweep: Sweep,
    out: Path,
    device: str = "auto",
    at_once: int = 1,
    say: Callable[[str], None] = print,
) -> SweepOutcome:
    """Trains what is not finished yet, `at_once` runs at a time, each in a process and a folder of its own.

    `out` gets sweep.json: every run with the line that repeats it alone.
    """
    whole("at_once", at_once, 1)
    for run in sweep.runs:
        _check_finished(run, out / run.name)
    out.mkdir(parents=True, exist_ok=True)
    lines = {run.name: as_line(run.recipe, device=device, **run.given(out)) for run in sweep.runs}
    about = {"name": sweep.name, "runs": [{"name": name, "command": line} for name, line in lines.items()]}
    write_json(out / "sweep.json", about)
    outcome, waiting = SweepOutcome(), list(sweep.runs)
    going: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
    try:
        while waiting or going:
            _collect(going, outcome, out, lines, say)
            for run in list(waiting):
                if is_finished(out / run.name):
                    waiting.remove(run)
                    outcome.finished.append(run.name)
                elif run.needs in outcome.failed:
                    waiting.remove(run)
                    outcome.failed[run.name] = f"{run.needs}, from which it starts, failed"
                elif len(going) < at_once and (run.needs is None or run.needs in outcome.finished):
                    waiting.remove(run)
                    say(lines[run.name])
                    documents = _documents(run, out, say)
                    going[run.name] = (_start(run, out, documents, device, at_once), time.monotonic())
            time.sleep(0.2 if going else 0.0)
    finally:
        for process, _ in going.values():  # after a Ctrl-C: a run's own state lets it go on
            process.terminate()
    return outcome


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a whole run."""
    return (folder / "training.json").is_file() and not (folder / STATE).exists()


def _check_finished(run: SweepRun, folder: Path) -> None:
    """Refuses a folder whose finished run has other settings: it would count as this one."""
    if not is_finished(folder):
        return
    try:
        found = json.loads((folder / "training.json").read_text(encoding="utf-8"))["recipe"]
        known = dict(found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}/training.json cannot be read ({error!r}): move the folder away"
        ) from error
    wanted = run.settings.as_dict()
    starts = run.needs or run.settings.starts_from or run.options.get("init")
    others = [
        f"{name} {known.get(name)}, not {wanted.get(name)}"
        for name in sorted(known.keys() | wanted.keys())
        if known.get(name) != wanted.get(name) and not (starts and name == "size")  # the size of its start
    ]
    if others:
        raise InputError(
            f"{folder} holds a finished run with other settings ({'; '.join(others)}): choose another --out"
        )


def _collect(
    going: dict[str, tuple[subprocess.Popen[bytes], float]],
    outcome: SweepOutcome,
    out: Path,
    lines: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    for name, (process, began) in list(going.items()):
        if process.poll() is None:
            continue
        del going[name]
        if process.returncode == 0 and is_finished(out / name):
            outcome.finished.append(name)
            # The documents that it shared are those it would make for itself, so its own line leaves them out.
            write_atomically(out / name / "command.txt", lines[name] + "\n")
            done = f"{len(outcome.finished)} of {len(lines)}"
            say(f"{name}: done in {time.monotonic() - began:.0f} s ({done})")
        else:
            said = (out / name / "output.txt").read_text(encoding="utf-8", errors="replace").split("\n")
            outcome.failed[name] = next((line for line in reversed(said) if line.strip()), "no output")
            say(f"{name}: failed: {outcome.failed[name]}")


def _start(
    run: SweepRun, out: Path, documents: Path | None, device: str, at_once: int
) -> subprocess.Popen[bytes]:
    """A process that trains a run and writes what it says to output.txt in its folder."""
    folder = out / run.name
    folder.mkdir(exist_ok=True)
    shared = {} if documents is None else {"documents": str(documents)}
    words = shlex.split(as_line(run.recipe, device=device, **run.given(out), **shared))[2:]
    threads = max(1, (os.cpu_count() or 1) // at_once)
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(  # noqa: S603 (this program itself)
            [sys.executable, "-m", "sinkscope.organisms.command", *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )


def _documents(run: SweepRun, out: Path, say: Callable[[str], None]) -> Path | None:
    """The documents that a run would make for itself, made once for all that read the same ones; None: it makes its own."""
    settings = run.settings
    if {"corpus", "documents"} & set(run.options) or settings.pictures:
        return None
    count = min(settings.steps * settings.batch, corpus.MOST_DOCUMENTS)
    folder = out / "documents" / f"{settings.mix}-{settings.spelling}-{count}"
    if not (folder / "corpus.json").is_file():
        say(f"making {count:,} documents")
        words = shipped(settings.layout)
        workers = 1 if count < 20_000 else 0
        made = corpus.make(count, 0, words, (), 0.0, workers, settings.mix, None, settings.spelling)
        made.save(folder, corpus.ingredients(settings.mix, words, spelling=settings.spelling))
    return folder
