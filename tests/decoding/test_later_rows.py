"""The later families: with a seed per row, a row of a ragged batch equals its run alone, under policies too.

Rows of a block loop wait for each other at the end of a block; what a waiting row sees, scores or draws must not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.decoding.golden_runs import BLOCKS
from tests.decoding.ragged import ALL, check, prompts
from tests.helpers import golden

import sinkscope as ss

DECODINGS: dict[str, dict[str, Any]] = {
    "llada2": {
        "greedy": ss.Llada2Decoding(length=14, block=8, steps=8, threshold=0.3),
        "sampled": ss.Llada2Decoding(length=14, block=8, steps=3, threshold=0.3, temperature=0.8, top_k=20),
        "edited": ss.Llada2Decoding(length=14, block=8, threshold=0.3, editing_threshold=0.2, max_post_steps=2),
    },
    "sdar": {
        "sampled": ss.SdarDecoding(length=9, block=4, steps=4, threshold=0.3),
        "evaluation": ss.SdarDecoding(length=9, block=4, steps=4, top_k=1, threshold=0.3, scoring="raw"),
    },
    "fast_dllm_v2": {
        "greedy": ss.FastDllmDecoding(length=16, block=8, small_block=4, threshold=0.3),
        "sampled": ss.FastDllmDecoding(length=16, block=8, small_block=4, threshold=0.3, temperature=0.7),
    },
    "a2d_qwen3": {
        "greedy": ss.MdlmDecoding(length=10, steps=7, block=4),
        "sampled": ss.MdlmDecoding(length=10, steps=7, block=4, temperature=0.5, remasking="random"),
    },
    "rnd1": {
        "greedy": ss.Rnd1Decoding(length=8, steps=6),
        "bounded": ss.Rnd1Decoding(length=8, steps=6, eb_gamma=0.5),
        "sampled": ss.Rnd1Decoding(length=8, steps=6, greedy=False, temperature=0.7),
    },
    "open_dcoder": {
        "greedy": ss.OpenDcoderDecoding(length=8, steps=6),
        "p2": ss.OpenDcoderDecoding(length=8, steps=6, algorithm="p2", temperature=0.4),
        # More steps than tokens: some decide nothing, and draw no noise.
        "noisy": ss.OpenDcoderDecoding(length=6, steps=9, alg_temp=0.5),
    },
    "llada_moe": {"greedy": ss.LladaDecoding(length=8, steps=8, block=4)},
}
CASES = [
    pytest.param(family, decoding, id=f"{family}-{name}")
    for family, many in DECODINGS.items()
    for name, decoding in many.items()
]
UNEQUAL = (0, 2)
"""Rows of another length and seed, of which the first shares its seed with a third."""


@pytest.mark.slow
@pytest.mark.parametrize(("family", "decoding"), CASES)
def test_a_row_equals_its_run_alone(family: str, decoding: Any) -> None:
    check(family, decoding, capture=ss.Capture())


POLICIES = ("top:3", "random(top:2)")
UNDER = [
    pytest.param(*case.values, policy, which, id=f"{policy}-{case.id}-{len(which)} rows", marks=mark)
    for turn, policy in enumerate(POLICIES)
    for number, case in enumerate(CASES)
    for which, mark in ((UNEQUAL, pytest.mark.slow), (ALL, pytest.mark.soak))
    if which == ALL or (number + turn) % 2 == 0
]
"""Two rows of every loop under one of the policies in `make test`, all rows under both in `make soak`; below with the cache."""


@pytest.mark.parametrize(("family", "decoding", "policy", "which"), UNDER)
def test_under_a_policy(family: str, decoding: Any, policy: str, which: Sequence[int]) -> None:
    check(family, decoding, which, policy=policy)


@pytest.mark.parametrize(
    ("family", "cache", "policy", "which"),
    [
        pytest.param(family, cache, policy, which, marks=mark)
        for number, family in enumerate(family for family in BLOCKS if family in DECODINGS)
        for cache in (True, False)
        for turn, policy in enumerate(("above:1@layer", "random(first:2)", "top:3,steps=2-4", "window:9"))
        for which, mark in ((UNEQUAL, pytest.mark.slow), (ALL, pytest.mark.soak))
        # In `make test` every policy with the cache and without, every family with two or three policies.
        if which == ALL or (number + turn + cache) % 3 == 0
    ],
)
def test_more_policies_in_block_loops(family: str, cache: bool, policy: str, which: Sequence[int]) -> None:
    check(family, next(iter(DECODINGS[family].values())), which, policy=policy, cache=cache)


def test_one_stream_for_a_batch_draws_for_rows_that_wait() -> None:
    """As dllm's sampler does: the draws of a row do not depend on whether another one has finished its block."""
    model, decoding = golden.model("llada2"), DECODINGS["llada2"]["sampled"]
    ids = torch.tensor([row[:8] for row in prompts()[:3]])
    torch.manual_seed(11)
    x = torch.cat([ids, torch.full((3, 16), model.ids.mask)], 1)
    expected = [x.clone()]
    for end in (16, 24):
        for count in (3, 3, 2):
            masked = x[:, end - 8 : end] == model.ids.mask
            if not masked.any():
                break
            logits = model.logits(x[:, :end], block=8)[:, -8:] / 0.8
            least = logits.topk(20)[0][..., -1:]
            spread = logits.masked_fill(logits < least, float("-inf")).softmax(-1)
            tokens = torch.multinomial(spread.flatten(0, 1), 1).view(3, 8)
            scores = spread.gather(-1, tokens[..., None])[..., 0].masked_fill(~masked, float("-inf"))
            for row in range(3):
                chosen = scores[row] > 0.3
                if int(chosen.sum()) < count:
                    best = scores[row].topk(min(count, int(masked[row].sum()))).indices
                    chosen = torch.zeros(8, dtype=torch.bool).index_fill(0, best, True)
                x[row, end - 8 : end] = torch.where(chosen, tokens[row], x[row, end - 8 : end])
            expected.append(x.clone())
    run = ss.generate(model, ids, decoding, seed=11)
    assert len(run.states) == len(expected)
    assert all(torch.equal(*pair) for pair in zip(run.states, expected, strict=True))
