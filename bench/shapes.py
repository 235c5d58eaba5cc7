"""Networks of a named shape with random weights: speed does not depend on what the weights are."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.models.causal import LLAMA
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.load import family_of, load, resolve_device, resolve_dtype
from sinkscope.models.model import Model

_FILE = Path(__file__).with_suffix(".toml")
SHAPES: dict[str, dict[str, Any]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
"""Name → the config of a network of that size."""
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class RandomCheckpoint(Checkpoint):
    """A checkpoint that exists only as sizes; its tensors are drawn when they are read."""

    stored_dtype = torch.bfloat16
    digest = "random weights"
    quantised = ""

    @cached_property
    def config(self) -> dict[str, Any]:
        """The sizes."""
        return dict(SHAPES[self.source])

    @cached_property
    def shapes(self) -> Shapes:
        """Tensor name → shape, in the official layout."""
        return tensors_of(self.config)

    def tensors(self, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """Every tensor, drawn on the device: norms are 1, matrices keep the size of what passes through them."""
        draw = torch.Generator(device).manual_seed(0)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        for name, shape in self.shapes.items():
            if len(shape) == 1:
                fill = 0.0 if name.endswith("bias") else 1.0
                yield name, torch.full(shape, fill, device=device, dtype=dtype)
            else:
                drawn = torch.randn(shape, device=device, dtype=dtype, generator=draw)
                yield name, drawn.mul_(shape[-1] ** -0.5)


def tensors_of(config: Mapping[str, Any]) -> Shapes:
    """Tensor name → shape of a checkpoint with this config.json, in the official layout of its family."""
    kind, vocabulary = config["model_type"], config["vocab_size"]
    if kind == "llada":
        width, inner, layers = config["d_model"], config["mlp_hidden_size"], config["n_layers"]
        top: Shapes = dict.fromkeys(("wte.weight", "ff_out.weight"), (vocabulary, width))
        top["ln_f.weight"] = (width,)
        layer: Shapes = dict.fromkeys(("q_proj", "k_proj", "v_proj", "attn_out"), (width, width))
        layer |= {"ff_proj": (inner, width), "up_proj": (inner, width), "ff_out": (width, inner)}
        layer |= {"attn_norm": (width,), "ff_norm": (width,)}
        for index in range(layers):
            top |= {f"blocks.{index}.{name}.weight": shape for name, shape in layer.items()}
        return {f"model.transformer.{name}": shape for name, shape in top.items()}
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    size = config.get("head_dim", width // config["num_attention_heads"])
    heads, grouped = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    embedding = "word_embeddings" if kind == "llada2_moe" else "embed_tokens"
    shapes: Shapes = dict.fromkeys((f"model.{embedding}.weight", "lm_head.weight"), (vocabulary, width))
    shapes["model.norm.weight"] = (width,)
    layer = dict.fromkeys(("input_layernorm.weight", "post_attention_layernorm.weight"), (width,))
    dense = routed = _mlp("mlp", width, config["intermediate_size"])
    if kind == "llada2_moe":
        norms = ("attention.query_layernorm.weight", "attention.key_layernorm.weight")
        layer |= dict.fromkeys(norms, (size,))
        layer["attention.query_key_value.weight"] = (heads + 2 * grouped, width)
        layer["attention.dense.weight"] = (width, heads)
        expert, experts = config["moe_intermediate_size"], config["num_experts"]
        routed = {"mlp.gate.weight": (experts, width), "mlp.gate.expert_bias": (experts,)}
        routed |= _mlp("mlp.shared_experts", width, expert * config["num_shared_experts"])
        for number in range(experts):
            routed |= _mlp(f"mlp.experts.{number}", width, expert)
    else:
        layer["self_attn.o_proj.weight"] = (width, heads)
        for name, rows in (("q_proj", heads), ("k_proj", grouped), ("v_proj", grouped)):
            layer[f"self_attn.{name}.weight"] = (rows, width)
            if kind == "Dream":
                layer[f"self_attn.{name}.bias"] = (rows,)
        if kind == "sdar":
            layer |= dict.fromkeys(("self_attn.q_norm.weight", "self_attn.k_norm.weight"), (size,))
    for index in range(layers):
        inner = dense if index < config.get("first_k_dense_replace", layers) else routed
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in (layer | inner).items()}
    return shapes


def _mlp(owner: str, width: int, inner: int) -> Shapes:
    """Gate, up and down of an MLP."""
    up: Shapes = {f"{owner}.{name}.weight": (inner, width) for name in ("gate_proj", "up_proj")}
    return {**up, f"{owner}.down_proj.weight": (width, inner)}


def model_of(name: str, device: str, dtype: str) -> Model:
    """A network of a named shape, or a checkpoint."""
    if name not in SHAPES:
        return load(name, device=device, dtype=dtype)
    where = resolve_device(device)
    checkpoint = RandomCheckpoint(Path(), name)
    family = family_of(checkpoint)
    build = LLAMA.build if family.causal else family.build
    network = build(checkpoint, where, resolve_dtype(dtype, where, checkpoint))
    return Model(checkpoint, family, network, None, where)


def with_masks(model: Model, prompt: Tensor, answer: int) -> Tensor:
    """Prompts with so many mask tokens behind them, on the model's device."""
    masks = torch.full((len(prompt), answer), int(model.ids.mask or 0))
    return torch.cat([prompt, masks], 1).to(model.device)
