"""What a rule sees of one layer in one forward, and the keys that it chose for all layers together."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sinkscope.attention import fused
from sinkscope.attention.distant import block_sinks, forward_sinks, in_blocks
from sinkscope.attention.key_mask import KeyMask, listed
from sinkscope.attention.received import received
from sinkscope.attention.visibility import Scores, Visibility
from sinkscope.base.errors import InputError
from sinkscope.base.sink_rule import torch_sinks_of
from sinkscope.policies.policy import Rule, ScoredRule

if TYPE_CHECKING:
    from sinkscope.policies.runtime import PolicyRuntime


@cache
def _extras(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters) & {"tokens", "vocabulary", "sinks"}


class AllLayers:
    """The keys that one rule masks in every layer, chosen together from the scores of the previous step.

    Args:
        keys: Bool [layer, B, h, K], one layer for all at scope "model". layers: their indices.
    """

    def __init__(self, keys: Tensor, layers: list[int]) -> None:
        self.keys, self.layers = keys, layers
        self._for_kernels: tuple[tuple[Tensor, Tensor], Tensor] | None = None

    def number(self, layer: int) -> int:
        """Which of the sets is a layer's."""
        return self.layers.index(layer) if len(self.keys) > 1 else 0

    def for_kernels(self, most: int, query: Tensor, visibility: Visibility) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """KeyMask.listed and KeyMask.bias of all layers, [layer, …] each."""
        if self._for_kernels is None:
            masked = self.keys
            if visibility.real is not None:
                masked = masked & visibility.real[:, None]
            closed = masked if visibility.real is None else masked | ~visibility.real[:, None]
            shape = (len(masked), *query.shape[:2], masked.shape[-1])
            bias = torch.zeros(shape, dtype=query.dtype, device=query.device)
            bias.masked_fill_(closed, float("-inf"))
            self._for_kernels = listed(masked, most), bias[:, :, :, None]
        return self._for_kernels


@dataclass(frozen=True)
class LayerView:
    """What a rule sees of one layer in one forward.

    Attributes:
        number: of the rule among those of its policy. whole: the pattern, of both branches of a guided forward.
    """

    runtime: PolicyRuntime
    number: int
    layer: int
    query: Tensor
    key: Tensor
    whole: Visibility
    scale: float

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.query.device

    @property
    def visibility(self) -> Visibility:
        """The pattern of the conditional rows alone."""
        return self.whole.of_rows(self.runtime.rows)

    def score(self, rule: ScoredRule) -> str:
        """The kind of score that a rule decides from."""
        if self.runtime.causal:
            other = rule.by not in (None, "newest")
        else:  # where every query sees every key, a sum ranks them as `received` does
            other = rule.by == "sum" and self.runtime.one_sided(self.whole)
        return str(rule.by) if other else rule.scores

    def wanted(
        self, function: Callable[..., Any], scores: Tensor | None = None, rule: ScoredRule | None = None
    ) -> dict[str, Any]:
        """What a rule's function asks for by name: `tokens`, `vocabulary`, `sinks`.

        Args:
            scores: Float [N, h, K]: what the rule decides from, in whose shape it gets the rest.
        """
        names, runtime = _extras(getattr(function, "__func__", function)), self.runtime
        more: dict[str, Any] = {}
        if "tokens" in names:
            if runtime.now.tokens is None:
                raise InputError(
                    f"{runtime.policy} looks at tokens, which are not known in this forward; use ss.generate"
                )
            tokens = runtime.now.tokens[:, : self.whole.keys]
            more["tokens"] = tokens if scores is None else tokens.repeat(len(scores) // len(tokens), 1)[:, None]
        if "vocabulary" in names:
            more["vocabulary"] = runtime.vocabulary
        if "sinks" in names and rule is not None and scores is not None:
            more["sinks"] = partial(self._sinks, rule, scores)
        return more

    def _sinks(self, rule: ScoredRule, scores: Tensor, epsilon: float) -> Tensor:
        """Bool like scores Float [N, h, K]: the keys that are sinks, by what was measured so far where queries differ in keys."""
        runtime, judged = self.runtime, self.runtime.sinks.judged
        if judged is not None and rule.waits:
            sinks = judged.sinks(epsilon, rule.scope).transpose(0, 1)  # [layer, B, h, K]
        elif judged is not None and runtime.step > 0:
            sinks = judged.sinks(epsilon, rule.scope)[:, runtime.scores.layers("raw").index(self.layer)]
        elif runtime.causal:
            sinks = forward_sinks(*self._unmasked(), epsilon, rule.scope != "head")
        elif (telling := runtime.telling(self.visibility)) is not None:
            if rule.waits:
                sinks = runtime.sinks.in_blocks(scores, epsilon, self.score(rule) == "sum")
            else:
                sinks = block_sinks(scores, in_blocks(self.visibility, telling, self.device), epsilon)
        else:
            return torch_sinks_of(scores, epsilon)
        sinks = torch.nn.functional.pad(sinks, (0, scores.shape[-1] - sinks.shape[-1]))
        return sinks.reshape(scores.shape)

    def previous_scores(self, kind: str, scope: str) -> Tensor | None:
        """Float [B, h, K]: scores of the previous step over the present keys; new keys have none. None: no step before."""
        memory = self.runtime.scores
        if self.layer not in memory.layers(kind):
            return None
        scores = memory.before(kind, scope, self.whole.keys)
        return scores[memory.layers(kind).index(self.layer) if len(scores) > 1 else 0]

    def chosen_before(self, rule: ScoredRule) -> Tensor | None:
        """Bool [B, h, K]: what a rule chooses from the scores of the previous step; all layers are chosen for at once."""
        runtime = self.runtime
        if self.number not in runtime.chosen:
            kind = self.score(rule)
            layers = runtime.scores.layers(kind)
            if self.layer not in layers:
                return None
            scores = runtime.scores.before(kind, rule.scope, self.whole.keys)
            flat = scores.flatten(0, 1)
            allowed = self.candidates(rule).expand(scores.shape[1], -1, -1).repeat(len(scores), 1, 1) & ~flat.isnan()
            keys = rule.choose(flat, allowed, **self.wanted(rule.choose, flat, rule)).view(scores.shape)
            runtime.chosen[self.number] = AllLayers(keys, layers)
        chosen = runtime.chosen[self.number]
        return chosen.keys[chosen.number(self.layer)]

    def with_lists(self, mask: KeyMask) -> KeyMask:
        """The mask of this rule alone, as a GPU's kernels want it, where that can be made for all layers at once.

        That is a handful of kernels in place of as many for each layer.
        """
        rule, chosen = self.runtime.rules[self.number], self.runtime.chosen.get(self.number)
        drawn = rule.original is not rule
        if mask.most is None or chosen is None or drawn or rule.heads is not None or not mask.alike:
            return mask
        if not mask.strands_none(self.whole):
            return mask
        (indices, used), bias = chosen.for_kernels(mask.most, self.query, self.whole)
        number = chosen.number(self.layer)
        return replace(mask, listed=(indices[number], used[number]), bias=bias[number])

    def own_scores(self, scope: str) -> Tensor:
        """Float [B, h, K]: this forward's own scores, before anything is masked."""
        weights = None
        last = 1 if self.runtime.causal else self.runtime.now.active
        if last is not None:
            weights = torch.zeros(self.query.shape[0], 1, self.query.shape[2], device=self.device)
            weights[..., -last:] = 1.0
        scores = received(*self._unmasked(), weights)[: self.runtime.rows, :, 0]
        return scores.mean(1, keepdim=True) if scope == "layer" else scores

    def _unmasked(self) -> tuple[Scores, Tensor]:
        """The scores of this forward before anything is masked, and their log-sum-exp."""
        scores = Scores(self.query, self.key, self.whole, self.scale)
        return scores, fused.attend(scores, self.key)[1]  # the keys stand in for values that are not used

    def candidates(self, rule: Rule, scores: Tensor | None = None) -> Tensor:
        """Bool [B|1, h|1, K]: real keys with a score, in the rule's region; never the newest token of a causal model."""
        allowed, real, keys = self.maskable(rule), self.visibility.real, self.whole.keys
        if scores is not None:
            allowed = allowed & ~scores.isnan()
        if not self.runtime.causal:
            return allowed
        if real is None:
            return allowed & (torch.arange(keys, device=self.device) < keys - 1)
        # On a static cache columns that are not written yet are padding: the newest has no real one behind it.
        return allowed & torch.nn.functional.pad(real[:, 1:], (0, 1))[:, None]

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
