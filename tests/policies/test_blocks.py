"""Policies in block loops against the dense reference: prefill, denoising and stored blocks, with a cache and without.

Scores are those of the active block's queries in the step before; forwards between two steps are masked by the same scores and
give none. Masked sets must be the same, scores, attention removed, sinks hit and logits agree to 1e-4.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import golden
from tests.policies.canvas import CanvasDense
from tests.policies.dense import Dense, rules
from tests.policies.follow import CLOSE, RECORDED, compare_step, heard
from tests.policies.matrix import everything, some
from torch import Tensor

import sinkscope as ss

PROMPT = 13
PADDED = {"a2d_bd3lm": 3}
"""Columns of padding that a loop puts before the prompt, so that it ends with a block."""
DECODINGS: dict[str, Any] = {
    "sdar": ss.SdarDecoding(length=10, block=4, steps=2, top_k=1, scoring="raw", threshold=1.0),
    "fast_dllm_v2": ss.FastDllmDecoding(length=16, block=8, small_block=4, threshold=0.3, stop=None),
    "a2d_bd3lm": ss.Bd3lmDecoding(length=14, block=8, steps=6),
    "nemotron_diffusion": ss.NemotronDecoding(length=16, block=8, threshold=0.2, eos=None),
    "diffusion_gemma": ss.DiffusionGemmaDecoding(16, 3, 0.5, stability_threshold=None, eos=None, canvas=8),
}
FROM_THE_PROMPT = ("nemotron_diffusion", "diffusion_gemma")
"""Folders of families whose blocks begin where the prompt ends, and that read what stands before causally."""
SETTINGS = [
    ("sdar", True), ("sdar", False), ("fast_dllm_v2", True), ("a2d_bd3lm", True), ("nemotron_diffusion", True),
    ("diffusion_gemma", True),
]  # fmt: skip
EVERY, FROM = 26, 8
"""`make test` runs one in so many of the whole matrix, `make soak` the rest; from there on these have every option."""


def can_be_followed(family: str, policy: Any) -> bool:
    """What a control draws between two steps is not recorded; sliding layers see too little of a prompt for one there."""
    control = isinstance(policy, ss.MaskRandom)
    if family == "diffusion_gemma" and control and getattr(policy.like, "regions", None):
        return False
    return not (control and getattr(policy.like, "when", "") == "same")


def followed(family: str, turn: int) -> Iterator[tuple[str, Any]]:
    """As `some`, with the next options for a policy that cannot be followed with its own."""
    for choices in zip(*(some(turn + more) for more in range(3)), strict=True):
        yield from [choice for choice in choices if can_be_followed(family, choice[1])][:1]


USUAL = [
    pytest.param(family, cached, policy, id=f"{family}-{'cached' if cached else 'recomputed'}-{name}")
    for turn, (family, cached) in enumerate(SETTINGS)
    for index, (name, policy) in enumerate(followed(family, turn))
    if (index + turn) % 3 == 0
]
"""Every policy once."""

ALL = [
    pytest.param(
        family, cached, policy, id=f"{family}-{'cached' if cached else 'recomputed'}-{name}",
        marks=pytest.mark.soak if (number + 17 * turn + FROM) % EVERY else pytest.mark.slow,
    )
    for turn, (family, cached) in enumerate(SETTINGS)
    for number, (name, policy) in enumerate(pair for pair in everything() if can_be_followed(family, pair[1]))
]  # fmt: skip


def forwards(
    run: ss.Run, mask: int | None, block: int, prompt: int | None, first: int
) -> Iterator[tuple[str, int, slice]]:
    """What the loop runs, from its states: kind, the step it is or comes before, and the columns that are fed.

    prompt: columns that are read before the first block; None: nothing is kept in a cache. first: as in Dense.
    """
    kinds = run.trace.dataset["forward_kind"].values[0]
    cached, stored = prompt is not None, prompt or 0
    if stored:
        yield "prefill", 0, slice(0, stored)
    for step, kind in enumerate(kinds):
        masks = run.states[step] >= 0 if mask is None else run.states[step] == mask
        last = int(masks.any(0).nonzero().max()) if mask is None else int(masks.any(0).long().argmax())
        end = ((last - first) // block + 1) * block + first
        if kind == 1:
            yield "store", step, slice(stored, stored + block)
            stored += block
            continue
        while cached and end > stored + block:  # the block before is finished, and stored by a forward of its own
            yield "between", step, slice(stored, stored + block)
            stored += block
        yield "denoise", step, slice(stored, end)


def prompt(vocabulary: int) -> Tensor:
    """Random ordinary tokens, always the same ones; the last dozen of the vocabulary are special."""
    return torch.randint(0, 240, (1, PROMPT), generator=torch.Generator().manual_seed(7)).clamp(max=vocabulary - 12)


def follow(family: str, cached: bool, policy: Any) -> ss.Run:
    """Generates under the policy and checks every forward against the dense reference."""
    model, decoding = golden.model(family), DECODINGS[family]
    ids = prompt(model.shape.vocabulary)
    with heard(model) as calls:
        run = ss.generate(model, ids, decoding, seed=3, policy=policy, capture=ss.Capture(), cache=cached)
    taken = run.trace.masked_keys().values
    recorded = {name: run.trace.dataset[name].values for name in RECORDED}
    width, onward = PROMPT + PADDED.get(family, 0), family in FROM_THE_PROMPT
    first = width if onward else 0
    real = torch.ones(1, run.states.shape[-1], dtype=torch.bool)
    if model.ids.mask is None:
        dense: Dense = CanvasDense(model, policy, width, real, decoding)
    else:
        dense = Dense(model, policy, width, real, decoding.block, first)
    same = any(getattr(getattr(rule, "like", rule), "when", "") == "same" for rule in rules(policy))
    # What is silenced is missing from the residual stream, and a norm then makes more of the rounding of what is left.
    close = CLOSE * (1 + any(getattr(rule, "effect", "") == "silence" for rule in rules(policy)))
    read = width if onward else width // decoding.block * decoding.block
    made = list(forwards(run, model.ids.mask, decoding.block, read if cached else None, first))
    assert len(calls) - len(made) == (cached and family == "sdar"), "the last block of SDAR is stored too"
    for (kind, step, columns), logits in zip(made, calls, strict=False):
        theirs: list[np.ndarray] | None = list(np.moveaxis(taken[:, step], 1, 0))
        is_step = kind in ("denoise", "store")
        if not is_step and same:
            theirs = None  # it looked at its own scores, which are not those of the next step
        if theirs is not None:
            theirs = [one[..., : columns.stop] for one in theirs]
        if family in PADDED and not is_step:  # each block hides what was padding when it began
            dense.real = run.states[step] != model.ids.pad
        state: Tensor = run.states[step][:, columns]
        found = dense.forward(
            state, theirs, stores=cached and kind != "denoise", step=is_step, prefill=kind == "prefill",
            onward=onward and kind != "denoise",
        )  # fmt: skip
        where, told = f"{kind} at step {step}, columns {columns.start} to {columns.stop}", dense.real[:, columns]
        torch.testing.assert_close(logits[told].double(), found.logits[told], atol=close, rtol=CLOSE, msg=where)
        if is_step:
            here = {name: values[:, step] for name, values in recorded.items()}
            compare_step(here, found, list(np.moveaxis(taken[:, step], 1, 0)), 0, where)
    assert dense.adopted <= 0.02 * max(50, dense.choices), "too many choices were near ties"
    return run


@pytest.mark.slow
@pytest.mark.parametrize(("family", "cached", "policy"), USUAL)
def test_policy_equals_dense(family: str, cached: bool, policy: Any) -> None:
    follow(family, cached, policy)


@pytest.mark.parametrize(("family", "cached", "policy"), ALL)
def test_every_option_equals_dense(family: str, cached: bool, policy: Any) -> None:
    follow(family, cached, policy)
