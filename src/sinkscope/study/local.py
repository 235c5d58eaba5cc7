"""Workers as processes on this machine: one per GPU, or one per core with one thread each.

A worker is a fresh interpreter (nothing is forked from a process that holds a model) and dies with its parent. A worker that is
killed is replaced, and its shard goes on where the records end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from sinkscope.study.executors import Event, Place, Queue, Report, cores, cpu_workers
from sinkscope.study.shard import ShardFailedError
from sinkscope.study.spec import StudyModel
from sinkscope.study.worker import Job


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    pipe: Connection[Any, Any]
    device: str
    job: Job | None = None
    warm: StudyModel | None = None


class LocalExecutor:
    """Processes on this machine."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.devices = devices(place)
        self.workers = len(self.devices)
        self._threads = threads(self.workers)
        self._workers: list[_Worker] = []

    def begin(self, jobs: int) -> None:
        """Workers read their libraries while the study is planned."""
        if not self._workers:
            self._workers = [self._start(device) for device in self.devices[:jobs]]

    def run(self, jobs: Sequence[Job], report: Report) -> None:
        """See `Executor.run`."""
        queue = Queue(jobs)
        while queue.waiting or any(worker.job for worker in self._workers):
            self._fill(queue)
            busy = [worker for worker in self._workers if worker.job]
            ready = wait([worker.pipe for worker in busy], timeout=1.0)
            for worker in [one for one in busy if one.pipe in ready]:
                self._hear(worker, queue, report)

    def _fill(self, queue: Queue) -> None:
        wanted = min(
            self.workers, len(queue.waiting) + sum(worker.job is not None for worker in self._workers)
        )
        used = [worker.device for worker in self._workers]
        for device in self.devices:
            if len(self._workers) < wanted and used.count(device) < self.devices.count(device):
                used.append(device)
                self._workers.append(self._start(device))
        for worker in list(self._workers):
            if worker.job is None:
                others = [one.warm for one in self._workers if one is not worker]
                worker.job = queue.take(worker.warm, others)
                if worker.job is not None:
                    worker.warm = worker.job.cell.model
                    try:
                        worker.pipe.send(worker.job)
                    except OSError:  # it died while idle
                        self._lose(worker, queue)

    def _start(self, device: str) -> _Worker:
        ours, theirs = Pipe()
        arguments = [
            str(theirs.fileno()), str(self.place.root), device, str(self._threads), str(self.place.batch_size),
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": str(self._threads), "TOKENIZERS_PARALLELISM": "false"}
        process = subprocess.Popen(  # noqa: S603 (our own module)
            [sys.executable, "-m", "sinkscope.study.serve", *arguments],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal is the parent's to handle
        )
        theirs.close()
        return _Worker(process, ours, device)

    def _hear(self, worker: _Worker, queue: Queue, report: Report) -> None:
        job = worker.job
        if job is None:
            return
        try:
            kind, *rest = worker.pipe.recv()
        except (EOFError, OSError):
            self._lose(worker, queue)
            return
        if kind == "progress":
            report(Event(job, *rest))
        elif kind == "done":
            worker.job = None
            report(Event(job, finished=True, result=rest[0]))
        else:
            worker.job = None
            raise ShardFailedError(f"{job.cell.title}: {rest[0]}")

    def _lose(self, worker: _Worker, queue: Queue) -> None:
        """A worker that is gone: its job waits again, and a new worker comes with the next round."""
        _end(worker)
        self._workers.remove(worker)
        if worker.job is not None:
            queue.again(worker.job)

    def close(self) -> None:
        """Ends all workers at once; their records are safe at any moment."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            _end(worker)
        self._workers = []


def _end(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.kill()
    worker.process.wait()


def threads(workers: int) -> int:
    """Of each worker: an equal share of the cores, or what OMP_NUM_THREADS says, as everywhere."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) else max(1, cores() // workers)


def devices(place: Place) -> list[str]:
    """A device for each worker."""
    from sinkscope.models.load import resolve_device

    where = resolve_device(place.device)
    if where.type == "cuda":
        import torch

        every = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        found = every if place.device in ("auto", "cuda") else [str(where)]
        many = place.workers or len(found)
        return [found[i % len(found)] for i in range(many)]
    if where.type != "cpu":
        return [str(where)] * (place.workers or 1)
    return ["cpu"] * (place.workers or cpu_workers(place.most_memory))
