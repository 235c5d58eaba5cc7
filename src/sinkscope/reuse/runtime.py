"""A reuse rule while it runs: full forwards, which fill what is kept, partial ones between them, and deep refreshes.

A deep refresh is a partial forward up to some layer and a full one from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from sinkscope.attention.context import ALL, ForwardContext, Placed
from sinkscope.decoding.step import Wanted
from sinkscope.models.layers import streams
from sinkscope.models.model import Model
from sinkscope.reuse.rule import Reuse, State
from sinkscope.reuse.state import BLOCK, Active, Choice, Clock, Columns, Memory, Seen, Tracked
from sinkscope.reuse.work import WorkCount

Forward = Callable[[Tensor, ForwardContext], Tensor]
"""Forward of a state under a context → last hidden states."""


class ReuseRuntime:
    """A rule on the denoising steps of one group of rows.

    A partial forward reads what changes between steps from memory that stays where it is, and never waits for the device, so
    that it can be captured as a CUDA graph.

    Args:
        real: Bool [B, S], None when nothing is padded. row_keys: a number for each row, for random choices.

    Attributes:
        fresh: Bool [B, S]: columns whose keys and values the last forward computed in all layers.
        work: what was computed so far.
    """

    PASSING = ("fresh", "work", "_before", "_costs")  # what no repeated forward reads (see `gpu.state`)

    def __init__(self, rule: Reuse, model: Model, real: Tensor | None, row_keys: list[int]) -> None:
        self.rule, self.model, self.real = rule, model, real
        self.fresh: Tensor | None = None
        self.work = WorkCount(model, len(row_keys))
        self._kept, self._memory = Columns(whole=not rule.selects), Memory()
        keys = torch.tensor(row_keys, dtype=torch.long, device=model.device)
        self._clock, self._active, self._seen, self._tracked = Clock(), Active(), Seen(real), Tracked()
        state = self._clock, self._active, self._seen, self._tracked
        self._choice = Choice(rule, keys, self._kept, self._memory, *state)
        self._hidden: Tensor | None = None  # Float [B, S, width]: of every column as it was last computed
        self._before: Tensor | None = None  # Long [B, S]: the state of the forward before
        self._costs: tuple[Tensor, Tensor | None] | None = None  # of a full forward, and of a partial one

    # ---- forwards

    def hidden(
        self, x: Tensor, wanted: Wanted, run: Callable[[Forward, Hashable | None], Tensor], alive: Tensor | None = None
    ) -> Tensor:
        """Last hidden states [B, S, width] of the state x: fresh where the rule says so, else of an earlier forward.

        Args:
            run: calls a forward with the state and with the context of a full one. Where it repeats something, it may also repeat
                on the device what an earlier call that repeats the same did there.
        """
        clock, active, seen = self._clock, self._active, self._seen
        begins, clock.start = wanted.start != clock.start, wanted.start
        layer = self._drifted_from()
        full = self._hidden is None or layer == 0 or self.rule.due(clock.age, begins)
        if not full and self.rule.moves:
            self._set_active(self.rule.active(self._state(x, wanted)))
        elif not full:
            full = bool((wanted.read & ~active.columns).any())
        self._before = x
        layer = 0 if full else layer
        if layer is not None:
            clock.age, clock.refreshes = 1, clock.refreshes + 1
            begun, before = layer, active.columns
            hidden = run(lambda state, context: self._refresh(state, wanted, context, begun), None)
            self.fresh = before if begun else self._choice.everything
        else:
            clock.age += 1
            kind = (active.index.shape[1], seen.most, seen.real is None, self._kept.moved)
            # Not captured with unions: whether their kernels can be has not been tried.
            hidden = run(self._partial, None if self.rule.watches == "union" else kind)
            self.fresh = active.columns
        self._count(layer, alive)
        return hidden

    def _refresh(self, x: Tensor, wanted: Wanted, context: ForwardContext, layer: int) -> Tensor:
        """A forward of all columns from a layer on, up to which only the active ones go; layer 0: a full one.

        What it leaves behind is chosen layer by layer, as its attention calls come by.
        """
        if self._hidden is None:
            self._choice.everything = torch.ones_like(wanted.block) if self.real is None else self.real
        model, columns = self.model, self._kept
        # Residual streams are kept where the rule may go on from them.
        with streams(model.network.model.layers, columns.see) if self.rule.deepens else nullcontext():
            if layer:
                before, positions = self._of_active(x, context)
                columns.see(layer, model.entering(x.gather(1, self._active.index), layer, before, positions))
            context = self._of_all(x, wanted, context)
            hidden = model.onward(columns.entering(layer), layer, context) if layer else model.hidden(x, context)
        if self.rule.watches == "key":
            self._track(layer)
        elif self.rule.watches:
            self._tracked.top = self._tracked.everywhere(self._choice.candidates)
        self._hidden = self._memory.put("hidden", hidden)
        return self._hidden

    def _partial(self, x: Tensor, context: ForwardContext) -> Tensor:
        """A forward of the active columns only."""
        if self._hidden is None:
            raise RuntimeError("there is nothing to reuse yet")
        context, positions = self._of_active(x, context)
        fresh = self.model.hidden(x.gather(1, self._active.index), context, positions=positions)
        tracked = self._tracked
        if self.rule.watches == "key":
            moved = torch.nn.functional.cosine_similarity(tracked.now(self._kept).float(), tracked.keys.float(), dim=-1)
            tracked.likeness = self._memory.put("cosines", moved)
        elif tracked.top is not None:
            now = tracked.everywhere(self._choice.candidates)
            tracked.likeness = ((now & tracked.top).sum(1) / now.sum(1))[None]
        self._hidden.scatter_(1, self._active.index[..., None].expand(fresh.shape), fresh)
        return self._hidden

    def _of_all(self, x: Tensor, wanted: Wanted, context: ForwardContext) -> ForwardContext:
        """The context of layers that all columns go through, after which the active ones are chosen anew."""
        self._kept.active = None
        self._set_active(self.rule.active(self._state(x, wanted)))
        self._choice.begin()
        watched = self.rule.selects or self.rule.watches
        queries = {**context.queries, BLOCK: (wanted.block & self._choice.everything)[:, None].float()}
        return replace(context, editor=self._kept, policy=self._choice if watched else None, queries=queries)

    def _of_active(self, x: Tensor, context: ForwardContext) -> tuple[ForwardContext, Tensor]:
        """The context of layers that only the active columns go through, and their positions, Long [B, A]."""
        index, once, columns = self._active.index, self._active.once, self._kept
        positions = self.model.spec.positions(self.real, (len(x), x.shape[1]), x.device).expand(len(x), -1)
        queries = {
            name: weights.gather(2, index[:, None].expand(-1, weights.shape[1], -1)) * once[:, None]
            for name, weights in context.queries.items()
        }
        queries[ALL] = once[:, None]
        united = self.rule.watches == "union"
        if united:
            queries[BLOCK] = once[:, None]  # the block is all that is active
        columns.active = index
        placed = Placed(self._seen.columns, self._choice.everything) if self.rule.selects else None
        context = replace(
            context, real=self._seen.real, newest=True, editor=columns, queries=queries, placed=placed,
            policy=self._choice if united else None,
        )  # fmt: skip
        return context, positions.gather(1, index)

    def _track(self, layer: int) -> None:
        """From a layer on, go on from the keys as they are now; what is tracked is computed in every step beside the block."""
        before, now = self._tracked.keys[:layer], self._tracked.now(self._kept)[layer:]
        self._tracked.keys = self._memory.put("tracked keys", torch.cat([before, now]) if layer else now)
        self._set_active(self._active.columns | self._tracked.everywhere(self._active.columns))

    def _count(self, layer: int | None, alive: Tensor | None) -> None:
        """Add the forward that just ran to the work; layer: the first that all columns went through, None: there was none."""
        if self._costs is None:
            keys = self._choice.everything.sum(1)
            self._costs = self.work.cost(keys, keys), None
        exact, cost = self._costs
        if layer is None:
            if cost is None:
                seen = self._seen.counts
                keys = self._choice.everything.sum(1) if seen is None else seen
                cost = self.work.cost(self._active.columns.sum(1), keys)
                self._costs = exact, cost
        elif layer == 0 or self.fresh is None:
            cost = exact
        else:
            keys = self._choice.everything.sum(1)
            deeper = self.work.cost(keys, keys, self.model.shape.layers - layer)
            cost = self.work.cost(self.fresh.sum(1), keys, layer) + deeper
        self.work.add(cost, exact, alive)

    # ---- what the rule looks at

    def _state(self, x: Tensor, wanted: Wanted) -> State:
        columns = torch.arange(x.shape[1], device=x.device)
        changed = torch.zeros_like(wanted.block) if self._before is None else x != self._before
        later = (columns >= wanted.start).expand_as(x)
        masked: Tensor = x == self.model.ids.mask  # type: ignore[assignment]
        return State(wanted, masked, changed, later)

    def _set_active(self, active: Tensor) -> None:
        """The active columns, Bool [B, S]."""
        self._active.choose(active, self._memory, self.rule.moves or self.rule.watches == "key")
        if self._costs is not None:
            self._costs = self._costs[0], None

    def _drifted_from(self) -> int | None:
        """The layer from which on keys are others, or have moved too far, if the last forward was a partial one and found any."""
        if self._clock.age <= 1 or self._tracked.likeness is None:
            return None
        return self.rule.drifted_from(self._tracked.likeness)
