"""Changes of attention that a small model can be trained with: Llama's and Qwen2's layers with one more score, a gate or norms.

    softmax      "learned": one more score per head in every softmax, without a value (gpt-oss); "one": that score is 0, so the
                 weights are exp(s) / (1 + Σ exp(s)); "plain": none
    gate         the output of attention times sigmoid(W·h), a gate for every channel of every head (arXiv 2505.06708)
    qk_norm      q and k of each head through an RMS norm before the rotation, as in Qwen3
    plain_first  the key of the first real token carries no position: its score is q·k without the rotation, at any distance
    extra_sink   one more token opens every text, which nothing is trained to say: "seen" by all and seeing all; "alone": it
                 sees nothing but itself (arXiv 2601.19657). Causal models see no difference between the two
    window       query i sees key j only where |i − j| < window
    future       0: a query of a diffusion model sees no key ahead of itself

Such a checkpoint has a `model_type` of its own, so that no other program reads it as the network it resembles, and its settings
under `sinkscope_variant` in config.json. `VariantAttention` is the code of training and of inference, which the instrument takes
through its entry points (`sinkscope.models.changed`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from sinkscope import CheckpointError, InputError
from sinkscope.attention.context import ForwardContext, current
from sinkscope.attention.visibility import Visibility
from sinkscope.base.checks import one_of, whole
from sinkscope.base.errors import nearest
from sinkscope.models.changed import CHANGED, ChangedNetwork

KEY = "sinkscope_variant"
"""Where config.json says what differs."""
MODEL_TYPES = {"llama": "sinkscope_llama", "llada": "sinkscope_llada", "Dream": "sinkscope_dream"}
"""Official model_type → that of its variants."""

Softmax = Literal["plain", "learned", "one"]
SinkToken = Literal["none", "seen", "alone"]


@dataclass(frozen=True)
class Variant:
    """What differs from the official attention; see above."""

    softmax: Softmax = "plain"
    gate: bool = False
    qk_norm: bool = False
    plain_first: bool = False
    extra_sink: SinkToken = "none"
    window: int | None = None
    future: int | None = None

    def __post_init__(self) -> None:
        one_of("softmax", self.softmax, get_args(Softmax))
        one_of("extra_sink", self.extra_sink, get_args(SinkToken))
        for name in ("gate", "qk_norm", "plain_first"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} is {getattr(self, name)!r}; it should be true or false")
        if self.window is not None:
            whole("window", self.window, 1)
        if self.future not in (None, 0) or self.future is False:
            raise InputError(
                f"future is {self.future!r}; 0 takes all keys ahead from a query, and without it none is taken"
            )

    @property
    def first_alone(self) -> bool:
        """Whether the first real token sees nothing but itself."""
        return self.extra_sink == "alone"

    @property
    def block(self) -> int | None:
        """Columns of the blocks in which attention stands: without a key ahead, every query has a block of its own."""
        return None if self.future is None else 1

    @property
    def reach(self) -> dict[str, int]:
        """The window, and how many keys a query sees ahead, where they are bounded."""
        bounds = {"window": self.window, "future": self.future}
        return {name: value for name, value in bounds.items() if value is not None}

    @property
    def alike(self) -> bool:
        """Whether all tokens see one another alike."""
        return not (self.plain_first or self.first_alone or self.reach)

    def narrowed(self, seen: Visibility, device: torch.device) -> Visibility:
        """What is left of a pattern for the queries of a whole text whose first token stands in column 0."""
        block = seen.block if seen.causal or self.block is None else self.block
        seen = replace(seen, window=self.window, block=block)
        if seen.causal or block == 1 or not self.first_alone:
            return seen
        index = torch.arange(seen.keys, device=device)
        alone, rows = (index[:, None] > 0) | (index == 0), replace(seen, real=None).rows(0, seen.keys, device)
        return replace(seen, block=None, dense=alone[None, None] if rows is None else rows & alone)

    def __str__(self) -> str:
        changed = {name: value for name, value in dataclasses.asdict(self).items() if value not in _PLAIN[name]}
        return ", ".join(f"{name}={value}" for name, value in changed.items()) or "plain"


_PLAIN = {field.name: (field.default,) for field in dataclasses.fields(Variant)}
PLAIN = Variant()


def read_variant(config: Mapping[str, Any], source: str) -> Variant:
    """The variant that a config.json names; `PLAIN` where it names none."""
    stored = config.get(KEY)
    if stored is None:
        return PLAIN
    if not isinstance(stored, dict):
        raise CheckpointError(f"{source}: {KEY} of config.json should be a table, got {stored!r}")
    for name in stored:
        if name not in _PLAIN:
            raise CheckpointError(f"{source}: {KEY} of config.json has {name!r}; {nearest(name, _PLAIN)}")
    try:
        return Variant(**stored)
    except InputError as error:
        raise CheckpointError(f"{source}: {KEY} of config.json: {error}") from error


def variant_of(network: Any) -> Variant:
    """The variant that a network is."""
    variant: Variant = getattr(network, "variant", PLAIN)
    return variant


def vary(network: Any, variant: Variant, device: torch.device | str = "meta") -> None:
    """Gives a Llama or Qwen2 network the attention of a variant, in place; new weights are empty, on `device`."""
    if variant == PLAIN:
        return
    network.variant = variant
    for layer in network.model.layers:
        layer.self_attn = VariantAttention(layer.self_attn, variant, device)


def _change(network: Any, config: Mapping[str, Any], source: str) -> None:
    vary(network, read_variant(config, source))


LLAMA, LLADA, DREAM = (
    CHANGED.add(ChangedNetwork(own, official, (KEY,), _change)) for official, own in MODEL_TYPES.items()
)
"""What the entry points name."""


class VariantAttention(nn.Module):
    """The attention of a Llama or Qwen2 layer, changed; its projections keep their names.

    Args:
        plain: transformers' module, whose projections it takes over.
    """

    def __init__(self, plain: Any, variant: Variant, device: torch.device | str) -> None:
        super().__init__()
        from transformers.models.llama.modeling_llama import LlamaRMSNorm

        self.config, self.variant = plain.config, variant
        for name in ("layer_idx", "head_dim", "num_key_value_groups", "scaling", "is_causal"):
            setattr(self, name, getattr(plain, name))
        self.q_proj: nn.Module = plain.q_proj
        self.k_proj: nn.Module = plain.k_proj
        self.v_proj: nn.Module = plain.v_proj
        self.o_proj: nn.Module = plain.o_proj
        heads, width = self.config.num_attention_heads, self.config.hidden_size
        self.sinks: nn.Parameter | None = None
        self.gate_proj: nn.Module | None = None
        self.q_norm: nn.Module | None = None
        self.k_norm: nn.Module | None = None
        with torch.device(device):
            if variant.softmax == "learned":
                self.sinks = nn.Parameter(torch.empty(heads))
            if variant.gate:
                self.gate_proj = nn.Linear(width, heads * self.head_dim, bias=False)
            if variant.qk_norm:
                eps = self.config.rms_norm_eps
                self.q_norm, self.k_norm = LlamaRMSNorm(self.head_dim, eps), LlamaRMSNorm(self.head_dim, eps)

    def scores(self, like: Tensor) -> Tensor | None:
        """Float [H]: the one more score of each head; None: there is none."""
        if self.variant.softmax == "one":
            return torch.zeros(self.config.num_attention_heads, device=like.device, dtype=like.dtype)
        return self.sinks

    def sees(self, seen: Visibility, context: ForwardContext, device: torch.device) -> Visibility:
        """What is left of a pattern for queries that attend both ways; a pattern in full is left as it is."""
        if seen.causal or seen.dense is not None:
            return seen
        seen = replace(seen, block=self.variant.block if seen.block is None else seen.block)
        if seen.block == 1 or not self.variant.first_alone:
            return seen
        alone = _first_alone(seen, context, device)
        return seen if alone is None else replace(seen, dense=alone, block=None, bias=None)

    def project(self, hidden: Tensor, cos: Tensor, sin: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys after the rotation, and values.

        Args:
            hidden: Float [B, S, width], after the layer's norm. cos, sin: Float [B|1, 1, S, head_dim].
            first: Bool [B|1, S]: the first real token of each row; None: it is not among these tokens.

        Returns:
            [B, H, S, D], [B, G, S, D], [B, G, S, head_dim]. With `plain_first` D is twice the width of a head: queries carry
            themselves with and without the rotation, and a key has zeros in one of the halves.
        """
        query, key, value = (
            project(hidden).view(*hidden.shape[:2], -1, self.head_dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        turned, placed = rotate(query, cos, sin), rotate(key, cos, sin)
        if self.variant.plain_first:
            turned, zero = torch.cat((turned, query), -1), torch.zeros_like(key)
            here = None if first is None else first[:, None, :, None]
            keys = (placed, zero) if here is None else (placed.masked_fill(here, 0.0), key * here)
            placed = torch.cat(keys, -1)
        return turned.to(value.dtype), placed.to(value.dtype), value

    def finish(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """What attention adds to the residual stream, from mixed values Float [B, S, H · head_dim]."""
        if self.gate_proj is not None:
            mixed = mixed * torch.sigmoid(self.gate_proj(hidden))
        out: Tensor = self.o_proj(mixed)
        return out

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """transformers' call of an attention module."""
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        before = 0 if past_key_values is None else int(past_key_values.get_seq_length(self.layer_idx))
        cos, sin = (angles[:, None] for angles in position_embeddings)
        # Only the forward that holds the first token treats it apart: later ones find its key and value in the cache.
        first = _first(hidden_states) if self.variant.plain_first and not before else None
        query, key, value = self.project(hidden_states, cos, sin, first)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, _eager)
        sink = self.scores(query)
        mixed, _ = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            scaling=self.scaling,
            dropout=0.0,
            s_aux=sink,
            sliding_window=self.variant.window,
            **options,
        )
        return self.finish(hidden_states, mixed.reshape(*hidden_states.shape[:2], -1)), None


def _first_alone(seen: Visibility, context: ForwardContext, device: torch.device) -> Tensor | None:
    """Bool [B|1, 1, Q, K]: the first real token of a row sees itself alone, the others what they see; once for all layers.

    None where that token is a key only: it stands before the queries.
    """
    before = context.shared.get("first alone")
    if before is not None and before[0] is seen.real:
        pattern: Tensor = before[1]
        if pattern.shape[2:] == (seen.queries, seen.keys) and pattern.device == device:
            return pattern
    first = torch.zeros(1, dtype=torch.long, device=device) if seen.real is None else seen.real.long().argmax(-1)
    if bool((first < seen.offset).all()):
        return None
    rows = replace(seen, real=None).rows(0, seen.queries, device)
    is_first = torch.arange(seen.keys, device=device) == first[:, None]  # [B|1, K]
    alone = ~is_first[:, seen.offset :, None] | is_first[:, None, :]
    pattern = alone[:, None] if rows is None else alone[:, None] & rows
    context.shared["first alone"] = (seen.real, pattern)
    return pattern


def _first(hidden: Tensor) -> Tensor:
    """Bool [B|1, S]: the first real token of each row, for an input that begins in column 0."""
    real = current().real
    if real is None:
        return torch.arange(hidden.shape[1], device=hidden.device)[None] == 0
    return real & (real.cumsum(1) == 1)


def _eager(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
    """transformers' own attention in plain operations, which the self-check compares with."""
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as with_sink
    from transformers.models.llama.modeling_llama import eager_attention_forward as plain

    sink, wide = options.pop("s_aux", None), options.pop("sliding_window", None)
    if wide is not None:  # transformers' masks know windows of whole configs only
        ahead = key.shape[2] - query.shape[2] + torch.arange(query.shape[2], device=query.device)[:, None]
        far = (ahead - torch.arange(key.shape[2], device=query.device)).abs() >= wide
        mask = (0.0 if mask is None else mask) + torch.where(far, torch.finfo(query.dtype).min, 0.0)
    if sink is None:
        return plain(module, query, key, value, mask, **options)
    owner = SimpleNamespace(sinks=sink, num_key_value_groups=module.num_key_value_groups, training=module.training)
    return with_sink(owner, query, key, value, mask, **options)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE in the half-split layout: Float [B, H, S, D] with cos, sin [B|1, 1, S, D]."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin
