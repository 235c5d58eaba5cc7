"""`ss.replay`: what a policy changes along the states of a run that was generated without it.

Every step's forward runs twice on the recorded state, with and without the policy, so the comparison has no ceiling and no
diverging trajectories, and needs few samples. Scores of a policy that looks at the step before come from its own forwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sinkscope.decoding import causal, dream, llada
from sinkscope.decoding.engine import Engine
from sinkscope.decoding.groups import grouped, row_keys
from sinkscope.decoding.options import (
    Decoding,
    DreamDecoding,
    GreedyDecoding,
    LladaDecoding,
    MmadaDecoding,
    MmadaImageDecoding,
)
from sinkscope.errors import InputError
from sinkscope.generation.generate import check_decoding
from sinkscope.generation.run import Run
from sinkscope.models.model import Model
from sinkscope.policies.policy import Policy, check_policy
from sinkscope.policies.runtime import PolicyRuntime

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
    "hidden_share": "share of attention that the policy took",
    "sinks_hit": "share of the step's own sinks that the policy took",
}


@dataclass(frozen=True)
class Replay:
    """The comparison, step by step.

    Attributes:
        arrays: name → [B, steps, S] (kl, confidence, confidence_change, flipped, selected, selected_with; NaN or False where
            nothing is predicted) or [B, steps] (changed, hidden_share, sinks_hit).
        policy: the text form of the policy. model, decoding: where it was measured.
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
        known = ~np.isnan(self.arrays["kl"]) & acted[..., None]

        def mean(values: np.ndarray[Any, Any], where: np.ndarray[Any, Any]) -> float:
            kept = values[where].astype(float)
            kept = kept[~np.isnan(kept)]
            return float(kept.mean()) if kept.size else float("nan")

        per_position = {
            name: mean(self.arrays[name], known) for name in ("kl", "confidence_change", "flipped")
        }
        per_step = {name: mean(self.arrays[name], acted) for name in ("changed", "hidden_share", "sinks_hit")}
        return {**per_position, **per_step}

    def __repr__(self) -> str:
        inside = ", ".join(f"{name} {value:.4g}" for name, value in self.summary().items())
        return f"<replay of {self.policy} on {self.model}: {inside}>"


def replay(model: Model, run: Run, policy: Policy) -> Replay:
    """Compares every step of a recorded run with and without a policy.

    Args:
        run: from `ss.generate` with the same model and without a policy.
    """
    decoding = run.decoding
    if run.policy is not None:
        raise InputError(f"replay needs a run without a policy, this one was made under {run.policy}")
    if isinstance(decoding, MmadaImageDecoding):
        raise InputError("replay compares text; image decodings have no candidates to compare")
    check_decoding(model, decoding)
    columns = run.states.shape[-1]
    checked = check_policy(policy, model.shape.layers, columns)
    rows = run.states.shape[1]
    arrays = _blank(rows, run.steps, columns)
    for group in grouped(rows, _lengths(run), isinstance(run.seed, list)):
        offset = run.prompt - _lengths(run)[group[0]] if isinstance(run.seed, list) else 0
        real = None
        if run.real is not None and offset == 0 and not isinstance(run.seed, list):
            tail = torch.ones(len(group), columns - run.prompt, dtype=torch.bool, device=model.device)
            real = torch.cat([run.real[group].to(model.device), tail], 1)
        acting = None
        if checked is not None:
            acting = PolicyRuntime(checked, row_keys(run.seed, group), model.kind.causal, run.prompt - offset)
        states = run.states[:, group, offset:].to(model.device)
        engines = Engine(model, real), Engine(model, real, acting=acting)
        pair = _Pair(*engines, decoding, run.prompt - offset, isinstance(run.seed, list))
        for step, found in enumerate(pair.compare(states)):
            for name, value in found.items():
                if value.ndim == 2:
                    arrays[name][group, step, offset : offset + value.shape[1]] = value
                else:
                    arrays[name][group, step] = value
    return Replay(arrays, str(policy), model.source, decoding)


def _lengths(run: Run) -> list[int]:
    if run.real is None:
        return [run.prompt] * run.states.shape[1]
    return [int(count) for count in run.real.sum(1)]


def _blank(rows: int, steps: int, columns: int) -> dict[str, np.ndarray[Any, Any]]:
    nan = np.full((rows, steps, columns), np.nan, dtype=np.float32)
    no = np.zeros((rows, steps, columns), dtype=bool)
    found: dict[str, np.ndarray[Any, Any]] = {
        name: nan.copy() for name in ("kl", "confidence", "confidence_change")
    }
    found |= {name: no.copy() for name in ("flipped", "selected", "selected_with")}
    found |= {name: nan[..., 0].copy() for name in ("changed", "hidden_share", "sinks_hit")}
    return found


@dataclass
class _Pair:
    """The same state with and without the policy; each_stops: every row ends by itself, whatever the others do."""

    plain: Engine
    acted: Engine
    decoding: Decoding
    prompt: int
    each_stops: bool

    def compare(self, states: Tensor) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        """Yields the arrays [B, S] and [B] of each step."""
        if isinstance(self.decoding, GreedyDecoding):
            yield from self._causal(states)
            return
        mask = self.plain.mask_id
        given = states[0] != mask
        for step in range(len(states) - 1):
            x = states[step]
            masked = (x == mask) & self._alive(step, x)[:, None]
            selectable = masked & self._reachable(step, x)
            one, two = (self._logits(engine, x, given, masked) for engine in (self.plain, self.acted))
            count = ((states[step + 1] != x) & masked).sum(1).tolist()
            yield self._differences(one, two, masked, selectable, count, self._alive(step, x))

    def _causal(self, states: Tensor) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        from transformers import DynamicCache

        caches = DynamicCache(), DynamicCache()
        for step in range(len(states) - 1):
            column = self.prompt + step
            fed = 0 if step == 0 else column - 1
            one, two = (
                engine.next_logits(states[step], column, fed, cache)
                for engine, cache in zip((self.plain, self.acted), caches, strict=True)
            )
            alive = self._alive(step, states[step])
            where = torch.zeros_like(states[step], dtype=torch.bool)
            where[:, column] = alive
            yield self._differences(one[alive], two[alive], where, where, alive.long().tolist(), alive)

    def _alive(self, step: int, x: Tensor) -> Tensor:
        """Bool [B]: rows that had not ended before this step; nothing is predicted for the others."""
        if isinstance(self.decoding, GreedyDecoding):
            ends = torch.tensor(causal.end_ids(self.plain, self.decoding), dtype=torch.long, device=x.device)
            return ~torch.isin(x[:, self.prompt : self.prompt + step], ends).any(1)
        alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
        if isinstance(self.decoding, MmadaDecoding) and self.decoding.stop_at is not None and self.each_stops:
            size, per_block = (
                self.decoding.block,
                self.decoding.steps * self.decoding.block // self.decoding.length,
            )
            for block in range(step // per_block):
                alive &= x[:, self.prompt + (block + 1) * size - 1] != self.decoding.stop_at
        return alive

    def _reachable(self, step: int, x: Tensor) -> Tensor:
        """Columns that the loop may decide in this step."""
        columns = torch.arange(x.shape[1], device=x.device)[None]
        if isinstance(self.decoding, (LladaDecoding, MmadaDecoding)):
            per_block = self.decoding.steps // (self.decoding.length // self.decoding.block)
            return columns < self.prompt + (step // per_block + 1) * self.decoding.block
        return columns >= 0

    def _logits(self, engine: Engine, x: Tensor, given: Tensor, masked: Tensor) -> Tensor:
        """Float [N, V] at the masked positions, guidance applied, Dream's shift included."""
        cfg = getattr(self.decoding, "cfg", 0.0)
        if cfg > 0:
            hidden, twin = engine.guided(x, torch.where(given, engine.mask_id, x), engine.real)
            free = engine.model.head(twin[masked])
            return free + (cfg + 1) * (engine.model.head(hidden[masked]) - free)
        hidden = engine.hidden(x)
        if isinstance(self.decoding, DreamDecoding):
            return engine.model.head(dream.shifted(hidden, masked))
        return engine.model.head(hidden[masked])

    def _differences(
        self, one: Tensor, two: Tensor, where: Tensor, selectable: Tensor, count: list[int], alive: Tensor
    ) -> dict[str, np.ndarray[Any, Any]]:
        before, after = one.double().log_softmax(-1), two.double().log_softmax(-1)
        kl = (before.exp() * (before - after)).nan_to_num(0.0).sum(-1).clamp(min=0.0)
        best, confidence = self._candidates(one)
        other, changed_confidence = self._candidates(two)
        placed = {
            "kl": _placed(kl, where),
            "confidence": _placed(confidence, where),
            "confidence_change": _placed(changed_confidence - confidence, where),
            "flipped": _placed(best != other, where),
        }
        chosen = _selected(_placed(confidence, where), selectable, count)
        chosen_with = _selected(_placed(changed_confidence, where), selectable, count)
        found = {name: value.float().cpu().numpy() for name, value in placed.items() if name != "flipped"}
        found["flipped"] = (placed["flipped"] == 1).cpu().numpy()
        found["selected"], found["selected_with"] = chosen.cpu().numpy(), chosen_with.cpu().numpy()
        lost = (chosen & ~chosen_with).sum(1) / chosen.sum(1)
        found["changed"] = lost.float().cpu().numpy()
        share, hit = self._account(len(where))
        ended = ~alive.cpu().numpy()
        share[ended], hit[ended] = np.nan, np.nan
        return {**found, "hidden_share": share, "sinks_hit": hit}

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The best candidate and its confidence as the loop defines it, without random draws: Long [N], Float64 [N]."""
        if isinstance(self.decoding, DreamDecoding):
            candidate, confidence = dream.best(logits, self.decoding)
        elif isinstance(self.decoding, LladaDecoding):
            rules = llada.llada_rules(self.plain, self.decoding)
            candidate, confidence = llada.candidates(logits.clone(), None, self.decoding, rules)
            if self.decoding.remasking == "random":
                confidence = logits.softmax(-1).amax(-1)
        else:
            confidence, candidate = logits.double().softmax(-1).max(-1)
        return candidate, confidence.double()

    def _account(self, rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        if self.acted.acting is None:
            return np.zeros(rows, dtype=np.float32), np.full(rows, np.nan, dtype=np.float32)
        account = self.acted.acting.account
        share = torch.stack(list(account.share.values())).mean((0, 2))
        hit = torch.stack(list(account.hit.values())).transpose(0, 1).flatten(1).nanmean(1)
        return share.cpu().numpy(), hit.cpu().numpy()


def _placed(values: Tensor, where: Tensor) -> Tensor:
    """Values of the marked positions in a frame [B, S] of NaN."""
    frame = torch.full(where.shape, float("nan"), dtype=torch.float64, device=where.device)
    frame[where] = values.double()
    return frame


def _selected(confidence: Tensor, selectable: Tensor, count: list[int]) -> Tensor:
    """Bool [B, S]: the `count` most confident selectable positions of each row."""
    scores = confidence.masked_fill(~selectable, float("-inf"))
    chosen = torch.zeros_like(selectable)
    for row, many in enumerate(count):
        if many:
            chosen[row, torch.topk(scores[row], many).indices] = True
    return chosen & selectable
