"""Partial forwards that are repeated from a recording of their operations, as a CUDA graph repeats its kernels.

A recording here is torch's trace of the operations, run on the CPU: what Python decided while recording is fixed in it, tensors
from elsewhere are read and written where they were then, and looking at a value is an error. So a forward whose repetition is
right here waits for nothing and reads nothing that moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from tests.decoding.test_graphs import failing_capture
from tests.helpers import golden
from tests.helpers.repeated import at_once
from torch import Tensor
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import make_fx

import sinkscope as ss
from sinkscope.gpu import graphs
from sinkscope.gpu.graphs import Result
from sinkscope.reuse import state
from sinkscope.trace import step_recorder

RULES = (
    "prefix:block", "prefix:3", "prefix:block,fresh=rest", "prefix:4,fresh=masks", "sparse:0.5,by=received",
    "sparse:3,by=sinks,refresh=3", "sparse:0.4,by=random", "sparse:5,by=first:2+recent", "drift:0.9", "drift:0.9999",
    "drift:0.9,refresh=layers", "drift:0.9999,refresh=layers",
)  # fmt: skip


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What recordings did in this test."""
    counts: Counter[str] = Counter()

    def record(run: Any, inputs: Tensor, *_: Any) -> tuple[Any, Result]:
        """As `graphs.record`, of operations instead of kernels."""

        def flat(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            result = run(x)
            return result.output, result.recorded

        with torch.no_grad():
            operations = make_fx(flat)(inputs)
        counts["recorded"] += 1
        output, recorded = torch.empty(0), {}

        def replay() -> None:
            counts["repeated"] += 1
            latest, arrays = operations(inputs)
            output.set_(latest)
            recorded.update(arrays)

        return replay, Result(output, recorded, None)

    monkeypatch.setattr(graphs, "record", record)
    monkeypatch.setattr(graphs, "_KNOWN", type(graphs._KNOWN)())
    monkeypatch.setattr(state, "fills_up", lambda device: True)
    monkeypatch.setattr(state, "PADDED", 8)
    monkeypatch.setattr(step_recorder, "_stacked", lambda layers: torch.stack(layers, 1))  # as on a GPU
    # No description of every value, which nobody reads, and which takes longer than the rest of a recording.
    monkeypatch.setattr(proxy_tensor, "extract_val", lambda value, **_: None, raising=False)
    return counts


@contextmanager
def repeating() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        at_once(patch)
        yield


def decoding_of(family: str, length: int = 24) -> Any:
    if family == "dream":
        return ss.DreamDecoding(length // 2, steps=length // 2, algorithm="maskgit_plus")
    return (ss.MmadaDecoding if family == "mmada" else ss.LladaDecoding)(length, steps=length, block=8)


def ragged(seed: int) -> tuple[Tensor, Tensor]:
    """Two prompts of unequal lengths, and their mask."""
    ids = torch.randint(4, 400, (2, 12), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    return ids, mask


CASES = [("llada", text) for text in RULES] + [
    (family, text) for family in ("dream", "mmada") for text in ("prefix:3", "sparse:0.5,by=received", "drift:0.9")
]  # fmt: skip
RECORDED: dict[str, dict[str, Any]] = {
    "nothing": {"attention_mask": ragged(3)[1]},
    "received": {"capture": ss.Capture()},
    "by-query": {"capture": ss.Capture(by_query=True, every=2), "attention_mask": ragged(3)[1]},
}
"""What is recorded of a run, with padding and without."""


@pytest.mark.parametrize(
    ("family", "text", "kept"),
    [
        # In `make test` every rule under one recording, so every kind of rule under all of them; in `make soak` every pair.
        pytest.param(*case, kept, marks=pytest.mark.soak if (number - place) % len(RECORDED) else pytest.mark.slow)
        for number, case in enumerate(CASES)
        for place, kept in enumerate(RECORDED)
    ],
)
def test_repeated_forwards_are_the_plain_ones(family: str, text: str, kept: str, done: Counter[str]) -> None:
    model, ids, decoding = golden.model(family), ragged(3)[0], decoding_of(family, 16)
    plain = ss.generate(model, ids, decoding, reuse=text, **RECORDED[kept])
    done.clear()
    with repeating():
        again = ss.generate(model, ids, decoding, reuse=text, **RECORDED[kept])
    assert done["repeated"] > 0
    assert torch.equal(again.states, plain.states)
    assert again.extras["reuse"].work == plain.extras["reuse"].work
    assert (plain.trace is None) == (again.trace is None) == (kept == "nothing")
    if plain.trace is not None and again.trace is not None:
        for name, values in plain.trace.dataset.items():
            np.testing.assert_array_equal(again.trace.dataset[name].values, values.values, err_msg=str(name))


@pytest.mark.parametrize("text", ["prefix:block", "sparse:0.25,by=sinks"])
def test_one_recording_serves_all_blocks(text: str, done: Counter[str]) -> None:
    """The columns of a block and the number of its keys are those of every block, and those of a later generation, whose prompt
    is another: 21 partial steps each, of which the very first is plain.
    """
    model, decoding, prompts = (
        golden.model("llada"),
        decoding_of("llada"),
        (torch.arange(20, 29)[None], torch.arange(90, 99)[None]),
    )
    plain = [ss.generate(model, prompt, decoding, reuse=text) for prompt in prompts]
    with repeating():
        runs = [ss.generate(model, prompt, decoding, reuse=text) for prompt in prompts]
    assert done == {"recorded": 1, "repeated": 41}
    for one, other in zip(plain, runs, strict=True):
        assert torch.equal(one.states, other.states)
        assert one.extras["reuse"].work == other.extras["reuse"].work


@pytest.mark.slow
@pytest.mark.parametrize("text", ["prefix:4,fresh=masks", "drift:0.9", "drift:0.9999"])
def test_filled_up_columns_change_nothing(text: str, done: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the number of columns varies a GPU computes some twice, so that few recordings serve all numbers."""
    model, (ids, mask) = golden.model("llada"), ragged(5)
    given: dict[str, Any] = {"attention_mask": mask, "capture": ss.Capture(), "reuse": text}
    with repeating():
        padded = ss.generate(model, ids, decoding_of("llada"), **given)
    monkeypatch.setattr(state, "fills_up", lambda device: False)
    plain = ss.generate(model, ids, decoding_of("llada"), **given)
    counts = plain.trace.dataset["fresh"].sum("key").values
    assert torch.equal(padded.states, plain.states)
    assert padded.extras["reuse"].work == plain.extras["reuse"].work
    np.testing.assert_array_equal(padded.trace.dataset["fresh"].values, plain.trace.dataset["fresh"].values)
    np.testing.assert_allclose(
        padded.trace.dataset["received"].values, plain.trace.dataset["received"].values, rtol=2e-4, atol=2e-5
    )
    partial = {int(count) for step in counts.T for count in [step.max()] if count < ids.shape[1] + 24}
    assert 0 < done["recorded"] <= len({-(-count // 8) for count in partial})


def test_where_nothing_can_be_captured_steps_stay_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The captures are tried once each, and the runs are as if they had not been."""
    model, prompt = golden.model("llada"), torch.arange(20, 29)[None]
    plain = ss.generate(model, prompt, decoding_of("llada"), reuse="sparse:3")
    tried = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: tried.append(1))
    monkeypatch.setattr(torch.cuda, "graph", failing_capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with repeating():
        runs = [ss.generate(model, prompt, decoding_of("llada"), reuse="sparse:3") for _ in range(2)]
    assert tried == [1, 1], "of two numbers of columns"
    run = runs[1]
    assert torch.equal(run.states, plain.states)
    assert run.extras["reuse"].work == plain.extras["reuse"].work
