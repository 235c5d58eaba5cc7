"""An observation is the step itself: it predicts what the run wrote, for every family, padded or not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import sinkscope as ss
from sinkscope.inspection.observation import PADDING, check_read_out, observe
from sinkscope.inspection.patch import donors_of, effects, patch, patched_logits, places

PROMPTS = [
    "Jack has 6 bags with 6 seeds each. How many seeds does he have?",
    "Ann has 3 pens. She buys 2. How many pens?",
]
DECODINGS = {
    "scratch": ss.LladaDecoding(length=8, steps=8, block=4),
    "multimodal": ss.MmadaDecoding(length=8, steps=8, block=8),
    "adapted": ss.DreamDecoding(length=8, steps=8),
    "causal": ss.GreedyDecoding(length=8),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [[0, 1], 0], ids=["apart", "padded"])
@pytest.mark.parametrize("name", DECODINGS)
def test_it_predicts_what_was_written(name: str, seed: int | list[int]) -> None:
    model = ss.load(f"organism/{name}", device="cpu", dtype="float32")
    run = ss.generate(model, PROMPTS, DECODINGS[name], seed=seed)
    check_read_out(model, run)
    rows = []
    for seen in observe(model, run, 3):
        rows += seen.rows
        row, column = seen.predicted.nonzero(as_tuple=True)
        decided = seen.decided[row, column]
        assert decided.any()
        best = seen.logits.argmax(-1)
        assert torch.equal(best[decided], seen.final[row, column][decided])
        assert bool(
            seen.received[:, seen.kind[:, None].expand(-1, seen.received.shape[2], -1) == PADDING].isnan().all()
        )
        where, control = places(seen)
        assert not bool((where & control).any())
        vectors = donors_of(seen)
        if len(seen.rows) == 1:  # its own strongest place for each kind: patching it there changes nothing
            only = torch.zeros_like(where)
            only[:, :, :, seen.strength[0, 0].argmax()] = True
            same = seen.residual[:-1, :, seen.strength[0, 0].argmax()][:, :, None].expand_as(vectors)
            for what in ("key", "value", "both", "residual"):
                after = patched_logits(seen, only, same, what)
                assert float(effects(seen, after, only)["kl"].nan_to_num().max()) < 1e-6
    assert sorted(rows) == [0, 1]


def test_a_causal_first_token_holds_nothing_of_its_run() -> None:
    """It sees itself alone: the vector of another run is the same one."""
    model = ss.load("organism/causal", device="cpu", dtype="float32")
    run = ss.generate(model, PROMPTS * 2, DECODINGS["causal"], seed=[0, 1, 2, 3])
    done = patch(model, run, "mean", what="residual")
    seen = next(observe(model, run, 0))
    first = seen.layer_sinks[:, :, 0]
    assert bool(first.any())
    if not bool(seen.layer_sinks[:, :, 1:].any()):
        assert float(done.sinks["kl"].max()) < 1e-5


def test_what_cannot_be_observed_is_refused() -> None:
    model = ss.load("organism/scratch", device="cpu", dtype="float32")
    run = ss.generate(model, PROMPTS[:1], DECODINGS["scratch"])
    guided = replace(run, decoding=replace(run.decoding, cfg=1.0))  # type: ignore[type-var]
    with pytest.raises(ss.InputError, match="cannot be inspected"):
        next(observe(model, guided, 0))
    with pytest.raises(ss.InputError, match="without a policy"):
        next(observe(model, replace(run, policy=ss.MaskTop(1)), 0))
    with pytest.raises(ss.InputError, match="has the steps 0 to 7"):
        next(observe(model, run, 8))
    with pytest.raises(ss.InputError, match="at least two rows"):
        patch(model, run, "mean")
