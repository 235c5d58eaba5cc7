"""A reuse rule while it runs: full forwards, which fill what is kept, partial ones between them, and deep refreshes.

A deep refresh is a partial forward up to some layer and a full one from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from sinkscope.attention.context import ALL, AttentionCall, ForwardContext, Placed
from sinkscope.attention.key_mask import KeyMask
from sinkscope.attention.visibility import Visibility
from sinkscope.models.layers import seen
from sinkscope.models.model import Model
from sinkscope.policies.numbers import priorities
from sinkscope.reuse.columns import Columns
from sinkscope.reuse.memory import Memory
from sinkscope.reuse.residuals import Residuals
from sinkscope.reuse.rule import Candidates, Reuse, State, Wanted
from sinkscope.reuse.work import WorkCount

BLOCK = "block queries"
"""The class of queries whose attention chooses keys: those of the current block."""

PADDED = 32
"""Where their number varies, active columns are filled up to a multiple of this on a GPU: few graphs then serve all numbers."""

Forward = Callable[[Tensor, ForwardContext], Tensor]
"""Forward of a state under a context → last hidden states."""


class ReuseRuntime:
    """A rule on the denoising steps of one group of rows. It stands where a policy would, and sees every attention call.

    A partial forward reads what changes between steps from memory that stays where it is, and never waits for the device, so
    that it can be captured as a CUDA graph.

    Args:
        real: Bool [B, S], None when nothing is padded. row_keys: a number for each row, for random choices.

    Attributes:
        fresh: Bool [B, S]: columns whose keys and values the last forward computed in all layers.
        work: what was computed so far.
    """

    def __init__(self, rule: Reuse, model: Model, real: Tensor | None, row_keys: list[int]) -> None:
        self.rule, self.model, self.real = rule, model, real
        self.fresh: Tensor | None = None
        self.work = WorkCount(model, len(row_keys))
        self._row_keys = torch.tensor(row_keys, dtype=torch.long, device=model.device)
        self._columns, self._memory = Columns(whole=not rule.selects), Memory()
        self._residuals = Residuals()
        self._hidden: Tensor | None = None
        self._start: int | None = None
        self._age = 0
        self._refreshes = 0
        self._before: Tensor | None = None
        self._everything: Tensor = torch.empty(0, dtype=torch.bool)
        self._costs: tuple[Tensor, Tensor | None] | None = None  # of a full forward, and of a partial one
        self._active: Tensor = torch.empty(0, dtype=torch.bool)
        self._index: Tensor = torch.empty(0, dtype=torch.long)
        self._once: Tensor = torch.empty(0)  # [B, A]: 0 for queries that repeat another
        self._candidates: Tensor = torch.empty(0, dtype=torch.bool)
        self._near: Tensor = torch.empty(0)
        self._most: int | None = None
        self._seen: Tensor | None = real
        self._seen_counts: Tensor | None = None
        self._placed: dict[int, Tensor] = {}
        self._tracked: dict[int, Tensor] = {}
        self._tracked_keys: Tensor = torch.empty(0)
        self._top: Tensor | None = (
            None  # Bool [B, S]: the most attended keys of the layers in the last full forward
        )
        self._likeness: Tensor | None = None  # [layer or 1, B], of the last partial forward

    # ---- forwards

    def hidden(
        self,
        x: Tensor,
        wanted: Wanted,
        run: Callable[[Forward, Tensor, Hashable | None], Tensor],
        alive: Tensor | None = None,
    ) -> Tensor:
        """Last hidden states [B, S, width] of the state x: fresh where the rule says so, else of an earlier forward.

        Args:
            run: calls a forward with the state and with the context of a full one. With a kind, it may also repeat what an
                earlier call of that kind did on the device.
        """
        begins = wanted.start != self._start
        self._start = wanted.start
        layer = self._drifted_from()
        full = self._hidden is None or layer == 0 or self.rule.due(self._age, begins)
        if not full and self.rule.moves:
            self._set_active(self.rule.active(self._state(x, wanted)))
        elif not full:
            full = bool((wanted.read & ~self._active).any())
        self._before = x
        if full:
            self._age, self._refreshes = 1, self._refreshes + 1
            hidden = run(lambda state, context: self._refresh(state, wanted, context), x, None)
            self.fresh = self._everything
        elif layer is not None:
            self._age, self._refreshes = 1, self._refreshes + 1
            self.fresh, begun = self._active, layer
            hidden = run(lambda state, context: self._deepen(state, wanted, context, begun), x, None)
        else:
            self._age += 1
            kind = (self._index.shape[1], self._most, self._seen is None, self._columns.moved)
            # Not captured with unions: whether their kernels can be has not been tried.
            hidden = run(self._partial, x, None if self.rule.unites else kind)
            self.fresh = self._active
        self._count(0 if full else layer, alive)
        return hidden

    def _refresh(self, x: Tensor, wanted: Wanted, context: ForwardContext) -> Tensor:
        """A full forward; what it leaves behind is chosen layer by layer, as its attention calls come by."""
        if self._hidden is None:
            self._everything = torch.ones_like(wanted.block) if self.real is None else self.real
        context = self._of_all(x, wanted, context)
        with self._seen_residuals():
            hidden = self.model.hidden(x, context)
        if self.rule.tracks:
            self._track(0)
        if self.rule.unites:
            self._top = self._top_keys()
        self._hidden = self._memory.put("hidden", hidden)
        return self._hidden

    def _deepen(self, x: Tensor, wanted: Wanted, context: ForwardContext, layer: int) -> Tensor:
        """A forward of the active columns up to a layer, and of all columns from there on."""
        before, positions = self._of_active(x, context)
        with self._seen_residuals():
            self._residuals.active = self._index
            stream = self.model.entering(x.gather(1, self._index), layer, before, positions)
            self._residuals.see(layer, stream)
            context = self._of_all(x, wanted, context)
            hidden = self.model.onward(self._residuals.entering(layer), layer, context)
        self._track(layer)
        self._hidden = self._memory.put("hidden", hidden)
        return self._hidden

    def _partial(self, x: Tensor, context: ForwardContext) -> Tensor:
        """A forward of the active columns only."""
        if self._hidden is None:
            raise RuntimeError("there is nothing to reuse yet")
        context, positions = self._of_active(x, context)
        fresh = self.model.hidden(x.gather(1, self._index), context, positions=positions)
        if self.rule.tracks:
            moved = torch.nn.functional.cosine_similarity(
                self._keys_now().float(), self._tracked_keys.float(), dim=-1
            )
            self._likeness = self._memory.put("cosines", moved)
        if self.rule.unites and self._top is not None:
            now = self._top_keys()
            self._likeness = ((now & self._top).sum(1) / now.sum(1))[None]
        self._hidden.scatter_(1, self._index[..., None].expand(fresh.shape), fresh)
        return self._hidden

    def _of_all(self, x: Tensor, wanted: Wanted, context: ForwardContext) -> ForwardContext:
        """The context of layers that all columns go through, after which the active ones are chosen anew."""
        self._columns.active = self._residuals.active = self._most = None
        self._set_active(self.rule.active(self._state(x, wanted)))
        self._candidates = self._everything & ~self._active
        if self.rule.selects and "near" in self.rule.scores:
            self._near = self._nearness()
        watched = self.rule.selects or self.rule.tracks or self.rule.unites
        queries = {**context.queries, BLOCK: (wanted.block & self._everything)[:, None].float()}
        return replace(context, editor=self._columns, policy=self if watched else None, queries=queries)

    def _of_active(self, x: Tensor, context: ForwardContext) -> tuple[ForwardContext, Tensor]:
        """The context of layers that only the active columns go through, and their positions, Long [B, A]."""
        index, once, columns = self._index, self._once, self._columns
        positions = self.model.spec.positions(self.real, (len(x), x.shape[1]), x.device).expand(len(x), -1)
        queries = {
            name: weights.gather(2, index[:, None].expand(-1, weights.shape[1], -1)) * once[:, None]
            for name, weights in context.queries.items()
        }
        queries[ALL] = once[:, None]
        if self.rule.unites:
            queries[BLOCK] = once[:, None]  # the block is all that is active
        columns.active = index
        placed = Placed(self._placed, self._everything) if self.rule.selects else None
        context = replace(
            context, real=self._seen, newest=True, editor=columns, queries=queries, placed=placed,
            policy=self if self.rule.unites else None,
        )  # fmt: skip
        return context, positions.gather(1, index)

    def _seen_residuals(self) -> AbstractContextManager[None]:
        """While inside, residual streams are kept, where the rule may go on from them."""
        return seen(self.model.network, self._residuals.see) if self.rule.deepens else nullcontext()

    def _track(self, layer: int) -> None:
        """From a layer on, go on from the keys as they are now; what is tracked is computed in every step beside the block."""
        kept, now = self._tracked_keys[:layer], self._keys_now()[layer:]
        self._tracked_keys = self._memory.put("tracked keys", torch.cat([kept, now]) if layer else now)
        self._set_active(self._active.scatter(1, torch.stack(list(self._tracked.values()), 1), True))

    def _count(self, layer: int | None, alive: Tensor | None) -> None:
        """Add the forward that just ran to the work; layer: the first that all columns went through, None: there was none."""
        if self._costs is None:
            keys = self._everything.sum(1)
            self._costs = self.work.cost(keys, keys), None
        exact, cost = self._costs
        if layer is None:
            if cost is None:
                keys = self._everything.sum(1) if self._seen_counts is None else self._seen_counts
                cost = self.work.cost(self._active.sum(1), keys)
                self._costs = exact, cost
        elif layer == 0 or self.fresh is None:
            cost = exact
        else:
            keys = self._everything.sum(1)
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
        """The active columns, as Bool [B, S] and as Long [B, A]; a row with fewer than A repeats its last one."""
        self._active = active
        counts = active.sum(1)
        most = max(1, int(counts.max()))
        if (self.rule.moves or self.rule.tracks) and fills_up(active.device):
            most = min(-(-most // PADDED) * PADDED, active.shape[1])
        order = (~active).to(torch.uint8).sort(dim=1, stable=True).indices[:, :most]
        last = (counts - 1).clamp(min=0)[:, None]
        ranks = torch.arange(most, device=active.device)[None]
        self._index = self._memory.put("index", order.gather(1, ranks.minimum(last)))
        self._once = self._memory.put("once", (ranks < counts[:, None]).float())
        if self._costs is not None:
            self._costs = self._costs[0], None

    def _drifted_from(self) -> int | None:
        """The layer from which on keys are others, or have moved too far, if the last forward was a partial one and found any."""
        if self._age <= 1 or self._likeness is None:
            return None
        return self.rule.drifted_from(self._likeness)

    def _keys_now(self) -> Tensor:
        """Float [layer, B, G · D]: the keys of each layer's tracked column."""
        return torch.stack([self._columns.keys_at(layer, column) for layer, column in self._tracked.items()])

    def _top_keys(self) -> Tensor:
        """Bool [B, S]: the most attended key outside of the block of every layer."""
        columns = torch.stack(list(self._tracked.values()), 1)
        return torch.zeros_like(self._candidates).scatter(1, columns, True)

    # ---- in the place of a policy: the calls of a full forward

    def mask(
        self, layer: int, query: Tensor, key: Tensor, visibility: Visibility, scale: float
    ) -> KeyMask | None:
        """Nothing is masked."""
        return None

    def reads(self, layer: int) -> tuple[str, ...]:
        """What is received from the block, and from all queries, where that is what the rule chooses by."""
        if self.rule.tracks or self.rule.unites:
            return (BLOCK,)
        return tuple(
            name for name, score in ((BLOCK, "received"), (ALL, "sinks")) if score in self.rule.scores
        )

    def measure(self, call: AttentionCall) -> None:
        """Choose the keys of a layer that stay, or the one to track."""
        if self.rule.tracks or self.rule.unites:
            received = self._received(call, BLOCK).nan_to_num(float("-inf"))
            column = received.masked_fill(~self._candidates, float("-inf")).argmax(1)
            self._tracked[call.layer] = self._memory.put(f"tracked {call.layer}", column)
            return
        nothing, scores = torch.empty(0), self.rule.scores
        chosen = self.rule.choose(
            Candidates(
                self._candidates,
                self._received(call, ALL) if "sinks" in scores else nothing,
                self._received(call, BLOCK) if "received" in scores else nothing,
                self._near if "near" in scores else nothing,
                self._drawn(call.layer) if "random" in scores else nothing,
                self._candidates.sum(1),
            )
        )
        if self._most is None:  # the host waits in the first layer only: all layers keep as many
            counts = chosen.sum(1)
            self._most = int(counts.max())
            valid = torch.arange(self._most, device=chosen.device) < counts[:, None]
            kept = torch.cat([valid, self._once.bool()], 1)
            self._seen = None if bool(kept.all()) else self._memory.put("seen", kept)
            self._seen_counts = kept.sum(1)
        columns = (~chosen).to(torch.uint8).sort(dim=1, stable=True).indices[:, : self._most]
        self._placed[call.layer] = self._memory.put(
            f"placed {call.layer}", torch.cat([columns, self._index], 1)
        )
        self._columns.gather(call.layer, call.key, call.value, columns, self._index.shape[1])

    def _received(self, call: AttentionCall, queries: str) -> Tensor:
        """Float [B, S]: what a layer's keys received, mean over its heads."""
        return call.received(queries)[:, :, 0].mean(1)

    def _nearness(self) -> Tensor:
        """Float [B, S]: minus the distance to the nearest active column."""
        columns = torch.arange(self._active.shape[1], device=self._active.device)
        gap = (columns[None, :, None] - self._index[:, None, :]).abs()
        return -gap.amin(2).double()

    def _drawn(self, layer: int) -> Tensor:
        """Float64 [B, S]: random numbers of this layer and refresh."""
        rows, columns = self._candidates.shape
        steps = torch.full((rows, 1), self._refreshes, device=self._candidates.device)
        first = (~self._everything).sum(1)
        seed = int(getattr(self.rule, "seed", 0))
        return priorities(seed, self._row_keys, layer, 1, steps, first, columns)[:, 0].double()


def fills_up(device: torch.device) -> bool:
    """Whether active columns are filled up to a multiple: on a GPU, where a forward of few columns costs what one of 32 does."""
    return device.type == "cuda"
