"""The attention that acted in every forward of the official loops, against what a trace recorded."""

from __future__ import annotations

import numpy as np
import pytest
from tests.decoding.golden_runs import generate, recorded
from tests.helpers import golden

import sinkscope as ss

TOLERANCE = 2e-5
CASES = golden.cases("generation_attention")


def run_of(family: str, name: str) -> str:
    """The generation that a genattn fixture belongs to."""
    return golden.manifest(family)["generation_attention"][name]["of"]


def real_of(family: str, run: str, rows: int, columns: int) -> np.ndarray:
    """Bool [B, S]: False in left padding."""
    real = np.ones((rows, columns), dtype=bool)
    mask = golden.arrays(family, run).get("attention_mask")
    if mask is not None:
        real[:, : mask.shape[1]] = mask != 0
    return real


def test_the_fixtures_are_all_here() -> None:
    assert len(CASES) == 6
    assert any("cfg" in name for _, name in CASES)
    assert any("leftpad" in name for _, name in CASES)
    assert any("sinkmask" in name for _, name in CASES)


@pytest.mark.parametrize(("family", "name"), CASES)
def test_received_is_the_official_incoming_attention(family: str, name: str) -> None:
    """Stored is the mean over all queries; received is the sum over real ones, relative to uniform attention.

    Each real query gives 1/n to each of n keys under uniform attention and n of them look, so received = column sum.
    """
    data = recorded(family, run_of(family, name)).trace.dataset
    incoming = golden.arrays(family, name)["incoming"]  # [step, layer, row, head, key]
    rows, columns = data.sizes["sample"], data.sizes["key"]
    column_sum = np.moveaxis(incoming[:, :, :rows].astype(np.float64) * columns, 2, 0)
    real = real_of(family, run_of(family, name), rows, columns)[:, None, None, None, :]
    expected = np.where(real, column_sum, np.nan)
    found = data["received"].values
    assert found.shape == expected.shape
    # The tolerance is that of a mean over queries, i.e. of the stored quantity.
    np.testing.assert_allclose(found / columns, expected / columns, atol=TOLERANCE, rtol=0)


def test_guidance_records_the_unconditional_branch() -> None:
    name = "genattn_b8_s16_cfg1.5.npz"
    data = recorded("llada", run_of("llada", name)).trace.dataset
    incoming = golden.arrays("llada", name)["incoming"]
    found = np.moveaxis(data["received_uncond"].values, 0, 2) / data.sizes["key"]
    np.testing.assert_allclose(found, incoming[:, :, 2:], atol=TOLERANCE, rtol=0)
    assert np.abs(incoming[:, :, 2:] - incoming[:, :, :2]).max() > 100 * TOLERANCE  # the branches do differ


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), CASES)
def test_maps_are_the_official_ones(family: str, name: str) -> None:
    stored = golden.arrays(family, name)
    run = generate(family, run_of(family, name), capture=ss.Capture(level="maps", every=int(stored["mid_index"])))
    maps = run.trace.dataset["attention"].sel(step=int(stored["mid_index"])).isel(sample=0)
    assert maps.dims == ("layer", "head", "query", "key")
    np.testing.assert_allclose(maps.values, stored["mid_attn"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["gen_greedy.npz", "gen_greedy_sinkmask.npz"])
def test_every_cached_step_of_a_causal_model(name: str) -> None:
    """decode_attn holds the newest token's row: its attention times the keys it sees is received attention."""
    run = recorded("llama", name)
    data = run.trace.dataset
    stored = golden.arrays("llama", name)
    assert data.sizes["step"] == 32
    for step in range(1, 32):
        keys = 13 + step
        row = stored["decode_attn"][step - 1]  # [layer, row, head, key]
        found = data["received"].sel(step=step).isel(sample=0).values
        np.testing.assert_allclose(found[..., :keys] / keys, row[:, 0, :, :keys], atol=TOLERANCE, rtol=0)
        assert np.isnan(found[..., keys:]).all()


@pytest.mark.parametrize("name", golden.names("llama", "generate"))
def test_prefill_of_a_causal_model(name: str) -> None:
    """From the official prefill maps: the last row, and all rows relative to uniform attention."""
    data = recorded("llama", name).trace.dataset
    maps = golden.arrays("llama", name)["prefill_attn"].astype(np.float64)  # [layer, row, head, query, key]
    mask = golden.arrays("llama", name)["attention_mask"]
    for row in range(maps.shape[1]):
        real = mask[row] != 0
        first = int(np.argmax(real))
        inside = maps[:, row, :, first:, first:]
        many = inside.shape[-1]
        seen = np.tril(np.ones((many, many))) / np.arange(1, many + 1)[:, None]
        every = data["prefill_received"].isel(sample=row).values[..., :13]
        assert np.isnan(every[..., :first]).all()
        np.testing.assert_allclose(
            every[..., first:] * seen.sum(0) / many, inside.sum(-2) / many, atol=TOLERANCE, rtol=0
        )
        last = data["received"].isel(sample=row, step=0).values[..., first:13]
        np.testing.assert_allclose(last / many, inside[..., -1, :], atol=TOLERANCE, rtol=0)
