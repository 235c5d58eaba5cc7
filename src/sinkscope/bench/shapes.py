"""Networks of a named shape with random weights: speed does not depend on what the weights are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.models.backbone import empty_network, side_by_side
from sinkscope.models.checkpoint import Checkpoint, fill
from sinkscope.models.load import family_of, load, resolve_device, resolve_dtype
from sinkscope.models.model import Model

SHAPES: dict[str, dict[str, Any]] = {
    "llada-8b": {
        "model_type": "llada", "d_model": 4096, "n_heads": 32, "n_kv_heads": 32, "n_layers": 32, "mlp_hidden_size": 12288,
        "vocab_size": 126464, "embedding_size": 126464, "max_sequence_length": 32768, "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5, "mask_token_id": 126336, "eos_token_id": 126081,
    },
    "llada-small": {
        "model_type": "llada", "d_model": 256, "n_heads": 8, "n_kv_heads": 8, "n_layers": 8, "mlp_hidden_size": 432,
        "vocab_size": 1792, "embedding_size": 1792, "max_sequence_length": 32768, "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5, "mask_token_id": 1791, "eos_token_id": 1790,
    },
    "dream-7b": {
        "model_type": "Dream", "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
        "num_hidden_layers": 28, "intermediate_size": 18944, "vocab_size": 152064, "max_position_embeddings": 131072,
        "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "mask_token_id": 151666, "eos_token_id": 151643,
    },
    "llama-8b": {
        "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
        "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "eos_token_id": 128001, "hidden_act": "silu",
    },
    "llama-small": {
        "model_type": "llama", "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 8,
        "num_hidden_layers": 8, "intermediate_size": 432, "vocab_size": 1792, "max_position_embeddings": 32768,
        "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "eos_token_id": 1790, "hidden_act": "silu",
    },
}  # fmt: skip
"""Sizes as in the models' config.json, but room for longer sequences; llada-small has the sizes of the organisms."""


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
