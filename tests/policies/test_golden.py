"""`MaskKeys` against what the official code computed with columns set to −inf, and against the dense reference for others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import golden
from tests.policies.follow import DECODINGS, PROMPT, Setting, follow

import sinkscope as ss


def columns(entry: dict[str, Any]) -> dict[int, list[int]]:
    """Layer → columns of a manifest entry."""
    found = entry.get("sink_columns_per_layer") or entry.get("columns_per_layer")
    return {int(layer): list(chosen) for layer, chosen in found.items()}


def decoding(family: str, entry: dict[str, Any]) -> Any:
    """The decoding that a fixture was made with."""
    given = entry.get("kwargs", {})
    if family == "llada":
        return ss.LladaDecoding(length=given["gen_length"], steps=given["steps"], block=given["block_length"])
    if family == "mmada":
        return ss.MmadaDecoding(length=given["gen_length"], steps=given["steps"], block=given["block_length"])
    if family == "dream":
        return ss.DreamDecoding(
            length=given["max_new_tokens"], steps=given["steps"], algorithm=given["alg"], eps=given["eps"]
        )
    return ss.GreedyDecoding(length=entry["max_new_tokens"], eos=entry["eos_token_id"])


@pytest.mark.parametrize(("family", "name"), golden.cases("generate", contains="sinkmask"))
def test_generation_with_masked_columns_token_for_token(family: str, name: str) -> None:
    entry = golden.manifest(family)["generate"][name]
    policy = ss.MaskKeys(columns(entry))
    run = ss.generate(
        golden.model(family), golden.tensor(family, name, "prompt"), decoding(family, entry), policy=policy
    )
    stored = golden.arrays(family, name)
    if family == "llama":
        assert torch.equal(run.sequences, torch.from_numpy(stored["sequences"].astype(np.int64)))
    else:
        assert torch.equal(run.states, torch.from_numpy(stored["states"].astype(np.int64)))


def test_there_is_a_masked_generation_of_every_family() -> None:
    assert {family for family, _ in golden.cases("generate", contains="sinkmask")} == set(golden.FAMILIES)


@pytest.mark.parametrize(("family", "name"), golden.cases("sinkmask"))
def test_masked_forward(family: str, name: str) -> None:
    policy = ss.MaskKeys(columns(golden.manifest(family)["sinkmask"][name]))
    ids = golden.tensor(family, "forward_T24.npz", "input_ids")
    model = golden.model(family)
    logits, attention = (golden.tensor(family, name, key) for key in ("logits", "attn"))
    rows = len(logits)  # of the larger fixtures one row is stored
    torch.testing.assert_close(model.logits(ids, policy=policy)[:rows], logits, atol=2e-4, rtol=1e-4)
    found = model.attention(ids, policy=policy)[:, :rows]
    torch.testing.assert_close(found, attention, atol=2e-5, rtol=0)


def test_masked_attention_of_every_step() -> None:
    """Received attention in each forward of the masked LLaDA generation, as the official maps give it."""
    entry = golden.manifest("llada")["generate"]["gen_b8_s16_sinkmask.npz"]
    run = ss.generate(
        golden.model("llada"), golden.tensor("llada", "gen_b8_s16_sinkmask.npz", "prompt"), decoding("llada", entry),
        policy=ss.MaskKeys(columns(entry)), capture=ss.Capture(),
    )  # fmt: skip
    incoming = golden.arrays("llada", "genattn_b8_s16_sinkmask.npz")[
        "incoming"
    ]  # [step, layer, row, head, key], mean
    received = run.trace.dataset["received"].transpose("step", "layer", "sample", "head", "key").values
    np.testing.assert_allclose(received, incoming * incoming.shape[-1], atol=2e-3, rtol=1e-3)
    for layer, chosen in columns(entry).items():
        assert (received[:, layer][..., chosen] == 0).all()


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
