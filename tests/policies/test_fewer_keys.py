"""Policies on long inputs: KeepTop and Window attend to fewer keys, and nothing of size S×S is ever allocated."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.helpers import golden
from tests.helpers.calls import LargestTensor
from tests.policies.follow import prompts

import sinkscope as ss
from sinkscope.attention import cpu, fused

LONG = 600


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(queries, keys) of every kernel call."""
    calls: list[tuple[int, int]] = []
    plain = fused.kernel

    def listening(query: Any, key: Any, *rest: Any) -> Any:
        calls.append((query.shape[2], key.shape[2]))
        return plain(query, key, *rest)

    monkeypatch.setattr(fused, "kernel", listening)
    return calls


def long_run(family: str, policy: Any, steps: int = 3) -> ss.Run:
    """Few steps over a long sequence."""
    decodings = {
        "llada": ss.LladaDecoding(length=LONG - 20, steps=steps, block=LONG - 20),
        "dream": ss.DreamDecoding(length=LONG - 20, steps=steps),
    }
    return ss.generate(golden.model(family), prompts(family, rows=1, length=20), decodings[family], policy=policy)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("policy", [ss.KeepTop(0.1), ss.KeepTop(0.1, scope="model", effect="silence")], ids=str)
def test_keep_top_attends_to_the_kept_keys(family: str, policy: Any, lengths: list[tuple[int, int]]) -> None:
    long_run(family, policy)
    assert lengths[:3] == [(LONG, LONG)] * 3  # there are no scores yet
    assert lengths[3:] == [(LONG, LONG // 10)] * 6


def test_keep_top_attends_to_the_kept_keys_and_the_newest_while_a_causal_model_writes(
    lengths: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the fused kernel runs: in float32 on a CPU one query over all keys takes less time than gathering some of them."""
    monkeypatch.setattr(cpu, "is_newest", lambda *_: False)
    ss.generate(
        golden.model("llama"),
        prompts("llama", rows=1, length=100),
        ss.GreedyDecoding(length=5, eos=None),
        policy=ss.KeepTop(0.25),
    )
    assert lengths[:3] == [(100, 100)] * 3
    for step in range(1, 5):
        candidates = 100 + step - 1
        assert lengths[3 * step : 3 * step + 3] == [(1, -(-candidates // 4) + 1)] * 3


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_window_attends_to_its_neighbourhood(family: str, lengths: list[tuple[int, int]]) -> None:
    policy = ss.Window(8, first=2)
    long_run(family, policy, steps=1)
    assert sum(queries for queries, _ in lengths) == 3 * LONG
    assert max(queries for queries, _ in lengths) < LONG
    for queries, keys in lengths:
        assert keys <= queries + 2 * 7 + 2
    lengths.clear()
    long_run(family, None, steps=1)
    assert lengths == [(LONG, LONG)] * 3


def test_a_causal_window_attends_to_the_last_keys_only(lengths: list[tuple[int, int]]) -> None:
    ss.generate(
        golden.model("llama"),
        prompts("llama", rows=1, length=100),
        ss.GreedyDecoding(length=4, eos=None),
        policy=ss.Window(8, first=2),
    )
    assert lengths[3:] == [(1, 10)] * 9


S = 3072
"""Where a tile of scores (32 MiB, 8.4 million numbers) is smaller than one S×S matrix (9.4 million), of four heads."""

SCALE = 4
"""Tiles of 1/16 of their size are as much smaller than the matrix of a quarter of the tokens, and take 1/16 of the time."""

SMALL = [
    ss.MaskTop(5), ss.KeepTop(0.5, effect="silence"), ss.Window(64, first=4), ss.MaskRandom(like=ss.MaskTop(5)),
]  # fmt: skip
MORE = [ss.MaskTop(5, effect="silence"), ss.MaskAbove(1.0, scope="layer"), ss.KeepTop(0.5), ss.MaskTop(5, when="same"),
        ss.Window(64, effect="silence"), ss.MaskFirst(4), ss.MaskKeys({0: [0, 9]}),
        ss.MaskTop(5, scores="masked"), ss.MaskFirst(1) & ss.Window(100),
        ss.MaskRandom(like=ss.KeepTop(0.5), match="mass")]  # fmt: skip


def largest(family: str, policy: Any, size: int = S) -> int:
    """Elements of the largest tensor in a traced generation of two forwards over `size` tokens."""
    model = golden.model(family)
    if family == "llama":
        given = prompts(family, rows=1, length=size), ss.GreedyDecoding(length=2, eos=None)
    else:
        given = (prompts(family, rows=1, length=24), ss.LladaDecoding(length=size - 24, steps=2, block=size - 24))
    with LargestTensor() as watch:
        ss.generate(model, *given, policy=policy, capture=ss.Capture(level="layers"))
    return watch.largest


@pytest.fixture(autouse=True)
def long_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their own are a few hundred tokens."""
    for family in golden.FAMILIES:
        model = golden.model(family)
        monkeypatch.setitem(vars(model), "shape", dataclasses.replace(model.shape, context=None))


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `SCALE` says."""
    monkeypatch.setattr(fused, "TILE_BYTES", fused.TILE_BYTES // SCALE**2)


@pytest.mark.parametrize("family", ["llada", pytest.param("llama", marks=pytest.mark.soak)])
def test_nothing_of_size_s_by_s(family: str) -> None:
    assert 0 < largest(family, SMALL[0]) < S * S


@pytest.mark.parametrize(
    ("family", "policy"),
    [
        # The policies of SMALL with both families in `make test`, the others with one of them.
        pytest.param(
            family,
            policy,
            id=f"{family}-{policy}",
            marks=pytest.mark.slow if policy in SMALL or (number + turn) % 2 else pytest.mark.soak,
        )
        for turn, family in enumerate(("llada", "llama"))
        for number, policy in enumerate([*SMALL, *MORE])
    ],
)
def test_nothing_of_size_s_by_s_under_any_policy(family: str, policy: Any, small_tiles: None) -> None:
    assert 0 < largest(family, policy, S // SCALE) < (S // SCALE) ** 2


@pytest.mark.soak
@pytest.mark.parametrize("policy", [*SMALL, *MORE], ids=str)
@pytest.mark.parametrize("family", ["llada", "llama"])
def test_nothing_of_size_s_by_s_with_the_tiles_as_they_are(family: str, policy: Any) -> None:
    assert 0 < largest(family, policy) < S * S


def test_the_watch_would_see_it() -> None:
    with LargestTensor() as watch:
        golden.model("llada").attention(prompts("llada", rows=1, length=300))
    assert watch.largest >= 300 * 300 * 4
