"""A loaded model: what it is, and its forward pass with attention in view."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sinkscope.attention.context import AttentionCall, CallRecorder, ForwardContext, KeyMasker, forward
from sinkscope.attention.interface import NAME, sinkscope_attention
from sinkscope.attention.visibility import behind_a_prompt
from sinkscope.base.checks import whole
from sinkscope.base.errors import InputError
from sinkscope.base.fast import fast
from sinkscope.models.causal import takes_positions
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES, Family, SpecialIds
from sinkscope.models.layers import only
from sinkscope.models.placement import home
from sinkscope.models.probe import Attending, probe
from sinkscope.models.vocabulary import TokenTables
from sinkscope.policies.forward import Forward
from sinkscope.policies.policy import Policy, check_policy
from sinkscope.policies.runtime import PolicyRuntime
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
        self.home = home(network)
        """Of a network spread over devices, the one on which attention is computed; None: it lies on one."""
        self._fused = _fused_forward(network, device) if self.home is None else None
        self.variant: Any = getattr(network, "variant", None)
        """What another distribution changed in the network (see `models.changed`); None: nothing."""
        self.attending: Attending | None = probe(self) if family.probed or self.variant is not None else None

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
        """What the model was loaded from; of a causal mode, SOURCE@causal."""
        return self.checkpoint.source + ("@causal" if self.spec.causal and self.spec.modes else "")

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
        heads = int(size_of(config, "num_attention_heads") or 0)
        head_dim = size_of(config, "head_dim") or config.hidden_size // max(heads, 1)
        context = getattr(config, "max_position_embeddings", None)
        return Shape(
            layers=int(config.num_hidden_layers),
            heads=heads,
            kv_heads=int(size_of(config, "num_key_value_heads") or heads),
            head_dim=int(head_dim),
            width=int(config.hidden_size),
            vocabulary=int(config.vocab_size),
            parameters=sum(parameter.numel() for parameter in self.network.parameters()),
            context=int(context) if context else None,
        )

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that have softmax attention: all of them, but in hybrids with state-space layers or linear attention."""
        return tuple(range(self.shape.layers)) if self.attending is None else self.attending.layers

    @property
    def has_learned_sinks(self) -> bool:
        """Whether some softmax has one more score, that of a learned sink without a token."""
        return self.attending is not None and bool(self.attending.learned)

    @property
    def gates(self) -> Mapping[int, nn.Module]:
        """Layer → the module that takes its attention output, where that goes through a gate first."""
        return {} if self.attending is None else self.attending.gates

    def mode(self, causal: bool) -> Model:
        """This network read as a causal or as a diffusion model, where one checkpoint is both; else the model itself."""
        name = self.spec.modes[causal] if self.spec.modes else self.family
        if name == self.family:
            return self
        other = copy.copy(self)
        other.spec = FAMILIES[name]
        return other

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
        # Prompts may be padded on the left also where a family pads on the right: `prompts.encode` packs them anew.
        fits = {"left": left, "right": left or right, "apart": right}
        if not fits[self.spec.padding] and not self.spec.optional_blocks:
            left_only = self.spec.padding == "left"
            where = "left: zeros first, then ones" if left_only else "right: ones first, then zeros"
            raise InputError(f"attention_mask must pad on the {where} to the end of every row")
        return ids, real

    def context(
        self,
        real: Tensor | None = None,
        *,
        newest: bool = False,
        block: int | Literal["model"] | None = "model",
        causal: bool | Literal["model"] | None = "model",
        **more: Any,
    ) -> ForwardContext:
        """What is wanted of one forward pass of this model: fields of ForwardContext.

        Args:
            block, causal: "model": as the family's plain forward has it.
        """
        if causal == "model":
            # None: modules of a network with both kinds of attention say themselves which is theirs.
            causal = None if self.spec.mixed else self.spec.causal and not newest
        size = self.block if block == "model" else block
        # BD3LM's samplers hide all keys from padded queries, those of the same weights without blocks hide padded keys only.
        padded = "none" if size is not None and self.spec.optional_blocks else self.spec.padded
        return ForwardContext(real, causal, padded, newest=newest, block=size, home=self.home, **more)

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
        self, ids: Tensor, context: ForwardContext | None = None, cache: Any = None, positions: Tensor | None = None
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
                states: Tensor = self._fused(ids, positions)
                return states
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

    def new_cache(self) -> Any:
        """An empty KV cache of transformers.

        Attention layers keep every column, sliding windows included: a column must mean the same key in all of them. Layers
        without softmax attention keep what they need.
        """
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

        name = type(self.network).__name__.removesuffix("ForCausalLM")
        cache_class = getattr(sys.modules[type(self.network).__module__], f"{name}Cache", None)
        if cache_class is not None:
            return cache_class()
        plain = (DynamicLayer, DynamicSlidingWindowLayer)
        cache = DynamicCache(config=self.network.config.get_text_config())
        if all(type(layer) in plain for layer in cache.layers):
            return DynamicCache()
        for layer in cache.layers:
            if isinstance(layer, DynamicSlidingWindowLayer):
                layer.sliding_window = 1 << 30
        return cache

    def decodes_statically(self, ids: Tensor) -> bool:
        """Whether a causal model's steps can run on a static cache here: on a GPU, for networks that the kernels know."""
        return self.spec.causal and self._fused is not None and self._fused.applies(ids)

    @torch.no_grad()
    def decode(self, ids: Tensor, context: ForwardContext, cache: Any, positions: Tensor) -> Tensor:
        """Logits [B, V] behind the newest tokens Long [B, 1] of a causal model, on a fixed cache (see `gpu.static_cache`).

        Args:
            positions: Long [B|1, 1].
        """
        if self._fused is None:
            raise RuntimeError("this network does not decode on a static cache; ask decodes_statically first")
        with forward(context):
            hidden = self._fused(ids, positions, cache)
        return self.head(hidden[:, -1])

    @torch.no_grad()
    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of last hidden states [..., width]."""
        logits = self.spec.head(self.network, hidden)
        if self.home is not None:
            logits = logits.to(self.home)
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
            options["position_ids"] = positions[:, -ids.shape[1] :].expand(len(ids), -1)
        options |= {"past_key_values": cache, "use_cache": cache is not None}
        with forward(context):
            output = self.network(input_ids=ids, attention_mask=mask, **options)
        logits: Tensor = output.logits
        return logits if self.home is None else logits.to(self.home)

    def logits(
        self,
        ids: Tensor,
        attention_mask: Any = None,
        policy: Policy | str | None = None,
        block: int | Literal["model"] | None = "model",
        prompt: int | None = None,
        soft: Tensor | None = None,
    ) -> Tensor:
        """What the official forward returns (Dream and others: before the shift of their loops).

        Args:
            ids: whole numbers [B, S].
            attention_mask: [B, S], 0 in padding, on the side where the family has it.
            policy: one that needs no earlier step, such as MaskKeys, or its text.
            block: columns of the blocks of block diffusion models, counted from column 0: a query sees its own block and
                earlier ones. "model": as the official forward has it when nothing is said; None: every query sees everything.
            prompt: models with two modes: so many columns were read as a prompt: causally, or with `block` both ways, and blocks
                are counted from its end.
            soft: DiffusionGemma: what the step before predicted, logits Float [B, canvas, V]; None: this is the first step.

        Returns:
            Float [B, S, V] in the model's dtype; DiffusionGemma: of the canvas, the last columns of ids, [B, canvas, V].
        """
        ids, real = self.real_tokens(ids, attention_mask)
        seen = self._seen(ids, block, prompt)
        context = self.context(real, policy=self._single(policy, ids), soft=soft, **seen)
        return self.forward(ids, context)

    def attention(
        self,
        ids: Tensor,
        attention_mask: Any = None,
        policy: Policy | str | None = None,
        block: int | Literal["model"] | None = "model",
        prompt: int | None = None,
    ) -> Tensor:
        """The full attention maps, for checks and small inputs: memory grows with the square of the length.

        Returns:
            Float32 [layer, B, head, query, key], on the CPU; NaN for layers without softmax attention.
        """
        ids, real = self.real_tokens(ids, attention_mask)
        maps, seen = _MapRecorder(ids.shape[1]), self._seen(ids, block, prompt)
        self.forward(ids, self.context(real, policy=self._single(policy, ids), recorder=maps, **seen), keep=1)
        none = torch.full_like(next(iter(maps.by_layer.values())), float("nan"))
        return torch.stack([maps.by_layer.get(layer, none) for layer in range(self.shape.layers)])

    def _seen(self, ids: Tensor, block: object, prompt: int | None) -> dict[str, Any]:
        """What queries see, as the user asked for it, in the words of `context`."""
        # Only block diffusion models have blocks.
        if block not in ("model", None) and block != self.block and not (self.spec.blocks or self.spec.optional_blocks):
            raise InputError(f"{self.source} is a {self.family} model, whose attention has no blocks; leave out block")
        size = block if block in ("model", None) else whole("block", block, 1)
        if prompt is None:
            return {"block": size}
        if not self.spec.modes:
            raise InputError(
                f"{self.source} is a {self.family} model, which reads prompts as it reads all; leave out prompt"
            )
        keys = ids.shape[1]
        counted = size if isinstance(size, int) else None
        pattern = behind_a_prompt(min(whole("prompt", prompt, 0), keys), keys, counted, ids.device)
        return {"block": None, "pattern": pattern}

    def _single(self, policy: Policy | str | None, ids: Tensor) -> KeyMasker | None:
        """A policy for one forward outside of a generation: it must not need an earlier step."""
        kind, shape, (rows, keys) = self.attention_kind, self.shape, ids.shape
        checked = check_policy(as_policy(policy), shape.layers, keys, kind, shape.heads, self.has_learned_sinks)
        if checked is None:
            return None
        for rule in checked.parts():
            if rule.waits:
                raise InputError(
                    f"{rule} decides from the previous step, and a single forward has none; use MaskKeys, MaskFirst, Window, "
                    "when='same', or ss.generate"
                )
        runtime = PolicyRuntime(checked, list(range(rows)), kind == "causal", keys, None, keys, self.words)
        runtime.begin(Forward(tokens=ids))
        return runtime

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


def size_of(config: Any, name: str) -> int | None:
    """A size that a config names, the largest one where it differs between layers; None: it names none."""
    try:
        size: int | None = getattr(config, name, None)
    except RuntimeError:  # transformers refuses to give one number for many
        layers = range(config.num_hidden_layers)
        size = max(getattr(config.per_layer_config[layer], name) for layer in layers)
    return size


def _fused_forward(network: Any, device: torch.device) -> Any:
    """The forward with fused kernels (`gpu.fused_forward`) where it can run; None elsewhere."""
    if not fast(device):
        return None
    from sinkscope.gpu.fused_forward import FusedForward, has_llama_layers

    return FusedForward(network, NAME, sinkscope_attention) if has_llama_layers(network) else None


class _MapRecorder(CallRecorder):
    """Keeps the full attention map of every layer, of which several calls may give rows one after the other."""

    def __init__(self, keys: int) -> None:
        self.keys = keys
        self.by_layer: dict[int, Tensor] = {}

    def record(self, call: AttentionCall) -> None:
        """Keep a map, on the CPU."""
        rows = call.map().float().cpu()
        rows = torch.nn.functional.pad(rows, (0, self.keys - rows.shape[-1]))
        before = self.by_layer.get(call.layer)
        self.by_layer[call.layer] = rows if before is None else torch.cat([before, rows], 2)
