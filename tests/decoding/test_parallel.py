"""Parallel unmasking: what a step decides, against a loop written out plainly; rows, records of the exact loops, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.helpers import golden
from torch import Tensor

import sinkscope as ss
from sinkscope.decoding import decoding_from_json
from sinkscope.decoding.parallel import confident

PROMPT = torch.arange(20, 31)[None]
RULES: list[dict[str, Any]] = [{"threshold": 0.1}, {"threshold": 0.2}, {"factor": 2.6}, {"factor": 3.5}]
KINDS = {"llada": ss.LladaDecoding, "mmada": ss.MmadaDecoding}


def naive(family: str, prompt: Tensor, length: int, block: int, rule: dict[str, Any]) -> list[Tensor]:
    """One row, written out: sort the block's masks by confidence, take those that pass, at least one."""
    model = golden.model(family)
    mask = int(model.ids.mask)
    x = torch.cat([prompt[0], torch.full((length,), mask)])
    states = [x]
    for start in range(len(prompt[0]), len(x), block):
        while bool((x[start : start + block] == mask).any()):
            columns = (x[: start + block] == mask).nonzero()[:, 0].tolist()
            spread = model.logits(x[None])[0].double().softmax(-1)
            sure = sorted(((float(spread[one].max()), -one) for one in columns), reverse=True)
            x = x.clone()
            for rank, (confidence, column) in enumerate(sure, 1):
                passes = (
                    confidence >= rule["threshold"]
                    if "threshold" in rule
                    else (rank + 1) * (1 - confidence) < rule["factor"]
                )
                if rank > 1 and not passes:
                    break
                x[-column] = int(spread[-column].argmax())
            states.append(x)
    return states


@pytest.mark.parametrize("family", ["llada", "mmada"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_loop_is_the_plain_one(family: str, rule: dict[str, Any]) -> None:
    run = ss.generate(golden.model(family), PROMPT, KINDS[family](16, block=8, **rule))
    assert torch.equal(run.states[:, 0], torch.stack(naive(family, PROMPT, 16, 8, rule)))
    assert run.forwards == [len(run)]


def test_dream_decides_what_it_is_sure_of() -> None:
    model = golden.model("dream")
    one_by_one = ss.generate(model, PROMPT, ss.DreamDecoding(12, algorithm="maskgit_plus", threshold=1.0))
    assert len(one_by_one) == 12
    assert bool(((one_by_one.states[1:] != one_by_one.states[:-1]).sum(-1) == 1).all())
    run = ss.generate(
        model, PROMPT, ss.DreamDecoding(12, algorithm="maskgit_plus", threshold=0.02), capture=ss.Capture()
    )
    assert len(run) < 12
    data = run.trace.dataset
    sure = (data["confidence"] >= 0.02) & data["masked"]
    best = data["confidence"] == data["confidence"].max("key")
    assert bool((data["decided"] == (sure | (best & data["masked"]))).all())


def test_one_mask_per_step_is_the_exact_loop() -> None:
    """No confidence of the random checkpoint reaches the bound, so each step decides the best: the official schedule."""
    for family, kind in KINDS.items():
        model = golden.model(family)
        exact = ss.generate(model, PROMPT, kind(16, block=8))
        run = ss.generate(model, PROMPT, kind(16, block=8, threshold=1.0))
        assert torch.equal(run.states, exact.states)


@pytest.mark.slow
@pytest.mark.parametrize("reuse", [None, "prefix:block", "sparse:4"])
@pytest.mark.parametrize("family", ["llada", "mmada", "dream"])
def test_a_row_equals_its_run_alone(family: str, reuse: str | None) -> None:
    model = golden.model(family)
    decoding: Any = (
        ss.DreamDecoding(12, algorithm="maskgit_plus", threshold=0.03)
        if family == "dream"
        else KINDS[family](12, block=4, threshold=0.2)
    )
    ids = torch.randint(4, 400, (4, 10), generator=torch.Generator().manual_seed(5))
    together = ss.generate(model, ids, decoding, seed=[1, 2, 3, 4], reuse=reuse)
    steps = []
    for row in range(4):
        alone = ss.generate(model, ids[row : row + 1], decoding, seed=[row + 1], reuse=reuse)
        steps.append(len(alone))
        assert torch.equal(together.states[: len(alone) + 1, row], alone.states[:, 0])
        assert torch.equal(together.sequences[row], alone.sequences[0])
        assert together.forwards[row] == alone.forwards[0]
        if reuse is not None:
            assert (together.extras["reuse"].work.done[row], together.extras["reuse"].work.exact[row]) == (
                alone.extras["reuse"].work.done[0],
                alone.extras["reuse"].work.exact[0],
            )
    assert len(set(steps)) > 1  # they do go at different paces


def test_rows_of_one_stream_leave_a_block_together() -> None:
    model, decoding = golden.model("llada"), ss.LladaDecoding(8, block=4, threshold=0.2)
    ids = torch.randint(4, 400, (3, 10), generator=torch.Generator().manual_seed(5))
    run = ss.generate(model, ids, decoding)
    masked = run.states == model.ids.mask
    later, first = masked[:, :, 14:].sum(-1), masked[:, :, 10:14].sum(-1)
    begun = int((later < 4).any(1).nonzero()[0])
    assert bool((first[begun - 1] == 0).all())
    assert not bool(masked[-1].any())


def test_confident_by_hand() -> None:
    no = float("-inf")
    scores = torch.tensor([[0.5, 0.9, no, 0.95], [0.1, 0.2, 0.2, no], [no, no, no, no]])
    chosen, ties = confident(scores, 0.9, None)
    assert chosen.tolist() == [[False, True, False, True], [False, True, False, False], [False] * 4]
    assert ties.tolist() == [0, 1, 0]
    # 2 · 0.05 < 0.31, 3 · 0.1 < 0.31, 4 · 0.5 is not.
    chosen, _ = confident(scores, None, 0.31)
    assert chosen[0].tolist() == [False, True, False, True]


def test_records_of_the_exact_loops_stay_as_they_were() -> None:
    for decoding in (ss.LladaDecoding(), ss.MmadaDecoding(), ss.DreamDecoding()):
        assert not {"threshold", "factor"} & set(decoding.as_dict())
        assert decoding_from_json(decoding.to_json()) == decoding
    for decoding in (
        ss.LladaDecoding(threshold=0.9),
        ss.MmadaDecoding(factor=1.0),
        ss.DreamDecoding(algorithm="topk_margin", threshold=0.9),
    ):
        assert decoding_from_json(decoding.to_json()) == decoding
        assert {"threshold", "factor"} & set(decoding.as_dict())


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        (ss.LladaDecoding, {"threshold": 0.9, "factor": 1.0}, "one of them"),
        (ss.LladaDecoding, {"threshold": 1.5}, "at most at 1"),
        (ss.LladaDecoding, {"factor": -1.0}, "at least 0"),
        (ss.LladaDecoding, {"threshold": 0.9, "steps": 64}, "leave it out"),
        (ss.LladaDecoding, {"threshold": 0.9, "remasking": "random"}, "random"),
        (ss.DreamDecoding, {"threshold": 0.9}, "maskgit_plus"),
        (ss.DreamDecoding, {"threshold": 0.9, "algorithm": "maskgit_plus", "alg_temp": 0.1}, "alg_temp"),
    ],
)
def test_what_does_not_go_together_is_refused(kind: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ss.InputError, match=says):
        kind(**options)


def test_replay_and_positions_are_as_before() -> None:
    model = golden.model("llada")
    run = ss.generate(model, PROMPT, ss.LladaDecoding(8, block=4, threshold=0.9))
    with pytest.raises(ss.InputError, match="cannot follow"):
        ss.replay(model, run, "top:1")
    assert ss.LladaDecoding(8, 8, 4, 0.0, 0.0, "low_confidence", True) == ss.LladaDecoding(
        8, block=4, logits_eos_inf=True
    )
