"""Networks of a named shape with random weights: speed does not depend on what the weights are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tomllib
import torch
from torch import Tensor, nn

from sinkscope.models.backbone import empty_network, side_by_side
from sinkscope.models.checkpoint import Checkpoint, fill
from sinkscope.models.load import family_of, load, resolve_device, resolve_dtype
from sinkscope.models.model import Model

SHAPES: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "shapes.toml").read_text(encoding="utf-8")
)
"""Name → the config of a network of that size."""


@dataclass(frozen=True)
class RandomCheckpoint(Checkpoint):
    """A checkpoint that exists only as sizes; its tensors are drawn when they are read."""

    @cached_property
    def config(self) -> dict[str, Any]:
        """The sizes."""
        return dict(SHAPES[self.source])

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensor name → shape, in the official layout."""
        if self.model_type == "llada":
            return llada_tensors(self.config)
        return llama_tensors(self.config, biased=self.model_type == "Dream")

    @cached_property
    def stored_dtype(self) -> torch.dtype:
        """bfloat16, as released."""
        return torch.bfloat16

    @cached_property
    def digest(self) -> str:
        """There are no weights to tell apart."""
        return f"random weights, shape {self.source}"

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


def llada_tensors(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensor name → shape of a LLaDA checkpoint."""
    width, mlp, vocabulary = config["d_model"], config["mlp_hidden_size"], config["vocab_size"]
    top = "model.transformer"
    block = dict.fromkeys(("q_proj", "k_proj", "v_proj", "attn_out"), (width, width))
    block |= {"ff_proj": (mlp, width), "up_proj": (mlp, width), "ff_out": (width, mlp)}
    shapes: dict[str, tuple[int, ...]] = {
        f"{top}.wte.weight": (vocabulary, width),
        f"{top}.ln_f.weight": (width,),
        f"{top}.ff_out.weight": (vocabulary, width),
    }
    for layer in range(config["n_layers"]):
        norms: dict[str, tuple[int, ...]] = dict.fromkeys(("attn_norm", "ff_norm"), (width,))
        shapes |= {f"{top}.blocks.{layer}.{name}.weight": shape for name, shape in {**block, **norms}.items()}
    return shapes


def llama_tensors(config: dict[str, Any], biased: bool) -> dict[str, tuple[int, ...]]:
    """Tensor name → shape of a checkpoint in the names of Llama; Dream's have biases at q, k and v."""
    width, mlp, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    grouped = width // config["num_attention_heads"] * config["num_key_value_heads"]
    block: dict[str, tuple[int, ...]] = {
        "self_attn.o_proj.weight": (width, width),
        "mlp.gate_proj.weight": (mlp, width),
        "mlp.up_proj.weight": (mlp, width),
        "mlp.down_proj.weight": (width, mlp),
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
    }
    for name, rows in (("q_proj", width), ("k_proj", grouped), ("v_proj", grouped)):
        block |= {f"self_attn.{name}.weight": (rows, width)} | (
            {f"self_attn.{name}.bias": (rows,)} if biased else {}
        )
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (vocabulary, width),
    }
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
    return shapes


def model_of(name: str, device: str, dtype: str) -> Model:
    """A network of a named shape, or a checkpoint."""
    if name not in SHAPES:
        return load(name, device=device, dtype=dtype)
    where = resolve_device(device)
    checkpoint = RandomCheckpoint(Path(), name)
    family = family_of(checkpoint)
    wanted = resolve_dtype(dtype, where, checkpoint)
    build = random_llama if family.causal else family.build
    return Model(checkpoint, family, build(checkpoint, where, wanted), None, where)


def random_llama(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """transformers' own Llama, filled without a file to load from."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**{name: value for name, value in checkpoint.config.items() if name != "model_type"})
    network = empty_network(LlamaForCausalLM, config)
    names = {name: name for name, _ in network.named_parameters()}
    fill(network, checkpoint, names, device, dtype, lambda: side_by_side(network, device, dtype))
    network.model.rotary_emb = type(network.model.rotary_emb)(config).to(device)
    built: nn.Module = network
    return built


def random_tokens(model: Model, rows: int, length: int) -> Tensor:
    """int [rows, length]: the same tokens in every call."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, min(1000, model.shape.vocabulary // 2), (rows, length), generator=draw)


def with_masks(model: Model, prompt: Tensor, answer: int) -> Tensor:
    """Prompts with so many mask tokens behind them, on the model's device."""
    masks = torch.full((len(prompt), answer), int(model.ids.mask or 0))
    return torch.cat([prompt, masks], 1).to(model.device)
