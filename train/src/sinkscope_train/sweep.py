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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sinkscope import InputError
from sinkscope.base.checks import one_of, whole
from sinkscope.base.errors import nearest
from sinkscope.base.files import fit, read_toml, write_atomically
from sinkscope_train.corpus import CorpusPlan
from sinkscope_train.layout import write_json
from sinkscope_train.network import parameters_of
from sinkscope_train.options import OF_A_RUN, TrainingOptions, as_line, split
from sinkscope_train.recipe import CONTROLS, INTERVENTIONS, RECIPES, Recipe, recipe
from sinkscope_train.trained_runs import DONE, is_finished
from sinkscope_train.vocabulary import vocabulary_of


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
        return recipe(self.recipe, **split(Recipe, self.options)[0])

    def line(self, out: Path, device: str, **more: Any) -> str:
        """The command that trains it in its folder under `out`."""
        start = {} if self.needs is None else {"init": str(out / self.needs)}
        options = {"out": str(out / self.name), **self.options, **start}
        return as_line(self.recipe, device=device, **options, **more)


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep in the order of its file: put the most informative ones first."""

    name: str
    runs: tuple[SweepRun, ...]


def read_sweep(path: str | Path) -> Sweep:
    """A sweep from its TOML file."""
    return sweep_of(read_toml(Path(path)), str(path))


@dataclass(frozen=True)
class SweepFile:
    """What a sweep file holds: see docs/training.md."""

    name: str = "sweep"
    seeds: tuple[int, ...] = (0,)
    base: Mapping[str, Any] = field(default_factory=dict)
    axes: tuple[Mapping[str, Any], ...] = ({},)


def sweep_of(data: Mapping[str, Any], where: str = "the sweep") -> Sweep:
    """A sweep from TOML data; every run's options are checked."""
    asked: SweepFile = fit(SweepFile, data, where, strict=True)
    if not asked.seeds or not asked.axes:
        raise InputError(f"{where}: seeds or axes is empty; leave it out, or give some, such as seeds = [0, 1, 2]")
    runs: dict[str, SweepRun] = {}
    for section in asked.axes:
        if "seed" in {*asked.base, *section}:
            raise InputError(f"{where}: give seed for all runs at once, as seeds = [0, 1, 2]")
        lists = {name: value if isinstance(value, list) else [value] for name, value in section.items()}
        empty = [name for name, values in lists.items() if not values]
        if empty:
            raise InputError(f"{where}: the list of {empty[0]} is empty; leave it out, or name its values")
        for *chosen, seed in itertools.product(*lists.values(), asked.seeds):
            options = {**asked.base, **dict(zip(lists, chosen, strict=True)), "seed": whole("seeds", seed, 0)}
            run = _run(options, list(section), where)
            if runs.setdefault(run.name, run) != run:
                raise InputError(f"{where}: two different runs are called {run.name}")
    linked = [_linked(run, list(runs.values())[:number], where) for number, run in enumerate(runs.values())]
    same: dict[tuple[Any, ...], str] = {}
    for run in linked:
        # Recipe and options refuse what they refuse, before anything is trained.
        TrainingOptions(recipe=run.settings, out=Path(), **split(Recipe, run.options)[1])
        learned = (run.settings, run.needs, run.options.get("init"), run.options.get("documents"))
        if same.setdefault(learned, run.name) != run.name:
            raise InputError(
                f"{where}: {same[learned]} and {run.name} would train the same model twice, which is not a replicate; leave one "
                "out"
            )
    return Sweep(asked.name, tuple(linked))


def _run(options: dict[str, Any], axes: Sequence[str], where: str) -> SweepRun:
    kinds = {"recipe": str, **OF_A_RUN}
    for name, value in options.items():
        if name not in kinds:
            raise InputError(f"{where}: a run has no option {name!r}; {nearest(name, kinds)}")
        fit(str if kinds[name] is Path else kinds[name], value, f"{where}: {name}")
    recipes = RECIPES | CONTROLS
    chosen = one_of("recipe", str(options.pop("recipe", None)), recipes)
    words = [chosen, *([options["size"]] if "size" in options else [])]
    if "init" in options and recipes[chosen].starts_from is None:
        words.append(f"from-{Path(options['init']).name}")
    for name in axes:
        if name not in ("recipe", "size", "init") and options[name] is not False:
            words.append(name if options[name] is True else f"{name}-{options[name]}")
    words.append(f"seed{options['seed']}")
    return SweepRun(re.sub(r"[^\w.-]+", "-", "-".join(words)), chosen, options)


def _linked(run: SweepRun, earlier: Sequence[SweepRun], where: str) -> SweepRun:
    """The run with the name of the one that it starts from, where `init` names a recipe: a run that stands before it."""
    init = run.options.get("init")
    if init not in RECIPES | CONTROLS:
        return run
    same = ("recipe", "size", "seed", *INTERVENTIONS)
    expected = {**run.options, "recipe": init}
    fits = [
        other.name
        for other in earlier
        if all({**other.options, "recipe": other.recipe}.get(name) == expected.get(name) for name in same)
    ]
    if len(fits) != 1:
        raise InputError(
            f"{where}: {run.name} starts from an earlier run of {init} with the same size, seed and interventions, and the sweep "
            f"has {len(fits)} such runs; name a folder in init instead, or add the run"
        )
    options = {name: value for name, value in run.options.items() if name != "init"}
    return replace(run, options=options, needs=fits[0])


def cost(run: SweepRun) -> tuple[int, int]:
    """Weights of a run, and tokens that it reads."""
    settings = run.settings
    return parameters_of(settings.size, vocabulary_of(settings).rows, settings.variant), settings.tokens


# ---- running it ----------------------------------------------------------------------------------


@dataclass
class SweepOutcome:
    """What became of the runs: names of those that are finished, and the last line of what failed."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def run_sweep(
    sweep: Sweep, out: Path, device: str = "auto", at_once: int = 1, say: Callable[[str], None] = print
) -> SweepOutcome:
    """Trains what is not finished yet, `at_once` runs at a time, each in a process and a folder of its own.

    `out` gets sweep.json: every run with the line that repeats it alone.
    """
    whole("at_once", at_once, 1)
    for run in sweep.runs:
        _check_finished(run, out / run.name)
    out.mkdir(parents=True, exist_ok=True)
    lines = {run.name: run.line(out, device) for run in sweep.runs}
    about = {"name": sweep.name, "runs": [{"name": name, "command": line} for name, line in lines.items()]}
    write_json(out / "sweep.json", about)
    outcome, waiting = SweepOutcome(), list(sweep.runs)
    going: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
    try:
        while waiting or going:
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
                    said = (out / name / "output.txt").read_text(encoding="utf-8", errors="replace")
                    outcome.failed[name] = (said.strip() or "no output").splitlines()[-1]
                    say(f"{name}: failed: {outcome.failed[name]}")
            for run in list(waiting):
                if is_finished(out / run.name):
                    outcome.finished.append(run.name)
                elif run.needs in outcome.failed:
                    outcome.failed[run.name] = f"{run.needs}, from which it starts, failed"
                elif len(going) < at_once and (run.needs is None or run.needs in outcome.finished):
                    say(lines[run.name])
                    going[run.name] = (_start(run, out, device, at_once, say), time.monotonic())
                else:
                    continue
                waiting.remove(run)
            time.sleep(0.2 if going else 0.0)
    finally:
        for process, _ in going.values():  # after a Ctrl-C: a run's own state lets it go on
            process.terminate()
    return outcome


def _check_finished(run: SweepRun, folder: Path) -> None:
    """Refuses a folder whose finished run has other settings: it would count as this one."""
    if not is_finished(folder):
        return
    try:
        there = dict(json.loads((folder / DONE).read_text(encoding="utf-8"))["recipe"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}/{DONE} cannot be read ({error!r}): move the folder away") from error
    expected = run.settings.as_dict()
    if run.needs or run.settings.starts_from or run.options.get("init"):
        there["size"] = expected["size"]  # it has the size of its start
    others = [
        f"{name} {there.get(name)}, not {expected.get(name)}"
        for name in sorted(there.keys() | expected.keys())
        if there.get(name) != expected.get(name)
    ]
    if others:
        raise InputError(
            f"{folder} holds a finished run with other settings ({'; '.join(others)}): choose another --out"
        )


def _start(run: SweepRun, out: Path, device: str, at_once: int, say: Callable[[str], None]) -> subprocess.Popen[bytes]:
    """A process that trains a run and writes what it says to output.txt in its folder.

    The documents that it would make for itself are made once for all that read the same ones.
    """
    settings, shared = run.settings, {}
    if "documents" not in run.options and not settings.pictures:
        plan = CorpusPlan.of(settings, vocabulary_of(settings))
        kind = (settings.mix, plan.documents, plan.vocabulary.fingerprint)
        folder = out / "documents" / "-".join(map(str, kind))
        plan.make_in(folder, say)
        shared["documents"] = str(folder)
    words = shlex.split(run.line(out, device, **shared))[1:]
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // at_once)), **os.environ}
    (out / run.name).mkdir(exist_ok=True)
    with (out / run.name / "output.txt").open("ab") as output:
        return subprocess.Popen(  # noqa: S603 (this program itself)
            [sys.executable, "-m", "sinkscope", *words], stdout=output, stderr=subprocess.STDOUT, env=environment
        )
