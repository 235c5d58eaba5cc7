"""A loaded model: what it is, and its forward pass with attention in view."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention.interface import AttentionCall, Forward, Hiding, Tap, forward
from sinkscope.errors import InputError
from sinkscope.models.causal import takes_positions
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import Family, SpecialIds
from sinkscope.models.fused_forward import Quick
from sinkscope.policies.policy import Policy
from sinkscope.policies.runtime import single_forward


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
    """A checkpoint in memory, ready to run with its attention in view.

    Made by `ss.load`. The network is transformers'; its attention goes through sinkscope's function, whose output is that
    of the device's fused kernel whether anybody listens or not.
    """

    def __init__(
        self, checkpoint: Checkpoint, family: Family, network: nn.Module, tokenizer: Any, device: torch.device
    ) -> None:
        self.checkpoint = checkpoint
        self.kind = family
        self.network: Any = network
        self.tokenizer = tokenizer
        self.device = device
        self.dtype: torch.dtype = next(network.parameters()).dtype
        self.ids: SpecialIds = family.special_ids(checkpoint, tokenizer)
        self._quick = None if family.causal else Quick(network)

    def __repr__(self) -> str:
        shape = self.shape
        revision = f" @ {self.revision[:12]}" if self.revision else ""
        return (
            f"<sinkscope model {self.source}{revision}: {self.family}, {shape.layers} layers × {shape.heads} heads, "
            f"{shape.parameters / 1e6:.1f}M parameters, {str(self.dtype).removeprefix('torch.')} on {self.device}>"
        )

    @property
    def family(self) -> str:
        """ "llada", "dream", "mmada" or "causal"."""
        return self.kind.name

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
        if not bool(real[:, -1].all()) or bool((real[:, :-1] & ~real[:, 1:]).any()):
            raise InputError(
                "attention_mask must pad on the left: zeros first, then ones to the end of every row"
            )
        return ids, real

    @torch.no_grad()
    def forward(
        self,
        ids: Tensor,
        real: Tensor | None = None,
        *,
        hiding: Hiding | None = None,
        taps: tuple[Tap, ...] = (),
        keep: int | None = None,
        cache: Any = None,
    ) -> Tensor:
        """One forward pass of any family, without checks.

        Args:
            ids: Long [B, Q] on the model's device.
            real: Bool [B, K] over all keys (K = Q without a cache), None when nothing is padded.
            keep: how many of the last positions need logits; None: all.
            cache: transformers' KV cache, for causal models.

        Returns:
            Logits [B, Q or keep, V].
        """
        if self.kind.causal:
            return self._causal_logits(ids, real, hiding, taps, keep, cache)
        hidden = self.hidden(ids, real, hiding=hiding, taps=taps)
        return self.head(hidden if keep is None else hidden[:, -keep:])

    @torch.no_grad()
    def hidden(
        self,
        ids: Tensor,
        real: Tensor | None = None,
        *,
        hiding: Hiding | None = None,
        taps: tuple[Tap, ...] = (),
    ) -> Tensor:
        """The last hidden states [B, S, width] of a diffusion model, so that the head can run where it is needed."""
        positions = self.kind.positions(real, (ids.shape[0], ids.shape[1]), ids.device)
        with forward(Forward(real, self.kind.causal, self.kind.padded, hiding, taps)):
            if self._quick is not None and self._quick.applies(ids):
                return self._quick(ids, positions)
            output = self.network.model(
                input_ids=ids, attention_mask=None, position_ids=positions, use_cache=False
            )
        states: Tensor = output.last_hidden_state
        return states

    @torch.no_grad()
    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of last hidden states [..., width]."""
        logits: Tensor = self.network.lm_head(hidden)
        scale = getattr(self.network, "logit_scale", None)
        return logits if scale is None else logits * scale

    def _causal_logits(
        self,
        ids: Tensor,
        real: Tensor | None,
        hiding: Hiding | None,
        taps: tuple[Tap, ...],
        keep: int | None,
        cache: Any,
    ) -> Tensor:
        keys = ids.shape[1] + (cache.get_seq_length() if cache is not None else 0)
        # Without a mask transformers would take positions that start anew for packed sequences.
        mask = (
            torch.ones(ids.shape[0], keys, device=ids.device, dtype=torch.long)
            if real is None
            else real.long()
        )
        options: dict[str, Any] = {} if keep is None else {"logits_to_keep": keep}
        if takes_positions(self.network):
            options["position_ids"] = self.kind.positions(real, (ids.shape[0], keys), ids.device)[
                :, -ids.shape[1] :
            ]
        with forward(Forward(real, self.kind.causal, self.kind.padded, hiding, taps)):
            output = self.network(
                input_ids=ids,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=cache is not None,
                **options,
            )
        logits: Tensor = output.logits
        return logits

    def logits(self, ids: Tensor, attention_mask: Any = None, policy: Policy | None = None) -> Tensor:
        """What the official forward returns (Dream: before its shift).

        Args:
            ids: whole numbers [B, S].
            attention_mask: [B, S], 0 in left padding.
            policy: one that needs no earlier step, such as MaskKeys.

        Returns:
            Float [B, S, V] in the model's dtype.
        """
        ids, real = self.real_tokens(ids, attention_mask)
        return self.forward(ids, real, hiding=self._single(policy, ids))

    def attention(self, ids: Tensor, attention_mask: Any = None, policy: Policy | None = None) -> Tensor:
        """The full attention maps, for checks and small inputs: memory grows with the square of the length.

        Returns:
            Float32 [layer, B, head, query, key], on the CPU.
        """
        ids, real = self.real_tokens(ids, attention_mask)
        maps: dict[int, Tensor] = {}

        def keep_map(call: AttentionCall) -> None:
            maps[call.layer] = call.map().float().cpu()

        self.forward(ids, real, hiding=self._single(policy, ids), taps=(keep_map,), keep=1)
        return torch.stack([maps[layer] for layer in sorted(maps)])

    def _single(self, policy: Policy | None, ids: Tensor) -> Hiding | None:
        return single_forward(policy, self.shape.layers, ids.shape[1], len(ids), self.kind.causal)

    def check(self, length: int = 24, seed: int = 0) -> Any:
        """Proves on a short random input that what is recorded is the model's own attention. See `selfcheck`."""
        from sinkscope.models.selfcheck import check

        return check(self, length, seed)
