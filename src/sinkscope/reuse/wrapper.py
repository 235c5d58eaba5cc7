"""A reuse rule in one generation, between loops and engines: it turns every request into a full or a partial one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.attention.context import ForwardContext
from sinkscope.decoding.base import Decoding
from sinkscope.decoding.engine import Engine
from sinkscope.decoding.groups import accelerated
from sinkscope.decoding.step import Request, Step
from sinkscope.reuse.agreement import Shadow
from sinkscope.reuse.causal import CausalReuseRuntime
from sinkscope.reuse.rule import Reuse
from sinkscope.reuse.runtime import Forward, ReuseRuntime
from sinkscope.reuse.work import Reused, Work


class Reusing:
    """A rule on the forwards of one group of rows.

    Args:
        row_keys: a number for each row, for random choices.
        shadowed: an exact forward runs beside each approximate one, so that its error is known.

    Attributes:
        work: what was computed so far. errors: Float64 [B] of each step: what the shadow measured.
    """

    def __init__(self, engine: Engine, rule: Reuse, row_keys: list[int], shadowed: bool = False) -> None:
        self.model, self.real = engine.model, engine.real
        runtime = CausalReuseRuntime if self.model.spec.causal else ReuseRuntime
        self._runtime: CausalReuseRuntime | ReuseRuntime = runtime(rule, self.model, self.real, row_keys)
        self.work = self._runtime.work
        self._shadow = Shadow(accelerated(Engine(self.model, self.real))) if shadowed else None
        if self._shadow is not None:
            engine.releases.append(self._shadow.exact.release)
        self.errors: list[Tensor] = []
        self._run, engine.run = engine.run, self.run
        engine.notes.append(self.note)

    def note(self, step: Step) -> Step:
        """A step with the columns that were computed in it; its error is noted here."""
        if self._shadow is not None:
            nothing = torch.full((len(step.before),), float("nan"), dtype=torch.float64)
            self.errors.append(nothing if step.idle or self._shadow.kl is None else self._shadow.kl)
        return replace(step, fresh=self._runtime.fresh)

    def run(self, request: Request) -> Tensor:
        """The forward as the rule has it."""
        if isinstance(self._runtime, CausalReuseRuntime):
            return self._next(request, self._runtime)
        if request.wanted is None:
            return self._run(request)
        wanted = request.wanted()

        def through(forward: Forward, repeats: Hashable | None) -> Tensor:
            return self._run(replace(request, through=forward, repeats=repeats))

        hidden = self._runtime.hidden(request.ids, wanted, through, request.alive)
        if self._shadow is not None:
            exact = self._shadow.exact.forward(Request(request.ids))
            before, after = (self.model.head(states[wanted.read]) for states in (exact, hidden))
            self._shadow.compare(before, after, wanted.read, request.alive)
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


@dataclass
class Acting:
    """A rule, and the engines that it acts on.

    Attributes:
        shadowed: exact forwards run beside approximate ones.
    """

    rule: Reuse
    shadowed: bool = False
    engines: list[Reusing] = field(default_factory=list)

    def apart(self, decoding: Decoding) -> bool:
        """Whether rows with streams of their own run one by one."""
        return not self.rule.exact and (self.rule.alone or decoding.own_pace)

    def wrap(self, engine: Engine, row_keys: list[int]) -> None:
        """Put the rule between an engine and its loop; with exact steps it stays away."""
        if not self.rule.exact:
            self.engines.append(Reusing(engine, self.rule, row_keys, self.shadowed))

    def outcome(self, by_row: Callable[[list[Tensor | None]], Tensor | None], steps: int) -> Reused:
        """What is said of a run of so many steps; by_row: puts what each group has, [b, …], in the order of the batch."""
        if not self.engines:
            return Reused(self.rule)
        works = [engine.work for engine in self.engines]
        done, exact = by_row([work.done for work in works]), by_row([work.exact for work in works])
        work = Work(*([int(n) for n in part.tolist()] for part in (done, exact) if part is not None))
        if not self.shadowed:
            return Reused(self.rule, work)
        # Float64 [b, steps] of each group; NaN after it had ended.
        apart = [torch.stack(engine.errors, 1) for engine in self.engines]
        errors = by_row([pad(error, (0, steps - error.shape[1]), value=float("nan")) for error in apart])
        return Reused(self.rule, work, None if errors is None else errors.T)
