"""The same study on Ray and through submitit: the same tables as on this machine alone, record for record."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sinkscope.study import run, spec
from sinkscope.study.store import Store
from study import small

pytestmark = pytest.mark.timeout(
    900
)  # they take seconds, but wait for processes on machines that may be busy


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_study(tmp_path_factory.mktemp("study"), models=("llada",), samples=6)


@pytest.fixture(scope="module")
def local(study: Path) -> Path:
    out = study.parent / "local"
    small.run(study, out, "--workers", "1")
    return out


@pytest.mark.slow
@small.without_extra("submitit")
def test_submitits_local_executor_runs_the_slurm_path(study: Path, local: Path) -> None:
    out = study.parent / "slurm"
    small.run(study, out, "--on", "slurm", "--workers", "2", "--option", "cluster=local", "--shard", "3")
    small.assert_same(out, local)


@pytest.mark.slow
@small.without_extra("ray")
def test_a_ray_cluster_that_loses_a_node_gives_the_same_tables(study: Path, local: Path) -> None:
    """Two raylets on this machine; the one without the driver is killed once records are there."""
    import ray
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    out = study.parent / "ray"
    killed = threading.Event()
    try:
        second = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        assert sum(node["Alive"] for node in ray.nodes()) == 2

        def kill() -> None:
            until = time.monotonic() + 200
            while not list(out.glob("cells/*/shards/*/generations.jsonl")) and time.monotonic() < until:
                time.sleep(0.02)
            cluster.remove_node(second, allow_graceful=False)
            killed.set()

        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        run.run_study(spec.read(study), out, on="ray", device="cpu", shard=1)
        thread.join(60)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert killed.is_set()
    assert Store(out).study() is not None
    small.assert_same(out, local)
