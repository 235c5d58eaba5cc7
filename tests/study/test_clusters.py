"""The same study on Ray and through submitit: the same tables as on this machine alone, record for record."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from tests.study import small

from sinkscope.study import on_ray, run, spec

pytestmark = pytest.mark.timeout(900)  # they take seconds, but wait for processes on machines that may be busy


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_study(tmp_path_factory.mktemp("study"), models=("llada",), samples=3)


@pytest.fixture(scope="module")
def local(study: Path) -> Path:
    out = study.parent / "local"
    small.run_here(study, out, "--no-report")
    return out


@small.without_extra("submitit")
@pytest.mark.slow
def test_submitits_local_executor_runs_the_slurm_path(study: Path, local: Path, tmp_path: Path) -> None:
    out = tmp_path / "slurm"
    small.run_here(
        study, out, "--on", "slurm", "--workers", "1", "--option", "cluster=local", "--shard", "3", "--no-report",
        processes=True,
    )  # fmt: skip
    assert len(list((out / "slurm").glob("*_result.pkl"))) == 1  # submitit's: one task of the array did all, maps too
    small.assert_same(out, local)


class Model(NamedTuple):
    """As much of a study's model as the division into tasks looks at."""

    name: str


@small.without_extra("submitit")
def test_an_array_has_tasks_of_one_model_each_about_as_many_as_workers() -> None:
    from sinkscope.study.on_slurm import SlurmExecutor

    jobs: list[Any] = [
        SimpleNamespace(at=f"{model}{number}", cell=SimpleNamespace(model=Model(model)))
        for model, many in (("a", 4), ("b", 2))
        for number in range(many)
    ]
    executor = SlurmExecutor.__new__(SlurmExecutor)
    executor.workers = 3
    parts = [[job.at for job in part] for part in executor._parts(jobs)]
    assert parts == [["a0", "a2"], ["a1", "a3"], ["b0", "b1"]]
    executor.workers = 1
    assert [len(part) for part in executor._parts(jobs)] == [4, 2]


@pytest.mark.soak
@small.without_extra("ray")
def test_a_ray_cluster_that_loses_a_node_gives_the_same_tables(
    study: Path, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two raylets with room for one worker each; one is killed the moment both have a shard in work."""
    # Ray reads it once in a process, which has a cluster of our own in the next test.
    monkeypatch.setenv(on_ray.OTHER_NODES, "0")
    import ray
    from ray.cluster_utils import Cluster

    room = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster: Any = Cluster(initialize_head=True, head_node_args={**room, "include_dashboard": False})
    out = study.parent / "ray"
    killed_after: list[int] = []
    send = on_ray.RayExecutor.send

    def send_and_kill(self: Any, job: Any) -> Any:
        sent = send(self, job)
        records = len(list(out.glob("cells/*/shards/*/generations.jsonl")))
        if records and not killed_after:
            killed_after.append(records)
            cluster.remove_node(second, allow_graceful=False)
        return sent

    monkeypatch.setattr(on_ray.RayExecutor, "send", send_and_kill)
    try:
        second = cluster.add_node(**room)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        assert sum(node["Alive"] for node in ray.nodes()) == 2
        run.run_study(spec.read(study), out, on="ray", device="cpu", shard=1)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert 0 < killed_after[0] < 3 * 3 + 2 + 2  # in the middle: each shard holds one answer
    small.assert_same(out, local)


@pytest.mark.slow
@small.without_extra("ray")
def test_a_cluster_of_our_own_listens_on_loopback_and_wants_a_token(
    study: Path, local: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A whole study on it gives the same tables; every port of it and of its processes is open on 127.0.0.1 alone."""
    import psutil

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ports: set[str] = set()
    tokens: set[str] = set()
    send = on_ray.RayExecutor.send

    def look(self: Any, job: Any) -> Any:
        sent = send(self, job)
        this = psutil.Process()
        for process in (this, *this.children(recursive=True)):
            if process is this or "ray" in process.name():
                ports.update(found.laddr.ip for found in process.net_connections("inet") if found.status == "LISTEN")
        tokens.update({os.environ["RAY_AUTH_TOKEN"], os.environ["RAY_AUTH_MODE"]})
        return sent

    monkeypatch.setattr(on_ray.RayExecutor, "send", look)
    run.run_study(spec.read(study), tmp_path / "ray", on="ray", device="cpu", workers=1)
    assert {ip.removeprefix("::ffff:") for ip in ports} == {"127.0.0.1"}
    assert "token" in tokens
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_AUTH_TOKEN" not in os.environ
    small.assert_same(tmp_path / "ray", local)
