"""Block loops on a cache of fixed size, as on a GPU: the official states, and what the growing cache records and masks.

Graphs are played here by running the forward that was captured again, with what Python knew at the capture: whatever does not lie
in memory that stays, or depends on the place of a block, is wrong then. Real captures need a GPU: see tests/gpu.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.decoding.later_runs import BLOCKS, generate
from tests.helpers import golden
from tests.helpers.repeated import Repeated

import sinkscope as ss
from sinkscope.decoding import engine

CASES = golden.cases("generate", families=BLOCKS)
RAGGED = [case for case in CASES if case[1].startswith("gen_batch_ragged")]
POLICIES = ("none", "top:2", "top:1@model,effect=silence", "top:1@layer,scores=masked", "random(top:2)")


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, with graphs played."""
    Repeated.used = 0
    monkeypatch.setattr(engine, "graphs_wanted", lambda device: True)
    monkeypatch.setattr(engine, "Graphs", Repeated)


@pytest.mark.parametrize(
    ("family", "name", "cache"),
    [
        # Without a cache nothing has a fixed size but the captured forwards: every third fixture in `make test`.
        pytest.param(*case, cache, marks=pytest.mark.slow if cache or number % 3 == 0 else pytest.mark.soak)
        for number, case in enumerate(CASES)
        for cache in (True, False)
    ],
)
@pytest.mark.usefixtures("fixed")
def test_states_are_the_official_ones(family: str, name: str, cache: bool) -> None:
    if "blockcache" in name and not cache:
        return  # refused: see test_later_golden
    run = generate(family, name, cache=cache)
    if (family, name) not in RAGGED:
        assert torch.equal(run.states, golden.tensor(family, name, "states"))
    if "output" in golden.arrays(family, name):
        assert torch.equal(run.output, golden.tensor(family, name, "output"))
    if cache and "sinkmask" not in name:  # MaskKeys is launched kernel by kernel
        assert Repeated.used


GROWING = [
    ("sdar", "gen_b4_dynamic_greedy_topk1.npz", True),
    ("sdar", "gen_b4_dynamic_shortprompt_seed97.npz", True),
    ("llada2", "gen_b8_s8_t0_batch2.npz", True),
    ("llada2", "gen_b8_s8_t0_batch2.npz", False),
    ("llada2", "gen_v21_b8_t0.npz", True),
    ("fast_dllm_v2", "gen_b8_s4_t0_blockcache.npz", True),
    ("fast_dllm_v2", "gen_b8_s4_t0_thr0.9.npz", True),
]
RECORDED = [
    # In `make test` every fixture under two of the policies, each policy with two fixtures or more; with `every=2` a policy is
    # launched kernel by kernel, so that layers are recorded without one.
    *(
        pytest.param(*case, "heads", policy, marks=pytest.mark.slow if turn else pytest.mark.soak)
        for number, case in enumerate(GROWING)
        for place, policy in enumerate(POLICIES)
        for turn in [(place - 2 * number) % len(POLICIES) < 2]
    ),
    *(
        pytest.param(*case, "layers", "none", marks=pytest.mark.soak if number % 2 else pytest.mark.slow)
        for number, case in enumerate(GROWING)
    ),
]


@pytest.mark.parametrize(("family", "name", "cache", "level", "policy"), RECORDED)
def test_recording_and_policies_are_those_of_the_growing_cache(
    family: str, name: str, cache: bool, level: Any, policy: str, request: pytest.FixtureRequest
) -> None:
    capture = ss.Capture(level=level, every=2 if level == "layers" else 1)
    cached = partial(generate, family, name, cache=cache, policy=policy, capture=capture)
    before = cached()
    request.getfixturevalue("fixed")
    found = cached()
    assert Repeated.used
    assert torch.equal(found.states, before.states)
    assert found.trace.dataset.data_vars.keys() == before.trace.dataset.data_vars.keys()
    for variable, values in before.trace.dataset.data_vars.items():
        got = found.trace.dataset[variable].values
        if values.dtype.kind == "f":
            np.testing.assert_allclose(got, values.values, rtol=1e-4, atol=1e-5, err_msg=str(variable))
        else:
            np.testing.assert_array_equal(got, values.values, err_msg=str(variable))
    for name_of in ("hidden_share", "sinks_hit"):
        np.testing.assert_allclose(
            np.asarray(getattr(found, name_of), float),
            np.asarray(getattr(before, name_of), float),
            atol=1e-5,
        )
