"""Executors, which run the jobs of a study. A job is idempotent: a lost worker costs only its unsaved answers.

local   processes on this machine, one per GPU, or one per core for small models
here    this process, one job after the other
ray     tasks on a Ray cluster that is running, or a new one on this machine
slurm   job arrays through submitit
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from typing import Any, ClassVar

from loky import cpu_count

from sinkscope.base.checks import one_of
from sinkscope.base.errors import InputError, SinkscopeError, nearest
from sinkscope.study.worker import AT_HAND, Job, JobResult, WorkerSettings, do

NAMES = ("local", "here", "ray", "slurm")
TRIES = 4
"""Times in a row that workers are lost, with nothing done in between, before that is an error."""

Finished = Callable[[Job, Any], None]
"""Called with a job that is done and its result."""

Waiting = Callable[[Sequence[Job]], None]
"""Called about once a second with the jobs that are in work."""


class ShardFailedError(SinkscopeError):
    """A job that could not be done, with the reason that a worker gave."""


def executor_class(name: str) -> type[Executor]:
    """The executor called `name`; raises InputError when it is not known, or its libraries are not installed."""
    one_of("--on", name, NAMES)
    # Ray and submitit are libraries of their own.
    module = f"sinkscope.study.on_{name}" if name in ("ray", "slurm") else __name__
    executor: type[Executor] = getattr(import_module(module), f"{name.capitalize()}Executor")
    return executor


class Executor:
    """Sends jobs to workers, as many at a time as there are. A subclass says how one is sent, and what a loss looks like.

    Jobs of one model should come one after the other: a worker keeps the model that it loaded last.
    """

    lost: tuple[type[BaseException], ...] = ()
    """Errors that mean: the worker is gone."""

    options: ClassVar[tuple[str, ...]] = ()
    """The names that --option takes."""

    workers: int = 1

    @classmethod
    def check(cls, settings: WorkerSettings) -> None:
        """Raise InputError when the options cannot be used; nothing is started or written."""
        for name in settings.options:
            if name not in cls.options:
                hint = nearest(name, cls.options) if cls.options else "workers on this machine have none"
                raise InputError(f"--option {name}=… is not known; {hint}")

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings

    def send(self, job: Job) -> Future[JobResult]:
        """Give a job to a worker."""
        raise NotImplementedError

    def close(self) -> None:
        """End all workers at once; their records are safe at any moment."""

    def run(self, jobs: Sequence[Job], finished: Finished, waiting: Waiting | None = None) -> None:
        """Do all jobs; those whose workers were lost are sent again.

        Raises ShardFailedError when a job cannot be done.
        """
        left, tries = list(jobs), 0
        while left:
            again = self._round(left, finished, waiting)
            tries = tries + 1 if len(again) == len(left) else 0
            left = again
            if tries == TRIES:
                raise ShardFailedError(
                    f"{left[0].cell.said} lost its worker {TRIES} times; is there too little memory? What is done is safe: run "
                    "the same command again with fewer --workers"
                )

    def _round(self, jobs: Sequence[Job], finished: Finished, waiting: Waiting | None) -> list[Job]:
        """Do jobs; return those that were lost."""
        queue: deque[Job] = deque(jobs)
        again: list[Job] = []
        busy: dict[Future[JobResult], Job] = {}
        while queue or busy:
            try:
                while queue and len(busy) < self.workers:
                    future = self.send(queue[0])
                    busy[future] = queue.popleft()
            except self.lost:  # workers ended while they had nothing to do
                again += queue
                queue.clear()
            done, _ = wait(busy, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in done:
                job = busy.pop(future)
                try:
                    take(job, future.result(), finished)
                except self.lost:
                    again.append(job)
            if waiting is not None:
                waiting(list(busy.values()))
        if again:
            self.close()  # the next round starts new workers
        return again


def take(job: Job, result: JobResult, finished: Finished) -> None:
    """Hand on what a worker sent back; raises ShardFailedError when it says that the job cannot be done."""
    if result.failure is not None:
        raise ShardFailedError(f"{job.cell.said}: {result.failure}")
    finished(job, result.value)


class HereExecutor(Executor):
    """This process, one job after the other: for a machine with one GPU and few libraries, and for a debugger."""

    def send(self, job: Job) -> Future[JobResult]:
        future: Future[JobResult] = Future()
        future.set_result(do(self.settings, job, local_devices(self.settings)[0]))
        return future

    def close(self) -> None:
        AT_HAND.clear()


# ---- processes on this machine -------------------------------------------------------------------


class LocalExecutor(Executor):
    """A loky pool on this machine.

    loky starts a fresh interpreter (nothing is forked from a process that holds a model), needs no
    `if __name__ == "__main__"` in the caller's script, and says when a process was killed.
    """

    lost = (BrokenProcessPool,)

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        self._devices = local_devices(settings)
        self.workers = len(self._devices)
        self._pool: Any = None

    def run(self, jobs: Sequence[Job], finished: Finished, waiting: Waiting | None = None) -> None:
        """See `Executor.run`; no more processes are started than there are jobs."""
        self.workers = min(len(self._devices), max(self.workers if self._pool else 0, len(jobs), 1))
        super().run(jobs, finished, waiting)

    def send(self, job: Job) -> Future[JobResult]:
        if self._pool is None:
            self._pool = self._started()
        future: Future[JobResult] = self._pool.submit(_run_job, job)
        return future

    def _started(self) -> Any:
        import loky

        # An equal share of the cores, or OMP_NUM_THREADS where it is set.
        asked = os.environ.get("OMP_NUM_THREADS", "")
        each = int(asked) if asked.isdigit() and int(asked) else max(1, cpu_count() // self.workers)
        environment = {
            "OMP_NUM_THREADS": str(each),
            "TOKENIZERS_PARALLELISM": "false",
            "LOKY_MAX_MEMORY_LEAK_SIZE": "1e18",  # a second, larger model is no leak: the process must not be replaced
        }
        devices = loky.backend.get_context("loky").SimpleQueue()
        for device in self._devices:
            devices.put(device)
        pool = loky.ProcessPoolExecutor(
            self.workers, timeout=None, initializer=_start_process,
            initargs=(os.getpid(), self.settings, devices, each), env=environment,
        )  # fmt: skip
        with _ctrl_c_ignored():
            pool.submit(_read_libraries)
        return pool

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            with contextlib.suppress(Exception):
                pool.shutdown(wait=True, kill_workers=True)


@contextlib.contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Processes started in here never see a Ctrl-C in the terminal: the command handles it, and ends them."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGINT, before)


_PROCESS: tuple[WorkerSettings, str, int]
"""In a worker's process: its settings, device and threads."""


def _start_process(parent: int, settings: WorkerSettings, devices: Any, each: int) -> None:
    global _PROCESS
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _PROCESS = (settings, devices.get(), each)


def _read_libraries() -> None:
    import sinkscope.models.load
    import sinkscope.tasks.answer  # noqa: F401 (seconds, while the first job is still on its way)


def _run_job(job: Job) -> JobResult:
    settings, device, each = _PROCESS
    return do(settings, job, device, each)


def _end_with(parent: int) -> None:
    """End this process when its parent ends, whatever it is doing; loky's processes would finish their job first."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def local_devices(settings: WorkerSettings) -> list[str]:
    """A device for each worker on this machine; CPUs: as many as there are cores, while all models fit into half the memory."""
    from sinkscope.models.load import resolve_device

    where = resolve_device(settings.device)
    if where.type == "cuda":
        import torch

        every = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        chosen = every if settings.device in ("auto", "cuda") else [str(where)]
        return [chosen[i % len(chosen)] for i in range(settings.workers or len(chosen))]
    if where.type != "cpu":
        return [str(where)] * (settings.workers or 1)
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fitting = installed // (2 * settings.memory) if settings.memory else installed
    return ["cpu"] * (settings.workers or max(1, min(int(cpu_count()), fitting)))
