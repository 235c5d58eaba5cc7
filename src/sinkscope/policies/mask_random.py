"""MaskRandom: the control of a policy. As many other keys, or keys with as much attention, chosen at random."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.attention.distant import settled
from sinkscope.attention.key_mask import first_real
from sinkscope.base.checks import whole
from sinkscope.base.errors import InputError
from sinkscope.policies.numbers import priorities
from sinkscope.policies.policy import POLICIES, Rule, ScoredRule

if TYPE_CHECKING:
    from sinkscope.policies.layer_view import LayerView

OPTIONS = tuple(item.name for item in fields(Rule))


class Draw(NamedTuple):
    """The latest random set of one layer.

    Attributes:
        chosen: Bool [B, h, K]: the set of the policy for which it was drawn.
        keys: Bool [B, h, K]: the random set.
        step: Long [B, h, 1]: when each head drew it; −1: it has not drawn yet.
    """

    chosen: Tensor
    keys: Tensor
    step: Tensor


@POLICIES.add
@dataclass(frozen=True)
class MaskRandom(Rule):
    """Masks random keys that `like` would not mask: the same number in every head, row and step ("count"), or keys that together
    received the same amount of attention, as near as possible ("mass"; what was reached is recorded as the attention removed).

    It has the scope, timing, effect and restrictions of its policy. A set is redrawn only if the policy's own set has
    changed, from numbers keyed by the seed, the row's seed, layer, head and step: nothing depends on the rest of the batch.

    >>> from sinkscope.policies.mask_top import MaskTop
    >>> str(MaskRandom(like=MaskTop(5)))
    'random(top:5)'
    """

    like: Rule
    match: Literal["count", "mass"] = "count"
    seed: int = 0

    word: ClassVar[str] = "random"
    inherited: ClassVar[tuple[str, ...]] = OPTIONS

    def __post_init__(self) -> None:
        if not isinstance(self.like, Rule):
            raise InputError(f"MaskRandom(like=…) takes one policy that is not a combination, got {self.like!r}")
        if self.like.original is not self.like or self.like.band() is not None:
            reason = "it masks other keys for every query" if self.like.original is self.like else "it is one already"
            raise InputError(f"{self.like} has no random control: {reason}")
        whole("seed", self.seed, 0)
        plain = (None, "hide", "all")
        if any(getattr(self, name) not in (*plain, getattr(self.like, name)) for name in OPTIONS):
            raise InputError(f"MaskRandom takes {', '.join(OPTIONS)} from its policy; give them there")
        share = self.like.key_share(1_000_000)
        if self.match == "count" and share is not None and share > 0.5:
            raise InputError(
                f"{self.like} masks more keys than it leaves, so no equal number of others exists; use fraction ≥ 0.5"
            )
        for name in OPTIONS:
            object.__setattr__(self, name, getattr(self.like, name))
        super().__post_init__()

    @property
    def original(self) -> Rule:
        return self.like

    def with_seed(self, seed: int) -> Rule:
        return replace(self, seed=seed)

    def key_share(self, keys: int) -> float | None:
        return self.like.key_share(keys) if self.match == "count" else None

    @property
    def empty(self) -> bool:
        return self.like.empty

    @property
    def most(self) -> int | None:
        """As its policy; not known when attention is matched."""
        return self.like.most if self.match == "count" else None

    @property
    def waits(self) -> bool:
        """As its policy; and attention can be matched only once there are scores."""
        return self.like.waits or (self.match == "mass" and not isinstance(self.like, ScoredRule))

    def check(self, layers: int, keys: int) -> None:
        """As its policy; and as many other keys must exist."""
        self.like.check(layers, keys)
        many = self.like.most or 0
        if self.match == "count" and 2 * many > keys:
            raise InputError(
                f"{self} needs {many} other keys beside the {many} that its policy masks, but the sequence has only {keys}; "
                "use a smaller number, or match='mass'"
            )

    def keys(self, view: LayerView) -> Tensor | None:
        """The set that it had where its policy chooses the same keys as before, else a new one."""
        runtime, keys = view.runtime, view.whole.keys
        scores = self.like.scores_in(view)
        if scores is None and self.match == "mass":
            scores = view.previous_scores("raw", "head")
        chosen = None if scores is None and self.waits else self.like.keys(view)
        if chosen is None:
            return None
        allowed = view.candidates(self.like, scores)
        width = max(chosen.shape[1], 1 if scores is None else scores.shape[1])
        chosen, allowed = (part.expand(runtime.rows, width, -1) for part in (chosen, allowed))
        last: Draw | None = view.recall()
        before = last or Draw(
            torch.zeros_like(chosen), torch.zeros_like(chosen), -torch.ones_like(chosen[..., :1], dtype=torch.long)
        )
        more = keys - before.keys.shape[-1]  # keys that have come since are in no set
        before = Draw(pad(before.chosen, (0, more)), pad(before.keys, (0, more)), before.step)
        same = (before.chosen == chosen).all(-1, keepdim=True) & (before.step >= 0)
        step = torch.where(same, before.step, runtime.row_steps(view.device)[..., None])
        lacks = self.match == "count" and not (self.most is not None and runtime.leaves(2 * self.most))
        if lacks and bool(((allowed & ~chosen).sum(-1) < chosen.sum(-1)).any()):
            raise InputError(
                f"{self}: in step {max(0, runtime.step)} its policy masks more keys than are left, so that no equal number of "
                "others exists; mask fewer keys, give a longer prompt, or use match='mass'"
            )
        layer = -1 if getattr(self.like, "scope", None) == "model" else view.layer
        # Moved once: a captured step cannot copy from the host.
        runtime.row_keys = runtime.row_keys.to(view.device)
        first = first_real(view.visibility, view.device)
        order = priorities(self.seed, runtime.row_keys, layer, width, step[..., 0], first, keys)
        drawn = torch.where(same, before.keys, self.draw(chosen, allowed, scores, order))
        latest = Draw(chosen, drawn, step)
        if runtime.taking is not None:  # a row that waits for others draws when its turn has come
            turn = runtime.taking[:, None, None]
            latest = Draw(*(torch.where(turn, now, old) for now, old in zip(latest, before, strict=True)))
        view.remember(Draw(*map(settled, last or (None,) * 3, latest)))
        return drawn.expand(-1, view.query.shape[1] if width > 1 else 1, -1)

    def draw(self, chosen: Tensor, allowed: Tensor, scores: Tensor | None, priority: Tensor) -> Tensor:
        """A random set for each head.

        Args:
            chosen: Bool [B, h, K]: what the policy would mask.
            allowed: Bool [B, h, K]: keys that may be masked; those in `chosen` never are.
            scores: Float [B, h, K], for match="mass".
            priority: Long [B, h, K]: random numbers; the smallest come first.

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
            reached = pad(reached, (1, 0))
            left = torch.arange(reached.shape[-1], device=mass.device) > free.sum(-1, keepdim=True)
            # Of all lengths of the random order, the one whose attention comes nearest; the shortest of equals.
            take = (reached - target).abs().masked_fill(left, float("inf")).argmin(-1, keepdim=True)
        index = torch.arange(order.shape[-1], device=order.device)
        # Where each key stands in the order, without a second sort.
        rank = torch.empty_like(order).scatter_(-1, order, index.expand_as(order))
        return (rank < take) & free
