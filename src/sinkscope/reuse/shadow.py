"""The error of approximate steps: an exact forward beside each of them, on the same state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sinkscope.base.extras import Extra
from sinkscope.decoding.engine import Engine
from sinkscope.reuse.rule import Reuse

if TYPE_CHECKING:
    from sinkscope.reuse.wrapper import Acting


@dataclass(frozen=True)
class Shadowed(Extra):
    """A rule with an exact forward beside each approximate one, so that the error of every step is known (`Reused.error`)."""

    rule: Reuse

    def identity(self) -> str:
        """The rule's: answers are the same."""
        return self.rule.identity()

    def check(self, *given: Any, **named: Any) -> None:
        self.rule.check(*given, **named)

    def begin(self) -> Acting:
        return self.rule.begin(shadowed=True)


class Shadow:
    """Compares the predictions of approximate forwards with those of exact ones. It doubles the work, and changes nothing.

    Attributes:
        exact: runs the exact forwards. cache: of a causal model's: their keys follow from exact attention all the way.
        kl: Float64 [B]: of the last forward, KL(exact ‖ approximate) in nats, mean over the positions that were read; NaN
            where a row read none.
    """

    def __init__(self, exact: Engine) -> None:
        self.exact, self.cache = exact, exact.model.new_cache()
        self.kl: Tensor | None = None

    def compare(self, exact: Tensor, found: Tensor, read: Tensor, alive: Tensor | None) -> None:
        """Take the logits [N, V] of the N positions that are marked in `read`, Bool [B, S]."""
        before, after = exact.double().log_softmax(-1), found.double().log_softmax(-1)
        kl = (before.exp() * (before - after)).nan_to_num(0.0).sum(-1).clamp(min=0.0)
        rows = read.nonzero()[:, 0]
        total = torch.zeros(len(read), dtype=torch.float64, device=kl.device).index_add_(0, rows, kl)
        mean = total / read.sum(1)
        self.kl = (mean if alive is None else mean.masked_fill(~alive, float("nan"))).cpu()
