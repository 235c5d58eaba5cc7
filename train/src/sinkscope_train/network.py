"""The network in training: transformers' Llama or Qwen2 modules, a forward pass of our own, and the losses.

The pass is a plain loop over the layers: it compiles to one graph, takes a padding mask without transformers' mask code, and
shows every attention call to a probe. Tests hold it equal to the loaded model (`train/tests/test_layout.py`).

Losses are next token, masked diffusion, and masked diffusion with Dream's shift. Masked diffusion follows LLaDA (arXiv
2502.09992): t ~ U(0,1) for each sequence, every target token is masked with probability t, and the cross-entropy of the
masked ones is weighted 1/t. Targets are the whole text for prose and the answer, end tokens included, for tasks. BOS carries
no information and is never masked. Times are spread evenly over the batch (one random offset, then equal steps), which keeps
each of them uniform and makes the loss less noisy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sinkscope import InputError
from sinkscope.attention import fused
from sinkscope.attention.context import AttentionCall
from sinkscope.attention.interface import with_sink
from sinkscope.attention.visibility import Scores, Visibility
from sinkscope_train.recipe import Objective, Size
from sinkscope_train.rows import Batch
from sinkscope_train.variant import PLAIN, Variant, VariantAttention, rotate, variant_of, vary

SMALLEST_TIME = 1e-3
"""No sequence has a smaller t: its weight would be unbounded."""
OWN_NUMBERS = 1 << 31
"""Added to a seed for the weights that only a variant has; torch's generator on the CPU uses 32 bits."""
Observe = Callable[[AttentionCall, Tensor], None]
"""Called after each attention with the call and the layer's output, Float [B, S, width]."""


def skeleton(size: Size, vocabulary: int, layout: str, variant: Variant, device: str = "cpu") -> Any:
    """A network whose weights nobody has chosen: Qwen2 for dream, Qwen3 for sdar, else Llama."""
    import transformers

    settings: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": size.width,
        "intermediate_size": size.mlp,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "head_dim": size.width // size.heads,
        "max_position_embeddings": size.context,
        "rms_norm_eps": size.eps,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": size.theta},
        "tie_word_embeddings": False,
        "pad_token_id": None,
        "use_cache": False,
    }
    kind = {"dream": "Qwen2", "sdar": "Qwen3"}.get(layout, "Llama")
    config = getattr(transformers, f"{kind}Config")(**settings)
    with torch.device(device):
        network = getattr(transformers, f"{kind}ForCausalLM")(config)
    vary(network, variant, device)
    return network


def build(size: Size, vocabulary: int, layout: str, seed: int = 0, variant: Variant = PLAIN) -> nn.Module:
    """A network with random weights; q, k, v biases are zero and frozen.

    The same seed gives the same weights in every layout and variant; what only a variant has is drawn apart: learned sinks
    start at 0, gates as random as other projections, norms at 1. Projections that write to the residual stream start smaller by
    the square root of how many there are.
    """
    network = skeleton(size, vocabulary, layout, variant)
    # Random numbers of their own: those of `seed` itself are the embedding, and gates would be copies of its rows.
    random, apart = (torch.Generator().manual_seed(number) for number in (seed, OWN_NUMBERS + seed))
    small = 0.02 / (2 * size.layers) ** 0.5
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.dim() == 2:
                std = small if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
                gate = name.endswith("self_attn.gate_proj.weight")  # the only matrix that a variant adds
                parameter.copy_(torch.randn(parameter.shape, generator=apart if gate else random) * std)
            elif name.endswith(("bias", "sinks")):
                parameter.zero_()
    return trainable(network)


def trainable(network: nn.Module) -> nn.Module:
    """All weights train; biases stay as they are, because a key bias can act as a sink by itself."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(not name.endswith("bias"))
    return network.train()


def check_supported(network: Any, source: str) -> None:
    """Refuses architectures whose layers this file does not run."""
    kind, layers = network.config.model_type, getattr(network.config, "layer_types", None) or ()
    if kind not in ("llama", "qwen2") or {*layers} - {"full_attention"}:
        raise InputError(
            f"{source} is a {kind} network; training can start from Llama and Qwen2 networks with full attention only"
        )


def rotation(network: Any, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Float32 cos, sin [1, S, head_dim] at the positions 0..S−1."""
    probe = torch.zeros(1, device=device)
    cos, sin = network.model.rotary_emb(probe, torch.arange(length, device=device)[None])
    return cos.float(), sin.float()


def hidden_states(
    network: Any,
    ids: Tensor,
    rotary: tuple[Tensor, Tensor],
    visibility: Visibility,
    observe: Observe | None = None,
    run_layer: Callable[..., Tensor] | None = None,
) -> Tensor:
    """The last hidden states, after the final norm.

    Args:
        ids: Long [B, S].
        rotary: cos, sin of `rotation`.
        visibility: the keys that each query sees, before what the network's variant takes away; padding stands on the right.
        observe: called after each attention (and then attention runs through sinkscope's own kernel call).
        run_layer: a compiled `decoder_layer`; None: as it is.
    """
    variant, S = variant_of(network), ids.shape[1]
    cos, sin = rotary[0][:, None, :S], rotary[1][:, None, :S]
    visibility = variant.narrowed(visibility, ids.device)
    causal = visibility.causal and not visibility.banded  # no real query sees padding then, so it needs no mask
    mask = None if causal else visibility.rows(0, S, ids.device)
    if mask is not None and variant.reach:  # padding beyond the reach of all that is real sees itself
        mask = mask | torch.eye(S, dtype=torch.bool, device=ids.device)
    x: Tensor = network.model.embed_tokens(ids)
    if run_layer is not None and torch.is_grad_enabled() and not x.requires_grad:
        x.requires_grad_()  # a frozen embedding: the first layer is compiled as the others are
    for number, layer in enumerate(network.model.layers):
        if observe is None:
            x = (run_layer or decoder_layer)(layer, x, cos, sin, mask, causal)
            continue
        normed = layer.input_layernorm(x)
        query, key, value = _projected(layer.self_attn, normed, cos, sin)
        scale, sink = layer.self_attn.head_dim**-0.5, _sink(layer.self_attn, query)
        mixed, over_keys = fused.attend(Scores(query, key, visibility, scale), value)
        lse = with_sink(over_keys, sink)
        if sink is not None:
            mixed = mixed * (over_keys - lse).exp()[..., None]
        x = _after_attention(layer, x, normed, mixed)
        observe(AttentionCall(number, query, key, value, mixed, lse, scale, visibility, sink=sink), x)
    out: Tensor = network.model.norm(x)
    return out


def decoder_layer(layer: Any, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """One layer of the network: Float [B, S, width] to the same."""
    normed = layer.input_layernorm(x)
    query, key, value = _projected(layer.self_attn, normed, cos, sin)
    sink = _sink(layer.self_attn, query)
    if sink is not None:
        query, key, value, mask = _with_sink_column(query, key, value, mask, sink, layer.self_attn.scaling)
    grouped = query.shape[1] != key.shape[1]
    scale = layer.self_attn.scaling if variant_of(layer.self_attn) != PLAIN else None
    mixed = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )
    return _after_attention(layer, x, normed, mixed if sink is None else mixed[:, :, 1:])


def _projected(attention: Any, normed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys (both rotated) and values, Float [B, H, S, head_dim]; rows begin in column 0."""
    if isinstance(attention, VariantAttention):
        first = torch.arange(normed.shape[1], device=normed.device)[None] == 0
        return attention.project(normed, cos, sin, first)
    query, key, value = (
        project(normed).view(*normed.shape[:2], -1, attention.head_dim).transpose(1, 2)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if hasattr(attention, "q_norm"):  # Qwen3
        query, key = attention.q_norm(query), attention.k_norm(key)
    return rotate(query, cos, sin).to(value.dtype), rotate(key, cos, sin).to(value.dtype), value


def _sink(attention: Any, like: Tensor) -> Tensor | None:
    return attention.scores(like) if isinstance(attention, VariantAttention) else None


def _with_sink_column(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, sink: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """One more key in front, without a value, that every query of head h scores as sink[h]; and a query whose output is dropped.

    Plain attention has no room for such a score, but a key of eight further channels has: every query is 1 in the first of
    them, and the new key is sink / scale there. The new query keeps rows and columns alike, so that "causal" means the same.
    """
    groups = query.shape[1] // key.shape[1]
    query = functional.pad(functional.pad(query, (0, 1), value=1.0), (0, 7, 1, 0))
    column = functional.pad((sink / scale).to(key.dtype)[:, None, None], (key.shape[-1], 7))  # [H, 1, D + 8]
    key = functional.pad(key.repeat_interleave(groups, 1), (0, 8))
    key = torch.cat((column.expand(len(key), -1, -1, -1), key), 2)
    value = functional.pad(value.repeat_interleave(groups, 1), (0, 0, 1, 0))
    if mask is not None:
        # In front of rows and columns that a mask has; where it has one row for all queries, it keeps that one.
        mask = functional.pad(mask, (1, 0, 1 if mask.shape[-2] > 1 else 0, 0), value=True)
    return query, key, value, mask


def _after_attention(layer: Any, x: Tensor, normed: Tensor, mixed: Tensor) -> Tensor:
    attention, merged = layer.self_attn, mixed.transpose(1, 2).reshape(*x.shape[:2], -1)
    varied = isinstance(attention, VariantAttention)
    x = x + (attention.finish(normed, merged) if varied else attention.o_proj(merged))
    out: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
    return out


def parameters(network: nn.Module) -> int:
    """The number of weights; tied tensors count once."""
    return sum(parameter.numel() for parameter in network.parameters())


def parameters_of(size: Size, vocabulary: int, variant: Variant = PLAIN) -> int:
    """The number of weights of a network that is not built; Qwen2's frozen biases are not counted.

    >>> parameters_of(Size(), 1792)
    5673216
    """
    return parameters(skeleton(size, vocabulary, "llada", variant, "meta"))


# ---- losses --------------------------------------------------------------------------------------


def drawn_masks(
    shape: tuple[int, ...], random: torch.Generator, device: torch.device, least: float = SMALLEST_TIME
) -> tuple[Tensor, Tensor]:
    """Positions Bool [B, S], each chosen with its row's time as probability, and the times Float [B, 1], from `least` to 1."""
    B, S = shape
    offset = torch.rand(1, generator=random, device=device)
    times = (offset + torch.arange(B, device=device) / B) % 1.0 * (1 - least) + least
    times = times[torch.randperm(B, generator=random, device=device), None]
    return torch.rand(B, S, generator=random, device=device) < times, times


def masked_at(batch: Batch, mask: int, chosen: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """Long [B, S], the tokens with masks on chosen targets, and Float [B, S], the weight 1/t of every masked token, else 0."""
    masked = chosen & batch.targets(causal=False)
    return torch.where(masked, mask, batch.ids), torch.where(masked, 1.0 / times, 0.0)


def two_copy_pairs(length: int, block: int, device: torch.device) -> Tensor:
    """Bool [2·S, 2·S] for rows of masked tokens followed by the same rows unmasked (arXiv 2503.09573).

    A masked block sees itself and the unmasked blocks before it; an unmasked one sees unmasked ones up to itself. So one pass
    trains every block as it is decoded: behind finished text.
    """
    number = torch.arange(length, device=device) // block
    same, before = number[None] == number[:, None], number[None] < number[:, None]
    masked, clean = torch.cat((same, before), 1), torch.cat((torch.zeros_like(same), same | before), 1)
    return torch.cat((masked, clean))


def head_loss(head: Any, hidden: Tensor, ids: Tensor, weight: Tensor) -> Tensor:
    """Σ weight · cross-entropy of what the head says at hidden states."""
    logits = head(hidden).float()
    each = functional.cross_entropy(logits.flatten(0, -2), ids.flatten(), reduction="none")
    return (each * weight.flatten()).sum()


class Loss(nn.Module):
    """The forward pass up to the loss, as one module that compiles to one graph, or in parts that are compiled.

    Args:
        run_layer, run_head: a compiled `decoder_layer` and `head_loss`; None: as they are.
        block: columns of a block, for the objective "block".
    """

    def __init__(
        self,
        network: Any,
        objective: Objective,
        run_layer: Callable[..., Tensor] | None = None,
        block: int = 0,
        run_head: Callable[..., Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.network, self.objective, self.run_layer, self.block = network, objective, run_layer, block
        self.run_head = run_head or head_loss

    def forward(
        self,
        seen: Tensor,
        ids: Tensor,
        weight: Tensor,
        real: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        targets: Tensor | None = None,
    ) -> Tensor:
        """Σ weight · cross-entropy; dividing by the number of targets is left to the caller, who knows the whole batch.

        Args:
            seen: Long [B, S], what the model sees. ids: Long [B, S], what it should say. weight: Float [B, S].
            real: Bool [B, S], False in padding.
            targets: Long [N], where weight is not 0 in [B · S], so that only these get logits; None: all do.
        """
        length = seen.shape[1]
        visibility = Visibility(length, length, real, self.objective == "next")
        if self.objective == "block":
            pairs = two_copy_pairs(length, self.block, seen.device)[None, None]
            seen, real = torch.cat((seen, ids), 1), None if real is None else torch.cat((real, real), 1)
            cos, sin = (torch.cat((angles[:, :length],) * 2, 1) for angles in (cos, sin))
            visibility = Visibility(2 * length, 2 * length, real, dense=pairs)
        hidden = hidden_states(self.network, seen, (cos, sin), visibility, None, self.run_layer)[:, :length]
        shift = int(self.objective in ("next", "shifted"))  # position j − 1 says what stands at j
        if targets is not None:
            hidden, ids, weight = (
                tensor.flatten(0, 1)[places]
                for tensor, places in ((hidden, targets - shift), (ids, targets), (weight, targets))
            )
        elif shift:
            hidden, ids, weight = hidden[:, :-1], ids[:, 1:], weight[:, 1:]
        return self.run_head(self.network.lm_head, hidden, ids, weight)
