"""A causal model under sparse rules: the newest token sees the kept keys and itself, by the layers written out one by one."""

from __future__ import annotations

import pytest
import torch
from tests.helpers import golden
from tests.reuse.test_partial import Reference

import sinkscope as ss
from sinkscope.reuse.rule import Candidates
from sinkscope.reuse.text import shadowed

PROMPT = 18


def kept_keys(rule: str, column: int) -> list[int]:
    """The keys before a column that the rules of the test keep for it."""
    before = list(range(column))
    return {
        "sparse:5,by=recent": before[-5:],
        "sparse:6,by=first:2+recent": sorted({*before[:2], *before[-4:]}),
        "sparse:4,by=first": before[:4],
        "sparse:1.0": before,
    }[rule]


@pytest.mark.parametrize(
    "rule", ["sparse:5,by=recent", "sparse:6,by=first:2+recent", "sparse:4,by=first", "sparse:1.0"]
)
def test_new_tokens_see_the_kept_keys_only(rule: str) -> None:
    model = golden.model("llama")
    prompt = torch.randint(4, 400, (1, PROMPT), generator=torch.Generator().manual_seed(2))
    run = ss.generate(model, prompt, ss.GreedyDecoding(8, eos=None), reuse=shadowed(rule))
    ids, layers = run.sequences[0], model.shape.layers
    reference = Reference("llama")
    reference(ids, list(range(len(ids))))  # room for all keys; each is written anew below
    seen = []
    for column in range(len(ids)):
        kept = list(range(column)) if column < PROMPT else kept_keys(rule, column)
        hidden = reference(ids, [column], [kept] * layers)
        if column >= PROMPT - 1:
            seen.append(int(model.head(hidden).argmax(-1)[0]))
    assert seen[:-1] == ids[PROMPT:].tolist()
    assert run.extras["reuse"].work is not None
    assert (run.extras["reuse"].work.saved > 0) == (rule != "sparse:1.0")


def test_a_share_is_of_all_keys_so_far() -> None:
    """Else a share of what is left would be taken in every step, and soon nothing would be left."""
    keys = torch.tensor([[True] * 4 + [False] * 6])
    scores = torch.arange(10.0)[None].double()
    candidates = Candidates(keys, scores, scores, scores, scores, torch.tensor([10]))
    assert int(ss.SparseReuse(0.5).choose(candidates).sum()) == 4
    assert int(ss.SparseReuse(0.3).choose(candidates).sum()) == 3
    model = golden.model("llama")
    prompt = torch.arange(20, 60)[None]
    run = ss.generate(model, prompt, ss.GreedyDecoding(30, eos=None), reuse="sparse:0.5,by=recent")
    per_pair = 2 * model.shape.layers * model.shape.heads * model.shape.head_dim
    # Half of the keys before the newest token, rounded up, and itself.
    skipped = sum((40 + step) - (-(-(39 + step) // 2) + 1) for step in range(1, 30))
    assert run.extras["reuse"].work.exact[0] - run.extras["reuse"].work.done[0] == pytest.approx(
        skipped * per_pair, rel=0.05
    )
