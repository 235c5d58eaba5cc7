"""How near approximate steps come to exact ones: whole runs compared, and an exact forward beside each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sinkscope.base.errors import InputError
from sinkscope.base.extras import Extra
from sinkscope.reuse.rule import Reuse

if TYPE_CHECKING:
    from sinkscope.decoding.engine import Engine
    from sinkscope.generation.run import Run
    from sinkscope.reuse.wrapper import Acting


class Agreement(NamedTuple):
    """The agreement of one row with its exact run.

    Attributes:
        tokens_equal: share of the answer's places that hold the same token; of the longer answer where one ended early.
        first_step: the first step after which the states differ; None: they never do.
        kl: of the approximate run, KL(exact ‖ approximate) of the predictions at its own states in nats, mean over its steps;
            None where it was generated without a shadow (`shadowed`).
    """

    tokens_equal: float
    first_step: int | None
    kl: float | None


def agreement(exact: Run, other: Run) -> list[Agreement]:
    """The agreement of each row of a run with the same row of the exact run: same model, prompts, decoding and seeds."""
    if not exact.exact:
        raise InputError(f"the first run should be exact; this one was made under reuse {exact.extras['reuse']}")
    prompts = [run.states[0, :, : run.prompt] for run in (exact, other)]
    if exact.decoding != other.decoding or not torch.equal(*prompts):
        raise InputError("agreement compares two runs of the same prompts under one decoding")
    return [_row(exact, other, row) for row in range(len(exact.sequences))]


def _row(exact: Run, other: Run, row: int) -> Agreement:
    answers = [run.answer(row) for run in (exact, other)]
    length = max(map(len, answers))
    equal = sum(one == two for one, two in zip(*answers, strict=False))
    columns = min(run.states.shape[-1] for run in (exact, other))
    steps = max(len(run) for run in (exact, other))
    same = [
        torch.equal(*(run.states[min(step + 1, len(run)), row, :columns] for run in (exact, other)))
        for step in range(steps)
    ]
    first = same.index(False) if False in same else None
    kl, error = None, getattr(other.extras.get("reuse"), "error", None)
    if error is not None:
        measured = error[:, row][~error[:, row].isnan()]
        kl = float(measured.mean()) if len(measured) else None
    return Agreement(equal / length if length else 1.0, first, kl)


@dataclass(frozen=True)
class Shadowed(Extra):
    """A rule with an exact forward beside each approximate one, so that the error of every step is known (`Reused.error`)."""

    rule: Reuse

    def identity(self) -> str:
        """The rule's: answers are the same."""
        return self.rule.identity()

    def check(self, *args: Any, **named: Any) -> None:
        self.rule.check(*args, **named)

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

    def compare(self, exact: Tensor, approximate: Tensor, read: Tensor, alive: Tensor | None) -> None:
        """Take the logits [N, V] of the N positions that are marked in `read`, Bool [B, S]."""
        before, after = exact.double().log_softmax(-1), approximate.double().log_softmax(-1)
        kl = (before.exp() * (before - after)).nan_to_num(0.0).sum(-1).clamp(min=0.0)
        rows = read.nonzero()[:, 0]
        total = torch.zeros(len(read), dtype=torch.float64, device=kl.device).index_add_(0, rows, kl)
        mean = total / read.sum(1)
        self.kl = (mean if alive is None else mean.masked_fill(~alive, float("nan"))).cpu()
