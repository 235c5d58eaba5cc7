"""The start of a training: random weights, an organism or run, or an existing causal checkpoint in another layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import sinkscope as ss
from sinkscope import InputError
from sinkscope_train import network as networks
from sinkscope_train.layout import SIZES, is_tied
from sinkscope_train.pictures import CODES
from sinkscope_train.recipe import BLOCK, Recipe, Size
from sinkscope_train.variant import variant_of, vary
from sinkscope_train.vocabulary import Vocabulary, same_roles, shipped_tokenizer, vocabulary_of


class Start(NamedTuple):
    """A network in float32 on the CPU with its tokenizer, and where it came from (None: random weights)."""

    network: Any
    vocabulary: Vocabulary
    source: str | None
    digest: str | None


def start(recipe: Recipe, init: str | Path | None = None) -> Start:
    """The network that the first step of a recipe trains.

    Args:
        init: a folder or a model's name; None: the shipped organism that the recipe starts from, or random weights. An organism
            of another layout is converted.
    """
    source = str(init) if init is not None else recipe.starts_from and f"organism/{recipe.starts_from}"
    vocabulary = vocabulary_of(recipe)
    rows = vocabulary.rows + (CODES if recipe.layout == "mmada" else 0)
    if source is None:
        network: Any = networks.build(recipe.size, rows, recipe.layout, recipe.seed, recipe.variant)
        if recipe.objective == "block":
            network.config.block_size = BLOCK
        return Start(network, vocabulary, None, None)
    if recipe.objective == "block":
        raise InputError(f"the recipe {recipe.name} starts from random weights only; leave init={source} out")
    model = ss.load(source, device="cpu", dtype="float32")
    network = model.network
    networks.check_supported(network, source)
    if variant_of(network) != recipe.variant:
        raise InputError(
            f"the recipe asks for attention that is {recipe.variant}, and that of {source} is {variant_of(network)}: "
            "weights go on with the attention that they were trained with; give the same options"
        )
    if model.tokenizer is None or model.tokenizer.get_vocab() != shipped_tokenizer().get_vocab():
        raise InputError(
            f"{source} has a tokenizer of its own, and recipes train on the organisms'; "
            f"adapt it to text of your own: sinkscope train adapt --from {source}"
        )
    resize(network, rows, recipe.seed)
    inherited = same_roles(recipe.layout, "llama" if model.family == "causal" else str(model.family))
    ids = {vocabulary.token(to): vocabulary.token(old) for to, old in inherited.items()}
    with torch.no_grad():
        for weight in {network.model.embed_tokens.weight, network.lm_head.weight}:  # a tied head is the embedding
            weight[list(ids)] = weight[list(ids.values())]
    if recipe.layout == "dream" and network.config.model_type != "qwen2":
        network = as_dream(network)
    # A folder is called by its last name in training.json: the rest of its path is of no use elsewhere.
    name = Path(source).resolve().name if init is not None and Path(source).is_dir() else source
    return Start(networks.trainable(network.float()), vocabulary, name, model.digest)


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


def resize(network: Any, size: int, seed: int = 0) -> None:
    """Grows embedding and head to `size` rows, in place; new rows start as random as an embedding does."""
    random = torch.Generator().manual_seed(seed)
    tied = is_tied(network)
    for module, count in ((network.model.embed_tokens, "num_embeddings"), (network.lm_head, "out_features")):
        old: Tensor = module.weight.detach()
        if size > old.shape[0]:
            new = torch.randn(size, old.shape[1], generator=random).to(old) * 0.02
            new[: old.shape[0]] = old
            module.weight = nn.Parameter(new)
            setattr(module, count, size)
    if tied:
        network.lm_head.weight = network.model.embed_tokens.weight
    network.config.vocab_size = max(size, int(network.config.vocab_size))


def as_dream(network: Any) -> Any:
    """The same weights in a Qwen2 network; its q, k, v biases are the given network's, or zero."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    settings = {name: getattr(network.config, name) for name in SIZES}
    settings |= {"head_dim": int(network.model.layers[0].self_attn.head_dim), "pad_token_id": None}
    settings |= {"rope_parameters": dict(network.config.rope_parameters)}
    settings |= {"tie_word_embeddings": is_tied(network), "use_sliding_window": False, "use_cache": False}
    dream = Qwen2ForCausalLM(Qwen2Config(**settings))
    vary(dream, variant_of(network), "cpu")
    parameters = dict(network.named_parameters())
    with torch.no_grad():
        for name, parameter in dream.named_parameters():
            parameter.copy_(parameters[name]) if name in parameters else parameter.zero_()
    return dream
