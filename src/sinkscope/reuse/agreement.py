"""Agreement of a run with the exact one: how many tokens are equal, and where the two part."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from sinkscope.base.errors import InputError

if TYPE_CHECKING:
    from sinkscope.generation.run import Run


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
    if exact.decoding != other.decoding or not torch.equal(_prompts(exact), _prompts(other)):
        raise InputError("agreement compares two runs of the same prompts under one decoding")
    return [_row(exact, other, row) for row in range(len(exact.sequences))]


def _prompts(run: Run) -> torch.Tensor:
    return run.states[0, :, : run.prompt]


def _row(exact: Run, other: Run, row: int) -> Agreement:
    answers = [run.answer(row) for run in (exact, other)]
    length = max(map(len, answers))
    equal = sum(one == two for one, two in zip(*answers, strict=False))
    columns = min(run.states.shape[-1] for run in (exact, other))
    steps = max(len(run) for run in (exact, other))
    first = next(
        (
            step
            for step in range(steps)
            if not torch.equal(*(run.states[min(step + 1, len(run)), row, :columns] for run in (exact, other)))
        ),
        None,
    )
    kl, error = None, getattr(other.extras.get("reuse"), "error", None)
    if error is not None:
        measured = error[:, row][~error[:, row].isnan()]
        kl = float(measured.mean()) if len(measured) else None
    return Agreement(equal / length if length else 1.0, first, kl)
