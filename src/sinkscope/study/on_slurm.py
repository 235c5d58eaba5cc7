"""Workers as SLURM jobs: an array through submitit, each task of which does several shards of one model.

The command that was started waits for them and submits anew what was lost. When it is stopped, its jobs are cancelled; run the
same command again to go on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sinkscope.errors import InputError
from sinkscope.study.executors import Executor, Finished, Place, Queue, ShardFailedError, Waiting
from sinkscope.study.worker import Job, JobResult, Worker

try:
    import submitit
except ImportError as error:
    raise InputError("--on slurm needs submitit: pip install 'sinkscope[slurm]'") from error

WAIT = 0.5
WORKERS = 8
NUMBERS = (
    "timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node", "slurm_array_parallelism", "array_parallelism",
)  # fmt: skip


def run_jobs(worker: Worker, jobs: Sequence[Job]) -> list[JobResult]:
    """A task of the array: jobs of one model, one after the other."""
    return [worker.run(job) for job in jobs]


def _submitit_executor(place: Place) -> tuple[Any, dict[str, Any]]:
    """submitit's executor with the options of a place, and all parameters that it got."""
    options: dict[str, Any] = dict(place.options)
    cluster = options.pop("cluster", "slurm")
    parameters: dict[str, Any] = {"timeout_min": 240, "cpus_per_task": 1, "name": "sinkscope"}
    if cluster == "slurm":
        parameters["slurm_array_parallelism"] = place.workers or WORKERS
    try:
        parameters |= {name: int(value) if name in NUMBERS else value for name, value in options.items()}
        executor = submitit.AutoExecutor(folder=str(place.root / "slurm"), cluster=cluster)
        executor.update_parameters(**parameters)
    except (RuntimeError, ValueError, NameError, TypeError) as error:
        raise InputError(f"submitit cannot use these options ({error}); see --option") from error
    return executor, parameters


class SlurmExecutor(Executor):
    """submitit's executor, whose workers come and go with their jobs.

    Options: `cluster` ("slurm", or "local" to try the path without SLURM), and every parameter that submitit knows, such as
    slurm_partition, timeout_min, mem_gb, gpus_per_node.
    """

    def __init__(self, place: Place) -> None:
        self.workers = place.workers or WORKERS
        self._submit, parameters = _submitit_executor(place)
        threads = None if "gpus_per_node" in parameters else int(parameters["cpus_per_task"])
        self._worker = place.worker(place.device, threads)
        self._tasks: list[Any] = []

    @classmethod
    def check(cls, place: Place) -> None:
        """Raise InputError when submitit cannot use the options."""
        _submitit_executor(place)

    def run(self, jobs: Sequence[Job], finished: Finished, waiting: Waiting | None = None) -> None:
        """See `Executor.run`."""
        queue = Queue(jobs)
        while queue.waiting:
            parts = self._parts(queue)
            with self._submit.batch():
                self._tasks = [self._submit.submit(run_jobs, self._worker, part) for part in parts]
            left = dict(zip(self._tasks, parts, strict=True))
            while left:
                for task in [task for task in left if task.done()]:
                    self._take_results(task, left.pop(task), queue, finished)
                if waiting is not None:
                    waiting([job for part in left.values() for job in part])
                time.sleep(WAIT)
            self._tasks = []

    def _parts(self, queue: Queue) -> list[list[Job]]:
        """Jobs of one model each, about as many parts as workers."""
        models: dict[Any, list[Job]] = {}
        while (job := queue.take(None, ())) is not None:
            models.setdefault(job.cell.model, []).append(job)
        total = sum(map(len, models.values()))
        parts = []
        for jobs in models.values():
            count = max(1, min(len(jobs), round(self.workers * len(jobs) / total)))
            parts += [jobs[i::count] for i in range(count)]
        return parts

    def _take_results(self, task: Any, part: list[Job], queue: Queue, finished: Finished) -> None:
        try:
            results: list[JobResult] = task.result()
        except Exception:  # killed, timed out, node lost: its records are there, the rest is done again
            for job in reversed(part):
                queue.again(job)
            return
        for job, result in zip(part, results, strict=True):
            if result.failure is not None:
                raise ShardFailedError(f"{job.cell.title}: {result.failure}")
            finished(job, result.value)

    def close(self) -> None:
        """Cancel what is still running."""
        for task in self._tasks:
            task.cancel()
        self._tasks = []
