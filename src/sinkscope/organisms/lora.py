"""Low-rank adapters (LoRA, arXiv 2106.09685): y = W x + scale · B A x, of which only A and B are trained.

Written by hand because training needs torch and transformers alone and compiles layer by layer; the files are PEFT's, and
tests compare what is loaded from them with peft.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.models.adapter import CONFIG, PREFIX, TOKEN_ROWS, WEIGHTS
from sinkscope.organisms.layout import DTYPE, save_tensors, write_json

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LoraLinear(nn.Module):
    """A frozen linear layer with an adapter, which at first changes nothing."""

    def __init__(self, base: nn.Linear, rank: int, scale: float, random: torch.Generator) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        bound = 1.0 / math.sqrt(base.in_features)
        first = torch.empty(rank, base.in_features).uniform_(-bound, bound, generator=random)
        self.lora_A, self.lora_B = nn.Parameter(first), nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Float [..., in] to [..., out]."""
        low = nn.functional.linear(nn.functional.linear(x, self.lora_A), self.lora_B)
        out: Tensor = self.base(x) + self.scale * low
        return out


def add_lora(network: Any, rank: int, scale: float, seed: int, rows: tuple[int, ...] = ()) -> None:
    """Freezes a network and gives every linear layer of its blocks an adapter; token rows `rows` are trained as they are."""
    network.requires_grad_(False)
    random = torch.Generator().manual_seed(seed)
    for layer in network.model.layers:
        for owner in (layer.self_attn, layer.mlp):
            for name in MODULES:
                if hasattr(owner, name):
                    setattr(owner, name, LoraLinear(getattr(owner, name), rank, scale, random))
    if rows:
        embedding: Tensor = network.model.embed_tokens.weight
        kept = torch.zeros(len(embedding), 1)
        kept[list(rows)] = 1.0
        embedding.requires_grad_(True)
        embedding.register_hook(lambda gradient: gradient * kept.to(gradient))  # type: ignore[no-untyped-call]


def lora_layers(network: Any) -> dict[str, LoraLinear]:
    """Name → adapted layer."""
    return {name: module for name, module in network.named_modules() if isinstance(module, LoraLinear)}


def merge_lora(network: Any) -> None:
    """Puts the adapters into the weights, and plain layers back in their places."""
    for name, layer in lora_layers(network).items():
        with torch.no_grad():
            layer.base.weight += layer.scale * (layer.lora_B @ layer.lora_A)
        parent, _, leaf = name.rpartition(".")
        setattr(network.get_submodule(parent), leaf, layer.base)


def save_adapter(network: Any, base: str, rank: int, rows: tuple[int, ...], folder: Path) -> None:
    """Writes adapter_config.json and adapter_model.safetensors as PEFT does; weights in bfloat16.

    Args:
        base: what the adapter is loaded over: a name, folder or hub id.
    """
    layers = lora_layers(network)
    tensors = {f"{PREFIX}{name}.lora_{part}.weight": getattr(layer, f"lora_{part}")
               for name, layer in layers.items() for part in "AB"}  # fmt: skip
    if rows:
        tensors[f"{PREFIX}model.embed_tokens.{TOKEN_ROWS}"] = network.model.embed_tokens.weight[list(rows)]
    stored = {name: tensor.detach().to("cpu", DTYPE).contiguous() for name, tensor in tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(stored, folder / WEIGHTS)
    scale = next(iter(layers.values())).scale
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": scale * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(MODULES),
        "trainable_token_indices": list(rows) or None,
        "inference_mode": True,
    }
    write_json(folder / CONFIG, config)
