"""The start of a training: random weights, an organism, or an existing causal checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sinkscope.errors import InputError
from sinkscope.models.load import load
from sinkscope.models.variant import variant_of, vary
from sinkscope.organisms import network as networks
from sinkscope.organisms.layout import SIZES, is_tied
from sinkscope.organisms.pictures import CODES
from sinkscope.organisms.recipe import BLOCK, Recipe, Size
from sinkscope.organisms.vocabulary import (
    Vocabulary,
    foreign,
    roles,
    shipped,
    shipped_tokenizer,
    with_sink_token,
)


class Start(NamedTuple):
    """A network in float32 on the CPU with its tokenizer, and where it came from (None: random weights)."""

    network: Any
    vocabulary: Vocabulary
    source: str | None
    digest: str | None


def start(recipe: Recipe, init: str | Path | None = None) -> Start:
    """The network that the first step of a recipe trains.

    Args:
        init: a folder or hub id; None: the shipped organism that the recipe starts from, or random weights. An organism of
            another layout is converted; any other Llama or Qwen2 checkpoint can be adapted by Dream's recipe.
    """
    source = str(init) if init is not None else recipe.starts_from and f"organism/{recipe.starts_from}"
    if source is None:
        vocabulary = shipped(recipe.layout)
        rows = _rows(vocabulary, recipe)
        network: Any = networks.build(recipe.size, rows, recipe.layout, recipe.seed, recipe.variant)
        if recipe.objective == "block":
            network.config.block_size = BLOCK
        return Start(network, _opened(vocabulary, recipe), None, None)
    if recipe.objective == "block":
        raise InputError(f"the recipe {recipe.name} starts from random weights only; leave init={source} out")
    model = load(source, device="cpu", dtype="float32")
    networks.check_supported(model.network, source)
    if variant_of(model.network) != recipe.variant:
        raise InputError(
            f"the recipe asks for attention that is {recipe.variant}, and that of {source} is {variant_of(model.network)}: "
            "weights go on with the attention that they were trained with; give the same options"
        )
    ours = model.tokenizer is not None and model.tokenizer.get_vocab() == shipped_tokenizer().get_vocab()
    if not ours and recipe.layout != "dream":
        raise InputError(
            f"{source} has a tokenizer of its own, and only the recipe adapted can start from such a checkpoint"
        )
    network, vocabulary = model.network, shipped(recipe.layout) if ours else foreign(model)
    rows = _rows(vocabulary, recipe)
    resize(network, rows if ours else max(rows, int(network.config.vocab_size)), recipe.seed)
    if ours:
        layout = "llama" if model.family == "causal" else str(model.family)
        inherited = roles(recipe.layout).same_role(roles(layout))
        copy_rows(network, {vocabulary.token(to): vocabulary.token(old) for to, old in inherited.items()})
    if recipe.layout == "dream" and network.config.model_type != "qwen2":
        network = as_dream(network)
    # A folder is called by its last name in training.json: the rest of its path is of no use elsewhere.
    name = Path(source).resolve().name if init is not None and Path(source).is_dir() else source
    return Start(networks.trainable(network.float()), _opened(vocabulary, recipe), name, model.digest)


def _opened(vocabulary: Vocabulary, recipe: Recipe) -> Vocabulary:
    """The tokenizer, with a sink token before every text where the recipe has one."""
    return vocabulary if recipe.extra_sink == "none" else with_sink_token(vocabulary)


def _rows(vocabulary: Vocabulary, recipe: Recipe) -> int:
    """Rows of the embedding."""
    return vocabulary.rows + (CODES if recipe.layout == "mmada" else 0)


def size_of(network: Any) -> Size:
    """The size that a network has, whatever was asked for."""
    config = network.config
    return Size(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        mlp=config.intermediate_size,
        theta=float(config.rope_parameters["rope_theta"]),
        eps=config.rms_norm_eps,
        context=config.max_position_embeddings,
    )


# ---- networks changed to fit a recipe ------------------------------------------------------------


def resize(network: Any, size: int, seed: int = 0) -> None:
    """Grows embedding and head to `size` rows, in place; new rows start as random as an embedding does."""
    random = torch.Generator().manual_seed(seed)
    tied = is_tied(network)
    for owner, leaf in ((network.model, "embed_tokens"), (network, "lm_head")):
        module: Any = getattr(owner, leaf)
        old: Tensor = module.weight.detach()
        if size <= old.shape[0]:
            continue
        new = torch.randn(size, old.shape[1], generator=random).to(old) * 0.02
        new[: old.shape[0]] = old
        module.weight = nn.Parameter(new)
        for count in ("num_embeddings", "out_features"):
            if hasattr(module, count):
                setattr(module, count, size)
    if tied:
        network.lm_head.weight = network.model.embed_tokens.weight
    network.config.vocab_size = max(size, int(network.config.vocab_size))


def copy_rows(network: Any, pairs: dict[int, int]) -> None:
    """Gives token ids the embedding and head rows of other ids: {to: from}."""
    with torch.no_grad():
        # A tied head is the embedding.
        for weight in {network.model.embed_tokens.weight, network.lm_head.weight}:
            weight[list(pairs)] = weight[list(pairs.values())]


def as_dream(network: Any) -> Any:
    """The same weights in a Qwen2 network; its q, k, v biases are the given network's, or zero."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    settings = {name: getattr(network.config, name) for name in SIZES}
    settings |= {"head_dim": int(network.model.layers[0].self_attn.head_dim), "pad_token_id": None}
    settings |= {"rope_parameters": dict(network.config.rope_parameters), "tie_word_embeddings": False}
    dream = Qwen2ForCausalLM(Qwen2Config(**settings, use_sliding_window=False, use_cache=False))
    given, tied = dict(network.named_parameters()), is_tied(network)
    if tied:
        given["lm_head.weight"] = given["model.embed_tokens.weight"]
    vary(dream, variant_of(network), "cpu")
    with torch.no_grad():
        for name, parameter in dream.named_parameters():
            if name in given:
                parameter.copy_(given[name])
            else:
                parameter.zero_()
    if tied:
        dream.lm_head.weight = dream.model.embed_tokens.weight
    return dream
