"""A reuse rule while it runs on a causal model: the newest token looks at some keys of the cache only."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sinkscope.attention.context import ALL, AttentionCall, ForwardContext, Placed
from sinkscope.attention.key_mask import KeyMask
from sinkscope.attention.visibility import Visibility
from sinkscope.models.model import Model
from sinkscope.policies.numbers import priorities
from sinkscope.reuse.rule import Candidates, Reuse
from sinkscope.reuse.work import WorkCount


class CausalReuseRuntime:
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
        self._age = 0
        self._steps = 0
        self._full = True
        self._written = torch.empty(0, dtype=torch.bool)
        self._mass: dict[int, Tensor] = {}
        self._uniform: Tensor | None = None
        self._open: dict[int, Tensor] = {}
        self._columns: dict[int, Tensor] = {}

    def begin(self, context: ForwardContext, rows: int, written: int, fed: int, alive: Tensor | None) -> ForwardContext:
        """The context of the next forward, of the columns from `fed` to `written`."""
        device = self._row_keys.device if self.real is None else self.real.device
        if self._columns:
            device = next(iter(self._columns.values())).device
        ones = torch.ones(rows, written, dtype=torch.bool, device=device)
        self._written = ones if self.real is None else self.real[:, :written]
        self._steps += 1
        self._age += 1
        self._full = fed == 0 or self.rule.due(self._age, False)
        keys = self._written.sum(1)
        queries = keys if fed == 0 else torch.ones_like(keys)
        # What the same forward costs without reuse: the saving is told from it.
        exact = self.work.cost(queries, keys)
        if self._full:
            self._age = 0
            self.work.add(exact, exact, alive)
            return replace(context, policy=self)
        newest = torch.full((rows, 1), written - 1, device=device)
        chosen = next(iter(self._open.values()))
        counts = chosen.sum(1)
        self._columns = {
            layer: torch.cat([_first(layer_open, int(counts.max())), newest], 1)
            for layer, layer_open in self._open.items()
        }
        valid = torch.arange(int(counts.max()), device=device) < counts[:, None]
        seen = torch.cat([valid, torch.ones_like(valid[:, :1])], 1)
        # The open keys, and the newest itself.
        self.work.add(self.work.cost(queries, counts + 1), exact, alive)
        placed = Placed(self._columns, self._written)
        return replace(context, policy=self, editor=self, real=seen, newest=True, causal=False, placed=placed)

    def inputs(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of the columns that take part, of all that are in the cache."""
        index = self._columns[layer][:, None, :, None]
        key = key.gather(2, index.expand(-1, key.shape[1], -1, key.shape[3]))
        return key, value.gather(2, index.expand(-1, value.shape[1], -1, value.shape[3]))

    def output(self, layer: int, output: Tensor) -> Tensor:
        """Outputs stay as they are."""
        return output

    def mask(self, layer: int, query: Tensor, key: Tensor, visibility: Visibility, scale: float) -> KeyMask | None:
        """Nothing is masked."""
        return None

    def reads(self, layer: int) -> tuple[str, ...]:
        """Nothing: steps with one query come by another way."""
        return ()

    def measure(self, call: AttentionCall) -> None:
        """Add what a layer's keys received, and choose which of them stay for the next step."""
        written = self._written.to(call.key.device)
        rows, columns = written.shape
        # Several queries: the prompt, whose every query counts. Else the newest token's row alone.
        if call.query.shape[2] > 1:
            mass = call.mass(ALL)[:, :, 0].mean(1).double()
            uniform = call.expected(ALL).uniform[:, 0].expand(rows, -1)
        else:
            mass = call.newest().mean(1).double()
            uniform = written / written.sum(1, keepdim=True)
            if not self._full:
                # Its keys are the chosen columns only, so what they received goes back to their places among all.
                mass = mass.new_zeros(rows, columns).scatter_add_(1, self._columns[call.layer], mass)
        if call.layer in self._mass:
            mass = mass + _grown(self._mass[call.layer], columns)
        self._mass[call.layer] = mass
        if call.layer == 0 or self._uniform is None:
            self._uniform = (uniform if self._uniform is None else uniform + _grown(self._uniform, columns)).double()
        candidates = written
        if not self._full:
            candidates = _grown(self._open[call.layer], columns)
            candidates[:, -1] = True
        near = torch.arange(columns, device=written.device).double().expand(rows, -1)
        first = (~written).sum(1)
        steps = torch.full((rows, 1), 0, device=written.device)
        seed = int(getattr(self.rule, "seed", 0))
        random = priorities(seed, self._row_keys, call.layer, 1, steps, first, columns)[:, 0].double()
        sinks = mass / self._uniform.clamp(min=1e-300)
        chosen = Candidates(candidates, sinks, mass, near, random, written.sum(1))
        self._open[call.layer] = self.rule.choose(chosen)
        if not self._columns:
            self._columns = {call.layer: near.long()}


def _grown(values: Tensor, columns: int) -> Tensor:
    """The values [B, K] with zeros for the columns that came since."""
    return torch.nn.functional.pad(values, (0, columns - values.shape[1]))


def _first(chosen: Tensor, count: int) -> Tensor:
    """Long [B, count]: the chosen columns of Bool [B, K] in order, others where a row has fewer."""
    return (~chosen).to(torch.uint8).sort(dim=1, stable=True).indices[:, :count]
