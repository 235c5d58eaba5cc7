"""A network's layers: some of them run alone, and the residual stream that enters each of them is seen or changed.

Both change transformers' modules while they are inside, and leave them as they were, errors and Ctrl-C included. Meanwhile the
fused forward does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from sinkscope.base.errors import CheckpointError

Enter = Callable[[int, Tensor], Tensor | None]
"""Is shown a layer's number and the residual stream [B, Q, width] before it; what it returns enters the layer instead."""


@contextmanager
def only(network: Any, layers: range) -> Iterator[None]:
    """Inside, the network has these layers alone, and its last norm behind the last layer alone."""
    body = network.model
    whole, norm = body.layers, body.norm
    try:
        body.layers = whole[layers.start : layers.stop]
        if layers.stop < len(whole):
            body.norm = nn.Identity()
        yield
    finally:
        body.layers, body.norm = whole, norm


def decoder_layers(network: nn.Module, last: int) -> nn.ModuleList:
    """The decoder layers of a network, up to layer `last` at least: its first ModuleList whose members hold attention modules."""
    return layer_lists(network, last)[0]


def layer_lists(network: nn.Module, last: int) -> list[nn.ModuleList]:
    """The decoder layers; of DiffusionGemma those of the encoder, and those of the decoder, which share their weights."""
    lists = [
        modules
        for modules in network.modules()
        if isinstance(modules, nn.ModuleList) and len(modules) > last and _attends(modules[0])
    ]
    if not lists:
        raise CheckpointError(
            f"{type(network).__name__} has no list of decoder layers; its residual stream cannot be seen"
        )
    first = lists[0]
    return [
        modules
        for modules in lists
        if len(modules) == len(first) and type(modules[0]).__module__ == type(first[0]).__module__
    ]


def _attends(layer: nn.Module) -> bool:
    return any(getattr(inner, "layer_idx", None) is not None for inner in layer.modules())


@contextmanager
def streams(layers: nn.ModuleList, enter: Enter, behind: bool = False) -> Iterator[None]:
    """Inside, `enter` is shown the residual stream before each layer; behind: also that behind the last one, as len(layers)."""

    def before(layer: int) -> Any:
        def hook(_: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
            changed = enter(layer, positional[0] if positional else named["hidden_states"])
            if changed is None:
                return None
            return ((changed, *positional[1:]), named) if positional else ((), {**named, "hidden_states": changed})

        return hook

    def after(_: nn.Module, __: Any, output: Any) -> None:
        enter(len(layers), output[0] if isinstance(output, tuple) else output)

    with ExitStack() as hooks:
        for number, layer in enumerate(layers):
            hooks.enter_context(layer.register_forward_pre_hook(before(number), with_kwargs=True))
        if behind:
            hooks.enter_context(layers[-1].register_forward_hook(after))
        yield
