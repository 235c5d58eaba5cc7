"""When a forward cannot be captured as a CUDA graph, the generation goes on as if nobody had tried; one that can be is told
which rows have ended.

The captures themselves need a GPU: see tests/gpu.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import sinkscope as ss
from sinkscope.decoding import engine, graphs
from sinkscope.policies.runtime import PolicyRuntime

GOLDEN = Path(__file__).parents[1] / "golden"


@contextmanager
def failing_capture(*_: object, **__: object) -> Iterator[None]:
    """Runs the forward, as far as Python goes, and then finds that it could not be captured."""
    yield
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.slow
@pytest.mark.parametrize("policy", [None, "top:2", "top:1@model,effect=silence"])
def test_a_failed_capture_leaves_no_mark(policy: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """States and recorded scores equal those of a run that never tried."""
    model = ss.load(GOLDEN / "llada" / "checkpoint")
    prompt = torch.randint(0, 470, (2, 13), generator=torch.Generator().manual_seed(1))
    rule = None if policy is None else ss.parse_policy(policy)

    def run() -> ss.Run:
        return ss.generate(model, prompt, ss.LladaDecoding(16, 8, 8), policy=rule, capture=ss.Capture())

    plain = run()
    tried = []
    monkeypatch.setattr(engine, "graphs_wanted", lambda device: True)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: tried.append(1))
    monkeypatch.setattr(torch.cuda, "graph", failing_capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    # A capture launches nothing, so the copies in it do not happen; here they would.
    monkeypatch.setattr(PolicyRuntime, "carry", lambda runtime: None)
    found = run()
    assert len(tried) == 1
    assert torch.equal(plain.states, found.states)
    for name in plain.trace.dataset.data_vars:
        np.testing.assert_array_equal(plain.trace.dataset[name], found.trace.dataset[name], err_msg=name)


def test_a_captured_step_sees_rows_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay reads the memory that was read at the capture: which rows go on must stand there in every block."""
    captured: dict[object, torch.Tensor] = {}
    ended = []

    class Looking(graphs.Graphs):
        def run(self, x: torch.Tensor, kind: object) -> tuple[torch.Tensor, graphs.Recorded]:
            alive = self._forward.__self__.policy._alive
            assert captured.setdefault(kind, alive) is alive
            ended.append(int((~alive).sum()))
            return self._forward(x, False)

    monkeypatch.setattr(engine, "graphs_wanted", lambda device: True)
    monkeypatch.setattr(engine, "Graphs", Looking)
    model = ss.load(GOLDEN / "mmada" / "checkpoint")
    prompt = torch.randint(0, 300, (3, 13), generator=torch.Generator().manual_seed(1))
    decoding = ss.MmadaDecoding(length=32, steps=16, block=4)
    policy = ss.parse_policy("top:2")
    last = ss.generate(model, prompt, decoding, policy=policy, seed=[1, 2, 3]).sequences[0, 13 + 3]
    captured.clear()
    ended.clear()
    ss.generate(model, prompt, replace(decoding, stop_at=int(last)), policy=policy, seed=[1, 2, 3])
    assert ended[0] == 0
    assert ended[-1] > 0
    assert len(captured) == 1
