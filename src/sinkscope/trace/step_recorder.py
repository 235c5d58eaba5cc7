"""Watching a forward pass: turns attention calls into the arrays of one recorded step.

One watcher per group of rows. What is recorded stays on the model's device until the step is over (see `outbox`), so that no
layer has to wait for a copy; nothing of size S×S exists except at level "maps".
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sinkscope.attention.interface import AttentionCall
from sinkscope.attention.visibility import Visibility
from sinkscope.policies.runtime import Account, PolicyRuntime
from sinkscope.sink_rule import torch_sinks_of
from sinkscope.trace.capture import Capture
from sinkscope.trace.frame import Frame

SEEN_BY = 16
"""Received attention over all queries so far is NaN for a key seen by fewer queries: the newest keys have too few."""


@dataclass(frozen=True)
class _Seen:
    """What one layer of a causal model gave in one forward.

    Attributes:
        last, every: Float32 [B, H, K]: attention from the last query, and from all of them.
        uniform: Float64 [B|1, 2, K]: what both would bring if queries looked at all keys alike.
        seen: Float64 [B, K]: queries that see a key.
        queries: how many there were.
    """

    last: Tensor
    every: Tensor
    uniform: Tensor
    seen: Tensor
    queries: int


class StepRecorder:
    """Records the attention of one group of rows.

    After a forward, `found` maps variable name → one tensor per recorded layer, with the group's rows and columns.
    """

    def __init__(
        self,
        frame: Frame,
        capture: Capture,
        rows: list[int],
        prompt: int,
        acting: PolicyRuntime | None = None,
    ) -> None:
        self.frame, self.capture, self.rows = frame, capture, rows
        self.prompt, self._acting = prompt, acting
        self.last: int | None = None  # where the answer ends; None: with the sequence
        self.active = True
        self._wanted = {layer: index for index, layer in enumerate(frame.layers)}
        self._branches = 1
        self._weights: Tensor | None = None
        self._real: Tensor | None = None
        self._steps = 0
        self.begun = 0.0
        self.found: dict[str, list[Tensor]] = {}
        self._seen: list[_Seen] = []
        self._sums: tuple[Tensor, Tensor, Tensor] | None = None
        self._prompt_sums: tuple[Tensor, Tensor] | None = None
        self._residual: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        self._first: dict[int, Tensor] = {}

    @property
    def replayable(self) -> bool:
        """Whether all that is recorded is computed without a look at its values, so that a CUDA graph can repeat it."""
        return not self.frame.causal and not self.capture.anatomy and self.capture.level != "maps"

    @property
    def steady(self) -> bool:
        """Whether every forward is recorded."""
        return self.capture.every == 1

    def tick(self) -> bool:
        """A new forward: whether this one is recorded."""
        self.begun = time.monotonic()
        self.active = self._steps % self.capture.every == 0
        self._steps += 1
        return self.active

    def begin(self, ids: Tensor, real: Tensor | None, masked: Tensor, branches: int) -> None:
        """Chooses the classes of queries for this forward: those of `_classes`, or one of all; causal: see `_causal`."""
        self._settle()
        self.found = {}
        self._branches = branches
        self._real = real
        by_kind = self.capture.by_query and not self.frame.causal
        self._weights = self._classes(masked) if by_kind else None

    def _classes(self, masked: Tensor) -> Tensor:
        """Float32 [B·branches, 4, S]: all queries, then masked, decided and prompt queries."""
        answer = torch.zeros_like(masked)
        answer[:, self.prompt : self.last] = True
        classes = [torch.ones_like(masked), masked, ~masked & answer, ~masked & ~answer]
        return torch.stack(classes, 1).float().repeat(self._branches, 1, 1)

    def asks(self, layer: int) -> tuple[Tensor | None, ...]:
        """The classes of queries that will be asked for, all queries where there are none: see interface.Asking."""
        return (self._weights,) if self.active and layer in self._wanted and not self.frame.causal else ()

    def __call__(self, call: AttentionCall) -> None:
        """Computes what the capture asks for from one attention call."""
        if call.layer not in self._wanted:
            return
        if self.frame.causal:
            self._causal(call)
        elif self.active:
            self._bidirectional(call)
        if not self.active:
            return
        if self._acting is not None:
            self._policy(call, self._acting.account)
        if self.capture.level == "maps":
            self._keep("attention", self._heads(call.map()[: len(self.rows)]))
        if self.capture.anatomy:
            rows = len(self.rows)
            self._keep("value_norm", call.value[:rows].float().norm(dim=-1))
            self._keep("key_norm", call.key[:rows].float().norm(dim=-1))

    def _bidirectional(self, call: AttentionCall) -> None:
        received = call.received(self._weights)
        rows = len(self.rows)
        self._keep_scores("received", received[:rows, :, 0])
        if self.capture.level == "layers":
            self._keep("sink_heads", sink_heads(received[:rows, :, 0]))
        if self._branches == 2:
            self._keep_scores("received_uncond", received[rows:, :, 0])
        if self.capture.by_query:
            by = received[:rows, :, 1:]
            self._keep("received_by", by.mean(1) if self.capture.level == "layers" else self._heads(by))

    def _causal(self, call: AttentionCall) -> None:
        """Keeps the last row and the sum over all queries of one layer; `_settle` goes on with all layers together."""
        rows, queries = call.query.shape[0], call.query.shape[2]
        if self._weights is None:  # once for all layers, so that what follows from it is computed once too
            self._weights = torch.ones(rows, 2, queries, device=call.query.device)
            self._weights[:, 0, :-1] = 0.0
        weights, uniform = call.expected(self._weights)
        pattern = ("seen by", *call.visibility.pattern)
        if pattern not in call.scratch:  # the pattern is kept beside it, so that its ids stay its own
            call.scratch[pattern] = (_seen_by(call.visibility, weights[:, 1]), call.visibility)
        if queries == 1:
            last = every = call.newest(weights)
        else:
            last, every = call.mass(weights).unbind(2)
        self._seen.append(_Seen(last, every, uniform, call.scratch[pattern][0], queries))

    def _settle(self) -> None:
        """Adds the queries of a causal forward to those so far, and keeps what they received: all layers in one go.

        A step with a cache has one query, and its time is that of many small operations: one for all layers saves most.
        """
        layers, self._seen = self._seen, []
        if not layers:
            return
        last, every = (torch.stack([getattr(one, name) for one in layers]) for name in ("last", "every"))
        # Layers that see the same pattern hold the same objects.
        alike = all(one.uniform is layers[0].uniform for one in layers)
        patterns = layers[:1] if alike else layers
        uniform = torch.stack([one.uniform for one in patterns])  # [layer|1, B|1, 2, K]
        seen = torch.stack([one.seen for one in patterns])
        mass, expected = every.double(), uniform[:, :, 1]
        if self._sums is not None:
            grow = mass.shape[-1] - self._sums[0].shape[-1]
            mass, expected, seen = (
                now + torch.nn.functional.pad(old, (0, grow))
                for now, old in zip((mass, expected, seen), self._sums, strict=True)
            )
        self._sums = (mass, expected, seen)
        if self._prompt_sums is None:  # the first forward is the prefill
            self._prompt_sums = (mass, expected)
        if not self.active:
            return
        total = _over(mass, expected, seen >= SEEN_BY)
        self._keep_layers("received", _over(last, uniform[:, :, 0]))
        self._keep_layers("received_all", total)
        if self.capture.level == "layers":
            self.found["sink_heads"] = [sink_heads(one) for one in total]
        if self.capture.by_query:
            self.found["received_by"] = [
                by.mean(1) if self.capture.level == "layers" else self._heads(by) for by in self._by_kind()
            ]
        if layers[0].queries == mass.shape[-1]:
            self._keep_layers("prefill_received", _over(every, uniform[:, :, 1]))

    def _keep_layers(self, name: str, scores: Tensor) -> None:
        """Keeps the scores of all layers, [layer, B, H, K]."""
        for one in scores.mean(2)[:, :, None] if self.capture.level == "layers" else scores:
            self._keep_scores(name, one)

    def _policy(self, call: AttentionCall, account: Account) -> None:
        """What the policy did in this layer: it has measured that already."""
        raw = account.raw[call.layer]
        self._keep_scores("received_raw", raw)
        for name, value in (
            ("hidden_share", account.share[call.layer]),
            ("sinks_hit", account.hit[call.layer]),
        ):
            self._keep(name, value.nanmean(1) if self.capture.level == "layers" else self._heads(value))
        if self.capture.level != "layers":
            taken = account.columns.get(call.layer)
            self._keep(
                "taken_keys", self._heads(torch.zeros_like(raw, dtype=torch.bool) if taken is None else taken)
            )

    def _by_kind(self) -> Tensor:
        """Float32 [layer, B, H, kind, K]: received from the masked (none here), the written and the prompt queries so far."""
        if self._sums is None or self._prompt_sums is None:
            raise RuntimeError("no forward was seen")
        mass, uniform, _ = self._sums
        grown = mass.shape[-1] - self._prompt_sums[0].shape[-1]
        prompt, expected = (torch.nn.functional.pad(one, (0, grown)) for one in self._prompt_sums)
        nothing = torch.zeros_like(uniform)
        kinds = ((nothing[:, :, None], nothing), (mass - prompt, uniform - expected), (prompt, expected))
        # A difference of equal sums may be a rounding error away from 0; one query gives a key at least 1/K.
        least = 0.5 / mass.shape[-1]
        by = [
            torch.where(
                one[:, :, None] > least, sums / one.clamp(min=least)[:, :, None], float("nan")
            ).expand_as(mass)
            for sums, one in kinds
        ]
        return torch.stack(by, 3).float()

    def residual(self, layer: int, hidden: Tensor) -> None:
        """Norms and largest activations of the residual stream [B·branches, Q, width] entering a layer."""
        if layer not in self._wanted or not (self.active or self.frame.causal):
            return
        hidden = hidden[: len(self.rows)].float()
        size = hidden.abs()
        norm, largest = size.norm(dim=-1), size.amax(-1)
        median = self._median(size)
        cosine = self._cosine(layer, hidden)
        if self.frame.causal and layer in self._residual:
            # Cached positions are not computed again: their hidden states are those of the step that wrote them. The
            # median stays that of the prompt.
            before = self._residual[layer]
            norm, largest, cosine = (
                torch.cat([old, new], 1) for old, new in zip(before, (norm, largest, cosine), strict=False)
            )
            median = before[3]
        self._residual[layer] = (norm, largest, cosine, median)
        if self.active:
            self._keep("hidden_norm", norm)
            self._keep("largest_activation", largest)
            self._keep("hidden_cosine", cosine)
            self._keep("median_activation", median)

    def _cosine(self, layer: int, hidden: Tensor) -> Tensor:
        """Cosine of every hidden state with that of the first real token: Float [B, Q, width] → [B, Q]."""
        if layer not in self._first or not self.frame.causal:
            begin = torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)
            if self._real is not None:
                begin = self._real.long().argmax(-1)
            self._first[layer] = hidden[torch.arange(len(hidden), device=hidden.device), begin]
        return torch.nn.functional.cosine_similarity(hidden, self._first[layer][:, None], dim=-1)

    def _median(self, size: Tensor) -> Tensor:
        """Median of |x| over the real positions of each row: Float [B, Q, width] → [B]."""
        if self._real is None:
            return size.flatten(1).median(-1).values
        real = self._real[:, -size.shape[1] :]
        return torch.stack([row[here].median() for row, here in zip(size, real, strict=True)])

    def arrays(self) -> dict[str, Tensor]:
        """Variable → [B, layer, …] of the forward that just ran."""
        self._settle()
        return {name: _stacked(layers) for name, layers in self.found.items()}

    def _keep_scores(self, name: str, scores: Tensor) -> None:
        self._keep(name, scores.mean(1) if self.capture.level == "layers" else self._heads(scores))

    def _heads(self, scores: Tensor) -> Tensor:
        if len(self.frame.heads) == scores.shape[1]:
            return scores
        return scores[:, list(self.frame.heads)]

    def _keep(self, name: str, value: Tensor) -> None:
        self.found.setdefault(name, []).append(value)


def _stacked(layers: list[Tensor]) -> Tensor:
    """Layers along a second axis: [B, …] each → [B, layer, …].

    On a CPU by numpy: torch's large aligned blocks left the heap in pieces, and a long recording then took three times the
    memory.
    """
    if layers[0].is_cuda:
        return torch.stack(layers, 1)
    return torch.from_numpy(np.stack([layer.numpy() for layer in layers], 1))


def _over(mass: Tensor, uniform: Tensor, there: Tensor | None = None) -> Tensor:
    """Mass [layer, B, H, K] over uniform attention [layer|1, B|1, K]; NaN where there is none, or where not `there`."""
    there = uniform > 0 if there is None else there & (uniform > 0)
    shares = mass / uniform.clamp(min=1e-300)[:, :, None]
    return torch.where(there[:, :, None], shares, float("nan")).to(torch.float32)


def sink_heads(received: Tensor) -> Tensor:
    """How many heads call each key a sink (`sink_rule`).

    Args:
        received: Float [B, H, K], NaN where there is no key.

    Returns:
        Int16 [B, K].
    """
    return torch_sinks_of(received).sum(1).to(torch.int16)


def _seen_by(visibility: Visibility, weights: Tensor) -> Tensor:
    """How many counted queries see each key: Float64 [B, K]."""
    if visibility.dense is not None:
        return torch.einsum(
            "bq,bqk->bk", weights.double(), visibility.dense[:, 0].double().expand(len(weights), -1, -1)
        )
    seen: Tensor = visibility.spread(weights.double()[:, None])[:, 0]
    return seen
