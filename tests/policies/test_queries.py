"""Which queries a policy acts on, from which moment, in which heads and by which score: every step against the dense reference.

Epsilons below 0 are small enough that heads, layers and the whole of a tiny random model have keys on both sides of them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tests.helpers import golden
from tests.policies.follow import DECODINGS, GUIDED, Setting, follow, inputs
from tests.policies.test_blocks import DECODINGS as BLOCK_DECODINGS
from tests.policies.test_blocks import SETTINGS as BLOCK_SETTINGS
from tests.policies.test_blocks import follow as follow_blocks
from tests.policies.test_blocks import prompt as block_prompt

import sinkscope as ss

CAUSAL = [
    "first:1,prefill=no", "first:2,prefill=yes,effect=silence", "first:1,queries=scored",
    "first:2,queries=newest,prefill=no,effect=silence", "top:2,prefill=yes",
    "top:2,prefill=yes,queries=newest,effect=silence", "top:2@layer,prefill=no,queries=scored", "top:2,by=received",
    "top:2@layer,by=sum,prefill=yes", "top:2@model,by=received,prefill=yes,queries=scored", "top:2,by=distant,effect=silence",
    "top:2@model,by=distant,prefill=yes", "top:3,by=newest", "keep:0.5,by=received,prefill=yes", "keep:0.6@layer,by=distant",
    "above:-2", "above:-4@layer,effect=silence", "above:-4@model,prefill=yes", "above:1,prefill=yes,queries=newest",
    "above:-4@layer,when=same", "above:-2,when=same,prefill=no", "top:4,epsilon=-3", "top:4,epsilon=-3,among=others",
    "top:5@layer,epsilon=-5,among=others,by=received", "top:5@layer,epsilon=-5,by=received,prefill=yes",
    "top:6@model,epsilon=-6,by=sum", "top:6@model,epsilon=-6,among=others,prefill=yes",
    "top:5,epsilon=-2,among=others,when=same", "top:1,epsilon=3", "top:1,epsilon=3,among=others", "first:1,heads=1",
    "top:2,heads=0+2,by=received", "above:-3@model,heads=3,prefill=yes", "random(top:2,heads=1+3)",
    "random(top:2,prefill=yes,by=received)", "random(above:-2@layer,queries=newest),seed=3", "random(first:1,prefill=no)",
    "random(first:1,prefill=yes),match=mass", "random(top:2,by=received),match=mass", "first:1,heads=0 & top:1,heads=0+1",
    "first:1,prefill=no & keys:1=2+3,prefill=no", "window:4,prefill=no", "window:4,first=1,queries=newest", "token:{token}",
    "token:{token}+7,prefill=no,queries=newest,heads=2",
]  # fmt: skip

MASKED = [
    "first:2,queries=scored",
    "first:1,queries=masked,effect=silence",
    "first:2,queries=decided",
    "top:2,queries=scored,effect=silence",
    "top:2@layer,queries=masked,scores=masked",
    "top:3,queries=decided",
    "top:2,queries=masked,when=same",
    "above:1,queries=scored",
    "keep:0.5@model,queries=decided",
    "top:2,by=sum",
    "top:2@layer,by=received,queries=masked",
    "top:4,epsilon=1,among=others",
    "top:6@model,epsilon=0.5,among=others,queries=scored",
    "top:4@layer,epsilon=0.5,among=others,when=same",
    "top:3,heads=1+2,queries=decided",
    "first:1,heads=3",
    "random(top:2,queries=masked,heads=0)",
    "random(first:2,queries=decided),match=mass",
    "first:1,queries=masked & top:1,queries=masked",
    "window:4,queries=decided",
    "window:3,first=1,queries=scored,effect=silence",
    "token:{token}",
    "token:{mask},queries=decided",
]

BLOCKS = [
    "first:2,prefill=no", "first:2,prefill=yes,queries=masked", "first:1,queries=scored",
    "first:2,queries=decided,effect=silence", "top:2,prefill=no,by=sum", "top:3@layer,queries=scored",
    "top:2,queries=masked,effect=silence", "above:-4", "above:-6@layer,queries=decided", "above:-6@model",
    "above:-4,when=same", "top:6,epsilon=-6", "top:6,epsilon=-6,among=others",
    "top:6@layer,epsilon=-8,among=others,when=same", "top:2,heads=0+1", "random(top:2,prefill=no)", "window:5,prefill=no",
    "token:{token}", "token:{mask},queries=decided",
]  # fmt: skip


def policy_of(text: str, family: str) -> Any:
    """The policy; {token} is the first one that the model writes without it, {mask} the mask token."""
    return ss.parse_policy(text.format(token=first_written(family), mask=golden.model(family).ids.mask))


@cache
def first_written(family: str) -> int:
    """In the first step of the first row."""
    if family in BLOCK_DECODINGS:
        model = golden.model(family)
        run = ss.generate(model, block_prompt(model.shape.vocabulary), BLOCK_DECODINGS[family], seed=3)
    else:
        run = ss.generate(golden.model(family), **inputs(Setting(family, DECODINGS[family])))
    return int(run.states[1][0][run.states[1][0] != run.states[0][0]][0])


def tier(number: int, every: int) -> Any:
    return pytest.mark.soak if number % every else pytest.mark.slow


CAUSAL_CASES = [
    pytest.param(Setting("llama", DECODINGS["llama"], batch), text, id=f"{batch}-{text}", marks=tier(number + turn, 3))
    for turn, batch in enumerate(("plain", "padded", "seeds"))
    for number, text in enumerate(CAUSAL)
]
MASKED_CASES = [
    pytest.param(setting, text, id=f"{setting}-{text}", marks=tier(number + 2 * turn, 5))
    for turn, setting in enumerate(
        [
            Setting("llada", DECODINGS["llada"]),
            Setting("dream", DECODINGS["dream"], "padded"),
            Setting("dream", DECODINGS["dream"], "seeds"),
            Setting("mmada", DECODINGS["mmada"], "padded"),
            Setting("llada", GUIDED),
        ]
    )
    for number, text in enumerate(MASKED)
]
BLOCK_CASES = [
    pytest.param(
        family, cached, text, id=f"{family}-{'cached' if cached else 'recomputed'}-{text}", marks=tier(number + turn, 3),
    )
    for turn, (family, cached) in enumerate(BLOCK_SETTINGS)
    for number, text in enumerate(BLOCKS)
    if family != "diffusion_gemma"  # has no mask tokens to name queries by
]  # fmt: skip


@pytest.mark.parametrize(("setting", "text"), CAUSAL_CASES)
def test_a_causal_model_equals_dense(setting: Setting, text: str) -> None:
    run, _ = follow(setting, policy_of(text, setting.family))
    assert float(run.hidden_share.nan_to_num(0.0).max()) > 0, "it never acted"


@pytest.mark.parametrize(("setting", "text"), MASKED_CASES)
def test_a_diffusion_model_equals_dense(setting: Setting, text: str) -> None:
    run, _ = follow(setting, policy_of(text, setting.family))
    assert float(run.hidden_share.nan_to_num(0.0).max()) > 0, "it never acted"


@pytest.mark.parametrize(("family", "cached", "text"), BLOCK_CASES)
def test_a_block_loop_equals_dense(family: str, cached: bool, text: str) -> None:
    run = follow_blocks(family, cached, policy_of(text, family))
    assert float(run.hidden_share.nan_to_num(0.0).max()) > 0, "it never acted"
