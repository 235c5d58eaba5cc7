"""Follows a generation of the package step by step with the dense reference, and compares all that it recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tests.helpers import golden
from tests.policies.dense import Dense, Forward, imitated, rules
from torch import Tensor

import sinkscope as ss
from sinkscope.models.model import Model

PROMPT = 11
CLOSE = 1e-4
ACCOUNT = {
    "hidden_share": "share", "sinks_hit": "hit", "strongest_hit": "strongest", "sink_removed": "removed",
}  # fmt: skip
RECORDED = ("received", "received_raw", *ACCOUNT)
"""What a trace says of a step that the dense reference knows too."""


@dataclass(frozen=True)
class Setting:
    """A family with its loop, and how rows are batched.

    Attributes:
        batch: "plain": two rows of equal length. "padded": the second is shorter and padded. "seeds": the same, each row
            with a stream of its own.
    """

    family: str
    decoding: Any
    batch: str = "plain"

    def __str__(self) -> str:
        cfg = getattr(self.decoding, "cfg", 0)
        return f"{self.family}-{self.batch}" + (f"-cfg{cfg:g}" if cfg else "")


DECODINGS = {
    "llada": ss.LladaDecoding(length=12, steps=6, block=6),
    "dream": ss.DreamDecoding(length=12, steps=6),
    "mmada": ss.MmadaDecoding(length=12, steps=6, block=4),
    "llama": ss.GreedyDecoding(length=7, eos=None),
}
GUIDED = ss.LladaDecoding(length=12, steps=4, block=6, cfg=1.5)

PLAIN = [Setting(family, decoding) for family, decoding in DECODINGS.items()]
RAGGED = [Setting(family, decoding, batch) for family, decoding in DECODINGS.items() for batch in ("padded", "seeds")]
SETTINGS = [*PLAIN, *RAGGED, Setting("llada", GUIDED), Setting("llada", GUIDED, "padded")]


def prompts(family: str, rows: int = 2, length: int = PROMPT) -> Tensor:
    """Random ordinary tokens, always the same ones."""
    draw = torch.Generator().manual_seed(100 + len(family))
    return torch.randint(0, 470, (rows, length), generator=draw)


def inputs(setting: Setting) -> dict[str, Any]:
    """What to give to ss.generate besides the policy."""
    given: dict[str, Any] = {"prompts": prompts(setting.family), "decoding": setting.decoding, "seed": 3}
    if setting.batch != "plain":
        mask = torch.ones(2, PROMPT, dtype=torch.long)
        mask[1, :3] = 0
        given["attention_mask"] = mask
    if setting.batch == "seeds":
        given["seed"] = [8, 5]
    return given


@contextmanager
def heard(model: Model) -> Iterator[list[Tensor]]:
    """Collects the logits of every forward that the model makes inside."""
    calls: list[Tensor] = []
    causal = model.family == "causal"
    name = "forward" if causal else "hidden"
    plain = getattr(Model, name)

    def listening(self: Model, *arguments: Any, **options: Any) -> Tensor:
        found = plain(self, *arguments, **options)
        calls.append(found if causal else model.head(found))
        return found

    setattr(Model, name, listening)
    try:
        yield calls
    finally:
        setattr(Model, name, plain)


def follow(setting: Setting, policy: Any) -> tuple[Any, list[Dense]]:
    """Generates under the policy and checks every step against the dense reference; gives the run and the references."""
    model = golden.model(setting.family)
    given = inputs(setting)
    with heard(model) as calls:
        run = ss.generate(model, policy=policy, capture=ss.Capture(), **given)
    taken = run.trace.masked_keys().values
    references = []
    if reads_first(policy):  # each group's first forward is without the policy, and no step
        del calls[: 2 * (1 + (setting.batch == "seeds")) : 2]
    if setting.batch == "seeds":
        groups = [[1], [0]]  # shorter prompts run first
        for index, rows in enumerate(groups):
            offset = 3 if rows == [1] else 0
            mine = calls[index :: len(groups)]
            references.append(one_group(model, setting, policy, run, taken, rows, offset, None, mine))
    else:
        real = given.get("attention_mask")
        references.append(one_group(model, setting, policy, run, taken, [0, 1], 0, real, calls))
    return run, references


def one_group(
    model: Model,
    setting: Setting,
    policy: Any,
    run: Any,
    taken: np.ndarray,
    rows: list[int],
    offset: int,
    mask: Tensor | None,
    calls: list[Tensor],
) -> Dense:
    """Follows the rows that run together."""
    decoding, causal = setting.decoding, model.family == "causal"
    states = run.states[:, rows, offset:]
    S, P = states.shape[-1], PROMPT - offset
    real = torch.ones(len(rows), S, dtype=torch.bool)
    if mask is not None:
        real[:, :P] = mask.bool()
    dense = Dense(model, policy, P, real)
    assert len(calls) == len(run)
    recorded = {name: run.trace.dataset[name].values[rows] for name in RECORDED}
    for step in range(len(run)):
        x = states[step]
        theirs = list(np.moveaxis(taken[rows, step][..., offset:], 1, 0))
        where = f"step {step}"
        if causal:
            fed = 0 if step == 0 else P + step - 1
            if step == 0 and reads_first(policy):
                dense.read(x[:, :P])
            found = dense.forward(x[:, fed : P + step], theirs, prefill=step == 0)
            logits, heard_logits = found.logits[:, -1:], calls[step]
            after = x.clone()
            after[:, P + step] = logits[:, -1].argmax(-1)
            seen = torch.ones(len(rows), 1, dtype=torch.bool)
        elif getattr(decoding, "cfg", 0):
            free = torch.where(states[0] != model.ids.mask, model.ids.mask, x)
            found = dense.forward(torch.cat([x, free]), theirs, branches=2)
            logits, heard_logits = (
                b + (decoding.cfg + 1) * (a - b) for a, b in (found.logits.chunk(2), calls[step].chunk(2))
            )
            after, seen = decide(decoding, logits, x, states[step + 1], step, P, model.ids.mask), real
        else:
            found = dense.forward(x, theirs)
            logits, heard_logits = found.logits, calls[step]
            after, seen = decide(decoding, logits, x, states[step + 1], step, P, model.ids.mask), real
        here = {name: values[:, step] for name, values in recorded.items()}
        compare_step(here, found, theirs, offset, where)
        torch.testing.assert_close(
            heard_logits[seen].double(), logits[seen], atol=CLOSE * (1 + 2 * getattr(decoding, "cfg", 0)), rtol=CLOSE,
            msg=where,
        )  # fmt: skip
        assert torch.equal(states[step + 1], after), f"{where}: the loop decided otherwise"
    assert dense.adopted <= 0.02 * max(50, dense.choices), "too many choices were near ties"
    return dense


def reads_first(policy: Any) -> bool:
    """Whether a causal model reads its prompt once for scores."""
    return any(rule.prefill is True and waits(rule) for rule in rules(policy))


def waits(rule: Any) -> bool:
    """Whether a rule decides from scores of the step before."""
    return getattr(imitated(rule), "when", "") == "previous" or getattr(rule, "match", "") == "mass"


def compare_step(
    here: Mapping[str, np.ndarray], found: Forward, theirs: list[np.ndarray], offset: int, where: str
) -> None:
    """Masked sets exactly; scores and the account to 1e-4."""
    for layer, ours in enumerate(found.taken):
        K = ours.shape[-1]
        assert np.array_equal(theirs[layer][..., :K], ours), f"{where}, layer {layer}: other keys are taken"
        assert not theirs[layer][..., K:].any(), f"{where}: keys are taken that do not exist yet"
        for name, values in (("received", found.received), ("received_raw", found.raw)):
            recorded = here[name][:, layer, :, offset:]
            np.testing.assert_allclose(
                recorded[..., :K], values[layer], atol=CLOSE, rtol=CLOSE, err_msg=f"{where} {name}"
            )
            assert np.isnan(recorded[..., K:]).all()
        for name, ours_name in ACCOUNT.items():
            values = getattr(found, ours_name)
            np.testing.assert_allclose(here[name][:, layer], values[layer], atol=CLOSE, err_msg=f"{where} {name}")


def decide(decoding: Any, logits: Tensor, x: Tensor, theirs: Tensor, step: int, prompt: int, mask: int) -> Tensor:
    """The next state, as the official loops define it at temperature 0.

    Where confidences are equal to within rounding, but not exactly, either position may be decided: `theirs` is followed.
    """
    masked = x == mask
    after = x.clone()
    if isinstance(decoding, ss.DreamDecoding):
        shifted = torch.cat([logits[:, :1], logits[:, :-1]], 1)
        spread = shifted.softmax(-1)
        confidence = (spread * torch.log(spread + 1e-10)).sum(-1).masked_fill(~masked, float("-inf"))
        times = torch.linspace(1, decoding.eps, decoding.steps + 1)
        left = masked.sum() / len(x)
        share = 1.0 if step == decoding.steps - 1 else 1 - times[step + 1] / times[step]
        counts = [int(left * share)] * len(x)
        best = spread.argmax(-1)
    else:
        per_block = decoding.steps // (decoding.length // decoding.block)
        block, i = divmod(step, per_block)
        end = prompt + (block + 1) * decoding.block
        spread, best = logits.softmax(-1), logits.argmax(-1)
        confidence = spread.amax(-1).masked_fill(~masked, float("-inf"))
        confidence[:, end:] = float("-inf")
        many = decoding.block // per_block + (i < decoding.block % per_block)
        counts = [many] * len(x)
    for row, count in enumerate(counts):
        order = sorted(range(x.shape[1]), key=lambda j: -float(confidence[row, j]))
        ours, chosen = order[:count], (theirs[row] != x[row]).nonzero()[:, 0].tolist()
        left, new = set(ours) - set(chosen), set(chosen) - set(ours)
        gaps = [abs(float(confidence[row, i] - confidence[row, j])) for i in left for j in new]
        if len(left) == len(new) and gaps and all(0 < gap < CLOSE for gap in gaps):
            ours = chosen
        for j in ours:
            after[row, j] = best[row, j]
    return after
