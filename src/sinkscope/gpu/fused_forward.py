"""The forward of diffusion models, and the decode step of causal ones, on a GPU, with fused kernels between matrix products.

The same network, weights and attention function as transformers' module-by-module code, in fewer passes over the activations:
add and norm are one kernel, the rotation of q and k one, the gated activation one (`layer_kernels`), and q, k, v as well as gate
and up are one product each (`stacked`). The sum that closes a layer is left to the norm that opens the next one. Roundings stay
where they are in transformers' code; what may differ is the order of additions inside a norm and inside a matrix product.

transformers' code runs wherever this one does not apply: on a CPU, without Triton, in float64, while a hook is set on one module
or on all (so anatomy sees the residual stream), while a module or its forward is replaced (so ablations act), under another
attention function, and with SINKSCOPE_FAST=0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from sinkscope.base.fast import fast
from sinkscope.gpu.stacked import GROUPS, Stack, likeness, stack

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LLAMA_LIKE = ("LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM")
"""Networks of transformers that differ in biases and angles only."""


def has_llama_layers(network: Any) -> bool:
    """Whether a network's layers are those of Llama, as the kernels compute them."""
    config = network.config
    split = getattr(config, "hidden_size", 1) // getattr(config, "num_attention_heads", 1)
    width = getattr(config, "head_dim", None) or split
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    plain = getattr(config, "hidden_act", "") == "silu" and not width % 2 and not windowed
    return type(network).__name__ in LLAMA_LIKE and plain and not hasattr(network, "variant")


@cache
def _kernels() -> ModuleType | None:
    """The kernels, or None without Triton; that it is missing was said by received attention already."""
    try:
        from sinkscope.gpu import layer_kernels
    except ImportError:
        return None
    return layer_kernels


@dataclass(frozen=True)
class _Layer:
    """A decoder layer of transformers with its stacked products."""

    module: Any
    qkv: Stack
    gate_up: Stack


class FusedForward:
    """The fused forward of one network with Llama's layers.

    Args:
        name: of the attention function that transformers runs in this network. attention: the function itself.
    """

    def __init__(self, network: Any, name: str, attention: Callable[..., tuple[Tensor, None]]) -> None:
        self._network, self._name, self._attend = network, name, attention
        self._modules = tuple(network.model.modules())
        self._like, self._layers = likeness(self._modules), _stacked_layers(network)

    def applies(self, ids: Tensor) -> bool:
        """Whether the fused code can and should run for these ids."""
        network, now = self._network, likeness(self._modules)
        if now.weights != self._like.weights:
            # They were moved or replaced: the stacked ones are stale, and only take memory, on a GPU that was left too.
            self._layers = []
        usual = network.config._attn_implementation == self._name and not torch.is_autocast_enabled(ids.device.type)
        same = now.modules == self._like.modules and not now.changes and not network.training
        return bool(self._layers) and fast(ids.device) and usual and same and _kernels() is not None

    def __call__(self, ids: Tensor, positions: Tensor, cache: Any = None) -> Tensor:
        """The last hidden states [B, S, width] of ids, Long [B, S], at positions, Long [B|1, S], with those in a fixed cache."""
        kernels: Any = _kernels()
        body = self._network.model
        stream = body.embed_tokens(ids)  # the residual stream; the kernels add to it in place
        angles = body.rotary_emb(stream, positions)
        branch = None
        for index, layer in enumerate(self._layers):
            norm = layer.module.input_layernorm
            inner = kernels.add_norm(stream, branch, norm.weight, norm.variance_epsilon)
            branch = self._attention(layer, inner, angles, index, cache)
            norm = layer.module.post_attention_layernorm
            inner = kernels.add_norm(stream, branch, norm.weight, norm.variance_epsilon)
            branch = layer.module.mlp.down_proj(kernels.silu_mul(layer.gate_up(inner)))
        last: Tensor = kernels.add_norm(stream, branch, body.norm.weight, body.norm.variance_epsilon)
        return last

    def _attention(self, layer: _Layer, inner: Tensor, angles: tuple[Tensor, Tensor], index: int, cache: Any) -> Tensor:
        """The attention branch of a layer for normed hidden states [B, S, width]; with a cache, over all its columns."""
        kernels: Any = _kernels()
        module = layer.module.self_attn
        B, S, _ = inner.shape
        groups = module.k_proj.out_features // module.head_dim
        heads = groups * module.num_key_value_groups
        qkv = layer.qkv(inner).view(B, S, heads + 2 * groups, module.head_dim)
        kernels.rotate(qkv, *angles, heads + groups)
        qkv = qkv.transpose(1, 2)
        query, key, value = torch.split(qkv, [heads, groups, groups], 1)
        if cache is not None:
            key, value = cache.update(key, value, index)
        window = getattr(module, "sliding_window", None)
        out, _ = self._attend(module, query, key, value, None, scaling=module.scaling, sliding_window=window)
        branch: Tensor = module.o_proj(out.reshape(B, S, -1))
        return branch


def _stacked_layers(network: Any) -> list[_Layer]:
    """Every decoder layer with its stacked products; none where one of them cannot be run by the kernels."""
    first = next(network.parameters())
    if not has_llama_layers(network) or first.dtype not in DTYPES:
        return []
    found = []
    for module in network.model.layers:
        qkv, gate_up = (stack(module.get_submodule(owner), names) for owner, names in GROUPS.items())
        if qkv is None or gate_up is None:
            return []
        found.append(_Layer(module, qkv, gate_up))
    return found
