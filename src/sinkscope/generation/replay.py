"""`ss.replay`: what a policy changes along the states of a run that was generated without it.

Every step's forward runs twice on the recorded state, with and without the policy, so the comparison has no ceiling and no
diverging trajectories, and needs few samples. Scores of a policy that looks at the previous step come from its own forwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sinkscope.base.errors import InputError
from sinkscope.base.masked import MASK
from sinkscope.decoding.base import Decoding
from sinkscope.decoding.causal import newest
from sinkscope.decoding.groups import Plan
from sinkscope.decoding.step import Loop, select
from sinkscope.generation.generate import check_decoding
from sinkscope.generation.run import Run
from sinkscope.models.load import as_model
from sinkscope.models.model import Model
from sinkscope.models.prompts import PromptBatch
from sinkscope.policies.policy import Policy, check_policy
from sinkscope.policies.text import as_policy

if TYPE_CHECKING:
    import xarray

UNITS = {
    "kl": "nats, KL(without the policy ‖ with it) of the prediction",
    "confidence": "confidence of the best candidate without the policy",
    "confidence_change": "confidence with the policy minus without",
    "flipped": "the best candidate is another one with the policy",
    "selected": "selected without the policy",
    "selected_with": "selected with the policy",
    "changed": "share of the selections that differ",
    "hidden_share": "share of attention that the policy masked",
    "sinks_hit": "share of the sinks that the policy masked",
    "strongest_hit": "share of heads with a sink whose strongest one the policy masked",
    "sink_removed": "share of the attention on sinks that the policy masked",
}


@dataclass(frozen=True)
class Replay:
    """The comparison, step by step.

    Attributes:
        arrays: name → [B, steps, S] (kl, confidence, confidence_change, flipped, selected, selected_with; NaN or False where
            nothing is predicted) or [B, steps] (changed, hidden_share, sinks_hit).
        policy: the text form of the policy. model, decoding: where it was measured.

    >>> plain = ss.generate(model, prompts, decoding)
    >>> found = ss.replay(model, plain, "top:1")
    >>> found.arrays["kl"].shape, found.policy    # [B, steps, S], nats
    ((1, 16, 55), 'top:1')
    """

    arrays: dict[str, np.ndarray[Any, Any]]
    policy: str
    model: str
    decoding: Decoding

    @property
    def dataset(self) -> xarray.Dataset:
        """The arrays with labels and units."""
        import xarray

        variables = {
            name: (("sample", "step", "key")[: array.ndim], array, {"units": UNITS[name]})
            for name, array in self.arrays.items()
        }
        about = {"policy": self.policy, "model": self.model, "decoding": self.decoding.to_json()}
        return xarray.Dataset(variables, attrs=about)

    def summary(self) -> dict[str, float]:
        """Means over everything that was predicted in the steps in which the policy acted."""
        acted = np.nan_to_num(self.arrays["hidden_share"]) > 0
        computed = ~np.isnan(self.arrays["kl"]) & acted[..., None]

        def mean(values: np.ndarray[Any, Any], where: np.ndarray[Any, Any]) -> float:
            numbers = values[where].astype(float)
            numbers = numbers[~np.isnan(numbers)]
            return float(numbers.mean()) if numbers.size else float("nan")

        per_position = {name: mean(self.arrays[name], computed) for name in ("kl", "confidence_change", "flipped")}
        per_step = {name: mean(self.arrays[name], acted) for name in ("changed", "hidden_share", "sinks_hit")}
        return {**per_position, **per_step}

    def __repr__(self) -> str:
        inside = ", ".join(f"{name} {value:.4g}" for name, value in self.summary().items())
        return f"<replay of {self.policy} on {self.model}: {inside}>"


def replay(model: Model, run: Run, policy: Policy | str) -> Replay:
    """Compare every step of a recorded run with and without a policy.

    Args:
        run: from `ss.generate` with the same model and without a policy.
        policy: a policy or its text.

    >>> plain = ss.generate(model, prompts, decoding)
    >>> table = ss.replay(model, plain, ss.MaskTop(1)).summary()
    >>> float(table["hidden_share"]) > 0
    True
    """
    model, decoding = as_model(model), run.decoding
    if run.policy is not None:
        raise InputError(f"replay needs a run without a policy, this one was made under {run.policy}")
    if not decoding.replayable:
        raise InputError(f"replay cannot follow {decoding}: its steps have no fixed place, or no candidates to compare")
    check_decoding(model, decoding)
    model = model.mode(decoding.causal)
    columns, shape = run.states.shape[-1], model.shape
    real = None if run.real is None else run.real.to(model.device)
    prompts = run.states[0][:, : run.prompt].to(model.device)
    batch = PromptBatch(prompts, real, model.spec.padding != "left")
    shortest, learned = min(batch.lengths) + columns - run.prompt, model.has_learned_sinks
    kind = model.attention_kind
    checked = check_policy(as_policy(policy), shape.layers, shortest, kind, shape.heads, learned)
    plan = Plan(model=model, batch=batch, decoding=decoding, seed=run.seed, policy=checked)
    arrays = _blank(len(prompts), len(run), columns)
    for rows in plan.groups():
        end = columns if rows.end is None else rows.end + decoding.new_tokens
        states = run.states[:, rows.rows, rows.offset : end].to(model.device)
        # Two engines: the policy's scores of the previous step must come from its own forwards.
        with replace(plan, policy=None).engine(rows) as plain, plan.engine(rows) as masked:
            pair = _Pair(decoding.on(plain), decoding.on(masked), decoding, plan.ids(rows).shape[1], rows.per_row)
            for step, compared in enumerate(pair.compare(states)):
                for name, value in compared.items():
                    # Values of positions lie at their group's offset, as groups differ in length; others are one of each row.
                    columns_here = (slice(rows.offset, rows.offset + value.shape[1]),) if value.ndim == 2 else ()
                    arrays[name][(rows.rows, step, *columns_here)] = value
    return Replay(arrays, str(as_policy(policy)), model.source, decoding)


def _blank(rows: int, steps: int, columns: int) -> dict[str, np.ndarray[Any, Any]]:
    shape = rows, steps, columns
    arrays: dict[str, np.ndarray[Any, Any]] = {
        name: np.full(shape, np.nan, dtype=np.float32) for name in ("kl", "confidence", "confidence_change")
    }
    arrays |= {name: np.zeros(shape, dtype=bool) for name in ("flipped", "selected", "selected_with")}
    return arrays | {name: np.full(shape[:2], np.nan, dtype=np.float32) for name in ("changed", *MASK)}


@dataclass
class _Pair:
    """The same state with and without the policy; per_row: every row ends by itself, whatever the others do."""

    plain: Loop[Any]
    masked: Loop[Any]
    decoding: Decoding
    prompt: int
    per_row: bool

    def compare(self, states: Tensor) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        """Yield the arrays [B, S] and [B] of each step."""
        model, loops = self.plain.model, (self.plain, self.masked)
        caches = [model.new_cache() for _ in loops]
        mask_id = None if self.decoding.causal else self.plain.engine.mask_id
        for step, (x, after) in enumerate(pairwise(states)):
            alive = self.decoding.alive(model, x, self.prompt, step, self.per_row)
            if mask_id is None:
                column = self.prompt + step
                where = torch.zeros_like(x, dtype=torch.bool)
                where[:, column] = alive
                selectable, count = where, alive.long().tolist()
                fed = 0 if step == 0 else column - 1
                plain, masked = (
                    loop.engine.forward(newest(x, column, fed, cache))[alive]
                    for loop, cache in zip(loops, caches, strict=True)
                )
            else:
                where = (x == mask_id) & alive[:, None]
                selectable = where & self.decoding.reachable(x, self.prompt, step)
                count = ((after != x) & where).sum(1).tolist()
                plain, masked = (loop.predictions(x, states[0] != mask_id, where) for loop in loops)
            yield self._differences(plain, masked, where, selectable, count, alive)

    def _differences(
        self, one: Tensor, two: Tensor, where: Tensor, selectable: Tensor, count: list[int], alive: Tensor
    ) -> dict[str, np.ndarray[Any, Any]]:
        before, after = one.double().log_softmax(-1), two.double().log_softmax(-1)
        kl = (before.exp() * (before - after)).nan_to_num(0.0).sum(-1).clamp(min=0.0)
        (best, confidence), (other, changed) = self.plain.best(one), self.plain.best(two)
        placed = {"kl": kl, "confidence": confidence, "confidence_change": changed - confidence}
        arrays = {name: _placed(values, where).float().cpu().numpy() for name, values in placed.items()}
        chosen, chosen_with = (
            select(_placed(values, where).masked_fill(~selectable, float("-inf")), count)[0] & selectable
            for values in (confidence, changed)
        )
        flipped = _placed(best != other, where) == 1
        truths = {"flipped": flipped, "selected": chosen, "selected_with": chosen_with}
        arrays |= {name: truth.cpu().numpy() for name, truth in truths.items()}
        lost = (chosen & ~chosen_with).sum(1) / chosen.sum(1)
        return {**arrays, "changed": lost.float().cpu().numpy(), **self._account(~alive.cpu().numpy())}

    def _account(self, ended: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """What the policy did in each row, over layers and heads: Float32 [B] each, NaN where there is nothing to count."""
        account = self.masked.engine.account
        shares = np.full((len(MASK), len(ended)), np.nan, dtype=np.float32)
        if account is None:
            shares[0] = 0.0  # a policy that never acts took nothing, of how many sinks was not looked at
        else:
            shares = (account.sums[::2] / account.sums[1::2]).float().cpu().numpy()
        shares[:, ended] = np.nan
        return dict(zip(MASK, shares, strict=True))


def _placed(values: Tensor, where: Tensor) -> Tensor:
    """Values of the marked positions in a frame [B, S] of NaN."""
    frame = torch.full(where.shape, float("nan"), dtype=torch.float64, device=where.device)
    frame[where] = values.double()
    return frame
