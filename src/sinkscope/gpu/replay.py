"""An engine's forwards, made fast: caches move into memory of fixed size, and forwards of one kind are captured and repeated.

It wraps an engine from outside (see `decoding.engine`), and asks policy and recorder one question: under which key can this
request be repeated? What cannot be runs as it would without.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sinkscope.gpu.graphs import Graphs, Kind, Result
from sinkscope.gpu.static_cache import FixedCache
from sinkscope.gpu.streams import Aside, Question

if TYPE_CHECKING:
    from sinkscope.decoding.engine import Engine
    from sinkscope.decoding.step import Request


def captures(device: torch.device) -> bool:
    """Whether forwards on a device can be captured: caches of fixed size are tried in Triton's interpreter too."""
    return device.type == "cuda"


ELSEWHERE = ("ids", "alive", "queries", "end", "cache", "twin", "wanted", "places", "through")
"""Fields of a request that are inputs of a captured forward, or have a way of their own; all others are part of its key."""

FEW = 4096
"""Positions of a forward, at most, whose kernels leave room for others on a GPU."""


def accelerate(engine: Engine) -> None:
    """Ask a GPU without making it wait, and run an engine's forwards by way of these replays, until it is released."""
    device = engine.model.device
    if device.type == "cuda":
        engine.asked = lambda ask: Question(ask, device).answer
        engine.forward_while = partial(_forward_while, engine)
    if engine.model.home is None:  # else layers lie on several devices
        replays = Replays(engine)
        engine.run = replays.run
        engine.releases.append(replays.release)


def _forward_while(engine: Engine, alive: Tensor | None, request: Request) -> Tensor | None:
    """The forward, which runs while the GPU is asked whether any row is alive.

    It may be one too many and counts for nothing: that is cheaper than letting the GPU wait for the host in every step.
    """
    going = None if alive is None else engine.asked(lambda: bool(alive.any()))
    output = engine.forward(request)
    return output if going is None or going() else None


class Replays:
    """The forwards of one group of rows."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._graphs = Graphs(engine.model.network, engine.model.device)
        self._cache: Any = None  # that of the loop, which has moved
        self._fixed: FixedCache | None = None  # where it is now

    def release(self) -> None:
        """Give the graphs back; none may be replayed any more."""
        self._graphs.release()

    def run(self, request: Request) -> Tensor:
        """The forward of a request, repeated where it can be."""
        engine = self._engine
        fixed = self._fixed_for(request)
        kind = self._kind(request, fixed)

        def forward(inputs: Tensor, captured: bool) -> Result:
            asked = replace(request, ids=inputs) if fixed is None else fixed.placed(request, inputs)
            return self._computed(asked, captured, kind is not None)

        owner, own = getattr(request.through, "__self__", None), {"real": engine.real}
        states = engine.policy, engine.recorder, owner, getattr(fixed, "memory", None), own
        roots = [root for root in states if root is not None]
        inputs = request.ids if fixed is None else fixed.inputs(request)
        result, repeated = self._graphs.run(inputs, kind, forward, roots)
        engine.real, engine.account = own["real"], result.account
        engine.deliver(result.recorded, request, repeated)
        return result.output

    def _computed(self, request: Request, captured: bool, repeated: bool) -> Result:
        engine = self._engine
        observed = engine.policy is not None or engine.recorder is not None
        few = request.places is not None or request.ids.numel() <= FEW
        # Launched one by one, kernels wait for the host: only a captured forward gains by a second stream.
        quick = captured and observed and few and request.ids.is_cuda
        output, recorded = engine.compute(request, Aside(request.ids.device) if quick else nullcontext())
        if engine.policy is not None and request.step and repeated:
            engine.policy.scores.carry()
        return Result(output, recorded, engine.account)

    def _kind(self, request: Request, fixed: FixedCache | None) -> Kind | None:
        """What forwards have in common that do the same on the device; None: this one is not repeated."""
        engine = self._engine
        if not captures(request.ids.device):
            return None
        # Of a forward of its own kind the state is that of the object whose method it is.
        owned = request.repeats is not None and hasattr(request.through, "__self__")
        alone = looks_at_more(request) or (request.through is not None and not owned)
        between = fixed is None and (request.cache is not None or request.kind != "denoise")
        facts = [getattr(request, item.name) for item in fields(request) if item.name not in ELSEWHERE]
        # A tensor of its own lies in memory that does not stay.
        if alone or between or any(isinstance(fact, Tensor) for fact in facts):
            return None
        observed = self._observed_key(request)
        if observed is None:
            return None
        length = None if fixed is None else len(range(request.ids.shape[1])[request.queries])
        policy, recorded = observed
        model, least = engine.model, None
        if engine.policy is not None:
            least = engine.least(request.state.shape[1], request.active)
        return Kind(
            (policy, engine.recorder is not None, request.through is not None),
            # On a cache of fixed size every forward looks at all of it; without, at the state alone.
            None if fixed is not None else request.state.shape[1],
            (
                # Several models may share a network.
                (model.spec, model.ids, model.block),
                (recorded, least, request.alive is None, length, tuple(request.ids.shape), request.ids.device),
                *facts,
            ),
        )

    def _observed_key(self, request: Request) -> tuple[Hashable, Hashable] | None:
        """The one thing asked of policy and recorder: under which key can a forward be repeated? None: it cannot."""
        policy, recorder = self._engine.policy, self._engine.recorder
        masks = None if policy is None else policy.replay_key()
        records = None if recorder is None else recorder.replay_key(request, policy is not None)
        missing = (policy is not None and masks is None) or (recorder is not None and records is None)
        return None if missing else (masks, records)

    # ---- caches of fixed size

    def _fixed_for(self, request: Request) -> FixedCache | None:
        """Where the cache of a request has moved, or moves now; None: it stays as it is."""
        if request.cache is None or request.through is not None:
            return None
        if self._fixed is None and self._repeats(request):
            self._cache, self._fixed = request.cache, FixedCache(request.cache, request.ids, self._engine.real)
        if request.cache is not self._cache:
            return None
        if looks_at_more(request):
            raise RuntimeError("the forwards before this one, on the same cache, read their state alone")
        return self._fixed

    def _repeats(self, request: Request) -> bool:
        """Whether this forward and later ones on its cache look alike: each of its queries sees all keys that are written."""
        engine, queries = self._engine, request.queries
        if looks_at_more(request):
            return False
        if request.kind == "next":  # behind the prompt of a causal model, where the kernels know its network
            # The policy need not be repeatable: kernels for a cache of fixed size do without a graph too.
            recorder = engine.recorder
            steady = recorder is None or recorder.replay_key(request, engine.policy is not None) is not None
            return steady and not engine.windowed and engine.model.decodes_statically(request.ids)
        if request.active is None or request.kind != "denoise" or not isinstance(request.block, int):
            return False
        whole = queries.stop - queries.start == request.active and not request.block % request.active
        return (
            whole and engine.real is None and captures(request.ids.device) and self._observed_key(request) is not None
        )


def looks_at_more(request: Request) -> bool:
    """Whether a forward reads tensors besides its state: they lie in memory that does not stay, and no fixed cache knows them."""
    more = request.twin, request.real, request.pattern, request.soft, request.noise
    return any(part is not None for part in more)
