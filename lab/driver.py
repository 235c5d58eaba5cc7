"""Trains several organisms side by side on one GPU, measures them, and leaves flat files.

    python -m lab.driver OUT --jobs causal,scratch,adapted,multimodal
    python -m lab.driver OUT --controls --jobs causal:seed=1,scratch:seed=1,causal:size=1m --side 2 --seconds 540

The first leaves two files per organism, weights and everything else, which `unpack` puts into the folders of the package. With
--controls nothing but measured numbers is kept, in OUT/controls.json (see `controls.py`), which grows with every job.

Jobs begin in the order given, `side` at a time, each in a process of its own over one corpus; one that starts from another of
the list waits for it. What is finished when the time is over stays.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError, nearest, plainly
from sinkscope.models.load import ORGANISMS as WEIGHTS
from sinkscope.organisms.corpus import same_ingredients
from sinkscope.organisms.layout import write_json
from sinkscope.organisms.recipe import MIXES, RECIPES, Recipe, recipe

TEXTS = ("config.json", "generation_config.json", "tokenizer_config.json", "training.json", "emergence.json")
OPTIONS = {
    "seed": int,
    "size": str,
    "steps": int,
    "targets": str,
    "batch": int,
    "learning_rate": float,
    "packed": int,
    "weight_decay": float,
    "mix": str,
}
"""The settings of a recipe that a job may change."""


@dataclass(frozen=True)
class Job:
    """A recipe with changes: `causal:seed=1:size=1m`."""

    recipe: str
    changes: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """For files and folders.

        >>> Job.parse("causal:seed=1:size=1m").name
        'causal-seed1-size1m'
        """
        return "-".join((self.recipe, *(f"{key}{value}" for key, value in self.changes)))

    @staticmethod
    def parse(text: str) -> Job:
        """Reads `recipe:option=value:option=value`, and checks that there is such a recipe."""
        name, *parts = text.strip().split(":")
        changes = []
        for part in parts:
            key, equals, value = part.partition("=")
            if not equals or key not in OPTIONS:
                raise InputError(
                    f"job {text!r}: options are written as seed=1, and {nearest(key, OPTIONS)}; got {part!r}"
                )
            changes.append((key, value))
        job = Job(name, tuple(changes))
        try:
            job.chosen()
        except ValueError as error:
            raise InputError(f"job {text!r}: {error}") from error
        return job

    def chosen(self) -> Recipe:
        """The recipe with its changes."""
        return recipe(self.recipe, **{key: OPTIONS[key](value) for key, value in self.changes})

    def base(self, jobs: Sequence[Job]) -> Job | None:
        """The job of the list that this one starts from: with the same changes, else with none, else the only one there is.

        None: the list has none of the recipe that it starts from, and it starts from a shipped organism, or from nothing.
        """
        wanted = recipe(self.recipe).starts_from
        same = [job for job in jobs if job.recipe == wanted]
        alike = [job for job in same if set(job.changes) == set(self.changes)] or [
            job for job in same if not job.changes
        ]
        if not alike and len(same) > 1:
            names = ", ".join(job.name for job in same)
            raise InputError(
                f"{self.name} starts from {wanted}, and which of {names} is not clear: give it the options of one of them"
            )
        base = next(iter(alike or same), None)
        if base is not None and "size" in dict(self.changes) and base.chosen().size != self.chosen().size:
            raise InputError(f"{self.name} has another size than {base.name}, which it would start from")
        return base


@dataclass
class Running:
    """A process that trains a job, and then one that measures it."""

    job: Job
    process: subprocess.Popen[bytes]
    began: float
    measuring: bool = False


class Drive:
    """One run of the driver.

    Attributes:
        done: job → seconds that its training took. failed: jobs that ended badly or were stopped.
    """

    def __init__(
        self,
        work: Path,
        out: Path,
        jobs: Sequence[Job],
        side: int,
        options: list[str],
        count: int,
        controls: bool,
    ) -> None:
        self.work, self.out, self.jobs, self.side = work, out, list(jobs), side
        self.options, self.count, self.controls = options, count, controls
        self.waiting, self.running = list(jobs), list[Running]()
        self.done: dict[Job, float] = {}
        self.failed: list[Job] = []

    def go(self, seconds: float) -> bool:
        """Runs everything; True when all went well. Whatever was finished is in `out`, whatever happens to the rest."""
        began = time.monotonic()
        self.work.mkdir(parents=True, exist_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)
        corpus, mix = self.work / "corpus", self._mix()
        for job in self.jobs:
            job.base(self.jobs)  # an unclear one is refused before anything is trained
        if "--documents" not in self.options and (corpus / "corpus.json").exists():
            same_ingredients(corpus, {"mix": MIXES[mix]})
        elif (
            "--documents" not in self.options
            and self._python("sinkscope.organisms.corpus", str(corpus), "--mix", mix).wait()
        ):
            raise InputError(f"no corpus could be made in {corpus}; what it said is above")
        while self.waiting or self.running:
            left = seconds - (time.monotonic() - began)
            for one in self.running[:]:
                if one.process.poll() is not None:
                    self._ended(one)
                elif left <= 0:
                    one.process.kill()
                    one.process.wait()
                    self.running.remove(one)
                    self.failed.append(one.job)
                    print(f"{one.job.name}: stopped, the time is over", flush=True)
            self._begin_more(left)
            time.sleep(0.1)
        missing = [job.name for job in self.jobs if job in self.failed]
        print(f"finished {len(self.done)} of {len(self.jobs)} jobs; missing: {missing}", flush=True)
        return not missing

    def _mix(self) -> str:
        """The mix of all jobs, which share their documents."""
        if "--mix" in self.options[:-1]:
            return recipe(self.jobs[0].recipe, mix=_value_of("--mix", self.options)).mix
        mixes = {job.chosen().mix for job in self.jobs}
        if len(mixes) > 1:
            raise InputError(
                f"the jobs read {' and '.join(sorted(mixes))} documents; those that start together share one mix"
            )
        return mixes.pop()

    def _begin_more(self, left: float) -> None:
        for job in self.waiting[:]:
            base = job.base(self.jobs)
            size = dict(job.changes).get("size")
            took = [time for one, time in self.done.items() if dict(one.changes).get("size") == size]
            if base in self.failed or left < max(took, default=0.0) or left <= 0:
                print(
                    f"{job.name}: not begun, {'its base failed' if base in self.failed else f'{left:.0f} s are left'}"
                )
                self.waiting.remove(job)
                self.failed.append(job)
            elif len(self.running) < self.side and (base is None or base in self.done):
                self.waiting.remove(job)
                arguments = [job.recipe, "--out", str(self.work / job.name)]
                if "--documents" not in self.options:
                    arguments += ["--documents", str(self.work / "corpus")]
                arguments += self.options
                for key, value in job.changes:
                    arguments += [f"--{key.replace('_', '-')}", value]
                if base is not None:
                    arguments += ["--init", str(self.work / base.name)]
                self.running.append(
                    Running(
                        job,
                        self._python("sinkscope.organisms.command", *arguments, cache=job.name),
                        time.monotonic(),
                    )
                )

    def _ended(self, one: Running) -> None:
        """Goes on with a job whose process has ended: measure it, or put away what was measured."""
        self.running.remove(one)
        folder, took = self.work / one.job.name, time.monotonic() - one.began
        if one.process.returncode:
            # The weights are worth more than the measurement, which can be repeated anywhere: they are already in `out`.
            print(f"{one.job.name}: {'measuring' if one.measuring else 'training'} failed", flush=True)
            self.failed.append(one.job)
        elif not one.measuring:
            self.done[one.job] = took
            print(f"{one.job.name}: trained in {took:.0f} s", flush=True)
            if not self.controls:
                pack(folder, self.out, one.job.name)
            if self.count:
                device = _value_of("--device", self.options)
                where = "lab.controls" if self.controls else "lab.measure"
                arguments = [str(folder), "--count", str(self.count), "--device", device]
                if not self.controls:
                    arguments += ["--ungraded", str(folder)]
                self.running.append(
                    Running(one.job, self._python(where, *arguments), time.monotonic(), measuring=True)
                )
        elif self.controls:
            self._collect(folder, one.job)
        else:
            pack(folder, self.out, one.job.name)
        if one.measuring:
            print(f"{one.job.name}: measured in {took:.0f} s", flush=True)

    def _collect(self, folder: Path, job: Job) -> None:
        path = self.out / "controls.json"
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"jobs": {}}
        found["jobs"][job.name] = json.loads((folder / "control.json").read_text(encoding="utf-8"))
        write_json(path, found, compact=True)

    def _python(self, module: str, *arguments: str, cache: str | None = None) -> subprocess.Popen[bytes]:
        # More threads than cores wait for each other: several times slower on a small machine.
        threads = max(1, min(4, (os.cpu_count() or 1) // self.side))
        environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
        if cache is not None:
            # Each process has a cache of its own: two that compile the same graph at once would wait for each other.
            environment["TORCHINDUCTOR_CACHE_DIR"] = str(self.work / f"cache-{cache}")
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", module, *arguments], env=environment
        )


def _value_of(name: str, options: list[str]) -> str:
    return options[options.index(name) + 1] if name in options[:-1] else "auto"


def pack(folder: Path, out: Path, name: str) -> None:
    """NAME.safetensors and NAME.json, which holds every other file."""
    bundle: dict[str, Any] = {
        file: json.loads((folder / file).read_text(encoding="utf-8"))
        for file in TEXTS
        if (folder / file).exists()
    }
    answers = folder / f"{folder.name}.answers.json"
    if answers.exists():
        bundle["answers.json"] = json.loads(answers.read_text(encoding="utf-8"))
    bundle["log.jsonl"] = (folder / "log.jsonl").read_text(encoding="utf-8")
    write_json(out / f"{name}.json", bundle)
    shutil.copyfile(folder / "model.safetensors", out / f"{name}.safetensors")


def unpack(packed: Path, name: str, weights: Path = WEIGHTS) -> Path:
    """The folder of an organism, from the two files that `pack` wrote. Answers stay out: they are graded, not shipped."""
    from sinkscope.organisms.vocabulary import FILE

    bundle = json.loads((packed / f"{name}.json").read_text(encoding="utf-8"))
    base = bundle["training.json"]["starts_from"]
    if (
        base in RECIPES
    ):  # trained in the same run, from a folder that now is an organism; its digest is beside it
        bundle["training.json"]["starts_from"] = f"organism/{base}"
    folder = weights / name
    folder.mkdir(parents=True, exist_ok=True)
    for file in TEXTS:
        if file in bundle:
            write_json(folder / file, bundle[file], compact=file == "emergence.json")
    (folder / "log.jsonl").write_text(bundle["log.jsonl"], encoding="utf-8")
    shutil.copyfile(packed / f"{name}.safetensors", folder / "model.safetensors")
    shutil.copyfile(FILE, folder / "tokenizer.json")
    return folder


def main() -> None:
    """The command line; options that are not the driver's go to every training."""
    parser = argparse.ArgumentParser(
        description="Train organisms side by side on one GPU.", allow_abbrev=False
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--work", type=Path, default=Path("organisms-work"))
    parser.add_argument(
        "--jobs", "--recipes", default=",".join(RECIPES), help="recipe:option=value:…, separated by commas"
    )
    parser.add_argument("--side", type=int, help="how many train at the same time; default: all")
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="stop what is still running after this long"
    )
    parser.add_argument("--measure", type=int, default=500, help="held-out questions per task; 0: none")
    parser.add_argument("--controls", action="store_true", help="keep measured numbers only")
    options, passed_on = parser.parse_known_args()
    with plainly():
        jobs = [Job.parse(text) for text in options.jobs.split(",") if text]
        if not jobs:
            raise InputError(f"--jobs {options.jobs!r} names no job; recipes are {', '.join(RECIPES)}")
        drive = Drive(
            options.work,
            options.out,
            jobs,
            options.side or len(jobs),
            passed_on,
            options.measure,
            options.controls,
        )
        sys.exit(not drive.go(options.seconds))


if __name__ == "__main__":
    main()
