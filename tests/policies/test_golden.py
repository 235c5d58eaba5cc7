"""`MaskKeys` against received attention of official maps with columns at −inf, and against the dense reference for others.

What the official code computed with masked columns is held by `models/test_golden.py` and `decoding/test_golden.py`.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.decoding.golden_runs import recorded
from tests.helpers import golden
from tests.policies.follow import DECODINGS, PROMPT, Setting, follow

import sinkscope as ss


def test_there_is_a_masked_generation_of_every_family() -> None:
    assert {family for family, _ in golden.cases("generate", contains="sinkmask")} == set(golden.FAMILIES)


def test_masked_attention_of_every_step() -> None:
    """Received attention in each forward of the masked LLaDA generation, as the official maps give it."""
    name = "gen_b8_s16_sinkmask.npz"
    run, entry = recorded("llada", name), golden.manifest("llada")["generate"][name]
    # [step, layer, row, head, key], mean
    incoming = golden.arrays("llada", "genattn_b8_s16_sinkmask.npz")["incoming"]
    received = run.trace.dataset["received"].transpose("step", "layer", "sample", "head", "key").values
    np.testing.assert_allclose(received, incoming * incoming.shape[-1], atol=2e-3, rtol=1e-3)
    for layer, chosen in entry["sink_columns_per_layer"].items():
        assert (received[:, int(layer)][..., chosen] == 0).all()


OTHERS = [
    {0: [PROMPT - 1], 1: [], 2: [1]},
    {1: list(range(0, PROMPT, 2))},
    {0: list(range(15))},  # more than half: the kernel runs on gathered keys
    {2: [PROMPT + 3]},  # an answer column, which a causal model has not written at first
    {layer: [0] for layer in range(3)},
    {layer: list(range(1, 18)) for layer in range(3)},
]


@pytest.mark.parametrize(
    ("family", "chosen"),
    [
        pytest.param(family, chosen, id=f"{family}-{n}", marks=[] if (n + m) % 2 == 0 else [pytest.mark.soak])
        for n, family in enumerate(golden.FAMILIES)
        for m, chosen in enumerate(OTHERS)
    ],
)
def test_other_columns(family: str, chosen: dict[int, list[int]]) -> None:
    follow(Setting(family, DECODINGS[family]), ss.MaskKeys(chosen))


def test_a_causal_model_that_would_lose_every_key_keeps_its_scores() -> None:
    setting = Setting("llama", DECODINGS["llama"])
    run, _ = follow(setting, ss.MaskKeys({layer: list(range(17)) for layer in range(3)}))
    free = ss.generate(golden.model("llama"), run.states[0][:, :PROMPT], DECODINGS["llama"])
    assert torch.equal(run.sequences, free.sequences)
    assert run.hidden_share.isnan().all(), "nothing was masked in any step"
