"""Recording one step: attention calls of a forward pass become the arrays of a trace.

One `StepRecorder` belongs to one group of rows. What is recorded stays on the model's device until the step is over (see
`outbox.Outbox`), so that no layer has to wait for a copy; nothing of size S×S exists except at level "maps".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sinkscope.attention.context import ACTIVE_AND_ALL, ALL, NEWEST_AND_ALL, AttentionCall, Expected
from sinkscope.attention.distant import DistantSums, LayerShare, block_sinks, in_blocks
from sinkscope.attention.visibility import Visibility
from sinkscope.decoding.step import BlockPass
from sinkscope.policies.numbers import mixed
from sinkscope.policies.runtime import StepAccount
from sinkscope.sink_rule import torch_sinks_of
from sinkscope.trace.capture import Capture, Frame

SEEN_BY = 16
"""Received attention over all queries so far is NaN for a key seen by fewer queries: the newest keys have too few."""

KINDS = "all, masked, decided, prompt, two random classes"
BLOCK_KINDS = f"active, {KINDS}"
"""The classes of queries under `by_query`, by the name that the forward's context knows them by."""


@dataclass(frozen=True)
class _CausalLayer:
    """What one layer of a causal model gave in one forward.

    Attributes:
        last, every: Float32 [B, H, K]: attention from the last query, and from all of them.
        expected: what both would bring if queries looked at all keys alike, and how many queries see a key.
        queries: how many there were. added: what it adds to the attention from distant queries.
    """

    last: Tensor
    every: Tensor
    expected: Expected
    queries: int
    added: LayerShare


class StepRecorder:
    """Records the attention of one group of rows, forward by forward.

    Args:
        rows: places of the group's rows in the batch. offset: their first column in the frame.
        first, last: columns of the answer within the group; last None: to the end of the sequence.
    """

    def __init__(
        self,
        frame: Frame,
        capture: Capture,
        rows: list[int],
        offset: int,
        first: int,
        last: int | None = None,
    ) -> None:
        self.frame, self.capture, self.rows, self.offset = frame, capture, rows, offset
        self.first, self.last = first, last
        self._active = True
        self._layer_indices = {layer: index for index, layer in enumerate(frame.layers)}
        self._branches = 1
        self._real: Tensor | None = None
        self._forwards = 0
        self._queries = ALL
        self._recorded: dict[str, list[Tensor]] = {}  # layer by layer, each [B, …]
        self._whole: dict[str, Tensor] = {}  # all layers at once, [B, layer, …]
        self.arrays: dict[str, Tensor] = {}
        self.repeated = False
        self._causal_layers: list[_CausalLayer] = []
        self._sums: tuple[Tensor, ...] = ()
        self._prompt_sums: tuple[Tensor, Tensor] | None = None
        self._pass: BlockPass | None = None
        self._block_layers: list[tuple[Tensor, Tensor]] = []
        self._visibility: Visibility | None = None  # of the block loop's forward
        self._stored: tuple[
            Tensor, ...
        ] = ()  # mass [layer, B, H, K] and uniform of the queries that are in the cache
        self.between: list[
            tuple[str, int, Tensor]
        ] = []  # name, first query, received [B, layer, …] of a forward that is no step
        self._residual: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        self._first_token: dict[int, Tensor] = {}

    # ---- a forward, from beginning to end

    @property
    def replayable(self) -> bool:
        """Whether all that is recorded is computed without a look at its values, so that a CUDA graph can repeat it."""
        return not self.capture.anatomy and self.capture.level != "maps"

    @property
    def replays_blocks(self) -> bool:
        """Whether that holds for blocks of different places too: which queries are drawn depends on the place."""
        return self.replayable and not self.capture.by_query

    @property
    def windows(self) -> list[int]:
        """Keys that a query of each recorded layer of a causal model sees at most; 0: all up to itself."""
        return self._distant.windows

    @cached_property
    def _distant(self) -> DistantSums:
        """Of a causal model: the attention that keys got from queries far behind them."""
        return DistantSums(self.frame.columns - self.offset)

    @property
    def steady(self) -> bool:
        """Whether every forward is recorded."""
        return self.capture.every == 1

    def next_forward(self) -> bool:
        """Count a step, and say whether it is recorded."""
        self._active = self._forwards % self.capture.every == 0
        self._forwards += 1
        return self._active

    @property
    def _wanted(self) -> bool:
        """Whether this forward is recorded; what is put into a cache always is, because later steps go on from it."""
        return self._active or (self._pass is not None and self._pass.kind != "denoise")

    def begin(
        self, real: Tensor | None, masked: Tensor, branches: int, block_pass: BlockPass | None = None
    ) -> Mapping[str, Tensor]:
        """Prepare for a forward; the classes of queries that are wanted besides those that every context knows.

        Args:
            real: Bool [B, S] or None. masked: Bool [B, S]: mask tokens. branches: 2 with guidance.
            block_pass: of a block loop; None: of any other.
        """
        # A capture that failed in the middle of a forward leaves layers behind.
        self._recorded, self._whole, self._causal_layers, self._block_layers = {}, {}, [], []
        self._branches, self._real, self._pass = branches, real, block_pass
        if self.frame.causal or not self.capture.by_query:
            self._queries = ALL if block_pass is None else ACTIVE_AND_ALL
            return {}
        self._queries = KINDS if block_pass is None else BLOCK_KINDS
        # By comparison, on the device: writing a constant into a slice is a copy from the host, which no CUDA graph can repeat.
        columns = torch.arange(masked.shape[1], device=masked.device)
        last = masked.shape[1] if self.last is None else self.last
        answer = ((columns >= self.first) & (columns < last)).expand_as(masked)
        # The prompt of a block loop is run before there is an answer.
        drawn = _drawn(masked, columns - self.first, max(1, last - self.first)) & answer
        classes = [
            torch.ones_like(masked),
            masked,
            ~masked & answer,
            ~masked & ~answer,
            drawn,
            ~drawn & answer,
        ]
        if block_pass is not None:
            active = (columns >= block_pass.queries.stop - block_pass.active).expand_as(masked)
            classes = [part[:, block_pass.queries] for part in (active, *classes)]
        return {self._queries: torch.stack(classes, 1).float().repeat(branches, 1, 1)}

    def reads(self, layer: int) -> tuple[str, ...]:
        """The classes of queries that are recorded; those of causal models come by another way."""
        wanted = self._wanted and layer in self._layer_indices and not self.frame.causal
        return (self._queries,) if wanted else ()

    def record(self, call: AttentionCall) -> None:
        """Compute from one attention call what the capture asks for."""
        if call.layer not in self._layer_indices:
            return
        if self.frame.causal:
            self._causal(call)
        elif self._pass is not None:
            if self._wanted:
                expected = call.expected(self._queries).uniform[:, 1]
                self._block_layers.append((call.received(self._queries)[: len(self.rows)], expected))
                self._visibility = call.visibility
        elif self._active:
            self._bidirectional(call)
        if not self._active or (self._pass is not None and not self._pass.step):
            return
        rows = len(self.rows)
        if self.capture.level == "maps":
            self._keep("attention", self._heads(call.map()[:rows]))
        if self.capture.anatomy:
            self._keep("value_norm", call.value[:rows].float().norm(dim=-1))
            self._keep("key_norm", call.key[:rows].float().norm(dim=-1))

    def end(self, account: StepAccount | None) -> dict[str, Tensor]:
        """Finish a forward; account: what the policy did in it. Variable → [B, layer, …]."""
        self._settle()
        if self._pass is not None:
            self._settle_blocks(self._pass)
        step = self._pass is None or self._pass.step
        if account is not None and self._active and step:
            self._policy(account)
        return {**self._whole, **{name: _stacked(layers) for name, layers in self._recorded.items()}}

    def adopt(
        self, arrays: dict[str, Tensor], block_pass: BlockPass | None = None, repeated: bool = False
    ) -> None:
        """Take what a forward has recorded; repeated: by a CUDA graph, whose next repetition writes to the same place."""
        if block_pass is None or block_pass.step:
            self.arrays, self.repeated = arrays, repeated
            return
        for name, received in arrays.items():
            self.between.append(
                (name, block_pass.queries.start, received[..., : block_pass.queries.stop].cpu())
            )

    # ---- attention

    def _bidirectional(self, call: AttentionCall) -> None:
        received = call.received(self._queries)
        if call.context.placed is not None:
            received = call.context.placed.spread(call.layer, received, call.context.real)
        rows = len(self.rows)
        self._keep_scores("received", received[:rows, :, 0])
        if self.capture.level == "layers":
            self._keep("sink_heads", sink_heads(received[:rows, :, 0]))
        if self._branches == 2:
            self._keep_scores("received_uncond", received[rows:, :, 0])
        if self.capture.by_query:
            by = received[:rows, :, 1:]
            self._keep("received_by", by.mean(1) if self.capture.level == "layers" else self._heads(by))

    def _settle_blocks(self, taken: BlockPass) -> None:
        """Received from the active block, and from all queries so far: those of this forward, and those behind the cache.

        As in `_settle`, all layers in one go.
        """
        layers, self._block_layers = self._block_layers, []
        if not layers:
            return
        received = torch.stack([layer for layer, _ in layers])  # [layer, B, H, class, K]
        every = received[:, :, :, 1]
        if not taken.step:
            self._keep_layers(f"{taken.kind}_received", every)
        if taken.stored:
            uniform = torch.stack([layer for _, layer in layers]).expand(-1, len(self.rows), -1)
            mass = every.nan_to_num(0.0).double() * uniform[:, :, None]
            before = self._behind_the_cache(mass, uniform)
            mass, uniform = mass + before[0], uniform + before[1]
            if taken.kind != "denoise":
                for old, now in zip(before, (mass, uniform), strict=True):
                    old.copy_(now)
            every = _over(mass, uniform)
        if not taken.step or not self._active:
            return
        self._keep_layers("received", received[:, :, :, 0])
        self._keep_layers("received_all", every)
        if self.capture.level == "layers" and self._visibility is not None:
            expected = in_blocks(self._visibility, taken.active, received.device)
            self._recorded["sink_heads"] = [
                block_sinks(layer, expected).sum(-2).to(torch.int16) for layer in received[:, :, :, 0]
            ]
        if self.capture.by_query:
            self._recorded["received_by"] = [
                by.mean(1) if self.capture.level == "layers" else self._heads(by)
                for by in received[:, :, :, 2:]
            ]

    def _behind_the_cache(self, *like: Tensor) -> tuple[Tensor, ...]:
        """Mass and uniform of the queries in the cache, over as many keys as `like` has; over all keys, always in one memory."""
        kept = self._stored or tuple(part[..., :0] for part in like)
        grown = like[0].shape[-1] - kept[0].shape[-1]
        if grown or not self._stored:
            kept = self._stored = tuple(torch.nn.functional.pad(part, (0, grown)) for part in kept)
        return kept

    def _causal(self, call: AttentionCall) -> None:
        """Keep the last row and the sum over all queries of one layer; `_settle` goes on with all layers together."""
        queries = call.query.shape[2]
        if queries == 1:
            last = every = call.newest()
        else:
            last, every = call.mass(NEWEST_AND_ALL).unbind(2)
        added = self._distant.share(call, last)
        self._causal_layers.append(_CausalLayer(last, every, call.expected(NEWEST_AND_ALL), queries, added))

    def _settle(self) -> None:
        """Add the queries of a causal forward to those so far, and keep what they received: all layers in one go.

        A step with a cache has one query, and its time is that of many small operations: one for all layers saves most.
        """
        layers, self._causal_layers = self._causal_layers, []
        if not layers:
            return
        last = every = torch.stack([layer.last for layer in layers], 1)  # [B, layer, H, K]
        if layers[0].queries > 1:
            every = torch.stack([layer.every for layer in layers], 1)
        first = layers[0].expected
        # [B|1, layer|1, 2, K] and [B|1, layer|1, K]; layers that see the same pattern share one object.
        if all(layer.expected is first for layer in layers):
            uniform, seen = first.uniform[:, None], first.seen_by[:, None, 1]
        else:
            uniform = torch.stack([layer.expected.uniform for layer in layers], 1)
            seen = torch.stack([layer.expected.seen_by[:, 1] for layer in layers], 1)
        mass, expected, seen = self._so_far(every, uniform[:, :, 1], seen)
        self._distant.add([layer.added for layer in layers])
        if self._prompt_sums is None and self.capture.by_query:  # the first forward is the prefill
            self._prompt_sums = (mass.clone(), expected.clone())
        if not self._active:
            return
        total = _over(mass, expected, seen >= SEEN_BY)
        self._keep_whole("received", _over(last, uniform[:, :, 0]))
        self._keep_whole("received_all", total)
        far, could = self._distant.far()
        relative = torch.where(could.known, far / torch.where(could.known, could.uniform, 1.0), float("nan"))
        self._keep_whole("received_far", relative.to(torch.float32))
        if self.capture.level == "layers":
            sinks = (far > could.limit()) & could.known
            self._whole["sink_heads"] = sinks.sum(2).to(torch.int16)
        if self.capture.by_query:
            self._keep_whole("received_by", self._by_kind(mass, expected))
        if layers[0].queries == mass.shape[-1]:
            self._keep_whole("prefill_received", _over(every, uniform[:, :, 1]))

    def _so_far(self, *more: Tensor) -> tuple[Tensor, ...]:
        """Sums over all queries so far, those of this forward added, over the keys that it has.

        Always in the same memory, wide enough for the whole answer: a captured step goes on adding to it, and none is copied
        for one more key.

        Args:
            more: mass [B, layer, H, K], uniform attention and the number of queries that see a key [B|1, layer|1, K].
        """
        keys = more[0].shape[-1]
        if not self._sums:
            width = max(keys, self.frame.columns - self.offset)
            self._sums = tuple(one.new_zeros(*one.shape[:-1], width, dtype=torch.float64) for one in more)
        if any(old.shape[1] < one.shape[1] for old, one in zip(self._sums, more, strict=True)):
            # The layers have come to differ in their patterns.
            self._sums = tuple(
                old.expand(*one.shape[:-1], -1).clone() for old, one in zip(self._sums, more, strict=True)
            )
        so_far = tuple(old[..., :keys] for old in self._sums)
        for old, one in zip(so_far, more, strict=True):
            old += one
        return so_far

    def _by_kind(self, mass: Tensor, uniform: Tensor) -> Tensor:
        """Float32 [B, layer, H, kind, K]: received from the written and the prompt queries so far; no other kinds here.

        Args:
            mass, uniform: over all queries so far, [B, layer, H, K] and [B|1, layer|1, K].
        """
        if self._prompt_sums is None:
            raise RuntimeError("no forward was recorded")
        grown = mass.shape[-1] - self._prompt_sums[0].shape[-1]
        prompt, expected = (torch.nn.functional.pad(part, (0, grown)) for part in self._prompt_sums)
        nothing = torch.zeros_like(uniform)
        none = (nothing[:, :, None], nothing)
        kinds = (none, (mass - prompt, uniform - expected), (prompt, expected), none, none)
        # A difference of equal sums may be a rounding error away from 0; one query gives a key at least 1/K.
        least = 0.5 / mass.shape[-1]
        by = [
            torch.where(
                bound[:, :, None] > least, sums / bound.clamp(min=least)[:, :, None], float("nan")
            ).expand_as(mass)
            for sums, bound in kinds
        ]
        return torch.stack(by, 3).float()

    def _policy(self, account: StepAccount) -> None:
        """What the policy did in the recorded layers."""
        means = self.capture.level == "layers"
        for layer in self.frame.layers:
            raw = account.raw[layer]
            self._keep_scores("received_raw", raw)
            done = {
                "hidden_share": account.share,
                "sinks_hit": account.hit,
                "strongest_hit": account.strongest,
                "sink_removed": account.sink_removed,
            }
            for name, value in ((name, values[layer]) for name, values in done.items()):
                self._keep(name, value.nanmean(1) if means else self._heads(value))
            if not means:
                keys = account.keys.get(layer)
                masked = torch.zeros_like(raw, dtype=torch.bool) if keys is None else keys.expand_as(raw)
                self._keep("masked_keys", _packed(self._heads(masked), self.offset, self.frame.columns))

    # ---- the residual stream

    def residual(self, layer: int, hidden: Tensor) -> None:
        """Norms and largest activations of the residual stream [B·branches, Q, width] entering a layer."""
        if layer not in self._layer_indices or not (self._wanted or self.frame.causal):
            return
        hidden = hidden[: len(self.rows)].float()
        size = hidden.abs()
        norm, largest = size.norm(dim=-1), size.amax(-1)
        median = self._median(size)
        cosine = self._cosine(layer, hidden)
        kept = self.frame.causal or (self._pass is not None and self._pass.stored)
        if kept and layer in self._residual:
            # Cached positions are not computed again: their hidden states are those of the step that wrote them. The
            # median stays that of the prompt.
            before = self._residual[layer]
            norm, largest, cosine = (
                torch.cat([old, new], 1) for old, new in zip(before, (norm, largest, cosine), strict=False)
            )
            median = before[3] if self.frame.causal else median
        if kept and (self._pass is None or self._pass.kind != "denoise"):
            self._residual[layer] = (norm, largest, cosine, median)
        if self._active and (self._pass is None or self._pass.step):
            self._keep("hidden_norm", norm)
            self._keep("largest_activation", largest)
            self._keep("hidden_cosine", cosine)
            self._keep("median_activation", median)

    def _cosine(self, layer: int, hidden: Tensor) -> Tensor:
        """Cosine of every hidden state with that of the first real token: Float [B, Q, width] → [B, Q]."""
        again = not self.frame.causal and (self._pass is None or self._pass.queries.start == 0)
        if layer not in self._first_token or again:
            begin = torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)
            if self._real is not None:
                begin = self._real.long().argmax(-1)
            self._first_token[layer] = hidden[torch.arange(len(hidden), device=hidden.device), begin]
        return torch.nn.functional.cosine_similarity(hidden, self._first_token[layer][:, None], dim=-1)

    def _median(self, size: Tensor) -> Tensor:
        """Median of |x| over the real positions of each row: Float [B, Q, width] → [B]."""
        if self._real is None:
            return size.flatten(1).median(-1).values
        real = self._real[:, -size.shape[1] :]
        return torch.stack([row[here].median() for row, here in zip(size, real, strict=True)])

    # ---- keeping

    def _keep_layers(self, name: str, scores: Tensor) -> None:
        """Keep the scores of all layers, [layer, B, H, K]."""
        for layer in scores.mean(2)[:, :, None] if self.capture.level == "layers" else scores:
            self._keep_scores(name, layer)

    def _keep_whole(self, name: str, scores: Tensor) -> None:
        """Keep the scores of all layers, [B, layer, H, …], as they are: nothing is copied."""
        self._whole[name] = scores.mean(2) if self.capture.level == "layers" else self._heads(scores, 2)

    def _keep_scores(self, name: str, scores: Tensor) -> None:
        self._keep(name, scores.mean(1) if self.capture.level == "layers" else self._heads(scores))

    def _heads(self, scores: Tensor, axis: int = 1) -> Tensor:
        if len(self.frame.heads) == scores.shape[axis]:
            return scores
        # By single slices: a list of indices would be copied to the GPU, which a captured step cannot do.
        return torch.stack([scores.select(axis, head) for head in self.frame.heads], axis)

    def _keep(self, name: str, value: Tensor) -> None:
        self._recorded.setdefault(name, []).append(value)


def _stacked(layers: list[Tensor]) -> Tensor:
    """Layers along a second axis: [B, …] each → [B, layer, …].

    On a CPU by numpy: torch's large aligned blocks left the heap in pieces, and a long recording then took three times the
    memory.
    """
    if layers[0].is_cuda:
        return torch.stack(layers, 1)
    return torch.from_numpy(np.stack([layer.numpy() for layer in layers], 1))


def _packed(keys: Tensor, offset: int, columns: int) -> Tensor:
    """Uint8 [..., bytes]: keys Bool [..., K], whose first stands at `offset` of the frame, one bit each, the highest first."""
    after = -columns % 8 + columns - offset - keys.shape[-1]
    bits = torch.nn.functional.pad(keys, (offset, after)).view(*keys.shape[:-1], -1, 8)
    values = 1 << torch.arange(7, -1, -1, device=keys.device)
    packed: Tensor = (bits * values).sum(-1).to(torch.uint8)
    return packed


def _over(mass: Tensor, uniform: Tensor, known: Tensor | None = None) -> Tensor:
    """Mass [B, layer, H, K], or layers first, over uniform attention [B|1, layer|1, K]; NaN where it is 0 or not `known`."""
    known = uniform > 0 if known is None else known & (uniform > 0)
    return (mass / torch.where(known, uniform, float("nan"))[:, :, None]).to(torch.float32)


def _drawn(masked: Tensor, places: Tensor, length: int) -> Tensor:
    """Bool [B, S]: as many of the answer's queries as there are masks, drawn at random (anything outside of the answer).

    places: Long [S]: columns counted from the answer's first. The order of drawing depends on the answer's length alone, so that
    a row has the same classes alone and in any batch.
    """
    order = mixed(torch.arange(length, device=masked.device)).argsort().argsort()
    return order[places.clamp(0, length - 1)] < masked.sum(1, keepdim=True)


def sink_heads(received: Tensor) -> Tensor:
    """How many heads call each key a sink (ε = 3): Float [..., H, K], NaN where there is no key → Int16 [..., K]."""
    return torch_sinks_of(received).sum(-2).to(torch.int16)
