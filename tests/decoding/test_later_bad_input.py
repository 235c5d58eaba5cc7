"""The later families' loops: what is refused, and that the message says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import golden

import sinkscope as ss

IDS = torch.arange(5)[None]


def run(family: str, decoding: Any, **options: Any) -> ss.Run:
    return ss.generate(golden.model(family), IDS, decoding, seed=0, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ss.SdarDecoding(temperature=0), "top_k=1"),
        (lambda: ss.SdarDecoding(stop="eos"), "stop should be ids"),
        (lambda: ss.SdarDecoding(steps=3, scoring="raw"), "divide the block"),
        (lambda: ss.SdarDecoding(remasking="entropy_bounded"), "not known"),
        (lambda: ss.FastDllmDecoding(small_block=5), "multiple of small_block"),
        (lambda: ss.FastDllmDecoding(length=8), "less than one block"),
        (lambda: ss.Llada2Decoding(length=2, minimal_topk=3), "leaves no step"),
        (lambda: ss.Llada2Decoding(threshold=-1), "threshold"),
        (lambda: ss.OpenDcoderDecoding(algorithm="p3"), "did you mean p2"),
        (lambda: ss.Rnd1Decoding(top_p=1.5), "top_p"),
        (lambda: run("sdar", ss.SdarDecoding(length=4, stop=[999])), "999 is not in the vocabulary"),
        (lambda: run("sdar", ss.Llada2Decoding()), "use SdarDecoding"),
        (lambda: run("llada_moe", ss.LladaDecoding(length=4, block=4), cache=True), "no blocks to keep"),
        (lambda: run("sdar", ss.SdarDecoding(length=4), reuse="prefix:4"), "cannot act"),
        (lambda: run("sdar", ss.SdarDecoding(length=4), policy="random(top:9)"), "smaller number"),
        (
            lambda: ss.generate(
                golden.model("sdar"), IDS, ss.SdarDecoding(length=4), attention_mask=torch.tensor([[0, 1, 1, 1, 1]])
            ),
            "pad on the right",
        ),
        (
            lambda: ss.replay(golden.model("sdar"), run("sdar", ss.SdarDecoding(length=4)), "top:1"),
            "replay cannot follow",
        ),
    ],
)  # fmt: skip
def test_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ss.InputError, match=message):
        call()


@pytest.mark.parametrize("family", ["llada2", "open_dcoder"])
def test_a_missing_mask_token_says_how_to_name_it(family: str) -> None:
    named = family if family == "open_dcoder" else None
    model = ss.load(golden.checkpoint(family), device="cpu", family=named)
    with pytest.raises(ss.InputError, match="mask_token_id"):
        ss.generate(model, IDS)
