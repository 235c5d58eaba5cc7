"""Workers as Ray actors: on a cluster that is running, or a new one on this machine.

An actor keeps its model across the cells of that model. When a node goes, its actors go; their shards are done again by
actors on other nodes, from where the records end. All nodes need the same packages and the study's folder at the same path.

A cluster of our own listens on 127.0.0.1 alone and asks for a token that exists only while it runs. A cluster that is
running is protected by whoever started it: see docs/studies.md.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from typing import Any, NamedTuple

from sinkscope.errors import InputError
from sinkscope.study.executors import Executor, Place
from sinkscope.study.worker import Job, JobResult, Worker

try:
    import ray
except ImportError as error:
    raise InputError("--on ray needs Ray: pip install 'sinkscope[ray]'") from error


class _Actor(NamedTuple):
    """An actor, and a reference that is there once a node has room for it."""

    handle: Any
    placed: Any


class RayExecutor(Executor):
    """Actors on a Ray cluster.

    Options: address (of a running cluster; "auto" finds one; default: RAY_ADDRESS, else a new one on this machine).
    """

    lost = (ray.exceptions.RayError,)
    options = ("address",)

    def __init__(self, place: Place) -> None:
        self._started = ExitStack()
        if not ray.is_initialized():
            address = place.options.get("address") or os.environ.get("RAY_ADDRESS")
            self._started.enter_context(_connected(address) if address else _own_cluster())
        total = ray.cluster_resources()
        gpus = int(total.get("GPU", 0)) if place.device != "cpu" else 0
        workers = place.workers or gpus or max(1, int(total.get("CPU", 1)))
        super().__init__(place, ["cuda" if gpus else "cpu"] * workers)
        self._actor: Any = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, max_restarts=0)(Worker)

    def start(self, device: str) -> _Actor:
        """An actor, which waits for a node with room for it."""
        worker = self.place.worker(device, 1 if device == "cpu" else None)
        handle = self._actor.remote(**{field.name: getattr(worker, field.name) for field in fields(worker)})
        return _Actor(handle, handle.__ray_ready__.remote())

    def ready(self, handle: _Actor) -> bool:
        """True when a node runs the actor: one that no node has room for, after a node was lost, gets no job."""
        if not ray.wait([handle.placed], timeout=0)[0]:
            return False
        ray.get(handle.placed)  # raises when the actor is gone
        return True

    def submit(self, handle: _Actor, job: Job) -> Future[JobResult]:
        """Send a job to an actor."""
        future: Future[JobResult] = handle.handle.run.remote(job).future()
        return future

    def stop(self, handle: _Actor) -> None:
        """Kill the actor."""
        ray.kill(handle.handle)

    def close(self) -> None:
        """End the actors, and the cluster or the connection that this executor began."""
        super().close()
        self._started.close()


@contextmanager
def _connected(address: str) -> Iterator[None]:
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _own_cluster() -> Iterator[None]:
    """A cluster on this machine that nobody else can reach.

    Ray asks for a token in every local cluster whose mode is not set, and reads the token from the environment. Its ports are
    open on 127.0.0.1 alone where it does not expect other nodes, as on macOS and Windows; on Linux that has no public option.
    """
    from ray._private import ray_constants

    before = {name: os.environ.pop(name, None) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    expects_nodes = ray_constants.ENABLE_RAY_CLUSTER
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        if ray.util.get_node_ip_address() != "127.0.0.1":
            raise InputError(
                "this version of Ray opens ports to the network even for a cluster on one machine; use --on local, or start a "
                "cluster yourself and give --option address=…"
            )
        yield
    finally:
        ray.shutdown()
        ray_constants.ENABLE_RAY_CLUSTER = expects_nodes
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
