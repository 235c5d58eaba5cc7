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


@pytest.mark.slow
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize(("family", "name"), CASES)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "name", "cache"),
    [
        ("sdar", "gen_b4_dynamic_greedy_topk1.npz", True),
        ("sdar", "gen_b4_dynamic_shortprompt_seed97.npz", True),
        ("llada2", "gen_b8_s8_t0_batch2.npz", True),
        ("llada2", "gen_b8_s8_t0_batch2.npz", False),
        ("llada2", "gen_v21_b8_t0.npz", True),
        ("fast_dllm_v2", "gen_b8_s4_t0_blockcache.npz", True),
        ("fast_dllm_v2", "gen_b8_s4_t0_thr0.9.npz", True),
    ],
)
@pytest.mark.parametrize("level", ["heads", "layers"])
def test_recording_and_policies_are_those_of_the_growing_cache(
    family: str, name: str, cache: bool, level: Any, request: pytest.FixtureRequest
) -> None:
    cached = partial(generate, family, name, cache=cache)
    capture = ss.Capture(level=level, every=2 if level == "layers" else 1)
    policies = (
        POLICIES if level == "heads" else POLICIES[:1]
    )  # a policy with every=2 is launched kernel by kernel
    growing = {policy: cached(policy=policy, capture=capture) for policy in policies}
    request.getfixturevalue("fixed")
    for policy, before in growing.items():
        Repeated.used = 0
        found = cached(policy=policy, capture=capture)
        assert Repeated.used
        assert torch.equal(found.states, before.states), policy
        assert found.trace.dataset.data_vars.keys() == before.trace.dataset.data_vars.keys()
        for variable, values in before.trace.dataset.data_vars.items():
            got, message = found.trace.dataset[variable].values, f"{policy} {variable}"
            if values.dtype.kind == "f":
                np.testing.assert_allclose(got, values.values, rtol=1e-4, atol=1e-5, err_msg=message)
            else:
                np.testing.assert_array_equal(got, values.values, err_msg=message)
        for name_of in ("hidden_share", "sinks_hit"):
            np.testing.assert_allclose(
                np.asarray(getattr(found, name_of), float),
                np.asarray(getattr(before, name_of), float),
                atol=1e-5,
            )
