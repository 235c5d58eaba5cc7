"""The model as a generation loop sees it: forward passes under a policy and a recorder.

A loop says what it needs in a `Request`; `Engine.forward` is the only way to the model. What makes forwards
fast on a GPU, and what makes them approximate, wraps `Engine.run` from outside, and no loop knows of it. Outside of loops the
network is run by `Model.logits` and `Model.attention`, by what looks into it (`inspection/observation.py`), and by what tries it
out when it is loaded (`models/probe.py`, `models/selfcheck.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from sinkscope.attention.context import ForwardContext
from sinkscope.decoding.step import ForwardRecorder, Prompts, Recorded, Request, Step, step_of
from sinkscope.models.model import Model
from sinkscope.policies.account import StepAccount
from sinkscope.policies.forward import Forward
from sinkscope.policies.runtime import PolicyRuntime

T = TypeVar("T")

Ask = Callable[[], T]

Run = Callable[[Request], Tensor]

Aside = AbstractContextManager[Callable[[object], AbstractContextManager[None]] | None]
"""Where policy and recorder measure while the layers go on; on leaving, all is done (see `gpu.streams`)."""

IN_TURN: Aside = nullcontext()


class Engine:
    """The model for one group of rows of equal layout.

    Attributes:
        real: Bool [B, S]: padding of the whole sequence, or None.
        policy: the policy while it runs, or None. recorder: what records, or None.
        cached: whether a block loop keeps finished blocks in a KV cache.
        prompts: what the loop may want to know of the whole batch.
        forwards: forward passes so far, one number for all rows or one each (a guided step counts two).
        account: what the policy did in the last forward. windowed: it masks all keys outside of a window.
        run: runs a request; wrappers take its place. notes: what they add to a step. releases: how they give back what they hold.
        asked: gives a function that answers a question about tensors that are there now.
        forward_while: the forward, if any row Bool [B] is alive, else None; alive None: there is nothing to ask.
    """

    def __init__(
        self,
        model: Model,
        real: Tensor | None = None,
        policy: PolicyRuntime | None = None,
        recorder: ForwardRecorder | None = None,
        cached: bool = False,
        prompts: Prompts | None = None,
    ) -> None:
        self.model, self.real, self.policy, self.recorder = model, real, policy, recorder
        self.cached, self.prompts = cached, prompts or Prompts()
        self.forwards: int | Tensor = 0
        self.account: StepAccount | None = None
        # A window asks where its queries stand.
        self.windowed = policy is not None and any(rule.band() is not None for rule in policy.rules)
        # Looked at once: padding stands on one side and stays.
        self.padding = 0 if real is None else int((~real).sum(1).max())
        self._widest = 0  # of the blocks so far
        self.run: Run = self.plain
        self.asked: Callable[[Ask[Any]], Ask[Any]] = lambda ask: ask
        self.forward_while: Callable[[Tensor | None, Request], Tensor | None] = self._ask_first
        self.notes: list[Callable[[Step], Step]] = []
        self.releases: list[Callable[[], None]] = []

    @property
    def mask_id(self) -> int:
        """The mask token; generation loops of masked models are only reached when there is one."""
        if self.model.ids.mask is None:
            raise RuntimeError("a masked loop was given a model without a mask token")
        return self.model.ids.mask

    def forward(self, request: Request) -> Tensor:
        """What a forward gives: last hidden states [B, Q, width], or of a causal model the logits [B, V] behind the last query.

        Of a text that is read they are [B, keep, V]. With a twin they are those of 2·B rows. The next call may overwrite them.
        """
        passes = 1 if request.twin is None else 2
        alive = request.alive
        self.forwards = self.forwards + (passes if alive is None else passes * alive.long())
        if self.policy is not None:
            self.policy.set_alive(alive)
        if self.recorder is not None and request.step:
            self.recorder.next_forward()
        if request.kind == "prefill" and self.policy is not None and self.policy.reads_first:
            self._read(request)
        return self.run(request)

    def _ask_first(self, alive: Tensor | None, request: Request) -> Tensor | None:
        return self.forward(request) if alive is None or bool(alive.any()) else None

    def plain(self, request: Request) -> Tensor:
        """Run a request as it is."""
        output, recorded = self.compute(request)
        self.deliver(recorded, request)
        return output

    def compute(self, request: Request, aside: Aside = IN_TURN) -> tuple[Tensor, Recorded]:
        """The forward of a request, and what was recorded; nothing of it waits for the device where it can be repeated."""
        with aside as beside:
            output = self._layers(request, self._context(request, beside))
        # The policy's account comes first: the recorder keeps it too.
        self.account = None if self.policy is None else self.policy.end()
        return output, {} if self.recorder is None else self.recorder.end(self.account)

    def deliver(self, recorded: Recorded, request: Request, repeated: bool = False) -> None:
        """Hand what a forward has recorded to the recorder; repeated: the next one writes to the same memory."""
        if self.recorder is not None:
            self.recorder.adopt(recorded, request, repeated)

    def release(self) -> None:
        """Give back what wrappers hold; no forward may follow."""
        for release in self.releases:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def idle_step(self, x: Tensor, alive: Tensor) -> Step:
        """A step in which nothing is decided: no forward runs."""
        if self.recorder is not None:
            self.recorder.next_forward()
        return step_of(x, x, alive, self.mask_id, idle=True)

    def _layers(self, request: Request, context: ForwardContext) -> Tensor:
        model, places = self.model, request.places
        if request.through is not None:
            return request.through(request.state, context)
        if model.spec.causal:
            if places is not None:
                return model.decode(request.fed, context, request.cache, places.positions)
            logits = model.forward(request.fed, context, keep=request.keep or 1, cache=request.cache)
            return logits if request.keep else logits[:, -1]
        fed = request.fed
        if request.active is not None:
            fed = fed.clamp(min=0)  # rows of a block loop may have ended before these columns
        if request.twin is not None:
            fed = torch.cat([fed, request.twin[0]])
        return model.hidden(fed, context, request.cache, None if places is None else places.positions)

    def _context(self, request: Request, beside: Any) -> ForwardContext:
        """What is wanted of a forward: built before it, for both branches of a guided one."""
        keys, places = request.state.shape[1], request.places
        own_real = (self.real if request.real is None else request.real) if places is None else places.visible
        real = own_real = None if own_real is None else own_real[:, :keys]
        if request.twin is not None and (own_real is not None or request.twin[1] is not None):
            full = torch.ones_like(request.ids, dtype=torch.bool)
            twin = request.twin[1]
            real = torch.cat([full if own_real is None else own_real, full if twin is None else twin])
        if self.policy is not None:
            self.policy.begin(self._of_policy(request))
        queries: Mapping[str, Tensor] = {}
        if self.recorder is not None:
            queries = self.recorder.begin(request, own_real, self.model.ids.mask)
        return self.model.context(
            real, policy=self.policy, recorder=self.recorder, queries=queries, newest=places is not None, beside=beside,
            block=request.block, causal=request.causal, pattern=request.pattern, soft=request.soft, active=request.active,
        )  # fmt: skip

    def least(self, written: int, active: int | None) -> int:
        """Keys that every row has at least, as far as a policy asks for it: whether twice those that it masks are left.

        Batches with more padding or less, and later blocks, are therefore the same to it.

        Args:
            written: columns that are certainly written, padding included. active: see Request.
        """
        self._widest = max(self._widest, active or 0)
        masked = 0 if self.policy is None else sum(rule.most or 0 for rule in self.policy.rules)
        return min(written - self.padding, 2 * masked + self._widest + 2)

    def _of_policy(self, request: Request) -> Forward:
        """What a policy looks at in a forward."""
        state, spared = request.state, None
        masked, scored = request.predicted(self.model.ids.mask, self.model.spec.shifted)
        written = state.shape[1] if request.places is None else request.places.written
        if request.keep:  # one forward holds prompt and steps, so what a rule leaves out are queries of it
            queries = torch.arange(state.shape[1], device=state.device)[None]
            first = state.shape[1] - request.keep
            scored, spared = queries >= first, queries <= first
        return Forward(
            branches=1 if request.twin is None else 2, least=self.least(written, request.active), active=request.active,
            step=request.step, tokens=state, masked=masked, scored=scored, prefill=request.kind == "prefill",
            reading=request.kind == "read" and not request.keep, spared=spared,
        )  # fmt: skip

    def _read(self, request: Request) -> None:
        """Read a prompt once without the policy, for the scores that it acts by from the prompt on."""
        recorder, self.recorder = self.recorder, None
        try:
            self.compute(replace(request, kind="read", cache=None))
        finally:
            self.recorder = recorder
        self.forwards = self.forwards + (1 if request.alive is None else request.alive.long())


Places = tuple[Tensor, ...]
"""Rows and columns of some positions, Long [N] each."""

Score = Callable[..., tuple[Tensor, Tensor]]
"""From what frames hold at N positions, [N, …] each, to their candidates Long [N] and confidence Float [N]."""

MOST_KEPT = 2**28
"""Bytes of such frames that may wait for a recorder, which gets to them beside the next step."""


class MaskedStep:
    """One step of a loop that replaces masks: what it looked at, and what comes of its choice.

    Which positions there are is asked before the forward and answered behind it, so that no GPU stands idle until the host knows.

    Args:
        x: Long [B, S]: the state. selectable: Bool [B, S]: the masks that the step may decide. A recorder wants the others too.
    """

    def __init__(self, engine: Engine, x: Tensor, selectable: Tensor) -> None:
        self.x, self.selectable, self.mask_id = x, selectable, engine.mask_id
        self.masked = x == engine.mask_id
        others = self.masked & ~selectable if engine.recorder is not None else None

        def positions() -> tuple[Places, Places | None]:
            rest = None if others is None else others.nonzero(as_tuple=True)
            return selectable.nonzero(as_tuple=True), rest

        self._positions = engine.asked(positions)

    def look(self, score: Score, *frames: Tensor | None) -> Tensor:
        """The confidence of the selectable positions, Float [B, S], −inf elsewhere.

        Args:
            frames: [B, S, …]: what `score` looks at.
        """

        def at(where: Places) -> list[Tensor | None]:
            return [None if frame is None else frame[where] for frame in frames]

        here, others = self._positions()
        candidate, confidence = score(*at(here))
        self._tokens = torch.full_like(self.x, -1)
        self._tokens[here] = candidate
        self._scores = torch.full(self.x.shape, float("-inf"), dtype=confidence.dtype, device=self.x.device)
        self._scores[here] = confidence
        self._rest = None if others is None or not len(others[0]) else (others, score, at(others))
        return self._scores

    def write(self, chosen: Tensor, ties: Tensor, alive: Tensor) -> Step:
        """The step that writes the chosen positions Bool [B, S] of the rows Bool [B] that are alive."""
        x, tokens, chosen = self.x, self._tokens, chosen & alive[:, None]
        # What is no candidate, and yet chosen, becomes a mask.
        written = tokens.masked_fill(tokens < 0, self.mask_id)
        after, decided = torch.where(chosen, written, x), chosen & (written != self.mask_id)
        seen = self._scores.masked_fill(~self.selectable, float("nan"))
        step = Step(x, after, self.masked, seen, tokens, decided, ties * alive, alive)
        if self._rest is None:
            return step
        others, score, kept = self._rest
        if sum(frame.nbytes for frame in kept if frame is not None) > MOST_KEPT:
            tokens[others], seen[others] = score(*kept)
            return step

        def everywhere() -> tuple[Tensor, Tensor]:
            all_tokens, all_seen = tokens.clone(), seen.clone()
            all_tokens[others], all_seen[others] = score(*kept)
            return all_tokens, all_seen

        return replace(step, everywhere=everywhere)
