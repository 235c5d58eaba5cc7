"""Jobs as Ray tasks: on a cluster that is running, or a new one on this machine.

Ray places them and, when a node goes, runs its tasks again on others, from where the records end; a process keeps the model
that it loaded last. All nodes need the same packages and the study's folder at the same path.

A cluster of our own listens on 127.0.0.1 alone and asks for a token that exists only while it runs. A cluster that is
running is protected by whoever started it: see docs/studies.md.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any

from sinkscope.base.errors import InputError
from sinkscope.study.executors import TRIES, Executor
from sinkscope.study.worker import Job, JobResult, WorkerSettings, do

try:
    import ray
except ImportError as error:
    raise InputError("--on ray needs Ray: pip install 'sinkscope[ray]'") from error


class RayExecutor(Executor):
    """Tasks on a Ray cluster.

    Options: address (of a running cluster; "auto" finds one; default: RAY_ADDRESS, else a new one on this machine).
    """

    lost = (ray.exceptions.RayError,)
    options = ("address",)

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        self._started = ExitStack()
        if not ray.is_initialized():
            address = settings.options.get("address") or os.environ.get("RAY_ADDRESS")
            self._started.enter_context(_connected(address) if address else _own_cluster())
        total = ray.cluster_resources()
        gpus = int(total.get("GPU", 0)) if settings.device != "cpu" else 0
        self.workers = settings.workers or gpus or max(1, int(total.get("CPU", 1)))
        self._where = ("cuda", None) if gpus else ("cpu", 1)
        # max_calls: a process stays, and keeps its model.
        self._task: Any = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, max_retries=TRIES, max_calls=0)(do)

    def send(self, job: Job) -> Future[JobResult]:
        """Submit a task, which waits for a node with room for it."""
        future: Future[JobResult] = self._task.remote(self.settings, job, *self._where).future()
        return future

    def close(self) -> None:
        """End the cluster or the connection that this executor began."""
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
