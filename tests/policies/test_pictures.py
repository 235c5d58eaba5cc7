"""Policies while MMaDA makes a picture, with guidance whose twin has padding of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import golden

import sinkscope as ss

NAME = "t2i_g3.5_s6_seed54.npz"


def picture(policy: Any, capture: ss.Capture | None = None) -> ss.Run:
    """The guided golden picture under a policy."""
    about = golden.manifest("mmada")["generate"][NAME]
    given = about["kwargs"]
    decoding = ss.MmadaImageDecoding(
        timesteps=given["timesteps"], guidance=given["guidance_scale"], temperature=1.0, offset=about["len_text_tokenizer"],
    )  # fmt: skip
    ids, mask, free, free_mask = (
        golden.tensor("mmada", NAME, key)
        for key in ("input_ids", "attention_mask", "uncond_input_ids", "uncond_attention_mask")
    )
    return ss.generate(
        golden.model("mmada"), ids, decoding, policy=policy, capture=capture, seed=about["seed"], attention_mask=mask,
        unconditional=(free, free_mask),
    )  # fmt: skip


def test_taking_nothing_changes_no_code() -> None:
    for policy in (ss.MaskTop(0), ss.Window(64), ss.KeepTop(1.0)):
        assert torch.equal(picture(policy).codes, golden.tensor("mmada", NAME, "codes"))


@pytest.mark.parametrize(
    "policy",
    [
        ss.MaskTop(3), ss.MaskKeys({0: [20, 25], 2: [22]}), ss.KeepTop(0.4, scope="layer"), ss.MaskRandom(like=ss.MaskTop(3)),
    ],
    ids=str,
)  # fmt: skip
def test_both_branches_lose_the_same_keys(policy: Any) -> None:
    run = picture(policy, ss.Capture())
    data, taken = run.trace.dataset, run.trace.masked_keys().values
    assert taken.any()
    assert float(run.hidden_share.min()) > 0
    assert (data["received"].values[taken] == 0).all()
    free = data["received_uncond"].values[taken]
    assert (free[~np.isnan(free)] == 0).all()  # NaN: padding of the twin
    assert (~np.isnan(free)).any()
    assert not torch.equal(run.codes, golden.tensor("mmada", NAME, "codes"))


@pytest.mark.parametrize("region", ["prompt", "answer"])
def test_regions_are_those_of_the_trace(region: str) -> None:
    run = picture(ss.MaskTop(2, regions=region), ss.Capture())
    taken = run.trace.masked_keys().values.any((1, 2, 3))
    regions = run.trace.dataset["region"].values
    assert taken.any()
    assert set(regions[taken]) == {region}
