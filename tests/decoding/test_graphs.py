"""Forwards that are captured and repeated, in one generation and in later ones of the same shape, played on a CPU.

A replay does what was captured, with what Python knew then: see `tests.helpers.repeated`. When a forward cannot be captured, the
generation goes on as if nobody had tried. Real captures need a GPU: see tests/gpu.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.decoding.golden_runs import BLOCKS, generate
from tests.helpers import golden
from tests.helpers.repeated import Played, at_once, played  # noqa: F401

import sinkscope as ss
from sinkscope.decoding import groups
from sinkscope.decoding.step import Request
from sinkscope.gpu import graphs, replay
from sinkscope.gpu.state import State, put, saved
from sinkscope.gpu.static_cache import FixedCache
from sinkscope.models.model import Model
from sinkscope.tasks.likelihood import denoised

GOLDEN = Path(__file__).parents[1] / "golden"


def prompt(seed: int = 1, rows: int = 3) -> torch.Tensor:
    return torch.randint(0, 150, (rows, 13), generator=torch.Generator().manual_seed(seed))


def equal(one: ss.Run, other: ss.Run, **close: float) -> None:
    """States, shares of policies and recorded arrays."""
    assert torch.equal(one.states, other.states)
    for name in ("hidden_share", "sinks_hit", "strongest_hit", "sink_removed"):
        values = [getattr(run, name) for run in (one, other)]
        assert (values[0] is None) == (values[1] is None)
        if values[0] is not None:
            np.testing.assert_allclose(*values, atol=close.get("atol", 0.0), rtol=0)
    for name in () if one.trace is None else one.trace.dataset.data_vars:
        before, after = (run.trace.dataset[name].values for run in (one, other))
        if close and before.dtype.kind == "f":
            np.testing.assert_allclose(after, before, err_msg=name, **close)
        else:
            np.testing.assert_array_equal(after, before, err_msg=name)


@contextmanager
def failing_capture(*_: object, **__: object) -> Iterator[None]:
    """Runs the forward, as far as Python goes, and then finds that it could not be captured."""
    yield
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture
def cannot(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[int]]:
    """Makes every capture fail; gives a list of the tries."""

    def use(capture: Any) -> list[int]:
        tried: list[int] = []
        at_once(monkeypatch)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: tried.append(1))
        monkeypatch.setattr(torch.cuda, "graph", capture)
        monkeypatch.setattr(graphs, "_KNOWN", weakref.WeakKeyDictionary())
        return tried

    return use


def test_a_failed_capture_leaves_no_mark(cannot: Callable[[Any], list[int]]) -> None:
    """States and recorded scores equal those of a run that never tried."""
    model = ss.load(GOLDEN / "llada" / "checkpoint")

    def run() -> ss.Run:
        return ss.generate(model, prompt(), ss.LladaDecoding(16, 8, 8), capture=ss.Capture())

    plain = run()
    tried = cannot(failing_capture)
    found = run()
    run()
    assert len(tried) == 1, "tried once, not once for every generation"
    equal(plain, found)
    for length in (8, 32, 64):
        ss.generate(model, prompt(), ss.LladaDecoding(length, 8, 8), capture=ss.Capture())
    assert len(tried) == graphs.TRIES, "another shape may succeed; what fails again and again is given up"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["sdar", "llada2"])
def test_a_capture_that_fails_in_the_middle_leaves_no_layers(family: str, cannot: Callable[[Any], list[int]]) -> None:
    """A mixture's experts may not be captured: the layers before them were recorded already."""
    model, refused = golden.model(family), []
    decoding = (
        ss.SdarDecoding(length=16, block=4, steps=4, top_k=1, scoring="raw", threshold=1.0)
        if family == "sdar"
        else ss.Llada2Decoding(length=16, block=8, steps=8)
    )

    def run() -> ss.Run:
        return ss.generate(model, prompt(4, 2), decoding, capture=ss.Capture(), seed=[1, 2], cache=True)

    @contextmanager
    def failing(*_: object, **__: object) -> Iterator[None]:
        def refuse(*_: object) -> None:
            refused.append(1)
            raise RuntimeError("operation not permitted when stream is capturing")

        handle = model.network.model.layers[-1].mlp.register_forward_pre_hook(refuse)
        try:
            yield
        finally:
            handle.remove()

    plain = run()
    cannot(failing)
    found = run()
    assert refused
    equal(plain, found, rtol=1e-4, atol=1e-5)


def test_a_captured_step_sees_rows_end(played: Played) -> None:  # noqa: F811
    """Which rows go on must stand in memory that a replay reads."""
    ids = torch.randint(0, 300, (3, 13), generator=torch.Generator().manual_seed(1))
    model = ss.load(GOLDEN / "mmada" / "checkpoint")
    decoding = ss.MmadaDecoding(length=32, steps=16, block=4)
    options: dict[str, Any] = {"policy": "top:2", "seed": [1, 2, 3], "capture": ss.Capture()}
    last = ss.generate(model, ids, decoding, **options).sequences[0, 13 + 3]
    stopping = replace(decoding, stop_at=int(last))
    repeated = ss.generate(model, ids, stopping, **options)
    assert played.replayed
    with pytest.MonkeyPatch.context() as patch:
        at_once(patch, on=False)
        plain = ss.generate(model, ids, stopping, **options)
    assert len(set(plain.taken)) > 1
    equal(plain, repeated)


POLICIES = (
    None, "top:2", "random(top:2)", "random(top:1@model),seed=3", "top:1 & random(top:2@layer)", "first:1", "top:2,epsilon=0.3",
    "top:2,epsilon=0.3,among=others", "top:1@model,effect=silence", "top:1@layer,scores=masked", "top:1,queries=masked",
    "top:2,heads=0", "keys:0=1+5", "token:7+9",
)  # fmt: skip
LOOPS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "whole": ("llada", ss.LladaDecoding(24, 12, 8), {"seed": [1, 2, 3]}),
    "shifted": ("dream", ss.DreamDecoding(12, 6), {}),
    "blocks": ("sdar", ss.SdarDecoding(length=16, block=4, steps=4, top_k=1, scoring="raw", threshold=1.0), {}),
    "anew": ("llada2", ss.Llada2Decoding(length=24, block=8, steps=8), {"cache": False}),
    "cached": ("llada2", ss.Llada2Decoding(length=24, block=8, steps=8), {"cache": True}),
    "grows": ("fast_dllm_v2", ss.FastDllmDecoding(length=24, block=8, small_block=4, stop=None), {}),
    "stale": ("fast_dllm_v2", ss.FastDllmDecoding(24, 8, 4, stop=None, block_cache=True), {}),
}


@pytest.mark.parametrize(
    ("loop", "policy"),
    [
        pytest.param(loop, policy, marks=[] if (loop, policy) == ("whole", "random(top:2)") else mark)
        for place, loop in enumerate(LOOPS)
        for number, policy in enumerate(POLICIES)
        for mark in [pytest.mark.slow if loop == "whole" or (number + place) % 5 == 0 else pytest.mark.soak]
    ],
)
def test_later_generations_use_what_an_earlier_one_captured(
    loop: str,
    policy: str | None,
    played: Played,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With other prompts and seeds, and nothing of the earlier one left: the states, scores and masks of plain steps."""
    family, decoding, options = LOOPS[loop]
    model = golden.model(family)
    capture = ss.Capture(level=("heads", "layers")[(POLICIES.index(policy) + list(LOOPS).index(loop)) % 2])
    cases = [(prompt(seed), {**options, "policy": policy, "capture": capture}) for seed in (1, 2, 3)]
    if "seed" in options:
        cases[1][1]["seed"] = [7, 8, 9]
    exact = {} if family in ("llada", "dream") else {"rtol": 1e-4, "atol": 1e-5}
    with monkeypatch.context() as patch:
        at_once(patch, on=False)
        plain = [ss.generate(model, ids, decoding, **given) for ids, given in cases]
    counts = []
    for (ids, given), expected in zip(cases, plain, strict=True):
        before = played.captured, played.replayed
        equal(expected, ss.generate(model, ids, decoding, **given), **exact)
        counts.append((played.captured - before[0], played.replayed - before[1]))
    assert not played.inside, "a later forward reads memory that other graphs of the pool write to"
    if policy == "token:7+9":  # how many keys have a token is not known beforehand
        assert counts == [(0, 0)] * 3
    else:
        assert counts[0][0] > 0
        # In Fast-dLLM's loops the text decides which forwards there are, and where a kind of them begins.
        known = loop in ("grows", "stale")
        assert all((captured == 0 or known) and replayed > 0 for captured, replayed in counts[1:]), counts


CASES = golden.cases("generate", families=BLOCKS)


@pytest.mark.parametrize(
    ("family", "name", "cache"),
    [
        # Without a cache nothing has a fixed size but the captured forwards: every third fixture in `make test`.
        pytest.param(*case, cache, marks=pytest.mark.slow if cache or number % 3 == 0 else pytest.mark.soak)
        for number, case in enumerate(CASES)
        for cache in (True, False)
        if cache or "blockcache" not in case[1]  # refused: see test_later_golden
    ],
)
def test_block_loops_on_caches_of_fixed_size_take_the_official_steps(
    family: str,
    name: str,
    cache: bool,
    played: Played,  # noqa: F811
) -> None:
    run = generate(family, name, cache=cache)
    if not name.startswith("gen_batch_ragged"):
        assert torch.equal(run.states, golden.tensor(family, name, "states"))
    if "output" in golden.arrays(family, name):
        assert torch.equal(run.output, golden.tensor(family, name, "output"))
    if cache and "sinkmask" not in name:
        assert played.replayed


def test_what_differs_is_captured_anew(played: Played) -> None:  # noqa: F811
    """Another shape, recording, policy, hook or weight: no graph of another kind is used; the first kind's still is."""
    model = ss.load(GOLDEN / "llada" / "checkpoint")

    def captured(length: int = 16, **options: Any) -> int:
        before = played.captured
        ss.generate(model, prompt(), ss.LladaDecoding(length, 8, 8), **options)
        return played.captured - before

    assert captured() == 1
    assert captured() == 0
    assert captured(32) == 1
    assert captured(capture=ss.Capture()) == 1
    assert captured(capture=ss.Capture(level="layers")) == 1
    assert captured(policy="top:1") == 1
    assert captured(policy="top:2") == 1
    weight = model.network.model.layers[0].mlp.down_proj.weight
    handle = model.network.model.layers[0].register_forward_hook(lambda *_: None)
    assert captured() == 1
    handle.remove()
    assert captured() == 0
    weight.data = weight.data.clone()
    assert captured() == 1


def test_a_longer_answer_is_captured_anew(played: Played) -> None:  # noqa: F811
    """Its first block sees as many keys as a shorter answer's, in a state of more columns."""
    model = golden.model("sdar")
    for length in (16, 24):
        decoding = ss.SdarDecoding(length=length, block=4, steps=4, top_k=1, scoring="raw", threshold=1.0)
        with pytest.MonkeyPatch.context() as patch:
            at_once(patch, on=False)
            plain = ss.generate(model, prompt(), decoding, cache=False)
        equal(plain, ss.generate(model, prompt(), decoding, cache=False))
    assert played.replayed


@pytest.mark.parametrize("cfg", [0.0, 1.0])
def test_what_a_fixed_cache_does_not_know_runs_without_one(
    cfg: float,
    played: Played,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """BD3LM hides pad tokens that it has written from later blocks, and guides with a twin."""
    model = golden.model("a2d_bd3lm")
    ids = torch.randint(0, 150, (2, 16), generator=torch.Generator().manual_seed(1))
    decoding = ss.Bd3lmDecoding(16, 8, 16, cfg=cfg)
    written = int(ss.generate(model, ids, decoding).sequences[0, 18])
    ids[ids == written] = written + 1
    monkeypatch.setattr(model, "ids", replace(model.ids, pad=written))
    with monkeypatch.context() as patch:
        at_once(patch, on=False)
        plain = ss.generate(model, ids, decoding, capture=ss.Capture())
    assert (plain.sequences[:, 16:] == written).any()
    equal(plain, ss.generate(model, ids, decoding, capture=ss.Capture()))


@pytest.mark.parametrize("options", [{"policy": "random(top:2)"}, {"reuse": "prefix:3"}], ids=["policy", "reuse"])
def test_the_switch_changes_nothing(
    options: dict[str, Any],
    played: Played,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With SINKSCOPE_FAST=0 nothing is repeated, and states and traces are those of a run with it."""
    model = ss.load(GOLDEN / "llada" / "checkpoint")

    def run() -> ss.Run:
        return ss.generate(model, prompt(), ss.LladaDecoding(24, 24, 8), capture=ss.Capture(), **options)

    fast = [run() for _ in range(2)]
    assert played.replayed
    monkeypatch.setenv("SINKSCOPE_FAST", "0")
    before = played.captured, played.replayed
    plain = run()
    assert before == (played.captured, played.replayed)
    for found in fast:
        equal(plain, found)


def test_the_switch_asks_and_sends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With SINKSCOPE_FAST=0 nothing is put around an engine, whose questions then wait on no stream of their own."""

    def wrapped() -> set[str]:
        model = SimpleNamespace(network=torch.nn.Linear(1, 1), device=torch.device("cuda"), home=None)
        engine: Any = SimpleNamespace(model=model, releases=[])
        groups.accelerated(engine)
        return vars(engine).keys() - {"model", "releases"}

    assert wrapped() == {"run", "asked", "forward_while"}
    monkeypatch.setenv("SINKSCOPE_FAST", "0")
    assert not wrapped()


@dataclass
class Remembered:
    """What a rule of another package keeps for itself."""

    seen: torch.Tensor


@dataclass(frozen=True)
class Foreign:
    """A rule of another package."""

    width: int


@dataclass(frozen=True)
class Alternating(ss.FixedRule):
    """Masks the first and the second key in turns, by what it remembers."""

    word: ClassVar[str] = "alternating"

    @property
    def most(self) -> int:
        return 1

    def keys(self, view: Any) -> torch.Tensor:
        turn = view.recall()
        turn = torch.zeros(1, dtype=torch.long) if turn is None else 1 - turn
        view.remember(turn)
        return (torch.arange(view.whole.keys) == turn)[None, None]


def test_a_rule_of_others_that_remembers_is_not_repeated(
    played: Played,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ss.load(GOLDEN / "llada" / "checkpoint")
    options: dict[str, Any] = {"policy": Alternating(), "capture": ss.Capture()}
    found = ss.generate(model, prompt(), ss.LladaDecoding(16, 8, 8), **options)
    monkeypatch.setenv("SINKSCOPE_FAST", "0")
    equal(ss.generate(model, prompt(), ss.LladaDecoding(16, 8, 8), **options), found)


class Holder:
    """Stands for a policy while it runs."""

    def __init__(self, width: int) -> None:
        self.rule, self.memory = Foreign(width), {0: Remembered(torch.ones(2))}


def test_state_of_rules_of_others_survives_a_failed_capture() -> None:
    """What only the object itself holds is there after the object was put back, and it is the same."""
    holder = Holder(1)
    contents, kept = saved([holder]), weakref.ref(holder.memory[0])
    holder.rule = Foreign(2)
    put([holder], contents)
    assert holder.memory[0] is kept()
    assert holder.rule == Foreign(1)


def test_rules_of_others_are_told_apart_by_their_values() -> None:
    """Rules of another package that are equal stand for the same generation; their own memories never do."""
    one, same, other = (State([Foreign(width)]).outline for width in (1, 1, 2))
    assert one == same != other
    assert State([Remembered(torch.ones(2))]).outline != State([Remembered(torch.ones(2))]).outline


def test_replays_and_readings_give_their_graphs_back(played: Played) -> None:  # noqa: F811
    """The second comparison of a shape captures nothing; nor does the second reading, step by step."""
    model = ss.load(GOLDEN / "llada" / "checkpoint")
    run = ss.generate(model, prompt(), ss.LladaDecoding(16, 8, 8))
    for use in (lambda: ss.replay(model, run, "top:1"), lambda: denoised(model, prompt(), 5, 8, None, [1, 2, 3])):
        use()
        before = played.captured
        assert before
        use()
        assert played.captured == before


def test_groups_that_run_at_once_have_graphs_of_their_own(played: Played) -> None:  # noqa: F811
    """Two groups of one shape that advance in step: each has its own memory, in later generations too."""
    model = ss.load(GOLDEN / "llada" / "checkpoint")
    mask = torch.ones(3, 13, dtype=torch.long)
    mask[1, :4] = 0
    options: dict[str, Any] = {"seed": [1, 2, 3], "attention_mask": mask, "policy": "random(top:2)"}
    with pytest.MonkeyPatch.context() as patch:
        at_once(patch, on=False)
        plain = [ss.generate(model, prompt(seed), ss.LladaDecoding(16, 8, 8), **options) for seed in (1, 2)]
    for seed, expected in zip((1, 2), plain, strict=True):
        equal(expected, ss.generate(model, prompt(seed), ss.LladaDecoding(16, 8, 8), **options))
    assert played.captured == 2


def test_graphs_are_freed_with_the_model_and_kept_within_a_limit(
    played: Played,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model: Model | None = ss.load(GOLDEN / "llada" / "checkpoint")
    assert model is not None
    monkeypatch.setattr(graphs, "MOST", 2)
    network = weakref.ref(model.network)
    for length in (8, 16, 24):
        ss.generate(model, prompt(), ss.LladaDecoding(length, length // 2, 8), capture=ss.Capture(), policy="top:1")
    assert len(graphs._KNOWN[model.network].bundles) == 2
    for bundle in graphs._KNOWN[model.network].bundles:
        for graph in bundle.graphs.values():  # a played graph holds its generation, which a CUDA graph does not
            object.__setattr__(graph, "replay", None)
    del model
    gc.collect()
    assert network() is None


def test_on_a_cache_of_fixed_size_all_steps_are_of_one_kind() -> None:
    """What a step sees grows; what a replay does is the same at every step, of a causal model as of a block loop."""
    watched: Any = SimpleNamespace(
        policy=None,
        recorder=None,
        model=SimpleNamespace(network=torch.nn.Identity(), device=torch.device("cpu"), spec=None, ids=None, block=None),
    )
    replays = replay.Replays(watched)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "captures", lambda device: True)
        for width, kind, active in ((1, "next", None), (4, "denoise", 4)):
            keys = {
                replays._kind(
                    Request(
                        torch.zeros(2, 32, dtype=torch.long),
                        queries=slice(start, start + width),
                        cache=object(),
                        kind=kind,
                        active=active,
                    ),
                    object.__new__(FixedCache),
                )
                for start in (8, 12, 16)
            }
            assert len(keys) == 1
            assert None not in keys


def test_a_block_loop_captures_its_steps_once(played: Played) -> None:  # noqa: F811
    """Four blocks of four steps: a graph for the steps, one for what is stored, and not one for each block."""
    decoding = ss.SdarDecoding(length=16, block=4, steps=4, top_k=1, scoring="raw", threshold=1.0)
    ss.generate(golden.model("sdar"), prompt(), decoding)
    assert played.captured <= 2
    assert played.replayed > played.captured
