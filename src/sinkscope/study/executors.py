"""Where shards run: one interface, three ways. The unit everywhere is one idempotent job.

local   processes on this machine, one per GPU, or one per core for small models
ray     actors on a Ray cluster that is running, or a new one on this machine
slurm   job arrays through submitit
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sinkscope.errors import InputError, nearest
from sinkscope.study.spec import StudyModel
from sinkscope.study.worker import Job

NAMES = ("local", "ray", "slurm")
TRIES = 4
"""How often a job is begun before its loss is an error."""


@dataclass(frozen=True)
class Event:
    """News of a job: answers that are there (`done`), how many are right, and at its end the result."""

    job: Job
    done: int = 0
    right: int = 0
    finished: bool = False
    result: Any = None


Report = Callable[[Event], None]


class Executor(Protocol):
    """Runs jobs. `workers`: how many at a time."""

    workers: int

    def begin(self, jobs: int) -> None:
        """Starts what can be started before the jobs are known; there will be at least so many."""
        ...

    def run(self, jobs: Sequence[Job], report: Report) -> None:
        """Does all jobs, in any order; lost workers are replaced and their jobs done again.

        Raises ShardFailedError when a job cannot be done.
        """
        ...

    def close(self) -> None:
        """Ends all workers, at once."""
        ...


@dataclass(frozen=True)
class Place:
    """What workers need to know. `most_memory`: bytes that one model takes; it bounds the workers on a CPU."""

    root: Path
    device: str = "auto"
    workers: int | None = None
    batch_size: Any = "auto"
    most_memory: int = 0
    options: Mapping[str, str] = field(default_factory=dict)


def make(name: str, place: Place) -> Executor:
    """The executor called `name`."""
    if name == "local":
        from sinkscope.study.local import LocalExecutor

        return LocalExecutor(place)
    if name == "ray":
        from sinkscope.study.on_ray import RayExecutor

        return RayExecutor(place)
    if name == "slurm":
        from sinkscope.study.on_slurm import SlurmExecutor

        return SlurmExecutor(place)
    raise InputError(f"--on {name!r} is not known; {nearest(name, NAMES)}")


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_workers(most_memory: int) -> int:
    """As many as there are cores, while a model for each fits into half the memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fit = int(memory * 0.5 // most_memory) if most_memory else cores()
    return max(1, min(cores(), fit))


class Queue:
    """Jobs that wait, handed out so that a worker keeps its model while there is work for it."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.waiting = list(jobs)
        self.tries: Counter[str] = Counter()

    def take(self, warm: StudyModel | None, held: Sequence[StudyModel | None]) -> Job | None:
        """The next job for a worker that has the model `warm`; `held`: the models of the others."""
        if not self.waiting:
            return None
        own = [job for job in self.waiting if job.cell.model == warm]
        if not own:
            left: dict[StudyModel, float] = {}
            for job in self.waiting:
                left[job.cell.model] = left.get(job.cell.model, 0.0) + job.work
            # The model with the most work left for each worker that has it. So models with little work come last, and in
            # small jobs, and no worker ends long after the others.
            best = max(
                left, key=lambda model: (left[model] / (1 + sum(one == model for one in held)), model.name)
            )
            own = [job for job in self.waiting if job.cell.model == best]
        job = own[0]
        self.waiting.remove(job)
        self.tries[job.name] += 1
        return job

    def again(self, job: Job) -> None:
        """Puts back a job whose worker was lost."""
        from sinkscope.study.shard import ShardFailedError

        if self.tries[job.name] >= TRIES:
            raise ShardFailedError(
                f"{job.name} ({job.cell.title}) lost its worker {TRIES} times; is there too little memory? What is done is "
                "safe: run the same command again with fewer --workers"
            )
        self.waiting.insert(0, job)
