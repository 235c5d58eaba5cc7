"""`ss.patch`: put another vector in a sink's place, and see what the predictions make of it.

The new key (value) of a place in a layer is the one that this layer computes *there* from a donor's residual vector, so its
rotation is that of the place and any architecture will do: the donor's vector runs along in a shadow of the row, and only its
key or value is taken over. "residual" puts the donor's vector into the stream itself. Donors are of the same kind of position
(prompt, mask, written) as what they replace. Two questions are told apart:

- a value from another run's sink changes predictions: what is read there is not the same everywhere (content);
- no value at all changes nothing, but the key of an ordinary place does: attention has to go somewhere (a drain). Where the
  missing value matters and another run's does not, the sink holds the same in every run.

All need the control: the same change at as many random non-sinks of the same kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from sinkscope.attention.context import CallEditor
from sinkscope.base.checks import one_of
from sinkscope.base.errors import InputError
from sinkscope.generation.run import Run
from sinkscope.inspection.observation import (
    MASK,
    PROMPT,
    WRITTEN,
    Observation,
    above_zero,
    chosen_steps,
    drawn,
    matched,
    observe,
    predictions_under,
)
from sinkscope.models.load import as_model
from sinkscope.models.model import Model
from sinkscope.statistics import Estimate, mean_interval

What = Literal["key", "value", "both", "residual"]
SIDES = ("sinks", "control")
MEASURES = {
    "kl": "nats, KL(as it was ‖ patched) of the predictions",
    "flipped": "share of predictions with another best candidate",
    "confidence_change": "change of the best candidate's probability",
    "written_flipped": "share of the tokens written in the step that would be others",
    "answer_lost": "share of predictions that agreed with the final answer and no longer do",
}


@dataclass(frozen=True)
class Patch:
    """What a patch changes, for each row of the run.

    Attributes:
        sinks, control: measure → Float [B], mean over the chosen steps; NaN where nothing was patched or predicted. Units are
            in `MEASURES`. Predictions that are read from a patched place are left out.
        patched: Float [B]: patched places, mean over layers and steps.

    >>> two = ss.generate(model, prompts * 2, decoding, seed=[0, 1])
    >>> done = ss.patch(model, two, "nothing", what="value", step=4)
    >>> done.sinks["kl"].shape, bool((done.sinks["kl"] > done.control["kl"]).all())    # nats, for each row
    ((2,), True)
    """

    what: str
    donor: str
    sinks: dict[str, np.ndarray[Any, Any]]
    control: dict[str, np.ndarray[Any, Any]]
    patched: np.ndarray[Any, Any]

    def effect(self, measure: str = "kl") -> Estimate:
        """The effect at sinks less that at the control, mean over rows with its 95 % interval; 0: no more than anywhere."""
        return mean_interval(self.sinks[measure] - self.control[measure])

    def __repr__(self) -> str:
        at, other = (
            ", ".join(f"{name} {np.nanmean(values):.3g}" for name, values in side.items())
            for side in (self.sinks, self.control)
        )
        return f"<patch of {self.what} from {self.donor}: at sinks {at}; at random places {other}>"


class _TakeOver(CallEditor):
    """Takes keys or values of the shadow rows, which stand behind the rows themselves, at the marked places."""

    def __init__(self, where: Tensor, what: str, nothing: bool) -> None:
        self.where, self.what, self.nothing = where, what, nothing

    def inputs(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        rows, replaced = self.where.shape[1], self.where[layer][..., None]
        if self.nothing:
            return key, value.masked_fill(replaced, 0.0)
        if self.what in ("key", "both"):
            key = torch.cat([torch.where(replaced, key[rows:], key[:rows]), key[rows:]])
        if self.what in ("value", "both"):
            value = torch.cat([torch.where(replaced, value[rows:], value[:rows]), value[rows:]])
        return key, value


def patched_logits(seen: Observation, where: Tensor, donors: Tensor | None, what: str) -> Tensor:
    """Predictions Float32 [N, V] of an observation with other vectors at some places.

    Args:
        where: Bool [L, B, G, S]: the places, for each KV head; for "residual" a place counts when any head has it.
        donors: Float [L, B, 3, width]: the residual vector for each kind of place (see `donors_of`);
            None: no value at all.
    """
    if donors is None:
        return predictions_under(seen, _TakeOver(where, what, True))
    anywhere, kind = where.any(2), seen.kind.clamp(min=0)
    rows = torch.arange(len(kind), device=kind.device)[:, None]

    def stream(layer: int, hidden: Tensor) -> Tensor:
        plain = hidden[: len(kind)]
        vectors = donors[layer][rows, kind].to(plain.dtype)
        replaced = torch.where(anywhere[layer][..., None], vectors, plain)
        return replaced if what == "residual" else torch.cat([plain, replaced])

    return predictions_under(seen, None if what == "residual" else _TakeOver(where, what, False), stream)


def donors_of(seen: Observation, ordinary: bool = False) -> Tensor:
    """Float [L, B, 3, width]: for each layer and kind of position, the vector that stands for it in each row.

    The position of that kind that receives most attention; ordinary: one that is no sink, at random. Where a row has no such
    position, the one that receives most attention (or a random one) of any kind.
    """
    real = seen.kind >= 0
    score = seen.strength
    if ordinary:
        draws = drawn([key + 1 for key in seen.keys], (1, seen.kind.shape[1]))
        score = draws.to(score.device) - 2.0 * seen.layer_sinks
    chosen = []
    for kind in (PROMPT, MASK, WRITTEN):
        of_kind = (seen.kind == kind)[None]
        chosen.append((score + 10.0**6 * (of_kind.float() + real[None].float())).argmax(-1))
    columns = torch.stack(chosen, -1)  # [L, B, 3]
    width = seen.residual.shape[-1]
    return seen.residual[:-1].gather(2, columns[..., None].expand(-1, -1, -1, width))


def effects(seen: Observation, after: Tensor, where: Tensor) -> dict[str, Tensor]:
    """Measure → Float64 [B]: what changed at predictions that are not read from a patched place Bool [L, B, G, S]."""
    row, column = seen.predicted.nonzero(as_tuple=True)
    touched = where.any(2).any(0)[row, (column - seen.shift).clamp(min=0)]
    before, patched = seen.logits.double().log_softmax(-1), after.double().log_softmax(-1)
    best, other = before.argmax(-1), patched.argmax(-1)
    truth = seen.final[row, column]
    values = {
        "kl": (before.exp() * (before - patched)).sum(-1).clamp(min=0),
        "flipped": (best != other).double(),
        "confidence_change": patched.amax(-1).exp() - before.amax(-1).exp(),
        "written_flipped": torch.where(seen.decided[row, column], (best != other).double(), float("nan")),
        "answer_lost": ((best == truth) & (other != truth)).double(),
    }
    return {name: _by_row(value, row, ~touched, len(seen.rows)) for name, value in values.items()}


def _by_row(values: Tensor, row: Tensor, counts: Tensor, rows: int) -> Tensor:
    counts = counts & ~values.isnan()
    total, count = (torch.zeros(rows, dtype=torch.float64, device=values.device) for _ in range(2))
    total.index_add_(0, row[counts], values[counts].double())
    count.index_add_(0, row[counts], torch.ones_like(values[counts], dtype=torch.float64))
    return total / above_zero(count)


def places(seen: Observation) -> tuple[Tensor, Tensor]:
    """Bool [L, B, G, S] each: the sinks of every KV head, and as many random non-sinks of the same kinds."""
    kind = seen.judged[:, :, None].expand_as(seen.kv_sinks)
    return seen.kv_sinks, matched(seen.kv_sinks, kind, [key + 2 for key in seen.keys])


def patch(
    model: Model,
    run: Run,
    other: Run | Literal["mean", "ordinary", "nothing"] = "mean",
    at: Literal["sinks", "random"] = "sinks",
    what: What = "value",
    step: int | None = None,
    steps: int = 3,
    layers: tuple[int, ...] | None = None,
) -> Patch:
    """Replace the vectors at the sinks of a run, and measure how the predictions of the same step change.

    Args:
        run: without a policy. other: a run with the same number of rows, whose row b gives the vectors for row b at the same
            share of its steps; "mean": the mean of the other rows of this run; "ordinary": a non-sink of the same row;
            "nothing": a value of 0 (attention stays as it is).
        at: "sinks"; "random" gives only the control, in both places of the result.
        what: "key", "value", "both" or "residual".
        step: the step; None: `steps` of them, evenly spread.
        layers: where to patch; None: all.

    >>> two = ss.generate(model, prompts * 2, decoding, seed=[0, 1])
    >>> effect = ss.patch(model, two, "nothing", what="value", step=4).effect("kl")
    >>> effect.value > 0    # nats beyond the control, mean over rows
    True
    """
    model = as_model(model).mode(run.decoding.causal)
    one_of("what", what, get_args(What))
    one_of("at", at, ("sinks", "random"))
    if not isinstance(other, Run):
        one_of("other", other, ("mean", "ordinary", "nothing"))
    if isinstance(other, Run) and other.states.shape[1] != run.states.shape[1]:
        raise InputError(f"the other run has {other.states.shape[1]} rows, this one {run.states.shape[1]}")
    rows = run.states.shape[1]
    if other == "mean" and rows < 2:
        raise InputError("the mean of the other rows needs a run with at least two rows; give another run")
    if other == "nothing" and what != "value":
        raise InputError(f"only a value can be nothing; what is {what!r}: use what='value', or another donor")
    numbers = [step] if step is not None else chosen_steps(run, steps)
    measured = {side: {name: np.full((len(numbers), rows), np.nan) for name in MEASURES} for side in SIDES}
    counted = np.zeros((len(numbers), rows))
    inside = torch.tensor([layers is None or layer in layers for layer in range(model.shape.layers)])
    inside = inside[:, None, None, None].to(model.device)
    for index, number in enumerate(numbers):
        donors = None if other == "nothing" else _donors(model, run, other, number)
        for seen in observe(model, run, number):
            masks = dict(zip(SIDES, (mask & inside for mask in places(seen)), strict=True))
            counted[index, seen.rows] = masks["sinks"].any(2).float().sum(-1).mean(0).cpu().numpy()
            for side, where in masks.items():
                vectors = None if donors is None else donors[side][:, seen.rows]
                # A row without a place to patch has no effect: NaN, as a 0 would count as one.
                empty = ~where.any(3).any(2).any(0)
                for name, value in effects(seen, patched_logits(seen, where, vectors, what), where).items():
                    shown = value.masked_fill(empty, float("nan"))
                    measured[side][name][index, seen.rows] = shown.cpu().numpy()
    means = {side: {name: mean_known(list(values)) for name, values in each.items()} for side, each in measured.items()}
    donor = other if isinstance(other, str) else "another run"
    at_sinks = means["control" if at == "random" else "sinks"]
    return Patch(what, donor, at_sinks, means["control"], counted.mean(0))


def _donors(model: Model, run: Run, other: Run | str, step: int) -> dict[str, Tensor]:
    """ "sinks", "control" → Float [L, B, 3, width]."""
    source = other if isinstance(other, Run) else run
    strongest, ordinary = all_donors(model, source, same_share(run, source, step))
    donors = {"sinks": ordinary if other == "ordinary" else strongest, "control": ordinary}
    if other == "mean":
        total = {name: vectors.sum(1, keepdim=True) for name, vectors in donors.items()}
        donors = {name: (total[name] - vectors) / (vectors.shape[1] - 1) for name, vectors in donors.items()}
    return donors


def same_share(run: Run, other: Run, step: int) -> int:
    """The step of another run that is as far in it as `step` is in this one."""
    return step if len(run) == len(other) else min(len(other) - 1, step * len(other) // len(run))


def all_donors(model: Model, run: Run, step: int) -> tuple[Tensor, Tensor]:
    """The strongest and an ordinary vector of each kind (see `donors_of`), Float [L, B, 3, width] each, of all rows."""
    rows: list[int] = []
    strongest, ordinary = [], []
    for seen in observe(model, run, step):
        rows += seen.rows
        strongest.append(donors_of(seen))
        ordinary.append(donors_of(seen, ordinary=True))
    order = torch.tensor(rows, device=model.device).argsort()
    return torch.cat(strongest, 1)[:, order], torch.cat(ordinary, 1)[:, order]


def mean_known(values: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Mean over the first axis of what is known; NaN where nothing is."""
    stacked = np.stack(values)
    there = ~np.isnan(stacked)
    total = np.where(there, stacked, 0.0).sum(0)
    mean: np.ndarray[Any, Any] = np.where(there.any(0), total / np.maximum(there.sum(0), 1), np.nan)
    return mean
