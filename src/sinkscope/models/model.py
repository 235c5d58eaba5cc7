"""A loaded model: what it is, and its forward pass with attention in view."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sinkscope.attention.aside import Aside
from sinkscope.attention.context import AttentionCall, CallRecorder, ForwardContext, KeyMasker, forward
from sinkscope.checks import whole
from sinkscope.errors import InputError
from sinkscope.models.causal import takes_positions
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import Family, SpecialIds
from sinkscope.models.fused_forward import FusedForward, has_llama_layers
from sinkscope.models.layers import only
from sinkscope.models.static_cache import StaticCache
from sinkscope.models.vocabulary import TokenTables
from sinkscope.policies.policy import Policy
from sinkscope.policies.runtime import single_forward
from sinkscope.policies.text import as_policy


@dataclass(frozen=True)
class Shape:
    """The sizes of a network."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocabulary: int
    parameters: int
    context: int | None


class Model:
    """A checkpoint in memory, ready to run with its attention recorded or masked.

    Made by `ss.load`. The network is transformers'; its attention goes through sinkscope's function, whose output is that
    of the device's fused kernel, recorded or not.

    >>> model
    <sinkscope model organism/scratch: llada, 8 layers × 8 heads, 5.7M parameters, float32 on cpu>
    >>> ids = run.states[4]                 # Long [1, 55]: the input of step 4
    >>> model.logits(ids).shape             # [B, S, vocabulary]
    torch.Size([1, 55, 1792])
    >>> maps = model.attention(ids)         # [layer, B, head, query, key]; rows sum to 1
    >>> maps.shape
    torch.Size([8, 1, 8, 55, 55])
    """

    def __init__(
        self, checkpoint: Checkpoint, family: Family, network: nn.Module, tokenizer: Any, device: torch.device
    ) -> None:
        self.checkpoint = checkpoint
        self.spec = family
        self.network: Any = network
        self.tokenizer = tokenizer
        self.device = device
        self.dtype: torch.dtype = next(network.parameters()).dtype
        self.ids: SpecialIds = family.special_ids(checkpoint, tokenizer)
        self.block: int | None = family.block(checkpoint)
        self._fused = FusedForward(network) if has_llama_layers(network) else None

    def __repr__(self) -> str:
        shape = self.shape
        revision = f" @ {self.revision[:12]}" if self.revision else ""
        return (
            f"<sinkscope model {self.source}{revision}: {self.family}, {shape.layers} layers × {shape.heads} heads, "
            f"{shape.parameters / 1e6:.1f}M parameters, {str(self.dtype).removeprefix('torch.')} on {self.device}>"
        )

    @property
    def family(self) -> str:
        """The name of its family: "llada", "dream", "sdar", "causal", …"""
        return self.spec.name

    @property
    def source(self) -> str:
        """What the model was loaded from, as the user wrote it."""
        return self.checkpoint.source

    @property
    def revision(self) -> str | None:
        """The commit on the hub; None for a folder."""
        return self.checkpoint.revision

    @property
    def digest(self) -> str:
        """SHA-256 over the weight files."""
        return self.checkpoint.digest

    @cached_property
    def shape(self) -> Shape:
        """Layers, heads, widths, vocabulary, parameters."""
        config = self.network.config.get_text_config()
        heads = int(config.num_attention_heads)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        context = getattr(config, "max_position_embeddings", None)
        return Shape(
            layers=int(config.num_hidden_layers),
            heads=heads,
            kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
            head_dim=int(head_dim),
            width=int(config.hidden_size),
            vocabulary=int(config.vocab_size),
            parameters=sum(parameter.numel() for parameter in self.network.parameters()),
            context=int(context) if context else None,
        )

    def real_tokens(self, ids: Tensor, attention_mask: Any) -> tuple[Tensor, Tensor | None]:
        """Checks ids and mask and puts them on the model's device.

        Returns:
            Long [B, S] and Bool [B, S] that is False in padding, or None when nothing is padded.
        """
        ids = torch.as_tensor(ids)
        if ids.dim() != 2 or not ids.numel() or ids.is_floating_point() or ids.dtype == torch.bool:
            raise InputError(
                f"ids should be whole numbers of shape [batch, length], got {ids.dtype} of shape {list(ids.shape)}"
            )
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.shape.vocabulary:
            raise InputError(
                f"ids run from {low} to {high}, but {self.source} has the ids 0 to {self.shape.vocabulary - 1}; "
                "was another tokenizer used?"
            )
        ids = ids.to(device=self.device, dtype=torch.long)
        if attention_mask is None:
            return ids, None
        mask = torch.as_tensor(attention_mask)
        if mask.shape != ids.shape:
            raise InputError(f"attention_mask has shape {list(mask.shape)}, but ids have {list(ids.shape)}")
        real = mask.to(self.device) != 0
        if bool(real.all()):
            return ids, None
        left = bool(real[:, -1].all()) and not bool((real[:, :-1] & ~real[:, 1:]).any())
        right = bool(real[:, 0].all()) and not bool((~real[:, :-1] & real[:, 1:]).any())
        fits = {"left": left, "right": left or right, "apart": right}
        if not fits[self.spec.padding]:
            left_only = self.spec.padding == "left"
            where = "left: zeros first, then ones" if left_only else "right: ones first, then zeros"
            raise InputError(f"attention_mask must pad on the {where} to the end of every row")
        return ids, real

    def context(
        self,
        real: Tensor | None = None,
        *,
        policy: KeyMasker | None = None,
        recorder: CallRecorder | None = None,
        queries: Mapping[str, Tensor] | None = None,
        newest: bool = False,
        block: int | Literal["model"] | None = "model",
        active: int | None = None,
        aside: Aside | None = None,
    ) -> ForwardContext:
        """What is wanted of one forward pass of this model; see ForwardContext.

        Args:
            real: Bool [B, K] over all keys, None when nothing is padded.
            newest: the queries are real and see every key of `real`, wherever they stand.
            block: "model": as the family's plain forward has it.
        """
        causal = self.spec.causal and not newest
        size = self.block if block == "model" else block
        return ForwardContext(
            real, causal, self.spec.padded, queries or {}, policy, recorder, newest, size, active, aside=aside
        )

    @torch.no_grad()
    def forward(
        self, ids: Tensor, context: ForwardContext | None = None, keep: int | None = None, cache: Any = None
    ) -> Tensor:
        """One forward pass of any family, without checks.

        Args:
            ids: Long [B, Q] on the model's device.
            context: from `model.context`; None: nothing is padded, masked or recorded.
            keep: how many of the last positions need logits; None: all.
            cache: transformers' KV cache, for causal models.

        Returns:
            Logits [B, Q or keep, V].
        """
        context = context or self.context()
        if self.spec.causal:
            return self._causal_logits(ids, context, keep, cache)
        hidden = self.hidden(ids, context)
        return self.head(hidden if keep is None else hidden[:, -keep:])

    @torch.no_grad()
    def hidden(
        self,
        ids: Tensor,
        context: ForwardContext | None = None,
        cache: Any = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """The last hidden states [B, Q, width] of a diffusion model, so that the head can run where it is needed.

        Args:
            ids: Long [B, Q]: with a cache, the columns behind those that are in it.
            cache: transformers' KV cache, to which the keys and values of ids are added; None: none.
            positions: Long [B|1, Q], where ids are single columns of a sequence; None: they follow one another.
        """
        context = context or self.context()
        if positions is None:
            before = 0 if cache is None else cache.get_seq_length()
            shape = (ids.shape[0], before + ids.shape[1])
            positions = self.spec.positions(context.real, shape, ids.device)[:, before:]
        with forward(context):
            if cache is None and self._fused is not None and self._fused.applies(ids):
                return self._fused(ids, positions)
            return self.spec.states(self.network, ids, context.real, positions, cache)

    def entering(self, ids: Tensor, layer: int, context: ForwardContext, positions: Tensor) -> Tensor:
        """The residual stream [B, Q, width] that enters a layer; see `hidden`. Where `spec.divisible`."""
        with only(self.network, range(layer)):
            return self.hidden(ids, context, positions=positions)

    @torch.no_grad()
    def onward(self, stream: Tensor, layer: int, context: ForwardContext) -> Tensor:
        """The last hidden states [B, S, width] of the residual stream that enters a layer, for all columns of a sequence."""
        positions = self.spec.positions(context.real, (len(stream), stream.shape[1]), stream.device)
        with forward(context), only(self.network, range(layer, self.shape.layers)):
            return self.spec.onward(self.network, stream, positions)

    def decodes_statically(self, ids: Tensor) -> bool:
        """Whether a causal model's steps can run on a static cache here: on a GPU, for networks that the kernels know."""
        return self.spec.causal and self._fused is not None and self._fused.applies(ids)

    @torch.no_grad()
    def decode(
        self, inputs: Tensor, cache: StaticCache, context: Callable[[Tensor], ForwardContext]
    ) -> Tensor:
        """Logits [B, V] behind the newest tokens of a causal model, on a static cache.

        Args:
            inputs: Long [B + 1]: the tokens, and the column they stand in.
            context: from the visible columns Bool [B, S] to what is wanted of the forward.
        """
        if self._fused is None:
            raise RuntimeError("this network does not decode on a static cache; ask decodes_statically first")
        ids, positions, visible, column = cache.begin(inputs)
        with forward(context(visible)):
            hidden = self._fused.decode(ids, positions, cache, column)
        return self.head(hidden[:, -1])

    @torch.no_grad()
    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of last hidden states [..., width]."""
        logits = self.spec.head(self.network, hidden)
        scale = getattr(self.network, "logit_scale", None)
        return logits if scale is None else logits * scale

    def _causal_logits(self, ids: Tensor, context: ForwardContext, keep: int | None, cache: Any) -> Tensor:
        real = context.real if context.placed is None else context.placed.real  # positions count all columns
        keys = ids.shape[1] + (cache.get_seq_length() if cache is not None else 0)
        # Without a mask transformers would take positions that start anew for packed sequences.
        mask = ids.new_ones(ids.shape[0], keys) if real is None else real.long()
        options: dict[str, Any] = {} if keep is None else {"logits_to_keep": keep}
        if takes_positions(self.network):
            positions = self.spec.positions(real, (ids.shape[0], keys), ids.device)
            options["position_ids"] = positions[:, -ids.shape[1] :]
        options |= {"past_key_values": cache, "use_cache": cache is not None}
        with forward(context):
            output = self.network(input_ids=ids, attention_mask=mask, **options)
        logits: Tensor = output.logits
        return logits

    def logits(
        self,
        ids: Tensor,
        attention_mask: Any = None,
        policy: Policy | str | None = None,
        block: int | Literal["model"] | None = "model",
    ) -> Tensor:
        """What the official forward returns (Dream and others: before the shift of their loops).

        Args:
            ids: whole numbers [B, S].
            attention_mask: [B, S], 0 in padding, on the side where the family has it.
            policy: one that needs no earlier step, such as MaskKeys, or its text.
            block: columns of the blocks of block diffusion models, counted from column 0: a query sees its own block and
                earlier ones. "model": as the official forward has it when nothing is said; None: every query sees everything.

        Returns:
            Float [B, S, V] in the model's dtype.
        """
        ids, real = self.real_tokens(ids, attention_mask)
        context = self.context(real, policy=self._single(policy, ids), block=self._checked_block(block))
        return self.forward(ids, context)

    def attention(
        self,
        ids: Tensor,
        attention_mask: Any = None,
        policy: Policy | str | None = None,
        block: int | Literal["model"] | None = "model",
    ) -> Tensor:
        """The full attention maps, for checks and small inputs: memory grows with the square of the length.

        Returns:
            Float32 [layer, B, head, query, key], on the CPU.
        """
        ids, real = self.real_tokens(ids, attention_mask)
        maps = _MapRecorder()
        masking, size = self._single(policy, ids), self._checked_block(block)
        self.forward(ids, self.context(real, policy=masking, recorder=maps, block=size), keep=1)
        return torch.stack([maps.by_layer[layer] for layer in sorted(maps.by_layer)])

    def _checked_block(self, block: object) -> Any:
        """A block as the user gave it: only block diffusion models have any."""
        if block in ("model", None) or block == self.block:
            return block
        if not self.spec.blocks:
            raise InputError(
                f"{self.source} is a {self.family} model, whose attention has no blocks; leave out block"
            )
        return whole("block", block, 1)

    def _single(self, policy: Policy | str | None, ids: Tensor) -> KeyMasker | None:
        kind, shape = self.attention_kind, self.shape
        return single_forward(as_policy(policy), shape.layers, ids, kind, self.words, shape.heads)

    @property
    def attention_kind(self) -> Literal["causal", "block", "masked"]:
        """Which keys a query sees: those up to itself, earlier blocks and its own, or all."""
        return "causal" if self.spec.causal else "block" if self.spec.blocks else "masked"

    @cached_property
    def words(self) -> TokenTables:
        """What is known of its tokens, for policies that look at them."""
        return TokenTables(self.shape.vocabulary, self.tokenizer, self.ids, self.device)

    def check(self, length: int = 24, seed: int = 0) -> Any:
        """Proves on a short random input that what is recorded is the model's own attention. See `selfcheck`."""
        from sinkscope.models.selfcheck import check

        return check(self, length, seed)


class _MapRecorder:
    """Keeps the full attention map of every layer."""

    def __init__(self) -> None:
        self.by_layer: dict[int, Tensor] = {}

    def reads(self, layer: int) -> tuple[str, ...]:
        """Nothing: maps come from q and k."""
        return ()

    def record(self, call: AttentionCall) -> None:
        """Keep a map, on the CPU."""
        self.by_layer[call.layer] = call.map().float().cpu()

    def residual(self, layer: int, hidden: Tensor) -> None:
        """Nothing is kept of the residual stream."""
