"""Workers as SLURM jobs: an array through submitit, a task of which does several shards of one model.

The command that was started waits for them, counts what they have written, and submits anew what was lost. When it is stopped,
its jobs are cancelled; run the same command again to go on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError, SinkscopeError
from sinkscope.study.executors import Event, Place, Queue, Report
from sinkscope.study.shard import ShardFailedError
from sinkscope.study.worker import Bench, Job

WAIT = 0.5
NUMBERS = (
    "timeout_min",
    "mem_gb",
    "cpus_per_task",
    "gpus_per_node",
    "slurm_array_parallelism",
    "array_parallelism",
)


def run_jobs(root: str, device: str, threads: int | None, batch_size: Any, jobs: list[Job]) -> list[Any]:
    """What a task of the array does: jobs of one model, one after the other, with the model kept warm."""
    bench = Bench(Path(root), device, threads, batch_size)
    outcomes: list[Any] = []
    for job in jobs:
        try:
            outcomes.append(("done", bench.run(job)))
        except SinkscopeError as error:
            outcomes.append(("failed", str(error)))
    return outcomes


class SlurmExecutor:
    """submitit's executor.

    Options: `cluster` ("slurm", or "local" to try the path without SLURM), and every parameter that submitit knows, such as
    slurm_partition, timeout_min, mem_gb, gpus_per_node.
    """

    def __init__(self, place: Place) -> None:
        try:
            import submitit
        except ImportError as error:
            raise InputError("--on slurm needs submitit: pip install 'sinkscope[slurm]'") from error
        options: dict[str, Any] = dict(place.options)
        cluster = options.pop("cluster", "slurm")
        self.place = place
        self.workers = place.workers or 8
        try:
            self._submit: Any = submitit.AutoExecutor(folder=str(place.root / "slurm"), cluster=cluster)
            parameters: dict[str, Any] = {"timeout_min": 240, "cpus_per_task": 1, "name": "sinkscope"}
            if cluster == "slurm":
                parameters["slurm_array_parallelism"] = self.workers
            parameters |= {name: int(value) if name in NUMBERS else value for name, value in options.items()}
            self._submit.update_parameters(**parameters)
        except (RuntimeError, ValueError, NameError, TypeError) as error:
            raise InputError(f"submitit cannot use these options ({error}); see --option") from error
        self._threads = int(parameters["cpus_per_task"]) if "gpus_per_node" not in parameters else None
        self._tasks: list[Any] = []

    def begin(self, jobs: int) -> None:
        """Nothing: an array is submitted with its jobs."""

    def run(self, jobs: Sequence[Job], report: Report) -> None:
        """See `Executor.run`."""
        queue = Queue(jobs)
        while queue.waiting:
            self._round(queue, report)

    def _round(self, queue: Queue, report: Report) -> None:
        """One array: all that waits."""
        parts = self._parts(queue)
        root, device, batch = str(self.place.root), self.place.device, self.place.batch_size
        with self._submit.batch():
            tasks = [
                self._submit.submit(run_jobs, root, device, self._threads, batch, part) for part in parts
            ]
        self._tasks = tasks
        left = dict(zip(tasks, parts, strict=True))
        while left:
            for task in [one for one in left if one.done()]:
                self._hear(task, left.pop(task), queue, report)
            time.sleep(WAIT)
        self._tasks = []

    def _parts(self, queue: Queue) -> list[list[Job]]:
        """Jobs of one model each, about as many parts as workers."""
        models: dict[Any, list[Job]] = {}
        while (job := queue.take(None, ())) is not None:
            models.setdefault(job.cell.model, []).append(job)
        total = sum(map(len, models.values()))
        found = []
        for own in models.values():
            many = max(1, min(len(own), round(self.workers * len(own) / total)))
            found += [own[i::many] for i in range(many)]
        return found

    def _hear(self, task: Any, part: list[Job], queue: Queue, report: Report) -> None:
        try:
            outcomes = task.result()
        except Exception:  # killed, timed out, node lost: what it wrote is there, the rest is done again
            for job in reversed(part):
                queue.again(job)
            return
        for job, (kind, result) in zip(part, outcomes, strict=True):
            if kind == "failed":
                raise ShardFailedError(f"{job.cell.title}: {result}")
            report(Event(job, finished=True, result=result))

    def close(self) -> None:
        """Cancels what is still running."""
        for task in self._tasks:
            task.cancel()
        self._tasks = []
