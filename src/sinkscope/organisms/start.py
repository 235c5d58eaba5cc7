"""What training starts from: random weights, an organism, or an existing causal checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from sinkscope.errors import InputError
from sinkscope.models.load import load
from sinkscope.organisms import network as networks
from sinkscope.organisms import tokenizer
from sinkscope.organisms.layout import as_dream, copy_rows, resized
from sinkscope.organisms.pictures import CODES
from sinkscope.organisms.recipe import Recipe, Size
from sinkscope.organisms.vocabulary import Vocabulary, foreign, shipped

WEIGHTS = Path(__file__).parent / "weights"
"""The shipped organisms, one folder each."""


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
    source = init if init is not None else recipe.starts_from and WEIGHTS / recipe.starts_from
    if source is None:
        vocabulary = shipped(recipe.layout)
        rows = vocabulary.rows + (CODES if recipe.layout == "mmada" else 0)
        return Start(networks.build(recipe.size, rows, recipe.layout, recipe.seed), vocabulary, None, None)
    if init is None and not Path(source).is_dir():
        raise InputError(
            f"recipe {recipe.name} starts from organism/{recipe.starts_from}: train that first and give --init"
        )
    model = load(str(source), device="cpu", dtype="float32")
    networks.check_supported(model.network, str(source))
    own = _is_ours(model)
    if recipe.starts_from is None and init is None:
        raise InputError(f"recipe {recipe.name} starts from random weights")
    network, vocabulary = model.network, shipped(recipe.layout) if own else foreign(model)
    if not own and recipe.layout != "dream":
        raise InputError(
            f"{source} has a tokenizer of its own, and only the recipe adapted can start from such a checkpoint"
        )
    rows = vocabulary.rows + (CODES if recipe.layout == "mmada" else 0)
    resized(network, rows if own else max(rows, int(network.config.vocab_size)), recipe.seed)
    if own:
        mine, theirs = tokenizer.roles(recipe.layout), tokenizer.roles(_layout(model))
        copy_rows(
            network,
            {vocabulary.token(to): vocabulary.token(source) for to, source in mine.same_role(theirs).items()},
        )
    if recipe.layout == "dream" and network.config.model_type != "qwen2":
        network = as_dream(network)
    return Start(networks.trainable(network.float()), vocabulary, _called(init, recipe), model.digest)


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


def _called(init: str | Path | None, recipe: Recipe) -> str:
    """What the start is called in training.json: a folder by its last name, since the rest is of no use elsewhere."""
    if init is None:
        return f"organism/{recipe.starts_from}"
    return Path(init).resolve().name if Path(init).is_dir() else str(init)


def _is_ours(model: Any) -> bool:
    known = model.tokenizer.get_vocab() if model.tokenizer is not None else {}
    return bool(known == tokenizer.shipped().get_vocab())


def _layout(model: Any) -> str:
    return "llama" if model.family == "causal" else str(model.family)
