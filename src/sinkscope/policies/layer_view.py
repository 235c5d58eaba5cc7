"""What a rule sees of one layer in one forward, and the keys that it chose for all layers together."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sinkscope.attention import columns, fused
from sinkscope.attention.distant import block_sinks, forward_sinks, places
from sinkscope.attention.received import received
from sinkscope.attention.visibility import Visibility
from sinkscope.policies.policy import Rule, ScoredRule
from sinkscope.sink_rule import torch_sinks_of

if TYPE_CHECKING:
    from sinkscope.policies.runtime import PolicyRuntime


@cache
def _extras(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters) & {"tokens", "vocabulary", "sinks"}


class AllLayers:
    """The keys that one rule masks in every layer, chosen together from the scores of the previous step.

    Args:
        keys: Bool [layer, B, h, K]. layers: index of a layer → its place.
    """

    def __init__(self, keys: Tensor, layers: dict[int, int]) -> None:
        self.keys, self.layers = keys, layers
        self._for_kernels: tuple[tuple[Tensor, Tensor], Tensor] | None = None

    def for_kernels(
        self, most: int, query: Tensor, visibility: Visibility
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """KeyMask.listed and KeyMask.bias of all layers, [layer, …] each."""
        if self._for_kernels is None:
            masked = self.keys
            if visibility.real is not None:
                masked = masked & visibility.real[:, None]
            closed = masked if visibility.real is None else masked | ~visibility.real[:, None]
            shape = (len(masked), *query.shape[:2], masked.shape[-1])
            bias = torch.zeros(shape, dtype=query.dtype, device=query.device)
            bias.masked_fill_(closed, float("-inf"))
            self._for_kernels = columns.listed(masked, most), bias[:, :, :, None]
        return self._for_kernels


@dataclass(frozen=True)
class LayerView:
    """What a rule sees of one layer in one forward.

    Attributes:
        number: of the rule among those of its policy.
    """

    runtime: PolicyRuntime
    number: int
    layer: int
    query: Tensor
    key: Tensor
    whole: Visibility
    scale: float

    @property
    def step(self) -> int:
        """Steps before this one."""
        return max(0, self.runtime.step)

    @property
    def row_steps(self) -> Tensor:
        """Long [B, 1]: each row's own number of it; rows of a block loop that wait for others do not count."""
        if self.runtime.active is None:
            clock = self.runtime._clock
            number = torch.tensor(self.step) if clock is None else clock
            return number.to(self.device).expand(self.rows, 1)
        return (self.runtime._taken - 1).clamp(min=0)[:, None].to(self.device)

    @property
    def taking(self) -> Tensor | None:
        """Bool [B]: rows of a block loop that take part in this forward and do not wait for others; None: all."""
        return None if self.runtime.active is None else self.runtime._alive

    @property
    def rows(self) -> int:
        """Rows of the conditional branch."""
        return len(self.runtime.row_keys)

    @property
    def row_keys(self) -> Tensor:
        """Long [B]: what keys the random numbers of each row; moved once, because a captured step cannot copy from the host."""
        self.runtime.row_keys = self.runtime.row_keys.to(self.device)
        return self.runtime.row_keys

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.query.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.query.device

    @property
    def visibility(self) -> Visibility:
        """The pattern of the conditional rows alone."""
        if self.runtime.branches == 1 or self.whole.real is None:
            return self.whole
        return replace(self.whole, real=self.whole.real[: self.rows], dense=None)

    def score(self, rule: ScoredRule) -> str:
        """The kind of score that a rule decides from."""
        plain = "newest" if self.runtime.causal else "received"
        if (
            rule.by in (None, plain) or not self.runtime.causal
        ):  # every query sees every key: a sum ranks them alike
            return rule.scores
        return str(rule.by)

    def wanted(
        self, function: Callable[..., Any], scores: Tensor | None = None, rule: ScoredRule | None = None
    ) -> dict[str, Any]:
        """What a rule's function asks for by name: `tokens`, `vocabulary`, `sinks`.

        Args:
            scores: Float [N, h, K]: what the rule decides from, in whose shape it gets the rest.
        """
        names = _extras(getattr(function, "__func__", function))
        runtime = self.runtime
        more: dict[str, Any] = {}
        if "tokens" in names:
            tokens = runtime.present_tokens(self.whole.keys)
            if scores is not None:
                tokens = tokens.repeat(len(scores) // len(tokens), 1)[:, None]
            more["tokens"] = tokens
        if "vocabulary" in names:
            more["vocabulary"] = runtime.known_vocabulary()
        if "sinks" in names and rule is not None and scores is not None:
            more["sinks"] = partial(self._sinks, rule, scores)
        return more

    def _sinks(self, rule: ScoredRule, scores: Tensor, epsilon: float) -> Tensor:
        """Bool like scores Float [N, h, K]: the keys that are sinks, by what was measured so far where queries differ in keys."""
        runtime = self.runtime
        if runtime.causal and rule.waits:
            found = runtime.distant_sinks(epsilon, rule.scope)  # [layer, B, h, K]
        elif runtime.causal and runtime.step > 0:
            found = runtime.distant_sinks(epsilon, rule.scope)[
                list(runtime.previous["raw"]).index(self.layer)
            ]
        elif runtime.causal:
            _, lse = fused.attend(self.query, self.key, self.key, self.whole, None, self.scale)
            found = forward_sinks(
                self.query, self.key, lse, self.whole, self.scale, epsilon, rule.scope != "head"
            )
        elif runtime.active is not None and rule.waits:
            found = runtime.block_sinks(scores, epsilon)
        elif runtime.active is not None:
            found = block_sinks(scores, places(self.visibility, self.device), runtime.active, epsilon)
        else:
            return torch_sinks_of(scores, epsilon)
        found = torch.nn.functional.pad(found, (0, scores.shape[-1] - found.shape[-1]))
        return found.reshape(scores.shape)

    def previous_scores(self, kind: str, scope: str) -> Tensor | None:
        """Float [B, h, K]: scores of the previous step over the present keys; new keys have none. None: no step before."""
        runtime = self.runtime
        kept = runtime.previous.get(kind, {})
        if self.layer not in kept:
            return None
        if scope == "model":
            if kind not in runtime.model_scores:
                runtime.model_scores[kind] = torch.stack([one.mean(1) for one in kept.values()]).mean(0)[
                    :, None
                ]
            scores = runtime.model_scores[kind]
        else:
            scores = kept[self.layer].mean(1, keepdim=True) if scope == "layer" else kept[self.layer]
        return torch.nn.functional.pad(scores, (0, self.whole.keys - scores.shape[-1]), value=float("nan"))

    def chosen_before(self, rule: ScoredRule) -> Tensor | None:
        """Bool [B, h, K]: what a rule chooses from the scores of the previous step; all layers are chosen for at once."""
        runtime = self.runtime
        if self.number not in runtime.chosen:
            kind = self.score(rule)
            kept = runtime.previous.get(kind, {})
            if self.layer not in kept:
                return None
            if rule.scope == "head":
                scores = torch.stack(list(kept.values()))
            elif rule.scope == "layer":
                scores = torch.stack([layer.mean(1, keepdim=True) for layer in kept.values()])
            else:
                whole = self.previous_scores(kind, "model")
                scores = whole[None]  # type: ignore[index]
            grown = self.whole.keys - scores.shape[-1]
            scores = torch.nn.functional.pad(scores, (0, grown), value=float("nan"))
            flat = scores.flatten(0, 1)
            allowed = self.maskable(rule) & self._not_newest()
            allowed = allowed.expand(scores.shape[1], -1, -1).repeat(len(scores), 1, 1) & ~flat.isnan()
            more = self.wanted(rule.choose, flat, rule)
            keys = rule.choose(flat, allowed, **more).view(scores.shape)
            places = {layer: place if len(keys) > 1 else 0 for place, layer in enumerate(kept)}
            runtime.chosen[self.number] = AllLayers(keys, places)
        chosen = runtime.chosen[self.number]
        return chosen.keys[chosen.layers[self.layer]]

    def own_scores(self, scope: str) -> Tensor:
        """Float [B, h, K]: this forward's own scores, before anything is masked."""
        # The plain kernel gives the log-sum-exp; the keys stand in for values that are not used.
        _, lse = fused.attend(self.query, self.key, self.key, self.whole, None, self.scale)
        weights = None
        last = 1 if self.runtime.causal else self.runtime.active
        if last is not None:
            weights = torch.zeros(self.query.shape[0], 1, self.query.shape[2], device=self.device)
            weights[..., -last:] = 1.0
        scores = received(self.query, self.key, lse, self.whole, None, self.scale, weights)[: self.rows, :, 0]
        return scores.mean(1, keepdim=True) if scope == "layer" else scores

    def candidates(self, rule: Rule, scores: Tensor | None) -> Tensor:
        """Bool [B|1, h|1, K]: real keys with a score, in the rule's region; never the newest token of a causal model."""
        allowed = self.maskable(rule)
        if scores is not None:
            allowed = allowed & ~scores.isnan()
        return allowed & self._not_newest()

    def _not_newest(self) -> Tensor:
        """Bool [B|1, 1, K]: every key but the newest of a causal model."""
        real, keys = self.visibility.real, self.whole.keys
        if not self.runtime.causal or real is None:
            return (torch.arange(keys, device=self.device) < keys - self.runtime.causal)[None, None]
        # On a static cache columns that are not written yet are padding: the newest has no real one behind it.
        return torch.nn.functional.pad(real[:, 1:], (0, 1))[:, None]

    def maskable(self, rule: Rule) -> Tensor:
        """Bool [B|1, 1, K]: real keys in the rule's region."""
        index = torch.arange(self.whole.keys, device=self.device)
        allowed = torch.ones(1, 1, self.whole.keys, dtype=torch.bool, device=self.device)
        if rule.regions is not None:
            answer = index >= self.runtime.first
            if self.runtime.last is not None:
                answer = answer & (index < self.runtime.last)
            allowed = allowed & (~answer if rule.regions == "prompt" else answer)
        real = self.visibility.real
        return allowed if real is None else allowed & real[:, None]

    def recall(self) -> Any:
        """What the rule remembered about this layer; None: nothing yet."""
        return self.runtime.memory.get((self.number, self.layer))

    def remember(self, value: Any) -> None:
        """Keep something for the rule's next forward in this layer."""
        self.runtime.memory[self.number, self.layer] = value
