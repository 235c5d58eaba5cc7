"""Replayed steps, with a stand-in for CUDA graphs: which steps are taken, recorded and replayed, and with which inputs."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sinkscope_train import graphs
from sinkscope_train.corpus import CorpusPlan, Reader
from sinkscope_train.graphs import AHEAD, WARM, ReplayedStep
from sinkscope_train.network import Loss, build, decoder_layer, head_loss, rotation
from sinkscope_train.options import TrainingOptions
from sinkscope_train.recipe import SIZES, recipe
from sinkscope_train.train import train
from sinkscope_train.vocabulary import vocabulary_of

CPU = torch.device("cpu")


class _Stream:
    def __init__(self, *device: Any) -> None:
        pass

    def wait_stream(self, other: Any) -> None:
        pass


class _Event:
    """The end of a step."""

    waited = 0

    def __init__(self, blocking: bool) -> None:
        assert blocking, "a process that waits should leave its core to others"

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        _Event.waited += 1


class _Graph:
    """Records nothing: a replay does again what was done while it was open."""

    step: Any = None

    def replay(self) -> None:
        self.step()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done, in order, on a machine that seems to have graphs."""
    done: list[str] = []

    @contextmanager
    def graph(opened: _Graph, **options: Any) -> Any:
        done.append("record")
        yield
        opened.step = lambda: done.append("replay")

    for name, value in {
        "Stream": _Stream, "Event": _Event, "CUDAGraph": _Graph, "graph": graph, "current_stream": _Stream,
        "synchronize": lambda: None, "stream": lambda stream: nullcontext(),
    }.items():  # fmt: skip
        monkeypatch.setattr(graphs.torch.cuda, name, value)
    return done


def _optimizer() -> torch.optim.Optimizer:
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=1.0)


def test_first_steps_are_taken_and_later_ones_replayed(recorded: list[str]) -> None:
    optimizer, seen = _optimizer(), []

    def update(first: Tensor, second: Tensor) -> Tensor:
        recorded.append("step")
        seen.append((first, second))
        return first.sum()

    step = ReplayedStep(update, optimizer, CPU, recorded.append)
    for number in range(WARM + 3):
        step(0.1 * number, torch.full((2,), number), torch.tensor(number))
    assert recorded == ["step"] * WARM + ["record", "step"] + ["replay"] * 3
    for pair in seen:  # the same tensors in every step, with what was drawn for it
        assert [tensor.data_ptr() for tensor in pair] == [tensor.data_ptr() for tensor in step.inputs]
    assert [tensor.tolist() for tensor in step.inputs] == [[WARM + 2] * 2, WARM + 2]
    rate = optimizer.param_groups[0]["lr"]
    assert float(rate) == pytest.approx(0.1 * (WARM + 2))
    assert optimizer.param_groups[0]["capturable"]


def test_a_step_that_cannot_be_recorded_is_taken_as_it_is(recorded: list[str]) -> None:
    def update(drawn: Tensor) -> Tensor:
        recorded.append("step")
        if recorded[-2:] == ["record", "step"]:
            raise RuntimeError("not permitted")
        return drawn.clone()

    said: list[str] = []
    step = ReplayedStep(update, _optimizer(), CPU, said.append)
    losses = [float(step(0.1, torch.tensor(float(number)))) for number in range(WARM + 3)]
    assert losses == list(range(WARM + 3))
    assert recorded == ["step"] * WARM + ["record"] + ["step"] * 4
    assert len(said) == 1
    assert "not permitted" in said[0]


def test_a_training_that_is_ahead_of_the_gpu_waits_for_it(recorded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Event, "waited", 0)
    step = ReplayedStep(torch.sum, _optimizer(), CPU, recorded.append)
    for _ in range(WARM + AHEAD):
        step(0.1, torch.zeros(2))
    assert (_Event.waited, len(step.waiting)) == (0, AHEAD)
    for _ in range(3):
        step(0.1, torch.zeros(2))
    assert (_Event.waited, len(step.waiting)) == (3, AHEAD)


@pytest.mark.parametrize("extra_sink", ["none", "seen"])
@pytest.mark.parametrize("name", ["causal", "scratch"])
def test_the_shape_of_a_batch_is_known_before_it_is_made(name: str, extra_sink: Any) -> None:
    chosen = recipe(name, size="smoke", batch=8, extra_sink=extra_sink)
    words = vocabulary_of(chosen)
    reader = Reader(chosen, CorpusPlan(24, 0, words, "plain").made(), words, CPU)
    for step in (0, 2, 4):  # the third epoch begins within step 5
        batch = reader.batch(step)
        assert batch.ids.shape == reader.shape
        assert batch.ids.equal(reader.rows(*reader.chosen(step)).ids)


def test_a_loss_in_parts_is_the_whole_loss() -> None:
    network = build(SIZES["smoke"], 64, "llada")
    angles = rotation(network, 16, CPU)
    ids, calls = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(0)), []

    def noted(part: Any) -> Any:
        return lambda *given: calls.append(part.__name__) or part(*given)

    whole = Loss(network, "masked")
    parts = Loss(network, "masked", noted(decoder_layer), run_head=noted(head_loss))
    given = (ids, ids, torch.ones(2, 16), None, *angles)
    assert torch.equal(whole(*given), parts(*given))
    assert calls == ["decoder_layer", "decoder_layer", "head_loss"]


def test_graphs_change_nothing_on_a_cpu_and_no_check_is_made_at_the_end(tmp_path: Path) -> None:
    about = {}
    for on in (False, True):
        chosen = recipe("scratch", size="smoke", steps=2, batch=4, mix="plain")
        options = TrainingOptions(
            recipe=chosen, out=tmp_path / str(on), device="cpu", graphs=on, check_every=0, final_count=0,
            probe=False, quiet=True,
        )  # fmt: skip
        about[on] = train(options)
    assert about[True]["loss"] == about[False]["loss"]
    assert about[True]["monitor"] == {"count": 0}
