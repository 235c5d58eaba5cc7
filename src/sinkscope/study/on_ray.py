"""Workers as Ray actors: on a cluster that is running, or a new one on this machine.

An actor keeps its model warm across the cells of that model. When a node goes, its actors go; their shards are done again by
actors on other nodes, from where the records end. All nodes need the same package and the study's folder at the same path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sinkscope.errors import InputError, SinkscopeError
from sinkscope.study.executors import Event, Place, Queue, Report
from sinkscope.study.shard import ShardFailedError
from sinkscope.study.spec import StudyModel
from sinkscope.study.worker import Bench, Job


@dataclass
class _Actor:
    handle: Any
    ready: Any  # a reference that is there once the actor runs; None when that is known
    job: Job | None = None
    warm: StudyModel | None = None


class _Served:
    """What runs in an actor."""

    def __init__(self, place: Place, device: str) -> None:
        self.bench = Bench(place.root, device, 1 if device == "cpu" else None, place.batch_size)

    def ready(self) -> bool:
        return True

    def run(self, job: Job) -> tuple[str, Any]:
        import traceback

        try:
            return "done", self.bench.run(job)
        except SinkscopeError as error:
            return "failed", str(error)
        except Exception:
            return "failed", traceback.format_exc()


class RayExecutor:
    """Actors on a Ray cluster.

    Options: address (of a running cluster; "auto" finds one; default: RAY_ADDRESS, else a new one here).
    """

    def __init__(self, place: Place) -> None:
        try:
            import ray
        except ImportError as error:
            raise InputError("--on ray needs Ray: pip install 'sinkscope[ray]'") from error
        self.place = place
        self.ray: Any = ray
        self._ours = not ray.is_initialized()
        if self._ours:
            ray.init(
                address=place.options.get("address"),
                include_dashboard=None if place.options.get("address") else False,
                log_to_driver=False,
                logging_level="ERROR",
            )
        total = ray.cluster_resources()
        gpus = int(total.get("GPU", 0)) if place.device != "cpu" else 0
        self._device = "cuda" if gpus else "cpu"
        self.workers = place.workers or gpus or max(1, int(total.get("CPU", 1)))
        self._served: Any = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, max_restarts=0)(_Served)
        self._actors: list[_Actor] = []

    def begin(self, jobs: int) -> None:
        """Nothing: actors come with the jobs."""

    def run(self, jobs: Sequence[Job], report: Report) -> None:
        """See `Executor.run`."""
        queue = Queue(jobs)
        running: dict[Any, _Actor] = {}
        while queue.waiting or running:
            self._fill(queue, running)
            waiting = list(running) or [actor.ready for actor in self._actors if actor.ready is not None]
            ready = self.ray.wait(waiting, num_returns=1, timeout=1.0)[0] if waiting else []
            for reference in [one for one in ready if one in running]:
                self._hear(running.pop(reference), reference, queue, report)

    def _fill(self, queue: Queue, running: dict[Any, _Actor]) -> None:
        wanted = min(self.workers, len(queue.waiting) + len(running))
        while len(self._actors) < wanted:
            handle = self._served.remote(self.place, self._device)
            self._actors.append(_Actor(handle, handle.ready.remote()))
        for actor in list(self._actors):
            # An actor that no node has room for, after a node was lost, gets no job.
            if actor.job is None and self._is_ready(actor):
                others = [one.warm for one in self._actors if one is not actor]
                actor.job = queue.take(actor.warm, others)
                if actor.job is not None:
                    actor.warm = actor.job.cell.model
                    running[actor.handle.run.remote(actor.job)] = actor

    def _is_ready(self, actor: _Actor) -> bool:
        if actor.ready is not None and self.ray.wait([actor.ready], timeout=0)[0]:
            try:
                self.ray.get(actor.ready)
                actor.ready = None
            except self.ray.exceptions.RayError:
                self._actors.remove(actor)
                return False
        return actor.ready is None

    def _hear(self, actor: _Actor, reference: Any, queue: Queue, report: Report) -> None:
        job = actor.job
        if job is None:
            return
        try:
            kind, result = self.ray.get(reference)
        except self.ray.exceptions.RayError:  # the actor or its node is gone
            self._actors.remove(actor)
            queue.again(job)
            return
        actor.job = None
        if kind == "failed":
            raise ShardFailedError(f"{job.cell.title}: {result}")
        report(Event(job, finished=True, result=result))

    def close(self) -> None:
        """Ends the actors, and the cluster when it is ours."""
        for actor in self._actors:
            self.ray.kill(actor.handle)
        self._actors = []
        if self._ours:
            self.ray.shutdown()
