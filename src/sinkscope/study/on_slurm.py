"""Workers as SLURM jobs: an array through submitit, each task of which does several shards of one model.

The command that was started waits for them and submits anew what was lost. When it is stopped, its jobs are cancelled; run the
same command again to go on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sinkscope.base.errors import InputError
from sinkscope.study.executors import Executor, Finished, Waiting, take
from sinkscope.study.worker import Job, JobResult, WorkerSettings, do

try:
    import submitit
except ImportError as error:
    raise InputError("--on slurm needs submitit: pip install 'sinkscope[slurm]'") from error

WAIT = 0.5
WORKERS = 8
NUMBERS = (
    "timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node", "slurm_array_parallelism", "array_parallelism",
)  # fmt: skip


def do_all(settings: WorkerSettings, jobs: Sequence[Job], threads: int | None) -> list[JobResult]:
    """A task of the array: jobs of one model, one after the other."""
    return [do(settings, job, settings.device, threads) for job in jobs]


def _submitit_executor(settings: WorkerSettings) -> tuple[Any, dict[str, Any]]:
    """submitit's executor with these options, and all parameters that it got."""
    options: dict[str, Any] = dict(settings.options)
    cluster = options.pop("cluster", "slurm")
    parameters: dict[str, Any] = {"timeout_min": 240, "cpus_per_task": 1, "name": "sinkscope"}
    if cluster == "slurm":
        parameters["slurm_array_parallelism"] = settings.workers or WORKERS
    try:
        parameters |= {name: int(value) if name in NUMBERS else value for name, value in options.items()}
        executor = submitit.AutoExecutor(folder=str(settings.root / "slurm"), cluster=cluster)
        executor.update_parameters(**parameters)
    except (RuntimeError, ValueError, NameError, TypeError) as error:
        raise InputError(f"submitit cannot use these options ({error}); see --option") from error
    return executor, parameters


class SlurmExecutor(Executor):
    """submitit's executor, whose workers come and go with their jobs.

    Options: `cluster` ("slurm", or "local" to try the path without SLURM), and every parameter that submitit knows, such as
    slurm_partition, timeout_min, mem_gb, gpus_per_node.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        self.workers = settings.workers or WORKERS
        self._submit, parameters = _submitit_executor(settings)
        self._threads = None if "gpus_per_node" in parameters else int(parameters["cpus_per_task"])
        self._tasks: list[Any] = []

    @classmethod
    def check(cls, settings: WorkerSettings) -> None:
        _submitit_executor(settings)

    def _round(self, jobs: Sequence[Job], finished: Finished, waiting: Waiting | None) -> list[Job]:
        parts, again = self._parts(jobs), []
        with self._submit.batch():
            tasks = [self._submit.submit(do_all, self.settings, batch, self._threads) for batch in parts]
        self._tasks = tasks
        left = dict(zip(tasks, parts, strict=True))
        while left:
            for task in [task for task in left if task.done()]:
                batch = left.pop(task)
                try:
                    results: list[JobResult] = task.result()
                except Exception:  # killed, timed out, node lost: its records are there, the rest is done again
                    again += batch
                    continue
                for job, result in zip(batch, results, strict=True):
                    take(job, result, finished)
            if waiting is not None:
                waiting([job for batch in left.values() for job in batch])
            time.sleep(WAIT)
        self._tasks = []
        return again

    def _parts(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Jobs of one model each, about as many parts as workers."""
        models: dict[Any, list[Job]] = {}
        for job in jobs:
            models.setdefault(job.cell.model, []).append(job)
        parts = []
        for group in models.values():
            count = max(1, min(len(group), round(self.workers * len(group) / len(jobs))))
            parts += [group[i::count] for i in range(count)]
        return parts

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []
