"""What is wanted of one forward pass, and one attention call as it happened.

A `ForwardContext` is built before a forward: the padding, the policy that masks keys, what records, and the classes of queries
whose attention is wanted. `with forward(context):` makes it the current one; the attention function (`interface.py`) follows it
and hands every call, as an `AttentionCall`, to the policy first and then to the recorder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from sinkscope.attention import fused
from sinkscope.attention.key_mask import KeyMask
from sinkscope.attention.received import column_mass, dense_map, received
from sinkscope.attention.visibility import Padded, Scores, Visibility, query_weights, relative

ALL, NEWEST, NEWEST_AND_ALL = "all", "newest", "newest and all"
ACTIVE, ACTIVE_AND_ALL = "active", "active and all"
"""Classes of queries that every context knows: all real queries; the last one; both, as two classes; the queries of the block
that is being denoised; those and all, as two classes."""


class KeyMasker(Protocol):
    """What decides which keys each layer may not use (see policies.runtime)."""

    def mask(self, layer: int, query: Tensor, key: Tensor, visibility: Visibility, scale: float) -> KeyMask | None:
        """The keys to mask in this call, or None for none."""
        return None

    def learned(self, layer: int, sink: Tensor) -> Tensor:
        """The score of a learned sink, Float [H], as the call is to have it: −inf for heads that lose it."""
        return sink

    def reads(self, layer: int) -> tuple[str, ...]:
        """Names of the query classes whose received attention `measure` will read in this layer."""
        return ()

    def measure(self, call: AttentionCall) -> None:
        """Take note of a call."""


class CallRecorder(Protocol):
    """What records attention calls (see trace.step_recorder)."""

    def reads(self, layer: int) -> tuple[str, ...]:
        """Names of the query classes whose received attention `record` will read in this layer."""
        return ()

    def record(self, call: AttentionCall) -> None:
        """Take note of a call."""

    def residual(self, layer: int, hidden: Tensor) -> None:
        """Take note of the residual stream [B, Q, width] entering a layer; only called while hooks are set."""
        return


class CallEditor(Protocol):
    """What changes attention calls (see inspection.patch); the recorder sees the changed ones."""

    def inputs(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Key [B, G, K, D] and value [B, G, K, E], after RoPE, as the call is to have them; K may be another."""
        return key, value

    def output(self, layer: int, output: Tensor) -> Tensor:
        """The output [B, H, Q, E] as the model is to go on with it."""
        return output


@dataclass(frozen=True)
class Placed:
    """Where the keys of a call stand in the sequence, when only some of them take part.

    Attributes:
        columns: layer → Long [B, K]: the column of each key. real: Bool [B, S]: all keys that there are.
    """

    columns: Mapping[int, Tensor]
    real: Tensor

    def spread(self, layer: int, received: Tensor, seen: Tensor | None) -> Tensor:
        """Received attention Float [B, H, C, K] on all columns, [B, H, C, S]: 0 for keys that took no part, NaN in padding.

        Args:
            seen: Bool [B, K]: the keys that took part; None: all K. Uniform attention is over all keys that there are.
        """
        share = self.real.sum(1) / (received.shape[3] if seen is None else seen.sum(1).clamp(min=1))
        weighted = received.nan_to_num(0.0) * share[:, None, None, None].to(received.dtype)
        whole = weighted.new_zeros(*received.shape[:3], self.real.shape[1])
        whole.scatter_add_(3, self.columns[layer][:, None, None].expand(weighted.shape), weighted)
        return whole.masked_fill_(~self.real[:, None, None], float("nan"))


@dataclass(frozen=True)
class ForwardContext:
    """What is wanted of one forward pass.

    Attributes:
        real: Bool [B, K] over all keys so far, None when nothing is padded. Diffusion families pass padding here and no
            mask to transformers; causal models pass it both ways.
        causal: None: as the module says.
        block: columns of the blocks that attention stands in; None: no blocks (see Visibility.block).
        pattern: Bool [1, 1, Q, K]: what queries see, where that is none of the usual patterns; None: as the rest says.
        soft: Float [B, Q, V]: logits of the step before, which come back as an input (self-conditioning); None: none do.
        active: how many of the last queries belong to the block that is being denoised; None: all.
        queries: further classes of queries by name: Float [B, C, Q], 1 where a query belongs to a class.
        policy: masks keys; None: none. recorder: records; None: nothing.
        newest: the queries are real and see every key of `real`, wherever they stand: the newest token of a static cache, the
            columns of an approximate step.
        editor: changes keys, values and outputs; None: nothing.
        placed: where the keys stand, when not all take part; None: they are the columns of the sequence.
        home: where attention is computed, for a network spread over devices; None: where its queries lie.
        beside: where policy and recorder measure, beside the layers that follow, from what they read; None: in their turn.
    """

    real: Tensor | None = None
    causal: bool | None = None
    padded: Padded = "none"
    queries: Mapping[str, Tensor] = field(default_factory=dict)
    policy: KeyMasker | None = None
    recorder: CallRecorder | None = None
    newest: bool = False
    block: int | None = None
    pattern: Tensor | None = None
    soft: Tensor | None = None
    active: int | None = None
    editor: CallEditor | None = None
    placed: Placed | None = None
    beside: Callable[[object], AbstractContextManager[None]] | None = None
    home: torch.device | None = None
    # Computed once for all layers; a context that is made of another by `replace` begins anew.
    _expected: dict[tuple[Any, ...], Expected] = field(default_factory=dict, init=False, repr=False)
    _bias: list[Tensor] = field(default_factory=list, init=False, repr=False)
    shared: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    """What attention modules of other distributions keep for the layers that follow."""

    @property
    def observed(self) -> bool:
        """Whether calls have to be handed to anything."""
        return self.policy is not None or self.recorder is not None

    def measuring(self, inputs: object) -> AbstractContextManager[None]:
        """Where what is only wanted at the end of the forward is computed; inputs: what it reads."""
        return nullcontext() if self.beside is None else self.beside(inputs)

    def padding_bias(self, query: Tensor, keys: int) -> Tensor | None:
        """Float [B, H, 1, K] in the dtype of the queries, −inf in padding: made once for all layers, on a GPU; None elsewhere."""
        if self.real is None or not query.is_cuda or self.real.shape[1] != keys:
            return None
        shape = (query.shape[0], query.shape[1], 1, keys)
        if self._bias and self._bias[0].shape == shape and self._bias[0].dtype == query.dtype:
            return self._bias[0]
        bias = torch.zeros(shape, dtype=query.dtype, device=query.device)
        self._bias[:] = [bias.masked_fill_(~self.real[:, None, None], float("-inf"))]
        return self._bias[0]

    def reads(self, layer: int) -> tuple[str, ...]:
        """The classes of queries whose attention will be read in a layer, each once."""
        names = () if self.policy is None else self.policy.reads(layer)
        return tuple(dict.fromkeys((*names, *(() if self.recorder is None else self.recorder.reads(layer)))))

    def expected(self, name: str, visibility: Visibility, query: Tensor) -> Expected:
        """The weights of a class of queries, and what uniform attention would bring; once for all layers of one pattern."""
        pattern = (
            name, visibility.queries, visibility.keys, visibility.causal, visibility.window, visibility.block
        )  # fmt: skip
        before = self._expected.get(pattern)
        if before is not None:
            seen = before.visibility
            if seen.real is visibility.real and seen.dense is visibility.dense:
                return before
        weights = query_weights(visibility, self._weights(name, query), query)
        self._expected[pattern] = Expected(weights, visibility.uniform(weights), visibility)
        return self._expected[pattern]

    def _weights(self, name: str, query: Tensor) -> Tensor | None:
        if name in self.queries:
            return self.queries[name]
        if name == ALL:
            return None
        rows, queries = query.shape[0], query.shape[2]
        weights = torch.ones(rows, 1 if name in (NEWEST, ACTIVE) else 2, queries, device=query.device)
        last = 1 if name in (NEWEST, NEWEST_AND_ALL) else min(self.active or queries, queries)
        if queries > last:
            weights[:, 0, : queries - last] = 0.0
        return weights


@dataclass(frozen=True)
class Expected:
    """What follows from a class of queries and a pattern.

    Attributes:
        weights: Float32 [B, C, Q], 0 in padding. uniform: Float64 [B|1, C, K]: what uniform attention would bring every key.
    """

    weights: Tensor
    uniform: Tensor
    visibility: Visibility

    @cached_property
    def norm(self) -> Tensor:
        """Float32 [B, C, K], contiguous: `uniform` as the kernel takes it."""
        return self.uniform.to(torch.float32).expand(*self.weights.shape[:2], -1).contiguous()

    @cached_property
    def seen_by(self) -> Tensor:
        """Float64 [B, C, K]: how many of the queries see each key."""
        return self.visibility.seen_by(self.weights)


_PLAIN = ForwardContext()
_current: ContextVar[ForwardContext | None] = ContextVar("sinkscope_forward", default=None)


def current() -> ForwardContext:
    """The context of the forward that is running; a plain one outside of `forward`."""
    return _current.get() or _PLAIN


@contextmanager
def forward(context: ForwardContext) -> Iterator[None]:
    """Run what is inside under `context`; on leaving, errors and Ctrl-C included, the model is as it was."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


@dataclass(frozen=True)
class AttentionCall:
    """One attention call as it happened.

    Attributes:
        layer: index of the layer.
        query: [B, H, Q, D]; key: [B, G, K, D]; value: [B, G, K, E]: after RoPE, heads unrepeated.
        output: [B, H, Q, E], what the model went on with.
        known_lse: Float32 [B, H, Q]: over the keys that the softmax ran over; None: `lse` computes it when asked.
        context: of the forward that the call belongs to.
        key_mask: the keys that a policy masked, or None.
        lse_raw: Float32 [B, H, Q]: over all visible keys, as if no policy acted; None: none did, and it is `lse`.
        kept: Float32 [B, H, Q]: the share of each query's attention that fell on keys it kept; None: all of it.
        sums: (class of queries, raw) → Σ_i w_i A_ij, Float32 [B, H, C, K], where they came with the output.
        sink: Float [H]: the score of a learned sink (gpt-oss), one more key without a value, which every query sees and no
            policy masks; None: there is none. Log-sum-exps include it, so a query's attention to its keys adds up to less
            than 1.
    """

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    known_lse: Tensor | None
    scale: float
    visibility: Visibility
    context: ForwardContext = field(default_factory=ForwardContext)
    key_mask: KeyMask | None = None
    lse_raw: Tensor | None = None
    kept: Tensor | None = None
    sums: Mapping[tuple[str, bool], Tensor] = field(default_factory=dict)
    sink: Tensor | None = None

    @property
    def absorbed(self) -> Tensor | None:
        """Float32 [B, H, Q]: the share of each query's attention that the learned sink took; None: there is none."""
        return None if self.sink is None else (self.sink.float()[:, None] - self.lse).exp()

    @cached_property
    def lse(self) -> Tensor:
        """Float32 [B, H, Q]: the log-sum-exp over the keys that the softmax ran over."""
        if self.known_lse is not None:
            return self.known_lse
        # Only a call in which nothing was masked leaves it open; the keys stand in for values that are not used.
        return fused.attend(Scores(self.query, self.key, self.visibility, self.scale), self.key)[1]

    @property
    def removed(self) -> KeyMask | None:
        """The keys that left the softmax: none when they are silenced only."""
        return None if self.key_mask is None or self.key_mask.silence else self.key_mask

    def expected(self, queries: str = ALL) -> Expected:
        """The weights of a class of queries, and what uniform attention would bring."""
        return self.context.expected(queries, self.visibility, self.query)

    def mass(self, queries: str = ALL, raw: bool = False) -> Tensor:
        """Σ_i w_i A_ij of the attention that acted (or, raw, as if no policy did): Float32 [B, H, C, K]."""
        return column_mass(*self.softmax(raw), self.expected(queries).weights)

    def received(self, queries: str = ALL, raw: bool = False) -> Tensor:
        """Received attention from a class of queries, Float32 [B, H, C, K]."""
        expected = self.expected(queries)
        summed = self.sums.get((queries, raw or self.removed is None))
        if summed is not None:
            return relative(summed, expected.uniform)
        uniform = expected.norm if self.query.is_cuda else expected.uniform
        return received(*self.softmax(raw), expected.weights, uniform)

    def newest(self) -> Tensor:
        """The attention of the last query, Float32 [B, H, K], 0 where there is no key."""
        summed = self.sums.get((NEWEST, self.removed is None))
        return self.mass(NEWEST)[:, :, -1] if summed is None else summed[:, :, 0]

    def softmax(self, raw: bool) -> tuple[Scores, Tensor]:
        """The scores and the log-sum-exp of the attention that acted, or raw, as if no policy did."""
        lse = self.lse_raw if raw and self.lse_raw is not None else self.lse
        key_mask = None if raw else self.removed
        return Scores(self.query, self.key, self.visibility, self.scale, key_mask), lse

    def map(self) -> Tensor:
        """The full attention matrix that acted, Float32 [B, H, Q, K]."""
        return dense_map(Scores(self.query, self.key, self.visibility, self.scale, self.removed), self.sink)
