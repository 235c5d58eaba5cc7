"""Executors, which run the jobs of a study. A job is idempotent: a lost worker costs only its unsaved answers.

local   processes on this machine, one per GPU, or one per core for small models
here    this process, one job after the other
ray     actors on a Ray cluster that is running, or a new one on this machine
slurm   job arrays through submitit
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from sinkscope.errors import InputError, SinkscopeError, nearest
from sinkscope.study.spec import StudyModel
from sinkscope.study.worker import Job, JobResult, Worker, cpu_workers, threads

NAMES = ("local", "here", "ray", "slurm")
TRIES = 4
"""Times that a job is begun before its loss is an error."""

Finished = Callable[[Job, Any], None]
"""Called with a job that is done and its result."""

Waiting = Callable[[Sequence[Job]], None]
"""Called about once a second with the jobs that are in work."""


class ShardFailedError(SinkscopeError):
    """A job that could not be done, with the reason that a worker gave."""


@dataclass(frozen=True)
class Place:
    """The settings of workers.

    Attributes:
        memory: bytes that one model takes; it limits the workers on a CPU.
        modules: Python modules that workers import.
        options: of the executor.
        grade: answers are graded by the workers; False: they are only saved.
    """

    root: Path
    device: str = "auto"
    workers: int | None = None
    batch_size: Any = "auto"
    memory: int = 0
    modules: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    grade: bool = True

    def worker(self, device: str, threads: int | None) -> Worker:
        """A worker of this place."""
        return Worker(self.root, device, threads, self.batch_size, self.modules, self.grade)


def executor_class(name: str) -> type[Executor]:
    """The executor called `name`; raises InputError when it is not known, or its libraries are not installed."""
    if name in ("ray", "slurm"):  # each needs a library of its own
        module = import_module(f"sinkscope.study.on_{name}")
        found: type[Executor] = getattr(module, f"{name.capitalize()}Executor")
        return found
    if name in NAMES:
        return LocalExecutor if name == "local" else HereExecutor
    raise InputError(f"--on {name!r} is not known; {nearest(name, NAMES)}")


class Queue:
    """Jobs that wait, handed out so that a worker keeps its model while there is work for it."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.waiting = list(jobs)
        self.tries: Counter[str] = Counter()

    def take(self, warm: StudyModel | None, held: Sequence[StudyModel | None]) -> Job | None:
        """The next job for a worker that has the model `warm`; `held`: the models of the others."""
        if not self.waiting:
            return None
        fitting = [job for job in self.waiting if job.cell.model == warm]
        if not fitting:
            left: dict[StudyModel, float] = defaultdict(float)
            for job in self.waiting:
                left[job.cell.model] += job.work
            # The model with the most work left for each worker that has it: models with little work come last, and in small
            # jobs, and no worker ends long after the others.
            best = max(left, key=lambda model: (left[model] / (1 + held.count(model)), model.name))
            fitting = [job for job in self.waiting if job.cell.model == best]
        job = fitting[0]
        self.waiting.remove(job)
        self.tries[job.name] += 1
        return job

    def again(self, job: Job) -> None:
        """Put back a job whose worker was lost."""
        if self.tries[job.name] >= TRIES:
            raise ShardFailedError(
                f"{job.name} ({job.cell.title}) lost its worker {TRIES} times; is there too little memory? What is done is "
                "safe: run the same command again with fewer --workers"
            )
        self.waiting.insert(0, job)


@dataclass
class Slot:
    """A worker: the handle by which it is reached, its device, and the model that it loaded last."""

    handle: Any
    device: str
    warm: StudyModel | None = None


class Executor:
    """Workers that keep their models, one for each entry of `devices`. A subclass starts, reaches and stops one worker."""

    lost: ClassVar[tuple[type[BaseException], ...]] = ()
    """Errors that mean: the worker is gone."""

    options: ClassVar[tuple[str, ...]] = ()
    """The names that --option takes."""

    @classmethod
    def check(cls, place: Place) -> None:
        """Raise InputError when the options of a place cannot be used; nothing is started or written."""
        for name in place.options:
            if name not in cls.options:
                known = nearest(name, cls.options) if cls.options else "workers on this machine have none"
                raise InputError(f"--option {name}=… is not known; {known}")

    def __init__(self, place: Place, devices: Sequence[str]) -> None:
        self.place = place
        self.devices = list(devices)
        self.workers = len(self.devices)
        self._idle: list[Slot] = []
        self._busy: dict[Future[JobResult], tuple[Slot, Job]] = {}

    def start(self, device: str) -> Any:
        """A new worker's handle."""
        raise NotImplementedError

    def submit(self, handle: Any, job: Job) -> Future[JobResult]:
        """Send a job to a worker."""
        raise NotImplementedError

    def ready(self, handle: Any) -> bool:
        """True when a worker can take a job now. Raises one of `lost` when it is gone."""
        return True

    def stop(self, handle: Any) -> None:
        """End a worker at once."""
        raise NotImplementedError

    def run(self, jobs: Sequence[Job], finished: Finished, waiting: Waiting | None = None) -> None:
        """Do all jobs, in any order; lost workers are replaced and their jobs done again.

        Raises ShardFailedError when a job cannot be done.
        """
        queue = Queue(jobs)
        while queue.waiting or self._busy:
            self._fill(queue)
            done, _ = wait(self._busy, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in done:
                self._take_result(future, queue, finished)
            if waiting is not None:
                waiting([job for _, job in self._busy.values()])
            if not self._busy and not done:
                time.sleep(0.1)  # no worker is ready yet

    @property
    def _slots(self) -> list[Slot]:
        return [*self._idle, *(slot for slot, _ in self._busy.values())]

    def _fill(self, queue: Queue) -> None:
        """Start workers up to the number of jobs, and give a job to each that has none."""
        used = [slot.device for slot in self._slots]
        for device in self.devices:
            if len(used) < min(self.workers, len(queue.waiting) + len(self._busy)) and (
                used.count(device) < self.devices.count(device)
            ):
                used.append(device)
                self._idle.append(Slot(self.start(device), device))
        for slot in list(self._idle):
            job: Job | None = None
            try:
                if not self.ready(slot.handle):
                    continue
                job = queue.take(slot.warm, [other.warm for other in self._slots if other is not slot])
                if job is None:
                    return
                self._idle.remove(slot)
                slot.warm = job.cell.model
                self._busy[self.submit(slot.handle, job)] = (slot, job)
            except self.lost:  # it ended while it had nothing to do
                self._lose(slot, queue, job)

    def _take_result(self, future: Future[JobResult], queue: Queue, finished: Finished) -> None:
        slot, job = self._busy.pop(future)
        try:
            result = future.result()
        except self.lost:
            self._lose(slot, queue, job)
            return
        self._idle.append(slot)
        if result.failure is not None:
            raise ShardFailedError(f"{job.cell.title}: {result.failure}")
        finished(job, result.value)

    def _lose(self, slot: Slot, queue: Queue, job: Job | None) -> None:
        """Put the job of a lost worker back; a new worker comes with the next round."""
        if slot in self._idle:
            self._idle.remove(slot)
        with contextlib.suppress(Exception):
            self.stop(slot.handle)
        if job is not None:
            queue.again(job)

    def close(self) -> None:
        """End all workers at once; their records are safe at any moment."""
        slots = self._slots
        self._idle, self._busy = [], {}
        for slot in slots:
            with contextlib.suppress(Exception):
                self.stop(slot.handle)


# ---- processes on this machine -------------------------------------------------------------------


class LocalExecutor(Executor):
    """Processes on this machine: for each worker a loky pool of one process, so that it keeps its device and its model.

    loky starts a fresh interpreter (nothing is forked from a process that holds a model), needs no
    `if __name__ == "__main__"` in the caller's script, and says when a process was killed.
    """

    lost: ClassVar[tuple[type[BaseException], ...]] = (BrokenProcessPool,)

    def __init__(self, place: Place) -> None:
        super().__init__(place, local_devices(place))
        self._threads = threads(self.workers)

    def start(self, device: str) -> Any:
        """A pool of one process, which begins to read its libraries."""
        import loky

        environment = {
            "OMP_NUM_THREADS": str(self._threads),
            "TOKENIZERS_PARALLELISM": "false",
            "LOKY_MAX_MEMORY_LEAK_SIZE": "1e18",  # a second, larger model is no leak: the process must not be replaced
        }
        pool = loky.ProcessPoolExecutor(
            1,
            timeout=None,
            initializer=_start_process,
            initargs=(os.getpid(), self.place.worker(device, self._threads)),
            env=environment,
        )
        with _ctrl_c_ignored():
            pool.submit(_read_libraries)
        return pool

    def submit(self, handle: Any, job: Job) -> Future[JobResult]:
        """Send a job to a process."""
        future: Future[JobResult] = handle.submit(_run_job, job)
        return future

    def stop(self, handle: Any) -> None:
        """Kill the process."""
        handle.shutdown(wait=True, kill_workers=True)


class HereExecutor(Executor):
    """This process, one job after the other: for a machine with one GPU and few libraries, and for a debugger."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, local_devices(replace(place, workers=1)))

    def start(self, device: str) -> Worker:
        """A worker in this process."""
        return self.place.worker(device, None)

    def submit(self, handle: Worker, job: Job) -> Future[JobResult]:
        """Do a job."""
        future: Future[JobResult] = Future()
        future.set_result(handle.run(job))
        return future

    def stop(self, handle: Worker) -> None:
        """Nothing to do: the worker goes with the process."""


@contextlib.contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Processes started in here never see a Ctrl-C in the terminal: the command handles it, and ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_WORKER: Worker | None = None
"""In a worker's process: the worker."""


def _start_process(parent: int, worker: Worker) -> None:
    global _WORKER
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(parent)
    _WORKER = worker


def _read_libraries() -> None:
    import sinkscope.models.load
    import sinkscope.tasks.answer  # noqa: F401 (seconds, while the first job is still on its way)


def _run_job(job: Job) -> JobResult:
    if _WORKER is None:
        raise RuntimeError("the worker's process was not started by LocalExecutor")
    return _WORKER.run(job)


def end_with(parent: int) -> None:
    """End this process when its parent ends, whatever it is doing; loky's processes would finish their job first."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def local_devices(place: Place) -> list[str]:
    """A device for each worker on this machine."""
    from sinkscope.models.load import resolve_device

    where = resolve_device(place.device)
    if where.type == "cuda":
        import torch

        every = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        chosen = every if place.device in ("auto", "cuda") else [str(where)]
        return [chosen[i % len(chosen)] for i in range(place.workers or len(chosen))]
    if where.type != "cpu":
        return [str(where)] * (place.workers or 1)
    return ["cpu"] * (place.workers or cpu_workers(place.memory))
