"""A reuse rule between a loop and its engine: it turns every request into a full or a partial one."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import torch
from torch import Tensor

from sinkscope.attention.context import ForwardContext
from sinkscope.decoding.engine import Engine
from sinkscope.decoding.groups import accelerated
from sinkscope.decoding.step import Request, Step
from sinkscope.reuse.causal import CausalReuseRuntime
from sinkscope.reuse.rule import Reuse
from sinkscope.reuse.runtime import Forward, ReuseRuntime
from sinkscope.reuse.shadow import Shadow
from sinkscope.reuse.work import WorkCount


class Reusing:
    """A rule on the forwards of one group of rows.

    Args:
        row_keys: a number for each row, for random choices.
        shadowed: an exact forward runs beside each approximate one, so that its error is known.

    Attributes:
        errors: Float64 [B] of each step: what the shadow found.
    """

    def __init__(self, engine: Engine, rule: Reuse, row_keys: list[int], shadowed: bool = False) -> None:
        self.model, self.real = engine.model, engine.real
        self._causal = self._bidirectional = None
        if self.model.spec.causal:
            self._causal = CausalReuseRuntime(rule, self.model, self.real, row_keys)
        else:
            self._bidirectional = ReuseRuntime(rule, self.model, self.real, row_keys)
        self._shadow = Shadow(accelerated(Engine(self.model, self.real))) if shadowed else None
        if self._shadow is not None:
            engine.releases.append(self._shadow.exact.release)
        self.errors: list[Tensor] = []
        self._run, engine.run = engine.run, self.run
        engine.notes.append(self.note)

    @property
    def work(self) -> WorkCount:
        """What was computed so far."""
        return (self._causal or self._bidirectional).work  # type: ignore[union-attr]

    def note(self, step: Step) -> Step:
        """A step with the columns that were computed in it; its error is noted here."""
        if self._shadow is not None:
            nothing = torch.full((len(step.before),), float("nan"), dtype=torch.float64)
            self.errors.append(nothing if step.idle or self._shadow.kl is None else self._shadow.kl)
        return replace(step, fresh=None if self._bidirectional is None else self._bidirectional.fresh)

    def run(self, request: Request) -> Tensor:
        """The forward as the rule has it."""
        if self._causal is not None:
            return self._next(request, self._causal)
        if self._bidirectional is None or request.wanted is None:
            return self._run(request)
        wanted = request.wanted()

        def through(forward: Forward, repeats: Hashable | None) -> Tensor:
            return self._run(replace(request, through=forward, repeats=repeats))

        hidden = self._bidirectional.hidden(request.ids, wanted, through, request.alive)
        if self._shadow is not None:
            exact = self._shadow.exact.forward(Request(request.ids))
            before, found = (self.model.head(states[wanted.read]) for states in (exact, hidden))
            self._shadow.compare(before, found, wanted.read, request.alive)
        return hidden

    def _next(self, request: Request, rule: CausalReuseRuntime) -> Tensor:
        """The newest token of a causal model."""
        fed, cache = request.fed, request.cache

        def through(state: Tensor, context: ForwardContext) -> Tensor:
            context = rule.begin(context, len(state), state.shape[1], request.queries.start, request.alive)
            return self.model.forward(fed, context, keep=1, cache=cache)[:, -1]

        logits = self._run(replace(request, through=through))
        if self._shadow is not None:
            exact = self._shadow.exact.forward(replace(request, cache=self._shadow.cache, alive=None))
            read = torch.ones_like(fed[:, :1], dtype=torch.bool)
            self._shadow.compare(exact, logits, read, request.alive)
        return logits
