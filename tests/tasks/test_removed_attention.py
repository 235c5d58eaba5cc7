"""The attention that a policy removed is told of the queries that it acts on, however many others a forward holds."""

from __future__ import annotations

import pytest

import sinkscope as ss

READING = ss.CausalReading(length=48, scored=12)
STEPS = "1-64"


def removed(model: str, reading: ss.Decoding, policy: str) -> float:
    shares = [record.hidden_share for record in ss.evaluate(model, "text", reading, policy=policy, limit=2).records]
    return sum(shares) / len(shares)


def test_one_forward_tells_what_the_same_steps_tell() -> None:
    at_once = removed("organism/causal", READING, "first:1,prefill=no")
    one_by_one = removed("organism/causal", READING, f"first:1,steps={STEPS}")
    assert at_once == pytest.approx(one_by_one, abs=1e-4)
    assert at_once > 0.01


def test_the_shares_of_masked_and_other_queries_make_up_that_of_all() -> None:
    reading = ss.MaskedReading(length=48, share=0.5, masks=1)
    every, masked, other = (
        removed("organism/scratch", reading, f"first:4,queries={queries}") for queries in ("all", "masked", "decided")
    )
    # Half of 47 tokens, rounded, are masked; in the first layer the two halves are those of one forward, later ones differ.
    assert min(masked, other) - 0.05 < every < max(masked, other) + 0.05
    assert every < masked + other
