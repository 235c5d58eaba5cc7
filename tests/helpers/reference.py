"""Forward passes in plain torch, written from the description of the families and from nothing of sinkscope's.

One function for LLaDA's layout (MMaDA shares it), one for the Qwen2/Llama layout (Dream and causal models). Both return
logits [B, S, V] and attention [layer, B, head, query, key].
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def llada(config: dict[str, Any], weights: Weights, ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """LLaDA: bidirectional; positions 0..S−1; rotation in float32; padding is hidden as keys only."""
    d, heads = config["d_model"], config["n_heads"]
    kv_heads = 1 if config["multi_query_attention"] else config["n_kv_heads"] or heads
    size, eps = d // heads, config["rms_norm_eps"]
    top = "model.transformer"
    x = weights[f"{top}.wte.weight"][ids]
    B, S, _ = x.shape
    inverse = 1.0 / config["rope_theta"] ** (torch.arange(0, size, 2).float() / size)
    cos, sin = _angles(torch.arange(S).float()[None, :, None] * inverse)
    bias = torch.zeros(B, 1, 1, S)
    if mask is not None and bool((mask == 0).any()):
        bias = ((1.0 - mask.float()) * torch.finfo(torch.float32).min)[:, None, None, :]
    maps = []
    for i in range(config["n_layers"]):
        block = f"{top}.blocks.{i}"
        h = _norm(x, weights[f"{block}.attn_norm.weight"], eps)
        q = _heads(_linear(weights, f"{block}.q_proj", h), heads)
        k = _heads(_linear(weights, f"{block}.k_proj", h), kv_heads)
        v = _heads(_linear(weights, f"{block}.v_proj", h), kv_heads)
        q, k = (_rotate(t.float(), cos, sin).to(t.dtype) for t in (q, k))
        out, attention = _attend(q, k, v, bias)
        maps.append(attention)
        x = x + _linear(weights, f"{block}.attn_out", out)
        h = _norm(x, weights[f"{block}.ff_norm.weight"], eps)
        gate = torch.nn.functional.silu(_linear(weights, f"{block}.ff_proj", h))
        x = x + _linear(weights, f"{block}.ff_out", gate * _linear(weights, f"{block}.up_proj", h))
    x = _norm(x, weights[f"{top}.ln_f.weight"], eps)
    tied = config["weight_tying"]
    logits = x @ weights[f"{top}.wte.weight"].T if tied else _linear(weights, f"{top}.ff_out", x)
    if config["scale_logits"]:
        logits = logits / math.sqrt(d)
    return logits, torch.stack(maps)


def qwen_or_llama(
    config: dict[str, Any], weights: Weights, ids: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Dream (bidirectional) and Llama (causal): positions count real tokens; padding sees and is seen by nothing."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    eps = config["rms_norm_eps"]
    x = weights["model.embed_tokens.weight"][ids]
    B, S, _ = x.shape
    real = torch.ones(B, S, dtype=torch.bool) if mask is None else mask.bool()
    positions = (real.long().cumsum(-1) - 1).masked_fill(~real, 1)
    cos, sin = _angles(positions[:, :, None].float() * _frequencies(config, size))
    seen = real[:, None, None, :] & real[:, None, :, None]
    if config["model_type"] != "Dream":
        seen = seen & torch.ones(S, S, dtype=torch.bool).tril()
    bias = torch.where(seen, 0.0, float("-inf"))
    maps = []
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        h = _norm(x, weights[f"{layer}.input_layernorm.weight"], eps)
        q = _rotate(_heads(_linear(weights, f"{layer}.self_attn.q_proj", h), heads), cos, sin)
        k = _rotate(_heads(_linear(weights, f"{layer}.self_attn.k_proj", h), kv_heads), cos, sin)
        v = _heads(_linear(weights, f"{layer}.self_attn.v_proj", h), kv_heads)
        out, attention = _attend(q, k, v, bias)
        maps.append(attention)
        x = x + _linear(weights, f"{layer}.self_attn.o_proj", out)
        h = _norm(x, weights[f"{layer}.post_attention_layernorm.weight"], eps)
        gate = torch.nn.functional.silu(_linear(weights, f"{layer}.mlp.gate_proj", h))
        x = x + _linear(weights, f"{layer}.mlp.down_proj", gate * _linear(weights, f"{layer}.mlp.up_proj", h))
    x = _norm(x, weights["model.norm.weight"], eps)
    head = weights["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return x @ head.T, torch.stack(maps)


def forward(config: dict[str, Any], weights: Weights, ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The reference for a config of any layout."""
    return (llada if config["model_type"] == "llada" else qwen_or_llama)(config, weights, ids, mask)


def _linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    out = x @ weights[f"{name}.weight"].T
    return out + weights[f"{name}.bias"] if f"{name}.bias" in weights else out


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    full = x.float()
    return weight * (full * torch.rsqrt(full.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _angles(angles: Tensor) -> tuple[Tensor, Tensor]:
    doubled = torch.cat((angles, angles), -1)[:, None]
    return doubled.cos(), doubled.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    attention = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias).softmax(-1).nan_to_num(0.0)
    return (attention @ v).transpose(1, 2).flatten(2), attention


def _frequencies(config: dict[str, Any], size: int) -> Tensor:
    inverse = 1.0 / config["rope_theta"] ** (torch.arange(0, size, 2).float() / size)
    rules = config.get("rope_scaling")
    if not rules:
        return inverse
    if rules["rope_type"] != "llama3":
        raise NotImplementedError(rules["rope_type"])
    factor, low, high = rules["factor"], rules["low_freq_factor"], rules["high_freq_factor"]
    original = rules["original_max_position_embeddings"]
    scaled = []
    for one in inverse.tolist():
        wave = 2 * math.pi / one
        if wave > original / low:
            scaled.append(one / factor)
        elif wave < original / high:
            scaled.append(one)
        else:
            s = (original / wave - low) / (high - low)
            scaled.append((1 - s) * one / factor + s * one)
    return torch.tensor(scaled)
