"""Every golden generation of the later families: states, output and attention of the official loops, with and without cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.decoding.golden_runs import BLOCKS, DECODINGS, generate, plain, recorded
from tests.helpers import golden

import sinkscope as ss
from sinkscope.decoding import default_decoding

CASES = golden.cases("generate", families=(*golden.LATER, *golden.EXPERTS))
RAGGED = [case for case in CASES if case[1].startswith("gen_batch_ragged")]
BLOCK_CASES = [case for case in CASES if case[0] in BLOCKS]
WITH_STEPS = [
    case
    for case in CASES
    if "unmask_step" in golden.arrays(*case) and "blockcache" not in case[1] and case not in RAGGED
]


def some(cases: list[tuple[str, str]], where: Callable[[tuple[str, str]], bool] = lambda case: True) -> list[Any]:
    """Every second fixture of each loop in `make test`, the others in `make soak`; tests with one list share their runs."""
    chosen, met = [], Counter[str]()
    for family, name in cases:
        loop = f"{family} {golden.manifest(family)['generate'][name].get('loop')}"
        mark = pytest.mark.soak if met[loop] % 2 else pytest.mark.slow
        met[loop] += 1
        if where((family, name)):
            chosen.append(pytest.param(family, name, marks=mark))
    return chosen


def test_all_loops_have_fixtures() -> None:
    loops = {golden.manifest(family)["generate"][name].get("loop", "llada") for family, name in CASES}
    blocks = {"llada2", "llada2.1", "sdar", "sdar_eval", "fast_dllm_v2", "fast_dllm_v2_batch"}
    assert loops == {*blocks, "llada", "mdlm", "rnd1", "open_dcoder"}
    assert len(CASES) == 80


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), CASES)
def test_states_and_output_are_the_official_ones(family: str, name: str) -> None:
    run = plain(family, name)
    if (family, name) not in RAGGED:  # rows of unequal length run apart there, so their steps fall otherwise
        assert torch.equal(run.states, golden.tensor(family, name, "states"))
    if "output" in golden.arrays(family, name):
        assert torch.equal(run.output, golden.tensor(family, name, "output"))
    assert torch.equal(run.sequences, run.states[-1])


@pytest.mark.parametrize(("family", "name"), some(BLOCK_CASES))
def test_the_cache_changes_nothing(family: str, name: str) -> None:
    """The other way than officially: LLaDA2 with a cache, the others without."""
    if "blockcache" in name:
        with pytest.raises(ss.InputError, match="block_cache"):
            generate(family, name, cache=False)
        return
    run = generate(family, name, cache=not DECODINGS[family].cached)
    if (family, name) not in RAGGED:
        assert torch.equal(run.states, golden.tensor(family, name, "states"))
    assert torch.equal(run.output, golden.tensor(family, name, "output"))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), [case for case in BLOCK_CASES if case not in RAGGED])
def test_forwards_are_counted_as_officially(family: str, name: str) -> None:
    """A row that waits for others counts none."""
    assert max(plain(family, name).forwards) == golden.manifest(family)["generate"][name]["n_forward_calls"]


@pytest.mark.parametrize(("family", "name"), some(WITH_STEPS))
def test_decided_step_is_the_last_change(family: str, name: str) -> None:
    run = recorded(family, name)
    about, data = golden.manifest(family)["generate"][name], run.trace.dataset
    assert torch.equal(run.states, golden.tensor(family, name, "states"))
    np.testing.assert_array_equal(data["decided_step"].values, golden.arrays(family, name)["unmask_step"])
    if "edited_tokens" in about and run.decoding.edits:
        assert int(data["edited"].sum()) == about["edited_tokens"]
    assert ("edited" in data) == run.decoding.edits


@pytest.mark.parametrize(
    ("family", "name"), some(WITH_STEPS, lambda case: "x0" in golden.arrays(*case) and case[0] in BLOCKS)
)
def test_candidates_and_confidence_are_the_official_ones(family: str, name: str) -> None:
    """Of the masked positions of the active block."""
    data, stored = recorded(family, name).trace.dataset, golden.arrays(family, name)
    for step, start in enumerate(stored["active_start"]):
        here = slice(int(start), int(start) + stored["x0"].shape[-1])
        masked = data["masked"].values[0, step, here]
        np.testing.assert_array_equal(
            data["candidate"].values[0, step, here], np.where(masked, stored["x0"][step, 0], -1)
        )
        np.testing.assert_allclose(
            data["confidence"].values[0, step, here], np.where(masked, stored["x0_p"][step, 0], np.nan), atol=2e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(("family", "name"), golden.cases("generation_attention", families=BLOCKS))
def test_received_in_block_loops(family: str, name: str, cached: bool) -> None:
    """`received` is of the active block, `received_all` of all queries; stored blocks are a kind of their own."""
    about, stored = golden.manifest(family)["generation_attention"][name], golden.arrays(family, name)
    data = recorded(family, about["of"], cached).trace.dataset
    expected = np.moveaxis(stored.get("incoming_active", stored["incoming"]), 2, 0)
    denoising = data["forward_kind"].values[0] == 0
    keys = (~np.isnan(expected)).sum(-1, keepdims=True)
    np.testing.assert_allclose(data["received"].values[:, denoising] / keys, expected, atol=2e-6)
    every = data["received_all"].values[:, denoising]
    np.testing.assert_array_equal(np.isnan(every), np.isnan(expected))
    assert ("store_received" in data) == (cached and family != "fast_dllm_v2")
    assert ("prefill_received" in data) == cached
    if "incoming_active" in stored:
        starts = golden.arrays(family, about["of"])["active_start"]
        uniform = [_uniform(int(start) + 8, 8, every.shape[-1]) for start in starts]
        official = np.moveaxis(stored["incoming"], 2, 0) / np.stack(uniform)[None, :, None, None]
        np.testing.assert_allclose(every, official, atol=5e-5)


def test_received_in_the_loop_of_a_mixture_of_experts() -> None:
    """All queries see all keys, so uniform attention is 1 / keys."""
    name = "genattn_b8_s16.npz"
    data = recorded("llada_moe", golden.manifest("llada_moe")["generation_attention"][name]["of"]).trace.dataset
    expected = np.moveaxis(golden.arrays("llada_moe", name)["incoming"], 2, 0)
    np.testing.assert_allclose(data["received"].values / data.sizes["key"], expected, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), golden.cases("generation_attention", families=("llada_moe", *BLOCKS)))
def test_maps_are_the_official_ones(family: str, name: str) -> None:
    """Of one denoising step: rows are the queries that the official forward had, at their columns."""
    stored, about = golden.arrays(family, name), golden.manifest(family)["generation_attention"][name]
    data = generate(family, about["of"], capture=ss.Capture(level="maps")).trace.dataset
    maps = data["attention"].values[0]
    if "forward_kind" in data:
        maps = maps[data["forward_kind"].values[0] == 0]
    found, expected = maps[int(stored["mid_index"])], stored["mid_attn"]
    queries, keys = expected.shape[-2:]
    np.testing.assert_allclose(found[..., keys - queries : keys, :keys], expected, atol=2e-5)
    assert np.isfinite(found).sum() == expected.size


def _uniform(window: int, block: int, columns: int) -> np.ndarray:
    """Float [columns]: what a key receives on average if all queries of a window look at all they see alike."""
    place = np.arange(window) // block
    share = (place[None] <= place[:, None]) / ((place + 1) * block)[:, None]
    return np.pad(share.mean(0), (0, columns - window), constant_values=np.nan)


@pytest.mark.slow
@pytest.mark.parametrize("family", BLOCKS)
def test_what_all_queries_give_does_not_depend_on_the_cache(family: str) -> None:
    name = next(iter(golden.manifest(family)["generation_attention"].values()))["of"]
    one, two = (recorded(family, name, cached).trace.dataset["received_all"].values for cached in (True, False))
    np.testing.assert_allclose(one, two, atol=1e-4)


@pytest.mark.parametrize("family", golden.LATER)
def test_the_default_decoding(family: str) -> None:
    assert type(default_decoding(golden.model(family).family)) is DECODINGS[family]


@pytest.mark.slow
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("family", BLOCKS)
def test_received_by_kind_of_query(family: str, cached: bool) -> None:
    """From the maps of the same run: masked, decided and prompt queries apart, over the queries that a forward had."""
    name = next(iter(golden.manifest(family)["generation_attention"].values()))["of"]
    if cached:  # one short prompt too, which no forward runs before the first step
        name = min(golden.names(family, "generate"), key=lambda one: golden.arrays(family, one)["prompt"].size)
    run = generate(family, name, capture=ss.Capture(level="maps", by_query=True), cache=cached)
    data = run.trace.dataset.isel(sample=0)
    block, start = run.decoding.block, run.prompt
    place = np.arange(data.sizes["key"]) // block
    for step in range(len(run)):
        maps = data["attention"].values[step].astype(np.float64)
        queries = np.isfinite(maps[0, 0]).any(-1)
        if not queries.any():  # a row that waits for others
            continue
        keys = np.isfinite(maps[0, 0, queries.argmax()])
        seen = (place[None] <= place[:, None]) & keys
        masked = data["masked"].values[step] & queries
        answer = (np.arange(len(queries)) >= start) & queries
        kinds = {"masked": masked, "decided": ~masked & answer, "prompt": ~masked & ~answer & queries}
        for kind, own in kinds.items():
            uniform = (seen[own] / seen[own].sum(-1, keepdims=True)).sum(0) if own.any() else np.zeros(len(keys))
            with np.errstate(divide="ignore", invalid="ignore"):
                expected = np.where(uniform > 0, maps[:, :, own].sum(2) / uniform, np.nan)
            found = data["received_by"].sel(query_kind=kind).values[step]
            np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4, err_msg=f"{kind} at step {step}")
