"""Nemotron's two loops, A2D with BD3LM, DiffusionGemma: states and attention of the official loops; rows, policies, traces."""

from __future__ import annotations

import copy
import json
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from tests.decoding import naive_loops
from tests.decoding.golden_runs import LOOPS, causal_loop, decoding_of, generate, recorded
from tests.decoding.ragged import check
from tests.helpers import golden
from tests.helpers.naive_sinks import block_margins
from tests.helpers.repeated import Played, played  # noqa: F401

import sinkscope as ss
from sinkscope.decoding import default_decoding

CASES = golden.cases("generate", families=golden.NEWEST)
BLOCKS = [case for case in CASES if not case[1].startswith("gen_ar") and case[0] != "diffusion_gemma"]


def about(family: str, name: str) -> dict[str, Any]:
    return golden.manifest(family)["generate"][name]


def test_all_loops_have_fixtures() -> None:
    assert {about(*case)["loop"] for case in CASES} == set(LOOPS)
    assert len(CASES) == 26 + 18 + 16


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), CASES)
def test_states_output_and_forwards_are_the_official_ones(family: str, name: str) -> None:
    run = generate(family, name)
    states = run.states[1:] if causal_loop(family, name) else run.states  # step 0 of a causal model is its prefill
    assert torch.equal(states, golden.tensor(family, name, "states"))
    assert torch.equal(run.output, golden.tensor(family, name, "output"))
    assert max(run.forwards) == about(family, name)["n_forward_calls"]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), BLOCKS)
def test_the_cache_changes_nothing(family: str, name: str) -> None:
    run = generate(family, name, cache=False)
    assert torch.equal(run.states, golden.tensor(family, name, "states"))
    assert torch.equal(run.output, golden.tensor(family, name, "output"))


def test_a_canvas_needs_the_cache() -> None:
    with pytest.raises(ss.InputError, match="cache=False"):
        generate("diffusion_gemma", "gen_c8_s8_eos_seed331.npz", cache=False)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), [case for case in CASES if "unmask_step" in golden.arrays(*case)])
def test_traces_leave_the_run_alone_and_know_when_masks_were_replaced(family: str, name: str) -> None:
    run, data = recorded(family, name), recorded(family, name).trace.dataset
    assert torch.equal(run.states, golden.tensor(family, name, "states"))
    steps, states = data["decided_step"].values, run.states.numpy()
    official = golden.arrays(family, name)["unmask_step"]
    # The seed of a block and the end of thinking are no masks that were replaced.
    official, steps = official[:, : states.shape[-1]], steps[:, : states.shape[-1]]
    np.testing.assert_array_equal(np.where(official >= 0, steps, -1), official)
    masked = data["masked"].values.swapaxes(0, 1)[..., : states.shape[-1]]
    np.testing.assert_array_equal(masked, states[:-1] == golden.model(family).ids.mask)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), [case for case in BLOCKS if "x0" in golden.arrays(*case)])
def test_candidates_and_confidence_are_the_official_ones(family: str, name: str) -> None:
    data, stored = recorded(family, name).trace.dataset, golden.arrays(family, name)
    denoising = np.flatnonzero(data["forward_kind"].values[0] == 0)
    starts = stored["active_start"]
    starts = starts[denoising] if len(starts) > len(denoising) else starts
    for number, (step, start) in enumerate(zip(denoising, starts, strict=True)):
        here = slice(int(start), int(start) + stored["x0"].shape[-1])
        masked = data["masked"].values[:, step, here] & (data["candidate"].values[:, step, here] >= 0)
        found = data["candidate"].values[:, step, here]
        expected = stored["x0"][number][:, : found.shape[1]]
        np.testing.assert_array_equal(found[masked], expected[masked])
        if decoding_of(family, name).__dict__.get("remasking") != "random":
            chance = data["confidence"].values[:, step, here][masked]
            np.testing.assert_allclose(chance, stored["x0_p"][number][:, : found.shape[1]][masked], atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "name"),
    [case for case in golden.cases("generation_attention", families=golden.NEWEST) if "_ar_" not in case[1]],
)
def test_received_attention_is_that_of_the_official_maps(family: str, name: str) -> None:
    """Of the active block or canvas; keys that a sliding layer does not hold, and pads, are none."""
    stored, told = golden.arrays(family, name), golden.manifest(family)["generation_attention"][name]
    data = recorded(family, told["of"]).trace.dataset
    denoising = data["forward_kind"].values[0] == 0
    received = data["received"].values[:, denoising]
    expected = np.moveaxis(stored["incoming"], 2, 0)  # [B, step, layer, head, key]
    keys = (~np.isnan(received)).sum(-1, keepdims=True)
    there = ~np.isnan(received)
    np.testing.assert_allclose((received / keys)[there], expected[there], atol=3e-6)
    assert not np.nan_to_num(expected[~there]).any()
    assert {"received_all", "prefill_received"} <= set(data)
    assert ("store_received" in data) == (family != "nemotron_diffusion")  # there it is a step
    every = np.isfinite(data["received_all"].values[:, denoising])
    assert (every | ~there).all()


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), golden.cases("generation_attention", families=golden.NEWEST))
def test_maps_are_the_official_ones(family: str, name: str) -> None:
    stored, told = golden.arrays(family, name), golden.manifest(family)["generation_attention"][name]
    data = generate(family, told["of"], capture=ss.Capture(level="maps")).trace.dataset
    maps = data["attention"].values[0]
    if "decode_attn" in stored:  # one query a step, behind the prefill
        prompt = stored["prefill_attn"].shape[-1]
        np.testing.assert_allclose(maps[0][..., :prompt, :prompt], stored["prefill_attn"][:, 0], atol=2e-5)
        for step, expected in enumerate(stored["decode_attn"][:, :, 0], 1):
            found = maps[step][..., prompt + step - 1, : prompt + step]
            np.testing.assert_allclose(found, expected[..., : prompt + step], atol=2e-5)
        return
    maps = maps[data["forward_kind"].values[0] == 0]
    found, expected = maps[int(stored["mid_index"])], stored["mid_attn"]
    queries, keys = expected.shape[-2:]
    np.testing.assert_allclose(found[..., keys - queries : keys, :keys], expected, atol=2e-5)


def test_prefill_and_store_of_nemotron_are_causal() -> None:
    """What they give is recorded apart: with another meaning, that of the next token."""
    name = "genattn_b8_t0_thr0.9.npz"
    stored = golden.arrays("nemotron_diffusion", name)
    data = recorded("nemotron_diffusion", "gen_b8_t0_thr0.9.npz").trace.dataset
    prefill = stored["prefill_attn"][:, 0].astype(np.float64)
    length = prefill.shape[-1]
    uniform = (np.tril(np.ones((length, length))) / np.arange(1, length + 1)[:, None]).sum(0)
    found = data["prefill_received"].values[0][..., :length]
    np.testing.assert_allclose(found, prefill.sum(-2) / uniform, rtol=1e-3, atol=1e-4)
    store = stored["store_attn"].astype(np.float64)
    keys = store.shape[-1]
    seen = np.arange(keys)[None] <= np.arange(keys - 8, keys)[:, None]
    uniform = (seen / seen.sum(-1, keepdims=True)).sum(0)
    first = int(np.flatnonzero(data["forward_kind"].values[0] == 1)[0])
    found = data["received"].values[0, first][..., :keys]
    np.testing.assert_allclose(found, store.sum(-2) / uniform, rtol=1e-3, atol=1e-4)


def test_noise_and_acceptance_on_a_canvas() -> None:
    """Masked are the columns whose token no step accepted; decided those that a step accepts, in the end all."""
    name = "gen_c8_s16_stop_adaptive_seed326.npz"
    run, stored = recorded("diffusion_gemma", name), golden.arrays("diffusion_gemma", name)
    data, starts = run.trace.dataset, stored["active_start"]
    last = np.append(starts[1:] != starts[:-1], True)
    for step, start in enumerate(starts):
        here = slice(int(start), int(start) + 8)
        fresh = step == 0 or starts[step - 1] != start
        noise = np.ones(8, bool) if fresh else ~stored["accepted"][step - 1, 0].astype(bool)
        np.testing.assert_array_equal(data["masked"].values[0, step, here], noise)
        accepted = stored["accepted"][step, 0].astype(bool) | last[step]
        np.testing.assert_array_equal(data["decided"].values[0, step, here], accepted)
        np.testing.assert_array_equal(data["candidate"].values[0, step, here], stored["denoiser"][step, 0])
        assert not data["masked"].values[0, step, : int(start)].any()
    assert int(data["edited"].sum()) > 0


def test_sinks_of_sliding_layers_are_judged_among_the_keys_that_they_see() -> None:
    """Half of them here: shares of a query's attention add up to 1 over these, and chance has as many keys to fall on."""
    model, ids = (
        golden.model("diffusion_gemma"),
        torch.randint(3, 180, (1, 27), generator=torch.Generator().manual_seed(1)),
    )
    data = ss.generate(model, ids, ss.DiffusionGemmaDecoding(8, 4, eos=None), seed=1, capture=True).trace.dataset
    epsilon, sinks, missed = 0.5, ss.detect(data, epsilon=0.5).values[0], 0
    for at in np.ndindex(*sinks.shape[:3]):
        scores = {
            int(key): float(data["received"].values[0][at][key])
            for key in np.flatnonzero(data["received"].notnull()[0][at])
        }
        first, length = min(scores), len(scores)
        assert length == (17 if at[1] < 2 else 35)
        near = {key - first: score for key, score in scores.items()}
        margins = block_margins(near, length, range(length - 8, length))
        assert {key for key, margin in margins.items() if margin > epsilon} == set(np.flatnonzero(sinks[at]) - first)
        few = block_margins(
            {key: score * length / 35 for key, score in near.items()}, length, range(length - 8, length)
        )
        missed += sum(margins[key] > epsilon > margin for key, margin in few.items())
    assert missed, "no sink that would be missed among all keys of the cache"


DECODINGS: dict[str, dict[str, Any]] = {
    "nemotron_diffusion": {
        "greedy": ss.NemotronDecoding(length=16, block=8, threshold=0.3, eos=None),
        "sampled": ss.NemotronDecoding(length=16, block=8, threshold=0.3, temperature=0.7),
        "both ways": ss.NemotronDecoding(length=16, block=8, threshold=None, causal_context=False),
        "causal": ss.NemotronCausalDecoding(length=8, temperature=0.6, eos=None),
    },
    "a2d_bd3lm": {
        "greedy": ss.Bd3lmDecoding(length=14, block=8, steps=8),
        "sampled": ss.Bd3lmDecoding(length=14, block=8, steps=8, temperature=0.6, remasking="random"),
        "guided": ss.Bd3lmDecoding(length=8, block=4, steps=6, cfg=0.5, shifted=True, stochastic=True),
    },
    "diffusion_gemma": {
        "canvas": ss.DiffusionGemmaDecoding(length=16, steps=4, entropy_bound=0.5, eos=None),
        "stopping": ss.DiffusionGemmaDecoding(
            length=16, steps=6, t_min=0.05, t_max=0.4, stability_threshold=0, confidence_threshold=1.0
        ),
    },
}
ROWS = [
    pytest.param(family, decoding, policy, id=f"{family}-{name}-{policy}")
    for family, many in DECODINGS.items()
    for name, decoding in many.items()
    for policy in (None, "top:2", "random(top:1)", "first:1")
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "decoding", "policy"), ROWS)
def test_a_row_equals_its_run_alone(family: str, decoding: Any, policy: str | None) -> None:
    check(family, decoding, close=1e-4, policy=policy, capture=ss.Capture())


@pytest.mark.slow
@pytest.mark.parametrize(
    "capture",
    [ss.Capture(level="layers"), ss.Capture(by_query=True), ss.Capture(anatomy=True), ss.Capture(every=3)],
    ids=["layers", "by query", "anatomy", "every third"],
)
@pytest.mark.parametrize("family", DECODINGS)
def test_every_way_to_record(family: str, capture: ss.Capture) -> None:
    model, prompt = (golden.model(family), torch.randint(3, 180, (2, 11), generator=torch.Generator().manual_seed(1)))
    for name, decoding in DECODINGS[family].items():
        plain = ss.generate(model, prompt, decoding, seed=3, policy="top:1")
        run = ss.generate(model, prompt, decoding, seed=3, policy="top:1", capture=capture)
        assert torch.equal(run.states, plain.states), name
        assert run.trace.dataset["received"].notnull().any(), name
        assert len(ss.summary(run.trace)), name


def test_the_default_decodings_and_text_forms() -> None:
    assert type(default_decoding("nemotron")) is ss.NemotronDecoding
    assert type(default_decoding("nemotron_causal")) is ss.NemotronCausalDecoding
    assert type(default_decoding("diffusion_gemma")) is ss.DiffusionGemmaDecoding
    assert type(default_decoding("a2d")) is ss.MdlmDecoding
    from sinkscope.decoding import decoding_from_json
    from sinkscope.decoding.base import parse_decoding

    for many in DECODINGS.values():
        for decoding in many.values():
            assert decoding_from_json(decoding.to_json()) == decoding
            assert parse_decoding(str(decoding)) == decoding


def test_causal_options_stand_in_the_documented_order_and_are_written_as_ever() -> None:
    causal = ss.NemotronCausalDecoding(8, 0.6, (2, 3), 4, 5)
    assert causal == ss.NemotronCausalDecoding(
        length=8, temperature=0.6, eos=(2, 3), max_thinking_tokens=4, end_think_id=5
    )
    assert str(causal) == "nemotron_causal,length=8,eos=2+3,temperature=0.6,max_thinking_tokens=4,end_think_id=5"
    assert list(causal.as_dict()) == ["kind", "length", "eos", "temperature", "max_thinking_tokens", "end_think_id"]
    sampled = ss.SamplingDecoding(8, 0.5, 0.9, None)
    assert str(sampled) == "sampling,length=8,eos=none,temperature=0.5,top_p=0.9"
    assert sampled.to_json() == '{"kind": "sampling", "length": 8, "eos": null, "temperature": 0.5, "top_p": 0.9}'
    assert ss.GreedyDecoding(8, None) == ss.GreedyDecoding(length=8, eos=None)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: ss.NemotronDecoding(length=20, block=8), "whole blocks"),
        (lambda: ss.NemotronDecoding(max_thinking_tokens=4), "go together"),
        (lambda: ss.NemotronDecoding(eos="end"), "eos should be"),
        (lambda: ss.NemotronCausalDecoding(end_think_id=4), "go together"),
        (lambda: ss.Bd3lmDecoding(remasking="best"), "remasking"),
        (lambda: ss.Bd3lmDecoding(stochastic=1), "stochastic should be"),
        (lambda: ss.DiffusionGemmaDecoding(t_min=0.5, t_max=0.5), "above t_min"),
        (lambda: ss.DiffusionGemmaDecoding(entropy_bound=0), "entropy_bound"),
        (lambda: ss.DiffusionGemmaDecoding(entropy_bound=None), "entropy_bound"),
        (lambda: ss.DiffusionGemmaDecoding(steps=None), "steps"),
        (lambda: ss.DiffusionGemmaDecoding(eos="end"), "eos should be"),
    ],
)
def test_wrong_options(make: Any, complaint: str) -> None:
    with pytest.raises(ss.InputError, match=complaint):
        make()


def test_options_that_only_the_model_can_refuse() -> None:
    ids = torch.arange(8)[None]
    for family, decoding, complaint in (
        ("nemotron_diffusion", ss.NemotronDecoding(eos=999), "not in the vocabulary"),
        ("diffusion_gemma", ss.DiffusionGemmaDecoding(canvas=16), "leave out canvas"),
        ("diffusion_gemma", ss.DiffusionGemmaDecoding(start=(1, 2)), "a canvas of 8 ids"),
        ("llada", ss.NemotronDecoding(), "is for nemotron models"),
    ):
        with pytest.raises(ss.InputError, match=complaint):
            ss.generate(golden.model(family), ids, decoding)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), CASES)
def test_states_on_caches_of_fixed_size_and_with_repeated_forwards(
    family: str,
    name: str,
    played: Played,  # noqa: F811
) -> None:
    """As on a GPU, where forwards of one kind are captured and repeated."""
    run = generate(family, name)
    states = run.states[1:] if causal_loop(family, name) else run.states
    assert torch.equal(states, golden.tensor(family, name, "states"))
    assert torch.equal(run.output, golden.tensor(family, name, "output"))


@pytest.mark.parametrize("family", DECODINGS)
def test_policies_of_single_queries_and_of_the_time_after_the_prompt(family: str) -> None:
    """Prompts are read apart in all three loops, and of a canvas all columns are scored."""
    model, prompt = golden.model(family), torch.arange(3, 14)[None]
    decoding = next(iter(DECODINGS[family].values()))

    def share(policy: str) -> float:
        return float(ss.generate(model, prompt, decoding, seed=4, policy=policy).hidden_share[0])

    for policy in ("first:1,prefill=no", "top:1,prefill=no", "top:1,queries=scored", "top:1,queries=masked"):
        assert 0 < share(policy) < 1, policy
    assert share("first:1,prefill=yes") == share("first:1")
    for policy, complaint in (
        ("top:1,prefill=yes", "before there are scores"),
        ("top:1,queries=newest", "for causal models"),
    ):
        with pytest.raises(ss.InputError, match=complaint):
            share(policy)


@pytest.mark.parametrize("family", ["nemotron_diffusion", "diffusion_gemma", "llada"])
def test_lists_of_ids_of_different_lengths_are_padded_where_the_family_has_it(family: str) -> None:
    model, rows = golden.model(family), [[3, 4, 5], [6, 7, 8, 9, 10]]
    decoding: Any = {
        "nemotron_diffusion": ss.NemotronCausalDecoding(length=4, eos=None),
        "diffusion_gemma": ss.DiffusionGemmaDecoding(length=8, steps=2, eos=None),
        "llada": ss.LladaDecoding(length=8, block=8, steps=4),
    }[family]
    batch = ss.generate(model, rows, decoding, seed=[1, 2])
    for row, prompt in enumerate(rows):
        assert batch.answers[row] == ss.generate(model, [prompt], decoding, seed=[row + 1]).answers[0]


def test_inspection_says_why_not_and_reads_the_causal_mode() -> None:
    gemma, nemotron = golden.model("diffusion_gemma"), golden.model("nemotron_diffusion")
    ids = torch.arange(3, 14)[None]
    run = ss.generate(gemma, ids, ss.DiffusionGemmaDecoding(length=8, steps=2, eos=None), seed=1)
    with pytest.raises(ss.InputError, match="a canvas is one"):
        ss.lens(gemma, run)
    causal_run = ss.generate(nemotron, ids, ss.NemotronCausalDecoding(length=4, eos=None))
    table = ss.lens(nemotron, causal_run, positions=[0, 1], steps=[2]).table
    one = ss.lens(nemotron.mode(causal=True), causal_run, positions=[0, 1], steps=[2]).table
    assert table.equals(one)


@pytest.mark.parametrize("cache", [True, False])
def test_loops_that_read_their_prompt_first_are_recorded_with_and_without_a_cache(cache: bool) -> None:
    """Nemotron and Fast-dLLM want the prompt's prediction of the first token, whether or not it is kept."""
    loops = {
        "nemotron_diffusion": ss.NemotronDecoding(16, 8, 0.9),
        "fast_dllm_v2": ss.FastDllmDecoding(length=16, block=8, small_block=4, stop=None),
    }
    for family, decoding in loops.items():
        options: dict[str, Any] = {"cache": cache, "seed": 1}
        plain = ss.generate(golden.model(family), torch.arange(16)[None], decoding, **options)
        run = ss.generate(golden.model(family), torch.arange(16)[None], decoding, capture=True, **options)
        assert torch.equal(run.states, plain.states)
        assert ("prefill_received" in run.trace.dataset) == cache


def official_canvases(folder: Any, ids: torch.Tensor, seed: int, **options: Any) -> torch.Tensor:
    """What transformers' own loop gives for a DiffusionGemma checkpoint."""
    network = type(golden.model("diffusion_gemma").network).from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(seed)
    theirs = network.generate(ids, **options)
    return theirs if isinstance(theirs, torch.Tensor) else theirs.sequences


def test_what_is_none_is_switched_off_as_officially() -> None:
    """Against transformers' own loop: no temperature, no early stop, no padding behind an end token; starts of all rows."""
    from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

    model, ids = golden.model("diffusion_gemma"), torch.arange(3, 25).view(2, 11)
    assert ss.DiffusionGemmaDecoding(t_min=None).t_max is None
    assert ss.DiffusionGemmaDecoding(confidence_threshold=None).stability_threshold is None
    options: dict[str, Any] = {"entropy_bound": 2.0, "steps": 3, "length": 24, "eos": None}
    theirs = {
        "max_new_tokens": 24, "max_denoising_steps": 3, "sampler_config": EntropyBoundSamplerConfig(entropy_bound=2.0),
        "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    ends, start = [1, 7, 11, 30], torch.arange(40, 56).view(2, 8)
    for changed, official in (
        ({"t_max": None}, {"t_max": None}),
        ({"stability_threshold": None}, {"stability_threshold": None}),
        ({"t_min": None, "confidence_threshold": None}, {"t_min": None, "confidence_threshold": None}),
        ({"eos": tuple(ends), "pad": None}, {"eos_token_id": ends}),
        ({"eos": tuple(ends), "pad": 5}, {"eos_token_id": ends, "pad_token_id": 5}),
        ({"start": start.tolist()}, {"decoder_input_ids": start}),
    ):
        run = ss.generate(model, ids, ss.DiffusionGemmaDecoding(**(options | changed)), seed=5)
        expected = official_canvases(golden.checkpoint("diffusion_gemma"), ids, 5, **(theirs | official))
        assert torch.equal(run.output, expected), changed
    rows = ss.generate(model, ids, ss.DiffusionGemmaDecoding(**options, start=start.tolist()), seed=[5, 6])
    alone = ss.generate(model, ids[1:], ss.DiffusionGemmaDecoding(**options, start=start[1].tolist()), seed=6)
    assert torch.equal(rows.sequences[1], alone.sequences[0])
    with pytest.raises(ss.InputError, match="one for each row"):
        ss.generate(model, ids.repeat(2, 1), ss.DiffusionGemmaDecoding(**options, start=start.tolist()), seed=1)


def test_generation_config_says_what_holds_where_nothing_is_given(tmp_path: Any) -> None:
    """As in transformers' own loop; what is given holds, and a decoding that is written out is what it says."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(golden.checkpoint("diffusion_gemma"), folder)
    stored = {
        "t_min": 0.1, "t_max": 2.0, "stability_threshold": 0, "confidence_threshold": 1.5, "max_denoising_steps": 6,
        "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 3.0}, "pad_token_id": 0,
    }  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(stored), encoding="utf-8")
    model, ids = ss.load(folder, device="cpu", dtype="float32"), torch.arange(3, 14)[None]
    common: dict[str, Any] = {"max_new_tokens": 16, "eos_token_id": None}
    for given in ({}, {"t_max": 0.5}, {"stability_threshold": None}):
        run = ss.generate(model, ids, length=16, eos=None, seed=3, **given)
        assert torch.equal(run.output, official_canvases(folder, ids, 3, **common, **given)), given
        assert run.decoding.entropy_bound == 3.0
    run = ss.generate(model, ids, ss.DiffusionGemmaDecoding(length=16, eos=None), seed=3)
    silent = ss.generate(golden.model("diffusion_gemma"), ids, length=16, eos=None, seed=3)
    assert torch.equal(run.sequences, silent.sequences)
    assert not torch.equal(run.sequences, ss.generate(model, ids, length=16, eos=None, seed=3).sequences)
    assert silent.decoding == ss.DiffusionGemmaDecoding(length=16, eos=None, canvas=8)
    assert {"pad", "start", "canvas"}.isdisjoint(ss.DiffusionGemmaDecoding().as_dict())


def test_a_row_that_stops_before_others_decides_all_of_its_canvas_in_its_last_step() -> None:
    """Also where one stream draws for the batch, and the row waits; a canvas is judged as a block."""
    name = "gen_c8_s16_stop_adaptive_batch2_seed327.npz"
    stored, data = golden.arrays("diffusion_gemma", name), recorded("diffusion_gemma", name).trace.dataset
    decided, starts = data["decided"].values, stored["active_start"]
    waits = 0
    for start in np.unique(starts):
        steps = np.flatnonzero(starts == start)
        for row in range(2):
            ended = np.flatnonzero(stored["finished"][steps, row].astype(bool))
            last = steps[ended[0]] if len(ended) else steps[-1]
            assert decided[row, last, start : start + 8].all()
            assert not decided[row, last + 1 : steps[-1] + 1].any()
            waits += steps[-1] - last
    assert waits > 0
    assert "active block's" not in str(ss.diagnose(recorded("diffusion_gemma", name).trace))


@pytest.mark.parametrize("cache", [True, False])
def test_behind_a_pad_the_next_token_is_predicted_from_a_query_that_saw_nothing(cache: bool) -> None:
    """BD3LM with shifted logits, where the last token before a block is a pad: given in the prompt, or generated."""
    model = golden.model("a2d_bd3lm")
    pad, network = model.ids.pad, naive_loops.native(model)
    prompts = torch.randint(3, 180, (6, 8), generator=torch.Generator().manual_seed(8))
    prompts[:, -1] = pad
    prompts[1, -3:], prompts[2, :5], prompts[3, -1] = pad, pad, 7
    options: dict[str, Any] = {"length": 14, "block": 4, "steps": 12, "shifted": True}
    for prompt in prompts:
        run = ss.generate(model, prompt[None], ss.Bd3lmDecoding(**options), cache=cache)
        states = naive_loops.bd3lm(
            network, prompt[None], **options, mask_id=model.ids.mask, pad=pad, ends=model.ids.eos
        )  # fmt: skip
        ours = [state[:, : theirs.shape[1]] for state, theirs in zip(run.states, states, strict=True)]
        assert all(map(torch.equal, ours, states))


def test_every_row_of_a_nemotron_batch_has_a_plan_of_its_own() -> None:
    """A row whose seed is no mask has one mask and one step less than another, also if it predicts a mask and keeps that."""
    model = copy.copy(golden.model("nemotron_diffusion"))
    mask, calls = int(model.ids.mask or 0), iter(range(10))

    def head(hidden: torch.Tensor) -> torch.Tensor:
        call, logits = next(calls), torch.zeros(*hidden.shape[:-1], model.shape.vocabulary)
        if hidden.shape[1] == 1:  # the seeds
            logits[0, 0, mask] = logits[1, 0, 5] = 9
            return logits
        logits[..., 7] = torch.tensor([9.0, 8, 7, 6])
        if call == 1:
            logits[1, 3, mask] = 20
        return logits

    model.head = head  # type: ignore[method-assign]
    ids = torch.arange(3, 17).view(2, 7)
    run = ss.generate(model, ids, ss.NemotronDecoding(length=4, block=4, threshold=None, eos=None))
    assert run.sequences[:, 7:].tolist() == [[7, 7, 7, 7], [5, 7, 7, mask]]


def test_an_empty_prompt_is_the_beginning_token_where_logits_are_shifted() -> None:
    model = golden.model("a2d_bd3lm")
    shifted = ss.Bd3lmDecoding(length=8, block=4, steps=4, shifted=True)
    begun = ss.generate(model, [[model.ids.bos], [3, 4]], shifted)
    assert torch.equal(ss.generate(model, [[], [3, 4]], shifted).states, begun.states)
    alone = ss.generate(model, [[model.ids.bos]], shifted).states
    for empty in ([[]], torch.zeros(1, 0, dtype=torch.long)):
        assert torch.equal(ss.generate(model, empty, shifted).states, alone)
        with pytest.raises(ss.InputError, match="prompt is empty"):
            ss.generate(model, empty, ss.Bd3lmDecoding(length=8, block=4, steps=4))
