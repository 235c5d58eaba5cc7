"""Every golden generation: the official loops' states at every step, token for token, seeds included."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.decoding.golden_runs import causal_states, decoding_of, generate, plain, recorded
from tests.helpers import golden

CAUSAL = golden.names("llama", "generate")
DIFFUSION = [(family, name) for family, name in golden.cases("generate") if family != "llama"]
PICTURES = [name for name in golden.names("mmada", "generate") if name.startswith("t2i")]
WITH_CONFIDENCE = [(family, name) for family, name in DIFFUSION if "confidence" in golden.arrays(family, name)]
TIES = {("dream", "gen_entropy_t0.1_p0.9_seed36_evalsetting.npz"): 47, ("llada", "gen_b32_s32_conf_eos_eot_inf.npz"): 2}


def test_all_families_have_fixtures() -> None:
    """The lists below are read from the manifests; none of them may be empty."""
    counted = {family: len(golden.names(family, "generate")) for family in golden.FAMILIES}
    assert counted == {"llada": 13, "dream": 16, "mmada": 12, "llama": 4}
    assert len(PICTURES) == 2


@pytest.mark.parametrize(
    ("family", "name"),
    [pytest.param(*case, marks=() if "sinkmask" in case[1] else pytest.mark.slow) for case in DIFFUSION],
)
def test_states_are_the_official_ones(family: str, name: str) -> None:
    run = plain(family, name)
    assert torch.equal(run.states, golden.tensor(family, name, "states"))
    assert torch.equal(run.sequences, run.states[-1])
    assert len(run) == len(run.states) - 1 == golden.arrays(family, name)["states"].shape[0] - 1
    assert run.trace is None


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_have_the_official_codes(name: str) -> None:
    run = plain("mmada", name)
    assert torch.equal(run.codes, golden.tensor("mmada", name, "codes"))


def test_text_has_no_codes() -> None:
    assert plain("mmada", "gen_text_b8_s16.npz").codes is None


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_states_are_the_official_ones(name: str) -> None:
    run = plain("llama", name)
    assert torch.equal(run.states, causal_states("llama", name))
    assert torch.equal(run.sequences, golden.tensor("llama", name, "sequences"))


@pytest.mark.parametrize("name", CAUSAL)
def test_cached_steps_have_the_official_logits(name: str) -> None:
    """Seen through the head of the very run: what each step computed, cache and all."""
    model, seen = golden.model("llama"), []
    hook = model.network.lm_head.register_forward_hook(lambda _, __, out: seen.append(out[:, -1].clone()))
    try:
        generate("llama", name)
    finally:
        hook.remove()
    expected = golden.arrays("llama", name)["step_logits"]
    found = torch.stack(seen[: len(expected)]).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), [case for case in DIFFUSION if case[1] not in PICTURES])
def test_ties_are_counted(family: str, name: str) -> None:
    run = plain(family, name)
    about = golden.manifest(family)["generate"][name]
    assert int(run.ties.sum()) == about["tied_selections"] == TIES.get((family, name), 0)
    assert run.ties.shape == (len(run), len(run.sequences))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), WITH_CONFIDENCE)
def test_confidence_is_the_official_one(family: str, name: str) -> None:
    """Stored is the confidence of what could be selected; the trace has that of every masked position."""
    data = recorded(family, name).trace.dataset
    stored = np.moveaxis(golden.arrays(family, name)["confidence"], 0, 1)
    selectable = np.isfinite(stored)
    assert selectable.any()
    found = data["confidence"].values
    assert (data["masked"].values | ~selectable).all()
    np.testing.assert_allclose(found[selectable], stored[selectable], atol=2e-5, rtol=1e-4)
    np.testing.assert_array_equal(np.isnan(found), ~data["masked"].values)


@pytest.mark.slow
@pytest.mark.parametrize("name", golden.names("llada", "generate"))
def test_candidates_are_the_official_ones(name: str) -> None:
    """For every masked position, also those past the current block, which the official loop computes and ignores."""
    data = recorded("llada", name).trace.dataset
    expected = np.moveaxis(golden.arrays("llada", name)["x0"], 0, 1)
    masked = data["masked"].values
    np.testing.assert_array_equal(data["candidate"].values, np.where(masked, expected, -1))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), [case for case in DIFFUSION if "unmask_step" in golden.arrays(*case)])
def test_decided_step_is_the_official_one(family: str, name: str) -> None:
    data = recorded(family, name).trace.dataset
    np.testing.assert_array_equal(data["decided_step"].values, golden.arrays(family, name)["unmask_step"])


def test_an_end_token_is_kept_and_ends_the_run() -> None:
    name = "gen_greedy_eos_early.npz"
    end = golden.manifest("llama")["generate"][name]["eos_token_id"]
    run = plain("llama", name)
    assert decoding_of("llama", name).length == 32
    assert len(run) == 10
    assert int(run.sequences[0, -1]) == end
    assert end not in run.sequences[0, 13:-1].tolist()


def test_the_random_stream_is_the_one_of_the_fixtures() -> None:
    """If this fails, torch's CPU generator differs from the one the fixtures were made with, and the seeded ones must too."""
    for family in ("llada", "dream", "mmada"):
        for probe in golden.manifest(family)["rng_probe"]:
            generator = torch.Generator().manual_seed(probe["seed"])
            assert torch.rand(4, generator=generator).tolist() == probe["rand4_f32"]
