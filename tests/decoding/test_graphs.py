"""When a forward cannot be captured as a CUDA graph, the generation goes on as if nobody had tried; one that can be is told
which rows have ended.

The captures themselves need a GPU: see tests/gpu.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch
from tests.helpers import golden
from tests.helpers.repeated import Repeated

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
    monkeypatch.setattr(graphs, "_FAILED", WeakKeyDictionary())
    # A capture launches nothing, so the copies in it do not happen; here they would.
    monkeypatch.setattr(PolicyRuntime, "carry", lambda runtime: None)
    found = run()
    run()
    assert len(tried) == 1, "tried once, not once for every generation"
    assert torch.equal(plain.states, found.states)
    for name in plain.trace.dataset.data_vars:
        np.testing.assert_array_equal(plain.trace.dataset[name], found.trace.dataset[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["sdar", "llada2"])
def test_a_capture_that_fails_in_the_middle_leaves_no_layers(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mixture's experts may not be captured: the layers before them were recorded already."""
    model = golden.model(family)
    prompt = torch.randint(0, 150, (2, 13), generator=torch.Generator().manual_seed(4))
    decoding = (
        ss.SdarDecoding(length=16, block=4, steps=4, top_k=1, scoring="raw", threshold=1.0)
        if family == "sdar"
        else ss.Llada2Decoding(length=16, block=8, steps=8)
    )

    def run() -> ss.Run:
        return ss.generate(model, prompt, decoding, capture=ss.Capture(), seed=[1, 2], cache=True)

    plain, tried = run(), []

    @contextmanager
    def failing(*_: object, **__: object) -> Iterator[None]:
        def refuse(*_: object) -> None:
            tried.append(1)
            raise RuntimeError("operation not permitted when stream is capturing")

        handle = model.network.model.layers[-1].mlp.register_forward_pre_hook(refuse)
        try:
            yield
        finally:
            handle.remove()

    monkeypatch.setattr(engine, "graphs_wanted", lambda device: True)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", failing)
    monkeypatch.setattr(graphs, "_FAILED", WeakKeyDictionary())
    found = run()
    assert tried == [1]
    assert torch.equal(plain.states, found.states)
    for name in ("received", "received_all", "store_received"):
        np.testing.assert_allclose(
            plain.trace.dataset[name], found.trace.dataset[name], rtol=1e-4, atol=1e-5, err_msg=name
        )


def test_a_captured_step_sees_rows_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay reads the memory that was read at the capture: which rows go on must stand there in every block."""
    captured: dict[object, torch.Tensor] = {}
    ended = []

    class Looking(graphs.Graphs):
        def run(
            self, x: torch.Tensor, kind: Hashable, forward: graphs.Forward
        ) -> tuple[torch.Tensor, graphs.Recorded, bool]:
            alive = self._remember.__self__.policy._alive
            assert captured.setdefault(kind, alive) is alive
            ended.append(int((~alive).sum()))
            return *forward(x, False), False

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


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [
        "random(top:2)",
        "random(top:1@model),seed=3",
        "top:1 & random(top:2@layer)",
        "first:1",
        "top:2,epsilon=0.3",
        "top:2,epsilon=0.3,among=others",
        "top:1,queries=masked",
        "top:2,heads=0",
        "token:7+9",
        "keys:0=1+5",
    ],
)
def test_policies_act_in_repeated_steps_as_in_others(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what Python knew at the capture, the step's number included, so that a draw may only read memory that goes on."""
    model = ss.load(GOLDEN / "llada" / "checkpoint")
    prompt = torch.randint(0, 470, (3, 13), generator=torch.Generator().manual_seed(1))

    def run() -> ss.Run:
        return ss.generate(
            model, prompt, ss.LladaDecoding(24, 12, 8), policy=policy, seed=[1, 2, 3], capture=ss.Capture()
        )

    plain = run()
    Repeated.used = 0
    monkeypatch.setattr(engine, "graphs_wanted", lambda device: True)
    monkeypatch.setattr(engine, "Graphs", Repeated)
    repeated = run()
    # Of twelve: one step without scores, where there is one, and two before the capture. How many keys have a token is not known
    # beforehand, so that such a mask is not captured.
    assert Repeated.used == 0 if "token" in policy else Repeated.used >= 9
    assert torch.equal(plain.states, repeated.states)
    for name in plain.trace.dataset.data_vars:
        np.testing.assert_array_equal(plain.trace.dataset[name], repeated.trace.dataset[name], err_msg=name)
