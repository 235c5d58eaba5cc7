"""MaskRandom: the control of a policy. As many other keys, or keys with as much attention, chosen at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.policies.keep_top import KeepTop
from sinkscope.policies.mask_keys import MaskKeys
from sinkscope.policies.policy import Rule, ScoredRule, one_of, whole
from sinkscope.policies.window import Window

MATCHES = ("count", "mass")


@dataclass(frozen=True)
class MaskRandom(Rule):
    """Takes random keys that `like` would not take: in every head, row and step as many ("count"), or keys that received as
    much attention in all, as near as it gets ("mass"; what was reached is recorded as the hidden share).

    It has the scope, timing, effect and restrictions of its policy. A set is drawn anew only where the policy's own set has
    changed, from numbers keyed by the seed, the row's seed, layer, head and step: nothing depends on the rest of the batch.

    >>> from sinkscope.policies import MaskTop
    >>> str(MaskRandom(like=MaskTop(5)))
    'random(top:5)'
    """

    like: Rule
    match: Literal["count", "mass"] = "count"
    seed: int = 0

    word: ClassVar[str] = "random"

    def __post_init__(self) -> None:
        if not isinstance(self.like, Rule):
            raise InputError(
                f"MaskRandom(like=…) takes one policy that is not a combination, got {self.like!r}"
            )
        if isinstance(self.like, (MaskRandom, Window)):
            raise InputError(
                f"{self.like} has no random control: "
                + (
                    "it is one already"
                    if isinstance(self.like, MaskRandom)
                    else "a window takes other keys from every query"
                )
            )
        one_of("match", self.match, MATCHES)
        whole("seed", self.seed, 0)
        if self.options():
            raise InputError(
                "MaskRandom takes effect, layers, steps and regions from its policy; give them there"
            )
        if isinstance(self.like, KeepTop) and self.like.fraction < 0.5 and self.match == "count":
            raise InputError(
                f"{self.like} takes more keys than it leaves, so no equal number of others exists; use fraction ≥ 0.5"
            )
        object.__setattr__(self, "effect", self.like.effect)
        super().__post_init__()

    @property
    def empty_rule(self) -> bool:
        """Its policy takes nothing."""
        return self.like.empty_rule

    @property
    def needs_scores(self) -> bool:
        """Whether it can act only once there are scores."""
        return isinstance(self.like, ScoredRule) or self.match == "mass"

    def check_rule(self, layers: int, keys: int) -> None:
        """As its policy; and as many other keys must exist."""
        self.like.check_rule(layers, keys)
        many = max(map(len, self.like.by_layer.values()), default=0) if isinstance(self.like, MaskKeys) else 0
        many = max(many, getattr(self.like, "k", 0))
        if self.match == "count" and 2 * many > keys:
            raise InputError(
                f"{self} needs {many} other keys beside the {many} that its policy takes, but the sequence has only {keys}; "
                "use a smaller number, or match='mass'"
            )

    def acts(self, layer: int, step: int) -> bool:
        """As its policy."""
        return self.like.acts(layer, step)

    def options(self) -> dict[str, Any]:
        """Nothing but what a caller wrongly gave."""
        own: dict[str, Any] = {"layers": self.layers, "steps": self.steps, "regions": self.regions}
        found = {name: value for name, value in own.items() if value is not None}
        if self.effect not in ("hide", self.like.effect):
            found["effect"] = self.effect
        return found

    def __str__(self) -> str:
        tail = "" if self.match == "count" else f",match={self.match}"
        return f"random({self.like}){tail}" + (f",seed={self.seed}" if self.seed else "")

    def draw(self, chosen: Tensor, allowed: Tensor, scores: Tensor | None, priority: Tensor) -> Tensor:
        """A random set for each head.

        Args:
            chosen: Bool [B, h, K]: what the policy would take.
            allowed: Bool [B, h, K]: keys that may be taken; those in `chosen` never are.
            scores: Float [B, h, K], for match="mass".
            priority: Long [B, h, K]: random numbers; the smallest are taken first.

        Returns:
            Bool [B, h, K].
        """
        free = allowed & ~chosen
        order = priority.masked_fill(~free, torch.iinfo(torch.long).max).argsort(dim=-1, stable=True)
        if self.match == "count" or scores is None:
            take = chosen.sum(-1, keepdim=True)
        else:
            mass = scores.nan_to_num(0.0)
            target = (mass * chosen).sum(-1, keepdim=True)
            reached = (mass * free).gather(-1, order).cumsum(-1)
            reached = torch.nn.functional.pad(reached, (1, 0))
            left = torch.arange(reached.shape[-1], device=mass.device) > free.sum(-1, keepdim=True)
            # Of all lengths of the random order, the one whose attention comes nearest; the shortest of equals.
            take = (reached - target).abs().masked_fill(left, float("inf")).argmin(-1, keepdim=True)
        rank = torch.empty_like(order).scatter_(
            -1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order)
        )
        return (rank < take) & free
