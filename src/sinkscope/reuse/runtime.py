"""A reuse rule while it runs: full forwards, which fill what is kept, and partial ones between them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sinkscope.attention.context import ALL, AttentionCall, ForwardContext, Placed
from sinkscope.attention.key_mask import KeyMask
from sinkscope.attention.visibility import Visibility
from sinkscope.models.model import Model
from sinkscope.policies.numbers import priorities
from sinkscope.reuse.columns import Columns
from sinkscope.reuse.rule import Candidates, Reuse, State, Wanted
from sinkscope.reuse.work import WorkCount

BLOCK = "block queries"
"""The class of queries whose attention chooses keys: those of the current block."""


class ReuseRuntime:
    """A rule on the denoising steps of one group of rows. It stands where a policy would, and sees every attention call.

    Args:
        real: Bool [B, S], None when nothing is padded. row_keys: a number for each row, for random choices.

    Attributes:
        fresh: Bool [B, S]: columns whose keys and values the last forward computed.
        work: what was computed so far.
    """

    def __init__(self, rule: Reuse, model: Model, real: Tensor | None, row_keys: list[int]) -> None:
        self.rule, self.model, self.real = rule, model, real
        self.fresh: Tensor | None = None
        self.work = WorkCount(model, len(row_keys))
        self._row_keys = torch.tensor(row_keys, dtype=torch.long)
        self._columns = Columns(whole=not rule.selects)
        self._hidden: Tensor | None = None
        self._start: int | None = None
        self._age = 0
        self._refreshes = 0
        self._before: Tensor | None = None
        self._active: Tensor = torch.empty(0, dtype=torch.bool)
        self._index: Tensor = torch.empty(0, dtype=torch.long)
        self._candidates: Tensor = torch.empty(0, dtype=torch.bool)
        self._kept: Tensor | None = None
        self._tracked: dict[int, tuple[Tensor, Tensor]] = {}
        self._drifted = False

    # ---- forwards

    def hidden(
        self, x: Tensor, wanted: Wanted, context: ForwardContext, alive: Tensor | None = None
    ) -> Tensor:
        """Last hidden states [B, S, width] of the state x: fresh where the rule says so, else of an earlier forward.

        Args:
            context: of the forward, as if it were a full one.
        """
        begins = wanted.start != self._start
        self._start = wanted.start
        full = self._hidden is None or self._drifted or self.rule.due(self._age, begins)
        if not full and self.rule.moves:
            self._set_active(self.rule.active(self._state(x, wanted)))
        elif not full:
            full = bool((wanted.read & ~self._active).any())
        self._before = x
        keys = self._key_counts(x)
        if full:
            self._age, self._refreshes = 1, self._refreshes + 1
            self._hidden = self._refresh(x, wanted, context)
            self.fresh = torch.ones_like(self._active) if self.real is None else self.real
            self.work.add(keys, keys, (keys, keys), alive)
            return self._hidden
        self._age += 1
        hidden = self._partial(x, context)
        self.fresh = self._active
        queries = self._active.sum(1)
        seen = keys if self._kept is None else self._kept.sum(1)
        self.work.add(queries, seen, (keys, keys), alive)
        return hidden

    def _refresh(self, x: Tensor, wanted: Wanted, context: ForwardContext) -> Tensor:
        """A full forward; what it leaves behind is chosen layer by layer, as its attention calls come by."""
        self._before = x
        self._columns.active, self._drifted, self._tracked = None, False, {}
        self._set_active(self.rule.active(self._state(x, wanted)))
        real = torch.ones_like(self._active) if self.real is None else self.real
        self._candidates = real & ~self._active
        watched = self.rule.selects or self.rule.tracks
        queries = {**context.queries, BLOCK: (wanted.block & real)[:, None].float()}
        context = replace(context, editor=self._columns, policy=self if watched else None, queries=queries)
        hidden = self.model.hidden(x, context)
        if self.rule.tracks:  # what is tracked is computed in every step beside the block
            columns = torch.stack([column for column, _ in self._tracked.values()], 1)
            self._set_active(self._active.scatter(1, columns, True))
        return hidden.clone()

    def _partial(self, x: Tensor, context: ForwardContext) -> Tensor:
        """A forward of the active columns only."""
        index, real = self._index, self.real
        if self._hidden is None:
            raise RuntimeError("there is nothing to reuse yet")
        positions = self.model.spec.positions(real, (len(x), x.shape[1]), x.device).expand(len(x), -1)
        once = self._once()
        queries = {
            name: weights.gather(2, index[:, None].expand(-1, weights.shape[1], -1)) * once[:, None]
            for name, weights in context.queries.items()
        }
        columns, placed = self._columns, None
        columns.active = index
        if columns.gathered:
            everything = torch.ones_like(self._active) if real is None else real
            where = {layer: torch.cat([kept, index], 1) for layer, kept in columns.gathered.items()}
            real, placed = self._kept, Placed(where, everything)
        queries[ALL] = once[:, None]
        context = replace(context, real=real, newest=True, editor=columns, queries=queries, placed=placed)
        fresh = self.model.hidden(x.gather(1, index), context, positions=positions.gather(1, index))
        if self.rule.tracks:
            self._drifted = self.rule.drifted(self._cosines())
        self._hidden.scatter_(1, index[..., None].expand(fresh.shape), fresh)
        return self._hidden

    # ---- what the rule looks at

    def _state(self, x: Tensor, wanted: Wanted) -> State:
        columns = torch.arange(x.shape[1], device=x.device)
        changed = torch.zeros_like(wanted.block) if self._before is None else x != self._before
        later = (columns >= wanted.start).expand_as(x)
        masked: Tensor = x == self.model.ids.mask  # type: ignore[assignment]
        return State(wanted, masked, changed, later)

    def _set_active(self, active: Tensor) -> None:
        """The active columns, as Bool [B, S] and as Long [B, A]; a row with fewer than A repeats its last one."""
        self._active = active
        counts = active.sum(1)
        most = max(1, int(counts.max()))
        order = (~active).to(torch.uint8).sort(dim=1, stable=True).indices[:, :most]
        last = (counts - 1).clamp(min=0)[:, None]
        ranks = torch.arange(most, device=active.device)[None].minimum(last)
        self._index = order.gather(1, ranks)

    def _once(self) -> Tensor:
        """Float [B, A], 0 for queries that repeat another."""
        counts = self._active.sum(1)
        ranks = torch.arange(self._index.shape[1], device=counts.device)
        return (ranks < counts[:, None]).float()

    def _key_counts(self, x: Tensor) -> Tensor:
        full = torch.full((len(x),), x.shape[1], dtype=torch.long)
        return full if self.real is None else self.real.sum(1).cpu()

    def _cosines(self) -> Tensor:
        """Float [layer, B]: cosine of each layer's tracked key with that of the last full forward."""
        return torch.stack(
            [
                torch.nn.functional.cosine_similarity(
                    self._columns.keys_at(layer, column).float(), kept.float(), dim=1
                )
                for layer, (column, kept) in self._tracked.items()
            ]
        )

    # ---- in the place of a policy: the calls of a full forward

    def mask(
        self, layer: int, query: Tensor, key: Tensor, visibility: Visibility, scale: float
    ) -> KeyMask | None:
        """Nothing is masked."""
        return None

    def reads(self, layer: int) -> tuple[str, ...]:
        """What is received from the block, and from all queries where that may choose."""
        return (BLOCK, ALL) if self.rule.selects else (BLOCK,)

    def measure(self, call: AttentionCall) -> None:
        """Choose the keys of a layer that stay, or the one to track."""
        received = call.received(BLOCK)[:, :, 0].mean(1)
        if self.rule.tracks:
            scores = received.nan_to_num(float("-inf")).masked_fill(~self._candidates, float("-inf"))
            column = scores.argmax(1)
            self._tracked[call.layer] = (column, self._columns.keys_at(call.layer, column))
            return
        chosen = self.rule.choose(
            Candidates(
                self._candidates,
                call.received(ALL)[:, :, 0].mean(1),
                received,
                self._nearness(),
                self._drawn(call.layer),
                self._candidates.sum(1),
            )
        )
        counts = chosen.sum(1)
        most = int(counts.max())
        columns = (~chosen).to(torch.uint8).sort(dim=1, stable=True).indices[:, :most]
        valid = torch.arange(most, device=columns.device) < counts[:, None]
        self._kept = torch.cat([valid, self._once().bool()], 1)
        self._columns.gather(call.layer, call.key, call.value, columns, self._index.shape[1])

    def _nearness(self) -> Tensor:
        """Float [B, S]: minus the distance to the nearest active column."""
        columns = torch.arange(self._active.shape[1], device=self._active.device)
        gap = (columns[None, :, None] - self._index[:, None, :]).abs()
        return -gap.amin(2).double()

    def _drawn(self, layer: int) -> Tensor:
        """Float64 [B, S]: random numbers of this layer and refresh."""
        rows, columns = self._candidates.shape
        steps = torch.full((rows, 1), self._refreshes, device=self._candidates.device)
        first = torch.zeros(rows, dtype=torch.long) if self.real is None else (~self.real).sum(1)
        seed = int(getattr(self.rule, "seed", 0))
        return priorities(seed, self._row_keys, layer, 1, steps, first, columns)[:, 0].double()
