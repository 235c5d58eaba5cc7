"""The attention and mask functions that sinkscope registers with transformers.

Every model runs through `sinkscope_attention`: the fused kernel gives the output, and the policy and recorder of the current
`ForwardContext` get q, k, v and the log-sum-exp of the very same call. Outside of a context it is plain attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention import cpu, fused
from sinkscope.attention.context import NEWEST, AttentionCall, ForwardContext, current
from sinkscope.attention.cpu import Attended
from sinkscope.attention.visibility import Scores, Visibility
from sinkscope.base.errors import InputError

NAME = "sinkscope"
"""The name under which transformers knows our attention and mask functions."""

FULL_MASKS = "_sinkscope_full_masks"
"""Attribute of the config of a network that needs its masks in full: it reads them itself, or says nothing of its windows."""

UNMEASURED = "_sinkscope_unmeasured"
"""Attribute of attention modules whose keys are not the tokens of the sequence (DeepSeek V4's compressed ones)."""

CHANGES_SCORES = ("softcap", "position_bias", "head_mask", "cu_seq_lens_q", "cache")
"""Keywords by which some architectures change the scores; measuring without them would be measuring something else."""


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
    indices: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: output [B, Q, H, E], and None for the weights, which are never built.

    Args:
        s_aux: Float [H], learned sinks (see AttentionCall.sink). indices: Long [B, Q, n]: the only keys that each query may see.
    """
    for name in CHANGES_SCORES:
        if options.get(name) is not None:
            raise InputError(
                f"{type(module).__name__} passes {name!r} to its attention, which changes the scores in a way that sinkscope "
                "does not measure; this architecture is not supported"
            )
    context, away = current(), query.device
    if context.home not in (None, away):
        query, key, value = (tensor.to(context.home) for tensor in (query, key, value))
        attention_mask, s_aux, indices = (
            None if tensor is None else tensor.to(context.home) for tensor in (attention_mask, s_aux, indices)
        )
    # LLaDA rotates q and k in float32 and casts back; its rotary module leaves the casting to this line.
    query, key = query.to(value.dtype), key.to(value.dtype)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = int(getattr(module, "layer_idx", 0) or 0)
    if context.editor is not None:
        key, value = context.editor.inputs(layer, key, value)
    visibility = _visibility(module, query, key, attention_mask, is_causal, sliding_window, context)
    if indices is not None:
        chosen = torch.zeros(*indices.shape[:2], key.shape[2], dtype=torch.bool, device=key.device)
        chosen = chosen.scatter(-1, indices.long(), True)[:, None]
        seen = visibility.rows(0, visibility.queries, key.device)
        visibility = replace(
            visibility, dense=chosen if seen is None else chosen & seen, causal=False, window=None, block=None
        )
    key_mask, sink = None, s_aux
    observed = context.observed and not getattr(module, UNMEASURED, False)
    if context.policy is not None and observed:
        key_mask = context.policy.mask(layer, query, key, visibility, scale)
        sink = None if s_aux is None else context.policy.learned(layer, s_aux)
    scores = Scores(query, key, visibility, scale, key_mask)
    classes: dict[str, Tensor] = {}
    if s_aux is None and cpu.is_short(scores, value):
        classes = {name: context.expected(name, visibility, query).weights for name in context.reads(layer)}
    weights = torch.cat(list(classes.values()), 1) if classes else None
    attended = attend_and_sum(scores, value, weights, s_aux is not None)
    out, over_keys, lse_raw, kept_share = attended.output, attended.lse, None, None
    lse = None if over_keys is None else with_sink(over_keys, sink)

    def over_all(lse: Tensor) -> Tensor:
        """The log-sum-exp as if no policy acted, from that over the keys that are not masked."""
        return with_sink(fused.raw_lse(scores, lse) if attended.lse_raw is None else attended.lse_raw, s_aux)

    if lse is not None and over_keys is not None:
        if key_mask is not None and key_mask.silence:
            lse_raw = over_all(over_keys)
            kept_share, lse = (lse - lse_raw).exp(), lse_raw
        if lse is not over_keys:
            # Σ over the kept keys of exp(s − lse)·v is the output over them times their share of all attention.
            out = (out * (over_keys - lse).exp()[..., None]).to(out.dtype)
    if context.editor is not None:
        out = context.editor.output(layer, out)
    if observed:
        sums = {} if s_aux is not None else _sums(attended, classes)
        with context.measuring((query, key, value, out, lse, over_keys, visibility, key_mask)):
            changed = key_mask is not None or sink is not s_aux
            if changed and lse is not None and over_keys is not None and kept_share is None:
                lse_raw = over_all(over_keys)
                kept_share = (lse - lse_raw).exp()
            call = AttentionCall(
                layer, query, key, value, out, lse, scale, visibility, context, key_mask, lse_raw, kept_share, sums, sink
            )  # fmt: skip
            if context.policy is not None:
                context.policy.measure(call)
            if context.recorder is not None:
                context.recorder.record(call)
    return out.transpose(1, 2).contiguous().to(away), None


def attend_and_sum(scores: Scores, value: Tensor, weights: Tensor | None = None, lse: bool = False) -> Attended:
    """The output, and the column sums of `weights` [B, C, Q] where they come with it: see `cpu.attend`."""
    attended = cpu.attend(scores, value, weights, lse)
    return Attended(*fused.attend(scores, value)) if attended is None else attended


def with_sink(lse: Tensor, sink: Tensor | None) -> Tensor:
    """A log-sum-exp Float32 [B, H, Q] with one more score Float [H]; without a learned sink it is returned as it is."""
    return lse if sink is None else torch.logaddexp(lse, sink.to(lse.dtype)[:, None])


def _sums(attended: Attended, classes: dict[str, Tensor]) -> dict[tuple[str, bool], Tensor]:
    """The column sums that came with the output, by class of queries: see AttentionCall.sums."""
    if attended.acted is None:
        return {}
    raw = attended.acted if attended.raw is None else attended.raw
    if not classes:  # the one query of a newest token, which nobody has to ask for
        return {(NEWEST, False): attended.acted, (NEWEST, True): raw}
    sizes = [weights.shape[1] for weights in classes.values()]
    return {
        (name, kind): sums
        for kind, whole in ((False, attended.acted), (True, raw))
        for name, sums in zip(classes, torch.split(whole, sizes, 2), strict=True)
    }


def _visibility(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    is_causal: bool | None,
    sliding_window: int | None,
    context: ForwardContext,
) -> Visibility:
    causal = context.causal
    if causal is None:
        causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    real, dense = context.real, None
    if mask is not None and mask.dim() == 4:
        dense, causal, sliding_window = mask if mask.dtype == torch.bool else mask > -1.0, False, None
    elif mask is not None and real is None:
        real = mask.bool()
    block = context.block
    if context.pattern is not None:
        dense, causal, sliding_window = context.pattern, False, None
    bias = context.padding_bias(query, key.shape[2]) if real is context.real and dense is None else None
    visibility = Visibility(
        query.shape[2], key.shape[2], real, causal, sliding_window, dense, context.padded, bias, context.newest,
        None if dense is not None else block,
    )  # fmt: skip
    sees = getattr(module, "sees", None)  # of a network that was trained to see less; see models/changed.py
    return visibility if sees is None else sees(visibility, context, query.device)


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
    sliding = local_size is not None and getattr(config, "attention_chunk_size", None) is None
    full = getattr(config, FULL_MASKS, False)
    if not full and (sliding or mask_function in usual):
        if attention_mask is None:
            return None
        mask = attention_mask[:, kv_offset : kv_offset + kv_length].bool()
        return None if bool(mask.all()) else mask
    options.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    # Networks that go on with the mask add to it: they get the additive one.
    build = masking_utils.eager_mask if full else masking_utils.sdpa_mask
    built: Tensor | None = build(
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
    """Make the two functions known to transformers; a name without a mask function would silently lose causality."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, sinkscope_attention)
    AttentionMaskInterface.register(NAME, sinkscope_mask)
