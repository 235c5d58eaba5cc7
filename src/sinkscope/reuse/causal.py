"""A reuse rule while it runs on a causal model: the newest token looks at some keys of the cache only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sinkscope.attention.context import ALL, AttentionCall, CallEditor, ForwardContext, KeyMasker, Placed
from sinkscope.models.model import Model
from sinkscope.reuse.rule import Candidates, Reuse
from sinkscope.reuse.state import drawn, first_of
from sinkscope.reuse.work import WorkCount


@dataclass
class Looked:
    """Which keys of the cache forwards look at.

    Attributes:
        full: whether the forward that runs looks at all of them. age: forwards since the last one that did.
        written: Bool [B, K]: real columns so far, the newest among them.
        open: layer → Bool [B, K]: the columns that were not dropped, as the last forward left them.
        columns: layer → Long [B, k]: those that take part in a forward that is not full, the newest last; a row with fewer than
            the others has any columns in between.
    """

    full: bool = True
    age: int = 0
    written: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    open: dict[int, Tensor] = field(default_factory=dict)
    columns: dict[int, Tensor] = field(default_factory=dict)


class CausalReuseRuntime(KeyMasker, CallEditor):
    """A rule on the steps of one group of rows; it stands where a policy would, and gathers the keys that take part.

    The prefill and every refresh look at all keys. A key that was dropped comes back in a refresh only.

    Args:
        real: Bool [B, S], None when nothing is padded. row_keys: a number for each row, for random choices.

    Attributes:
        fresh: None: keys of a causal model never go stale.
        work: what was computed so far.
    """

    fresh: Tensor | None = None

    def __init__(self, rule: Reuse, model: Model, real: Tensor | None, row_keys: list[int]) -> None:
        self.rule, self.real = rule, real
        self.work = WorkCount(model, len(row_keys))
        self._row_keys = torch.tensor(row_keys, dtype=torch.long)
        self._device = model.home or (model.device if real is None else real.device)  # where attention is computed
        self._looked = Looked()
        # Layer → Float64 [B, K] each: what keys received so far, from all queries that saw them, as a mean over the heads, and
        # what uniform attention would have brought them.
        self._sums: dict[int, tuple[Tensor, Tensor]] = {}

    def begin(self, context: ForwardContext, rows: int, written: int, fed: int, alive: Tensor | None) -> ForwardContext:
        """The context of the next forward, of the columns from `fed` to `written`."""
        looked = self._looked
        ones = torch.ones(rows, written, dtype=torch.bool, device=self._device)
        looked.written = ones if self.real is None else self.real[:, :written]
        looked.age += 1
        looked.full = fed == 0 or self.rule.due(looked.age, False)
        keys = looked.written.sum(1)
        queries = keys if fed == 0 else torch.ones_like(keys)
        # What the same forward costs without reuse: the saving is told from it.
        exact = self.work.cost(queries, keys)
        if looked.full:
            looked.age = 0
            self.work.add(exact, exact, alive)
            return replace(context, policy=self)
        newest = torch.full((rows, 1), written - 1, device=self._device)
        counts = next(iter(looked.open.values())).sum(1)
        most = int(counts.max())
        looked.columns = {layer: torch.cat([first_of(left, most), newest], 1) for layer, left in looked.open.items()}
        valid = torch.arange(most, device=self._device) < counts[:, None]
        seen = torch.cat([valid, torch.ones_like(valid[:, :1])], 1)
        # The open keys, and the newest itself.
        self.work.add(self.work.cost(queries, counts + 1), exact, alive)
        placed = Placed(looked.columns, looked.written)
        return replace(context, policy=self, editor=self, real=seen, newest=True, causal=False, placed=placed)

    def inputs(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of the columns that take part, of all that are in the cache."""
        index = self._looked.columns[layer][:, None, :, None]
        key = key.gather(2, index.expand(-1, key.shape[1], -1, key.shape[3]))
        return key, value.gather(2, index.expand(-1, value.shape[1], -1, value.shape[3]))

    def measure(self, call: AttentionCall) -> None:
        """Add what a layer's keys received, and choose which of them stay for the next step."""
        looked, layer = self._looked, call.layer
        written = looked.written.to(call.key.device)
        rows, columns = written.shape
        # Several queries: the prompt, whose every query counts. Else the newest token's row alone.
        if call.query.shape[2] > 1:
            mass = call.mass(ALL)[:, :, 0].mean(1).double()
            uniform = call.expected(ALL).uniform[:, 0].expand(rows, -1)
        else:
            mass = call.newest().mean(1).double()
            uniform = (written / written.sum(1, keepdim=True)).double()
            if not looked.full:
                # Its keys are the chosen columns only, so what they received goes back to their places among all.
                mass = mass.new_zeros(rows, columns).scatter_add_(1, looked.columns[layer], mass)
        if layer in self._sums:
            before, expected = self._sums[layer]
            mass, uniform = mass + _grown(before, columns), uniform + _grown(expected, columns)
        self._sums[layer] = mass, uniform
        candidates = written
        if not looked.full:
            candidates = _grown(looked.open[layer], columns)
            candidates[:, -1] = True
        near = torch.arange(columns, device=written.device).double().expand(rows, -1)
        random = drawn(self.rule, self._row_keys, layer, 0, written)
        sinks = mass / uniform.clamp(min=1e-300)
        looked.open[layer] = self.rule.choose(Candidates(candidates, sinks, mass, near, random, written.sum(1)))


def _grown(values: Tensor, columns: int) -> Tensor:
    """The values [B, K] with zeros for the columns that came since."""
    return torch.nn.functional.pad(values, (0, columns - values.shape[1]))
