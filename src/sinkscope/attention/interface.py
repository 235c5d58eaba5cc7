"""The attention function that sinkscope registers with transformers, and the context it works in.

Every model runs through `sinkscope_attention`: the fused kernel gives the output, and whoever listens (a recorder, a check)
gets q, k, v and the log-sum-exp of the very same call. What one forward pass should hide and who listens is set with
`with forward(...)`; outside of it the function is plain attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sinkscope.attention import columns, fused, short
from sinkscope.attention.key_mask import KeyMask
from sinkscope.attention.received import column_mass, dense_map, query_weights, received, relative
from sinkscope.attention.short import Attended
from sinkscope.attention.visibility import Padded, Visibility
from sinkscope.errors import InputError

NAME = "sinkscope"
"""The name under which transformers knows our attention and mask functions."""

CHANGES_SCORES = ("softcap", "position_bias", "head_mask", "cu_seq_lens_q", "cache", "indices")
"""Keywords by which some architectures change the scores; measuring without them would be measuring something else."""


@dataclass(frozen=True)
class AttentionCall:
    """One attention call as it happened.

    Attributes:
        layer: index of the layer.
        query: [B, H, Q, D]; key: [B, G, K, D]; value: [B, G, K, E]: after RoPE, heads unrepeated.
        output: [B, H, Q, E], what the model went on with.
        known_lse: Float32 [B, H, Q]: over the keys that the softmax ran over; None: `lse` computes it when asked.
        taken: what a policy took away, or None.
        lse_raw: Float32 [B, H, Q]: over all visible keys, as if no policy acted; None: none did, and it is `lse`.
        kept: Float32 [B, H, Q]: the share of each query's attention that fell on keys it kept; None: all of it.
        scratch: what all calls of one forward share; see `expected`.
        sums: (id of the weights, raw) → Σ_i w_i A_ij, Float32 [B, H, C, K], where they came with the output; see `Asking`.
        sink: Float [H]: the score of a learned sink (gpt-oss), one more key without a value, which every query sees and no
            policy takes; None: there is none. Log-sum-exps include it, so a query's attention to its keys adds up to less
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
    taken: KeyMask | None = None
    lse_raw: Tensor | None = None
    kept: Tensor | None = None
    scratch: dict[Any, Any] = field(default_factory=dict)
    sums: dict[tuple[int, bool], Tensor] = field(default_factory=dict)
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
        # Only a call from which nothing was taken leaves it open; the keys stand in for values that are not used.
        return fused.attend(self.query, self.key, self.key, self.visibility, None, self.scale)[1]

    @property
    def hidden(self) -> KeyMask | None:
        """What left the softmax: nothing when keys are silenced only."""
        return None if self.taken is None or self.taken.silence else self.taken

    def mass(self, weights: Tensor, raw: bool = False) -> Tensor:
        """Σ_i w_i A_ij of the attention that acted (or, raw, as if no policy did): Float32 [B, H, C, K]."""
        lse, hidden = self._softmax(raw)
        return column_mass(self.query, self.key, lse, self.visibility, hidden, self.scale, weights)

    def expected(self, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Weights [B, C, Q] with padding at 0, and what uniform attention would bring every key, Float64 [B|1, C, K].

        Computed once for all layers of a forward that see the same pattern.
        """
        return expected(self.scratch, self.visibility, self.query, weights)

    def received(self, weights: Tensor | None = None, raw: bool = False) -> Tensor:
        """Received attention, Float32 [B, H, C, K]; weights: Float [B, C, Q], None: all real queries."""
        own, uniform = self.expected(weights)
        summed = self.sums.get((id(weights), raw or self.hidden is None))
        if summed is not None:
            return relative(summed, uniform)
        lse, hidden = self._softmax(raw)
        return received(self.query, self.key, lse, self.visibility, hidden, self.scale, own, uniform)

    def newest(self, weights: Tensor) -> Tensor:
        """The attention of the only query of a step with a cache, Float32 [B, H, K], 0 where there is no key.

        What `mass` gives for weights [B, C, 1] of 1, in fewer operations: on a CPU such a step is bound by their number.
        """
        hidden, visibility = self.hidden, self.visibility
        if hidden is not None or not visibility.alike or columns.available(self.query):
            return self.mass(weights)[:, :, -1]
        exact = torch.promote_types(self.query.dtype, torch.float32)
        B, H, _, D = self.query.shape
        G, K = self.key.shape[1:3]
        keys = self.key.to(exact).reshape(B * G, K, D).transpose(1, 2)
        query = self.query.to(exact).reshape(B * G, -1, D)
        share = torch.baddbmm(-self.lse.to(exact).reshape(B * G, -1, 1), query, keys, alpha=self.scale).exp_()
        share = share.view(B, H, K).to(torch.float32)
        return share if visibility.real is None else share.masked_fill_(~visibility.real[:, None], 0.0)

    def _softmax(self, raw: bool) -> tuple[Tensor, KeyMask | None]:
        """The log-sum-exp and the hidden keys of the attention that acted, or raw, as if no policy did."""
        if raw:
            return (self.lse if self.lse_raw is None else self.lse_raw), None
        return self.lse, self.hidden

    def map(self) -> Tensor:
        """The full attention matrix that acted, Float32 [B, H, Q, K]."""
        return dense_map(self.query, self.key, self.visibility, self.hidden, self.scale, self.sink)


def expected(
    scratch: dict[Any, Any], visibility: Visibility, query: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `AttentionCall.expected`; `scratch` belongs to the forward."""
    pattern = (id(weights), *visibility.pattern)
    if pattern not in scratch:
        own = query_weights(visibility, weights, query)
        # What the key was made of is kept beside the result, so that ids stay theirs.
        scratch[pattern] = (own, visibility.uniform(own), weights, visibility)
    own, uniform, *_ = scratch[pattern]
    return own, uniform


class Hiding(Protocol):
    """Whatever decides which keys a layer may not use."""

    def take(
        self, layer: int, query: Tensor, key: Tensor, visibility: Visibility, scale: float
    ) -> KeyMask | None:
        """The keys to take away in this call, or None for none."""


Tap = Callable[[AttentionCall], None]


@runtime_checkable
class Asking(Protocol):
    """A tap that says beforehand what it will ask, so that the sums can come with the output where that is cheaper."""

    def asks(self, layer: int) -> Sequence[Tensor | None]:
        """The weights, the very objects, for which it will call `received` in this layer."""


@dataclass(frozen=True)
class Forward:
    """What one forward pass should do at its attention calls.

    Attributes:
        real: Bool [B, K] over all keys so far, None when nothing is padded. Diffusion families pass padding here and no
            mask to transformers; causal models pass it both ways.
        causal: None: as the module says.
        hiding: which keys to take away; None for none.
        taps: called after every attention call, in order.
        scratch: see AttentionCall.
    """

    real: Tensor | None = None
    causal: bool | None = None
    padded: Padded = "none"
    hiding: Hiding | None = None
    taps: tuple[Tap, ...] = field(default=())
    scratch: dict[Any, Any] = field(default_factory=dict)


_PLAIN = Forward()
_current: ContextVar[Forward] = ContextVar("sinkscope_forward", default=_PLAIN)


@contextmanager
def forward(plan: Forward) -> Iterator[None]:
    """Runs what is inside under `plan`; on leaving, errors and Ctrl-C included, the model is as it was."""
    token = _current.set(plan)
    try:
        yield
    finally:
        _current.reset(token)


def sinkscope_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: output [B, Q, H, E], and None for the weights, which are never built."""
    for name in CHANGES_SCORES:
        if options.get(name) is not None:
            raise InputError(
                f"{type(module).__name__} passes {name!r} to its attention, which changes the scores in a way that sinkscope "
                "does not measure; this architecture is not supported"
            )
    plan = _current.get()
    # LLaDA rotates q and k in float32 and casts back; its rotary module leaves the casting to this line.
    query, key = query.to(value.dtype), key.to(value.dtype)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    visibility = _visibility(module, query, key, attention_mask, is_causal, sliding_window, plan)
    layer = int(getattr(module, "layer_idx", 0) or 0)
    taken = None if plan.hiding is None else plan.hiding.take(layer, query, key, visibility, scale)
    asked: list[tuple[int, int]] = []
    weights = None
    if plan.taps and s_aux is None and short.suits(query, key, value, visibility, taken):
        asked, weights = _asked(plan, layer, query, visibility)
    found = fused.attend_and_sum(query, key, value, visibility, taken, scale, weights, s_aux is not None)
    out, lse, lse_raw, kept = found.output, found.lse, found.lse_raw, None
    over_keys = lse
    if taken is not None and lse is not None and (taken.silence or plan.taps):
        if lse_raw is None:
            lse_raw = fused.raw_lse(query, key, lse, visibility, taken, scale)
        lse, lse_raw = _with_sink(lse, s_aux), _with_sink(lse_raw, s_aux)
        kept = (lse - lse_raw).exp()
        if taken.silence:
            lse = lse_raw
    elif lse is not None:
        lse = _with_sink(lse, s_aux)
    if lse is not None and over_keys is not None and lse is not over_keys:
        # Σ over the kept keys of exp(s − lse)·v is the output over them times their share of all attention.
        out = (out * (over_keys - lse).exp()[..., None]).to(out.dtype)
    if plan.taps:
        sums = _sums(found, asked)
        call = AttentionCall(
            layer,
            query,
            key,
            value,
            out,
            lse,
            scale,
            visibility,
            taken,
            lse_raw,
            kept,
            plan.scratch,
            sums,
            s_aux,
        )
        for tap in plan.taps:
            tap(call)
    return out.transpose(1, 2).contiguous(), None


def _with_sink(lse: Tensor, sink: Tensor | None) -> Tensor:
    """A log-sum-exp Float32 [B, H, Q] with one more score Float [H]; the very same without."""
    return lse if sink is None else torch.logaddexp(lse, sink.to(lse.dtype)[:, None])


def _asked(
    plan: Forward, layer: int, query: Tensor, visibility: Visibility
) -> tuple[list[tuple[int, int]], Tensor | None]:
    """What the taps will ask of a layer: (id, number of classes) of each set of weights, and all classes, Float32 [B, C, Q]."""
    found: dict[int, Tensor] = {}
    taps: tuple[object, ...] = plan.taps
    for tap in taps:
        if isinstance(tap, Asking):
            for weights in tap.asks(layer):
                found[id(weights)] = expected(plan.scratch, visibility, query, weights)[0]
    classes = [(name, own.shape[1]) for name, own in found.items()]
    return classes, torch.cat(list(found.values()), 1) if found else None


def _sums(found: Attended, asked: list[tuple[int, int]]) -> dict[tuple[int, bool], Tensor]:
    """The column sums of a call under the names by which they will be asked for: see AttentionCall.sums."""
    sums: dict[tuple[int, bool], Tensor] = {}
    if found.acted is None:
        return sums
    sizes = [classes for _, classes in asked]
    raw = found.acted if found.raw is None else found.raw
    for kind, whole in ((False, found.acted), (True, raw)):
        parts = torch.split(whole, sizes, 2)
        sums |= {(name, kind): part for (name, _), part in zip(asked, parts, strict=True)}
    return sums


def _visibility(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    is_causal: bool | None,
    sliding_window: int | None,
    plan: Forward,
) -> Visibility:
    causal = plan.causal
    if causal is None:
        causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    real, dense = plan.real, None
    if mask is not None and mask.dim() == 4:
        dense, causal, sliding_window = mask if mask.dtype == torch.bool else mask > -1.0, False, None
    elif mask is not None and real is None:
        real = mask.bool()
    return Visibility(query.shape[2], key.shape[2], real, causal, sliding_window, dense, plan.padded)


def sinkscope_mask(
    kv_length: int,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    config: Any = None,
    **options: Any,
) -> Tensor | None:
    """transformers' mask function: the 2-D padding mask as it is, because `sinkscope_attention` knows the usual patterns.

    Causality and sliding windows travel as `is_causal` and `sliding_window`; only a pattern that is neither is built in full.
    """
    from transformers import masking_utils

    usual = (None, masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function)
    chunked = getattr(config, "attention_chunk_size", None) is not None
    if mask_function in usual or (local_size is not None and not chunked):
        if attention_mask is None:
            return None
        mask = attention_mask[:, kv_offset : kv_offset + kv_length].bool()
        return None if bool(mask.all()) else mask
    options.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    built: Tensor | None = masking_utils.sdpa_mask(
        kv_length=kv_length,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        local_size=local_size,
        config=config,
        **options,
    )
    return built


def register() -> None:
    """Makes the two functions known to transformers; a name without a mask function would silently lose causality."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, sinkscope_attention)
    AttentionMaskInterface.register(NAME, sinkscope_mask)
