"""On a CUDA GPU: whatever makes it fast against the same steps launched one kernel at a time on growing caches.

Every case runs on two prompts, first one by one (as with SINKSCOPE_FAST=0 around the engine), then captured. The second captured
run may capture nothing: it uses the graphs of the first, and has to give what its own plain run gave.
"""

from __future__ import annotations

import gc
import json
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from tests.helpers import decode_cases
from tests.helpers.repeated import counted

import sinkscope as ss
from sinkscope.decoding import groups
from sinkscope.gpu import graphs

pytestmark = pytest.mark.gpu

GOLDEN = Path(__file__).parents[1] / "golden"
HEADS, LAYERS = ss.Capture(), ss.Capture(level="layers")
SPARSE, BY_QUERY = ss.Capture(by_query=True, every=3), ss.Capture(by_query=True)


@pytest.fixture(autouse=True)
def alone() -> None:
    """Exact products, and no graph of another test, whose model may be the same."""
    torch.backends.cuda.matmul.allow_tf32 = False
    graphs._KNOWN.clear()


def wrapped(on: bool) -> Any:
    """Inside, forwards are captured, on caches of fixed size; or launched kernel by kernel."""
    return mock.patch.object(groups, "wraps", return_value=on)


@cache
def load(family: str, dtype: str) -> Any:
    mask = json.loads((GOLDEN / family / "manifest.json").read_text()).get("special_ids", {}).get("mask")
    return ss.load(GOLDEN / family / "checkpoint", device="cuda", dtype=dtype, mask_token_id=mask)


def prompt(seed: int, rows: int, columns: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (rows, columns), generator=torch.Generator().manual_seed(seed))


def compare(
    model: Any, prompts: list[torch.Tensor], decoding: Any, tolerance: float, works: bool = True, **options: Any
) -> list[Counter[str]]:
    """Plain and captured runs of both prompts must agree; what each captured run captured and replayed."""
    tried = []
    with wrapped(False):
        plain = [ss.generate(model, ids, decoding, **options) for ids in prompts]
    for ids, expected in zip(prompts, plain, strict=True):
        with wrapped(True), counted() as counts:
            found = ss.generate(model, ids, decoding, **options)
        assert counts["worked"] == counts["captured"] or not works
        tried.append(counts)
        assert torch.equal(expected.states, found.states)
        for name in ("hidden_share", "sinks_hit", "strongest_hit", "sink_removed"):
            if getattr(expected, name) is not None:
                np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=tolerance, rtol=0)
        if "reuse" in options:
            assert expected.extras["reuse"].work == found.extras["reuse"].work
        for name, steps in {} if expected.trace is None else expected.trace._parts.arrays.items():
            own = found.trace._parts.arrays[name]
            np.testing.assert_allclose(own, steps, atol=tolerance, rtol=tolerance, err_msg=name)
    return tried


STEPS = [
    ("llada", "float32", capture, policy)
    for capture, policy in (
        (None, None), (HEADS, None), (SPARSE, None), (None, "top:2"), (LAYERS, "top:1@model,effect=silence"), (SPARSE, "top:2"),
        (HEADS, "random(top:2)"), (None, "first:1"), (HEADS, "top:2,epsilon=0.5"), (HEADS, "top:2,queries=masked"),
        (None, "top:2,heads=0 & token:7"),
    )
] + [
    (family, dtype, capture, policy)
    for family, dtype in (("llada", "bfloat16"), ("dream", "bfloat16"), ("mmada", "float32"))
    for capture, policy in ((HEADS, None), (HEADS, "top:2"))
]  # fmt: skip


@pytest.mark.parametrize(("family", "dtype", "capture", "policy"), STEPS)
def test_graphs_change_nothing(family: str, dtype: str, capture: Any, policy: str | None) -> None:
    """The same states and scores, bit for bit, whether a whole step is launched kernel by kernel or replayed."""
    decoding = {
        "llada": ss.LladaDecoding(32, 16, 8), "dream": ss.DreamDecoding(32, 16, temperature=0.0, top_p=None),
        "mmada": ss.MmadaDecoding(32, 16, 8),
    }[family]  # fmt: skip
    prompts = [prompt(seed, 3, 21, 470) for seed in (4, 5)]
    first, second = compare(load(family, dtype), prompts, decoding, 0.0, policy=policy, capture=capture)
    repeated = not (policy is not None and ("token" in policy or capture is SPARSE))
    assert bool(first["replayed"]) == bool(second["replayed"]) == repeated
    assert second["captured"] == 0


RULES = (
    "prefix:block", "prefix:3", "prefix:block,fresh=rest", "prefix:6,fresh=masks", "sparse:0.5,by=received",
    "sparse:0.25,by=sinks,refresh=4", "sparse:6,by=random", "sparse:6,by=first:2+recent", "drift:0.9", "drift:0.999",
    "drift:0.99,refresh=layers",
)  # fmt: skip
PARTIAL = [("llada", ("float32", "bfloat16")[number % 2], rule) for number, rule in enumerate(RULES)] + [
    ("dream", "bfloat16", "prefix:4"), ("dream", "bfloat16", "sparse:0.5,by=received"), ("mmada", "float32", "prefix:block"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "dtype", "rule"), PARTIAL)
def test_graphs_change_no_partial_step(family: str, dtype: str, rule: str) -> None:
    """Under every kind of reuse rule: states, work and scores of replayed partial steps, bit for bit, padded rows too."""
    mask = torch.ones(3, 21, dtype=torch.long)
    mask[1, :6] = 0
    decoding = {
        "llada": ss.LladaDecoding(32, 32, 8), "dream": ss.DreamDecoding(16, 16, algorithm="maskgit_plus"),
        "mmada": ss.MmadaDecoding(32, 32, 8),
    }[family]  # fmt: skip
    options = {"reuse": rule, "capture": ss.Capture(by_query=True, every=2), "attention_mask": mask}
    prompts = [prompt(seed, 3, 21, 470) for seed in (4, 5)]
    first, second = compare(load(family, dtype), prompts, decoding, 0.0, **options)
    assert first["replayed"]
    if rule in ("prefix:block", "prefix:3"):  # how many columns the others compute depends on the text
        assert second["captured"] == 0


GREEDY = ss.SdarDecoding(length=32, block=4, steps=4, top_k=1, scoring="raw", threshold=1.0)
FAST = ss.FastDllmDecoding(length=32, block=8, small_block=4, stop=None)
LOOPS = (
    ("sdar", GREEDY, True), ("sdar", GREEDY, False), ("llada2", ss.Llada2Decoding(length=32, block=8, steps=8), True),
    ("fast_dllm_v2", FAST, True), ("fast_dllm_v2", FAST, False), ("fast_dllm_v2", replace(FAST, block_cache=True), True),
)  # fmt: skip
SETTINGS = (
    (None, None), (HEADS, None), (None, "top:2"), (None, "random(top:2)"), (HEADS, "top:2"),
    (LAYERS, "top:1@model,effect=silence"), (BY_QUERY, None),
)  # fmt: skip


@pytest.mark.parametrize(
    ("family", "decoding", "cache", "capture", "policy"),
    [
        (*loop, *setting)
        for number, loop in enumerate(LOOPS)
        for place, setting in enumerate(SETTINGS)
        if (place - number) % 2 == 0  # every loop with every second setting, so that each setting meets three loops
    ],
)
def test_graphs_change_no_block_loop(family: str, decoding: Any, cache: bool, capture: Any, policy: str | None) -> None:
    """On a cache of fixed size, or block by block without one: states are equal, scores to rounding (float32)."""
    prompts = [prompt(seed, 2, 13, 150) for seed in (4, 5)]
    options = {"policy": policy, "capture": capture, "seed": [1, 2], "cache": cache}
    # In float32 the experts of a mixture are launched one by one, which a graph cannot repeat.
    first, second = compare(load(family, "float32"), prompts, decoding, 1e-3, works=family != "llada2", **options)
    if family != "llada2":
        assert first["replayed"] or not cache or capture is BY_QUERY
    if family == "sdar":  # as many steps a block whatever the text
        assert second["captured"] == 0


@pytest.mark.parametrize("policy", [None, "top:2", "random(top:2)"])
def test_later_causal_generations_capture_nothing(policy: str | None) -> None:
    """On a static cache: the second generation of a shape uses the first one's graphs; states as on a growing cache (float32)."""
    prompts = [prompt(seed, 2, 18, 470) for seed in (2, 3)]
    options = {"policy": policy, "capture": HEADS, "seed": [4, 5]}
    first, second = compare(load("llama", "float32"), prompts, ss.GreedyDecoding(24, eos=None), 1e-3, **options)
    assert (first["captured"], second["captured"]) == (1, 0)
    assert second["replayed"] > first["replayed"] > 0


def test_static_cache_equals_the_growing_one() -> None:
    """States, recorded scores and masked keys of causal generations, graphs included, under every kind of policy (float32)."""
    with counted() as counts:
        cases = decode_cases.cases("cuda")
    assert counts["replayed"] > 100
    for case, differences in cases.items():
        assert differences.pop("states") == 0, case
        assert {name: value for name, value in differences.items() if value > 1e-3} == {}, case


def test_graphs_are_freed_with_the_model() -> None:
    """Graphs that are kept hold nothing that holds the model, and their memory goes with it."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    model = load.__wrapped__("llada", "float32")
    with wrapped(True):
        ss.generate(model, prompt(4, 3, 21, 470), ss.LladaDecoding(32, 16, 8), policy="top:2", capture=HEADS)
    assert graphs._KNOWN[model.network].bundles
    del model
    gc.collect()
    assert torch.cuda.memory_allocated() <= before + (1 << 20)


@pytest.mark.parametrize("cfg", [0.0, 1.0])
def test_what_a_fixed_cache_does_not_know_runs_without_one(cfg: float) -> None:
    """BD3LM hides pad tokens that it has written from later blocks, and guides with a twin: states as on its own cache."""
    model, decoding = load.__wrapped__("a2d_bd3lm", "float32"), ss.Bd3lmDecoding(16, 8, 16, cfg=cfg)
    ids = prompt(1, 2, 16, 150)
    written = int(ss.generate(model, ids, decoding).sequences[0, 18])
    model.ids = replace(model.ids, pad=written)
    for counts in compare(model, [ids.where(ids != written, written + 1)] * 2, decoding, 1e-3, capture=HEADS):
        assert counts["replayed"] == 0


def test_longer_answers_have_graphs_of_their_own() -> None:
    """The first block of a longer answer sees as many keys as that of a shorter one, in a state of more columns."""
    model = load("sdar", "float32")
    for length in (16, 32):
        tried = compare(model, [prompt(4, 2, 13, 150)] * 2, replace(GREEDY, length=length), 1e-3, cache=False)
        assert tried[0]["captured"]
        assert tried[1]["captured"] == 0


@pytest.mark.parametrize("family", ["llada", "llama", "sdar"])
def test_the_switch_changes_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With SINKSCOPE_FAST=0 nothing of `gpu/` runs, the recorder's thread included: the same states and scores (float32)."""
    decoding = {"llada": ss.LladaDecoding(32, 16, 8), "llama": ss.GreedyDecoding(24), "sdar": GREEDY}[family]
    model, ids = load(family, "float32"), prompt(4, 3, 21, 150)
    options = {"policy": "first:1", "capture": HEADS, "seed": [1, 2, 3]}
    quick = [ss.generate(model, ids, decoding, **options) for _ in range(2)]
    monkeypatch.setenv("SINKSCOPE_FAST", "0")
    with counted() as counts, mock.patch("sinkscope.gpu.outbox.Outbox.send", side_effect=AssertionError):
        plain = ss.generate(model, ids, decoding, **options)
    assert counts["replayed"] == 0
    for run in quick:
        assert torch.equal(run.states, plain.states)
        for name, steps in plain.trace._parts.arrays.items():
            np.testing.assert_allclose(run.trace._parts.arrays[name], steps, atol=1e-3, rtol=1e-3, err_msg=name)
