"""Jobs as Ray tasks: on a cluster that is running, or a new one on this machine.

Ray places them and, when a node goes, runs its tasks again on others, from where the records end; a process keeps the model
that it loaded last. All nodes need the same packages and the study's folder at the same path.

A cluster of our own listens on 127.0.0.1 alone and asks for a token that exists only while it runs. A cluster that is
running is protected by whoever started it: see docs/studies.md.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

from sinkscope.base.errors import InputError
from sinkscope.study.executors import TRIES, Executor
from sinkscope.study.worker import Job, JobResult, WorkerSettings, do

OTHER_NODES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray reads it when it is imported. With "0" it expects no other nodes, on any system, and opens ports on 127.0.0.1 alone."""

if find_spec("ray") is None:
    raise InputError("--on ray needs Ray: pip install 'sinkscope[ray]'")


class RayExecutor(Executor):
    """Tasks on a Ray cluster.

    Options: address (of a running cluster; "auto" finds one; default: RAY_ADDRESS, else a new one on this machine).
    """

    options = ("address",)

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        address = settings.options.get("address") or os.environ.get("RAY_ADDRESS")
        connected = "ray" in sys.modules and sys.modules["ray"].is_initialized()
        with ExitStack() as started:
            if not (connected or address):
                # Ray reads the token here, and asks for one in every local cluster whose mode is not set.
                variables = {"RAY_AUTH_MODE": "", "RAY_AUTH_TOKEN": secrets.token_hex(32), OTHER_NODES: "0"}
                started.enter_context(_environment(variables))
            import ray

            if not connected:
                started.callback(ray.shutdown)
                where = {"address": address} if address else {"include_dashboard": False}
                ray.init(**where, log_to_driver=False, logging_level="ERROR")
            if not (connected or address) and ray.util.get_node_ip_address() != "127.0.0.1":
                raise InputError(
                    "this version of Ray, or one that was imported before, opens ports to the network even for a cluster on one "
                    "machine; use --on local, or start a cluster yourself and give --option address=…"
                )
            self._started = started.pop_all()
        self.lost = (ray.exceptions.RayError,)
        total = ray.cluster_resources()
        gpus = int(total.get("GPU", 0)) if settings.device != "cpu" else 0
        self.workers = settings.workers or gpus or max(1, int(total.get("CPU", 1)))
        self._where = ("cuda", None) if gpus else ("cpu", 1)
        # max_calls: a process stays, and keeps its model.
        self._task: Any = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, max_retries=TRIES, max_calls=0)(do)

    def send(self, job: Job) -> Future[JobResult]:
        future: Future[JobResult] = self._task.remote(self.settings, job, *self._where).future()
        return future

    def close(self) -> None:
        self._started.close()


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Inside, these variables of the environment are so; "": not set."""
    before = {name: os.environ.pop(name, None) for name in variables}
    os.environ |= {name: value for name, value in variables.items() if value}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ |= {} if value is None else {name: value}
