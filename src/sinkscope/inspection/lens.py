"""`ss.lens`: the output head on the residual stream after each layer, at sinks and at places that are none.

A place is read through all layers: which token the stream there would write, and how surely. *Own*: it is the token that the run
writes in the end at the column which this place predicts. *Elsewhere*: it is a token that the run still has to write at another
column of the answer; end and padding tokens do not count. Control: as many random places of the same kind that are sinks nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from sinkscope.base.errors import InputError
from sinkscope.generation.run import Run
from sinkscope.inspection.observation import MASK, Observation, check_read_out, chosen_steps, matched, observe, read_out
from sinkscope.inspection.tuned_lens import TunedLens, tuned_lens
from sinkscope.models.load import as_model
from sinkscope.models.model import Model
from sinkscope.statistics import Estimate, ratio_interval

if TYPE_CHECKING:
    import pandas

Positions = Literal["sinks", "masks"]


@dataclass(frozen=True, repr=False)
class Lens:
    """What a lens reads at N places; layer 0 is the embedding, layer L what the head is given.

    Attributes:
        row, step, column: Long [N]: the place. chosen: Bool [N]: a place that was asked for; else its control.
        layers: which were read, n of them.
        token: Long [N, n]: the likeliest token. probability: Float [N, n].
        own, elsewhere: Float [N, n]: 1 or 0 (see the module); NaN where there is nothing to agree with.
        settled: Long [N]: the first of the read layers from which on the likeliest token stays the same.
        tuned: whether an affine map for each layer was applied. texts: token → its text, where there is a tokenizer.

    >>> lens = ss.lens(model, run, layers=[0, 8], steps=[4])
    >>> lens.token.shape[1], sorted(set(lens.table["layer"]))
    (2, [0, 8])
    """

    row: np.ndarray[Any, Any]
    step: np.ndarray[Any, Any]
    column: np.ndarray[Any, Any]
    chosen: np.ndarray[Any, Any]
    layers: tuple[int, ...]
    token: np.ndarray[Any, Any]
    probability: np.ndarray[Any, Any]
    own: np.ndarray[Any, Any]
    elsewhere: np.ndarray[Any, Any]
    settled: np.ndarray[Any, Any]
    tuned: bool
    texts: dict[int, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        kind = "tuned lens" if self.tuned else "lens"
        controls = int((~self.chosen).sum())
        return f"<{kind} at {int(self.chosen.sum())} positions and {controls} controls, layers {self.layers}; .table>"

    def by_row(self, measure: str, chosen: bool, rows: int) -> np.ndarray[Any, Any]:
        """Float [rows, n]: a measure ("own", "elsewhere", "probability"), mean over a row's places; NaN where it has none."""
        values, side = getattr(self, measure), self.chosen == chosen
        total, count = np.zeros((rows, len(self.layers))), np.zeros((rows, len(self.layers)))
        there = ~np.isnan(values[side])
        np.add.at(total, self.row[side], np.where(there, values[side], 0.0))
        np.add.at(count, self.row[side], there)
        means: np.ndarray[Any, Any] = total / np.where(count == 0, np.nan, count)
        return means

    def difference(self, measure: str = "elsewhere") -> Estimate:
        """The measure at the chosen places less that at the control, for each layer, with 95 % intervals over rows."""
        rows = int(self.row.max()) + 1
        apart = self.by_row(measure, True, rows) - self.by_row(measure, False, rows)
        return ratio_interval(apart, np.where(np.isnan(apart), np.nan, 1.0))

    @property
    def table(self) -> pandas.DataFrame:
        """One row for each place and layer: row, step, column, chosen, layer, token, text, probability, own, elsewhere."""
        import pandas

        n = len(self.layers)
        columns = {name: np.repeat(getattr(self, name), n) for name in ("row", "step", "column", "chosen")}
        columns["layer"] = np.tile(self.layers, len(self.row))
        columns |= {name: getattr(self, name).ravel() for name in ("token", "probability", "own", "elsewhere")}
        frame = pandas.DataFrame(columns)
        if self.texts:
            frame.insert(6, "text", [self.texts[token] for token in frame["token"]])
        return frame


def lens(
    model: Model,
    run: Run,
    layers: Sequence[int] | None = None,
    positions: Positions | Sequence[int] = "sinks",
    steps: int | Sequence[int] = 3,
    tuned: bool | TunedLens = False,
) -> Lens:
    """Read the residual stream through the output head.

    Args:
        layers: 0 (the embedding) to L (all of them); None: all.
        positions: "sinks" (of any head and layer in that step), "masks" that are no sinks, or columns of the run.
        steps: how many, evenly spread, or which.
        tuned: apply a tuned lens, fitted on this run; or one from `tuned_lens`.

    >>> table = ss.lens(model, run, steps=[4]).table
    >>> sorted(set(table["chosen"]))    # rows at sinks (True), and at random places of the same kind (False)
    [False, True]
    """
    model = as_model(model).mode(run.decoding.causal)
    check_read_out(model, run)
    chosen = tuple(range(model.shape.layers + 1)) if layers is None else tuple(layers)
    if not chosen or not all(0 <= layer <= model.shape.layers for layer in chosen):
        raise InputError(f"layers should be among 0 to {model.shape.layers}, got {list(chosen)}")
    # A lens may be given itself, so only True asks for one to be fitted.
    affine = tuned_lens(model, run) if tuned is True else tuned or None
    numbers = chosen_steps(run, steps) if isinstance(steps, int) else list(steps)
    reads = [read(seen, chosen, positions, affine) for number in numbers for seen in observe(model, run, number)]
    arrays: dict[str, Any] = {name: np.concatenate([arrays[name] for arrays in reads]) for name in reads[0]}
    texts: dict[int, str] = {}
    if model.tokenizer is not None:
        seen_tokens = set(arrays["token"].ravel().tolist())
        texts = {token: str(model.tokenizer.decode([token])) for token in seen_tokens}
    return Lens(layers=chosen, tuned=affine is not None, texts=texts, **arrays)


def read(
    seen: Observation,
    layers: tuple[int, ...],
    positions: Positions | Sequence[int] = "sinks",
    tuned: TunedLens | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of `Lens` for one observation."""
    chosen = _places(seen, positions)
    sinks = seen.layer_sinks.any(0)
    others = (seen.kind[None].masked_fill((sinks & ~chosen)[None], -1)).expand(1, *chosen.shape)
    control = matched(chosen[None], others, [key + 3 for key in seen.keys])[0]
    row, column = (chosen | control).nonzero(as_tuple=True)
    stream = seen.residual[list(layers)][:, row, column]  # [n, N, width]
    reads = []
    for index, layer in enumerate(layers):
        logits = partial(tuned.logits, seen.model, layer) if tuned else partial(read_out, seen.model)
        best = [logits(piece).softmax(-1).max(-1) for piece in torch.split(stream[index], 512)]
        reads.append((torch.cat([b.indices for b in best]), torch.cat([b.values for b in best])))
    token, probability = (torch.stack(each, 1) for each in zip(*reads, strict=True))
    here, elsewhere = _agreement(seen, row, column, token)
    # Layers, from the last one back, with the last one's token.
    same = (token == token[:, -1:]).flip(1).cumprod(1).sum(1)
    settled = torch.tensor(layers, device=token.device)[len(layers) - same]
    in_run = torch.tensor(seen.rows, device=row.device)[row]
    values = {
        "row": in_run, "step": torch.full_like(in_run, seen.step), "column": column + seen.offset, "chosen": chosen[row, column],
        "token": token, "probability": probability, "own": here, "elsewhere": elsewhere, "settled": settled,
    }  # fmt: skip
    return {name: value.cpu().numpy() for name, value in values.items()}


def _places(seen: Observation, positions: Positions | Sequence[int]) -> Tensor:
    sinks = seen.layer_sinks.any(0)
    if positions == "sinks":
        return sinks
    if positions == "masks":
        return (seen.kind == MASK) & ~sinks
    if not all(isinstance(column, int) for column in positions):
        raise InputError(f"positions should be 'sinks', 'masks' or columns of the run, got {positions!r}")
    columns = [int(column) - seen.offset for column in positions]
    inside = [column for column in columns if 0 <= column < seen.kind.shape[1]]
    selected = torch.zeros_like(sinks)
    selected[:, inside] = True
    return selected & (seen.kind >= 0)


def _agreement(seen: Observation, row: Tensor, column: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Float64 [N, n] each, 1 or 0, for the token that a layer reads at a position; NaN where nothing is still to be written.

    Whether the run writes it in the end at the column that this position predicts; whether it writes it later at another one.
    """
    model, target = seen.model, column + seen.shift
    inside = target < seen.final.shape[1]
    target = target.clamp(max=seen.final.shape[1] - 1)
    open_here = seen.predicted[row, target] & inside
    here = torch.where(open_here[:, None], (token == seen.final[row, target][:, None]).double(), float("nan"))
    special = {model.ids.mask, model.ids.pad, model.ids.bos, model.ids.eot, *model.ids.eos} - {None}
    content = ~torch.isin(seen.final, torch.tensor(sorted(special), dtype=torch.long, device=row.device))
    due = (seen.predicted & content)[row]  # [N, S]
    due = due.scatter(1, target[:, None], due.gather(1, target[:, None]) & ~inside[:, None])
    later = torch.stack([((seen.final[row] == each[:, None]) & due).any(1) for each in token.T], 1)
    elsewhere = torch.where(due.any(1)[:, None], later.double(), float("nan"))
    return here, elsewhere
