"""Which graphs later generations use, and what is kept, played on a CPU (see `tests.helpers.repeated`)."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.decoding.test_graphs import GOLDEN, equal, prompt
from tests.helpers import golden
from tests.helpers.repeated import Played, at_once, played  # noqa: F401

import sinkscope as ss
from sinkscope.attention import kernels
from sinkscope.gpu import graphs, outbox, streams
from sinkscope.tasks.answer import halving

BLOCKS = ss.SdarDecoding(length=16, block=4, steps=4, top_k=1, scoring="raw", threshold=1.0)


def counted(played: Played, *runs: Any) -> list[tuple[int, int]]:  # noqa: F811
    """Captures and replays of each call, whose run has to be that of plain forwards."""
    counts = []
    for run in runs:
        with pytest.MonkeyPatch.context() as patch:
            at_once(patch, on=False)
            plain = run()
        before = played.captured, played.replayed
        equal(plain, run(), rtol=1e-4, atol=1e-5)
        counts.append((played.captured - before[0], played.replayed - before[1]))
    return counts


@pytest.mark.parametrize("policy", ["top:1", "random(top:1)", "first:1"])
def test_batches_of_other_padding_use_the_same_graphs(policy: str, played: Played) -> None:  # noqa: F811
    model = ss.load(GOLDEN / "llada" / "checkpoint")

    def run(padding: int) -> ss.Run:
        mask = torch.ones(3, 13, dtype=torch.long)
        mask[1, :padding] = 0
        decoding = ss.LladaDecoding(16, 8, 8)
        return ss.generate(model, prompt(padding), decoding, policy=policy, attention_mask=mask, capture=ss.Capture())

    counts = counted(played, *(lambda padding=padding: run(padding) for padding in (3, 5, 8)))
    assert [captured for captured, _ in counts] == [1, 0, 0]


def test_models_that_share_a_network_have_graphs_of_their_own(played: Played) -> None:  # noqa: F811
    """Which queries are masked ones depends on the mask token, which is built into a graph."""
    model = ss.load(GOLDEN / "llada" / "checkpoint")
    other = copy.copy(model)
    other.ids = replace(model.ids, mask=3)
    for one in (model, other):
        decoding = ss.LladaDecoding(16, 8, 8)
        run = lambda: ss.generate(one, prompt(), decoding, capture=ss.Capture(by_query=True))  # noqa: B023, E731
        assert counted(played, run)[0][0] == 1


@pytest.mark.parametrize(
    ("family", "decoding", "captures"),
    [
        ("llada", ss.LladaDecoding(8, 1, 8), [0, 1, 0]),
        # Steps of the blocks, and what is stored, twice in a generation.
        ("sdar", replace(BLOCKS, length=8), [2, 0, 0]),
        ("sdar", replace(BLOCKS, length=4), [1, 1, 0]),
    ],
)
def test_what_comes_seldom_is_repeated_too(
    family: str, decoding: Any, captures: list[int], played: Played  # noqa: F811
) -> None:  # fmt: skip
    """A kind of forward that comes once or twice in a generation is captured in a later one."""
    model = golden.model(family)
    runs = [lambda seed=seed: ss.generate(model, prompt(seed)[:, :12], decoding) for seed in (1, 2, 3)]
    assert [captured for captured, _ in counted(played, *runs)] == captures


@pytest.mark.parametrize(
    ("family", "decoding", "policy", "plain"),
    [
        ("llada", ss.LladaDecoding(16, 8, 8), None, 0),
        ("llada", ss.LladaDecoding(16, 8, 8), "top:1", 1),  # no scores to choose by, and no mask yet
        ("llada", ss.LladaDecoding(16, 8, 8), "random(top:1)", 2),  # nothing was drawn yet
        ("sdar", BLOCKS, None, 1),  # the cache is still where the prompt was read
    ],
)
def test_later_generations_replay_as_soon_as_they_can(
    family: str, decoding: Any, policy: str | None, plain: int, played: Played  # noqa: F811
) -> None:  # fmt: skip
    model = golden.model(family)

    def run() -> ss.Run:
        return ss.generate(model, prompt(), decoding, policy=policy, capture=ss.Capture())

    counts = counted(played, run, run)
    forwards = 8 if family == "llada" else 19 + 5  # steps, and blocks that are stored
    assert counts[1] == (0, forwards - plain)


def test_kinds_that_take_turns_share_the_state(played: Played) -> None:  # noqa: F811
    """Partial steps, of which every second is recorded: what a full forward chooses anew goes into the memory of both graphs."""
    model, mask = ss.load(GOLDEN / "llada" / "checkpoint"), torch.ones(3, 13, dtype=torch.long)
    mask[1, :4] = 0
    options: dict[str, Any] = {"reuse": "prefix:block", "capture": ss.Capture(every=2), "attention_mask": mask}
    runs = [
        lambda seed=seed: ss.generate(model, prompt(seed), ss.LladaDecoding(24, 24, 8), **options) for seed in (1, 2)
    ]
    assert counted(played, *runs) == [(2, 19), (0, 21)]


def test_graphs_of_shorter_states_go_where_they_hold_too_much(
    played: Played, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    """Without a cache every block has its graphs, and no block comes again."""
    model, sizes = golden.model("sdar"), []
    capture = graphs.Graphs._capture

    def watched(self: graphs.Graphs, *given: Any) -> Any:
        graph = capture(self, *given)
        sizes.append(len(self._bundle.graphs))  # type: ignore[union-attr]
        return graph

    monkeypatch.setattr(graphs.Graphs, "_capture", watched)

    def run() -> ss.Run:
        return ss.generate(model, prompt(), BLOCKS, cache=False, capture=ss.Capture())

    assert [captured for captured, _ in counted(played, run, run)] == [5, 0]
    assert max(sizes) == 5
    sizes.clear()
    monkeypatch.setattr(graphs, "_KNOWN", type(graphs._KNOWN)())
    monkeypatch.setattr(graphs, "_room", lambda device: -1)
    assert counted(played, run)[0][0] == 5
    assert max(sizes) == 1


def test_a_capture_without_memory_is_tried_again_later(
    played: Played, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    """Graphs that nobody uses go first; that memory ran out says nothing about the forward."""
    model, ids, tried = ss.load(GOLDEN / "llada" / "checkpoint"), prompt(), []

    def run(length: int = 16) -> ss.Run:
        return ss.generate(model, ids, ss.LladaDecoding(length, 8, 8), capture=ss.Capture())

    run(32)
    assert graphs._KNOWN[model.network].bundles

    def full(*_: Any) -> Any:
        tried.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(graphs, "record", full)
        assert counted(played, run) == [(0, 0)]
    assert tried == [1], "once in a generation"
    assert not graphs._KNOWN[model.network].bundles
    assert counted(played, run)[0][0] == 1


def test_a_batch_is_halved_after_graphs_are_let_go(played: Played) -> None:  # noqa: F811
    model = ss.load(GOLDEN / "llada" / "checkpoint")
    ss.generate(model, prompt(), ss.LladaDecoding(16, 8, 8))
    batches: list[tuple[int, int]] = []

    def give(batch: Any) -> Any:
        batches.append((len(batch), len(graphs._KNOWN[model.network].bundles)))
        if len(batch) > 1:
            raise torch.cuda.OutOfMemoryError
        return batch

    assert list(halving([[1, 2]], give, True)) == [[1], [2]]  # type: ignore[list-item]
    assert batches == [(2, 1), (1, 0), (1, 0)]


def test_all_recordings_share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS keeps memory for every stream that a product ran on."""
    made: list[tuple[Any, int]] = []

    def stream(device: Any = None, priority: int = 0) -> Any:
        made.append((device, priority))
        return SimpleNamespace(wait_stream=lambda other: None)

    @contextmanager
    def entered(stream: Any) -> Any:
        yield

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda stream: None))
    streams.stream_for.cache_clear()
    try:
        for _ in range(2):
            box = outbox.Outbox(lambda step, parcels: None)
            box._sent(0, [], torch.device("cuda", 0))
    finally:
        streams.stream_for.cache_clear()
    assert made == [(torch.device("cuda", 0), -1)]


def test_cudnn_is_tried_after_a_capture_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing = [True]
    monkeypatch.setattr(kernels, "_CUDNN", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(kernels, "_try_cudnn", lambda *case: not capturing[0])
    asked = torch.device("cuda", 0), torch.bfloat16, 128
    assert not kernels.cudnn_works(*asked)
    capturing[0] = False
    assert kernels.cudnn_works(*asked)
    capturing[0] = True
    assert kernels.cudnn_works(*asked), "what is captured runs the kernel of the plain forwards"
