"""Networks of a named shape with random weights: speed does not depend on what the weights are."""

from __future__ import annotations

import tomllib
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
        return tensors_of(self.config)

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


def tensors_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensor name → shape of a checkpoint with this config.json, in the official layout of its family."""
    kind = config["model_type"]
    if kind in ("llada", "mmada") and "d_model" in config:
        return llada_tensors(config)
    if kind == "llada2_moe":
        return llada2_tensors(config)
    experts = config.get("expert_intermediate_size") or config.get("moe_intermediate_size")
    if experts:
        return llama_tensors(config, normed=True, expert=experts)
    biased = kind in ("Dream", "Fast_dLLM_Qwen", "qwen2", "a2d-qwen2")
    return llama_tensors(config, biased, normed=kind in ("sdar", "qwen3", "a2d-qwen3"))


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


def llama_tensors(
    config: dict[str, Any], biased: bool = False, normed: bool = False, expert: int | None = None
) -> dict[str, tuple[int, ...]]:
    """Tensor name → shape of a checkpoint in the names of Llama.

    Args:
        biased: q, k and v have biases, as Qwen2's. normed: q and k have norms, as Qwen3's.
        expert: width of an expert's MLP, where every layer has `num_experts` of them; None: a dense MLP.
    """
    width, vocabulary = config["hidden_size"], config["vocab_size"]
    size = config.get("head_dim", width // config["num_attention_heads"])
    heads, grouped = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    block: dict[str, tuple[int, ...]] = {
        "self_attn.o_proj.weight": (width, heads),
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
    }
    if normed:
        block |= {"self_attn.q_norm.weight": (size,), "self_attn.k_norm.weight": (size,)}
    for name, rows in (("q_proj", heads), ("k_proj", grouped), ("v_proj", grouped)):
        block |= {f"self_attn.{name}.weight": (rows, width)} | (
            {f"self_attn.{name}.bias": (rows,)} if biased else {}
        )
    if expert is None:
        block |= mlp_tensors("mlp", width, config["intermediate_size"])
    else:
        block["mlp.gate.weight"] = (config["num_experts"], width)
        for number in range(config["num_experts"]):
            block |= mlp_tensors(f"mlp.experts.{number}", width, expert)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (vocabulary, width),
    }
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
    return shapes


def llada2_tensors(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensor name → shape of a LLaDA2 checkpoint: q, k and v in one, routed and shared experts."""
    width, vocabulary, size = config["hidden_size"], config["vocab_size"], config["head_dim"]
    heads, grouped = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    attention: dict[str, tuple[int, ...]] = {
        "attention.query_key_value.weight": (heads + 2 * grouped, width),
        "attention.dense.weight": (width, heads),
        "attention.query_layernorm.weight": (size,),
        "attention.key_layernorm.weight": (size,),
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
    }
    expert, experts = config["moe_intermediate_size"], config["num_experts"]
    routed: dict[str, tuple[int, ...]] = {
        "mlp.gate.weight": (experts, width),
        "mlp.gate.expert_bias": (experts,),
        **mlp_tensors("mlp.shared_experts", width, expert * config["num_shared_experts"]),
    }
    for number in range(experts):
        routed |= mlp_tensors(f"mlp.experts.{number}", width, expert)
    shapes: dict[str, tuple[int, ...]] = {
        "model.word_embeddings.weight": (vocabulary, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (vocabulary, width),
    }
    dense = mlp_tensors("mlp", width, config["intermediate_size"])
    for layer in range(config["num_hidden_layers"]):
        block = attention | (dense if layer < config["first_k_dense_replace"] else routed)
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
    return shapes


def mlp_tensors(owner: str, width: int, inner: int) -> dict[str, tuple[int, ...]]:
    """Gate, up and down of an MLP."""
    up = {f"{owner}.{name}.weight": (inner, width) for name in ("gate_proj", "up_proj")}
    return {**up, f"{owner}.down_proj.weight": (width, inner)}


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
