"""Some of a network's layers: run alone, and with the residual stream that enters each of them in view.

Both change transformers' modules while they are inside, and leave them as they were, errors and Ctrl-C included. Meanwhile the
fused forward does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

See = Callable[[int, Tensor], None]
"""Takes note of the residual stream [B, Q, width] that enters a layer."""


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


@contextmanager
def seen(network: Any, see: See) -> Iterator[None]:
    """Inside, every layer shows the residual stream that enters it, by its number in the whole network."""

    def showing(layer: int) -> Any:
        def hook(_: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            see(layer, positional[0] if positional else named["hidden_states"])

        return hook

    handles = []
    try:
        for index, layer in enumerate(network.model.layers):
            handles.append(layer.register_forward_pre_hook(showing(index), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
