"""Networks of other distributions: those of a family with parts changed, under a `model_type` of their own.

An entry point of the group `sinkscope.networks` is a `ChangedNetwork`. Its checkpoints are read as those of the model_type that
they resemble; once the network stands, still without weights, `change` puts its own modules in. What the core asks them:

    network.variant   what differs, as text; `reach`: attributes of traces, such as a window; `alike`: whether all tokens see one
                      another alike, which approximate steps rest on
    module.sees       of an attention module: (Visibility, ForwardContext, device) → the Visibility of its calls
    s_aux             a keyword of transformers' attention call: learned sinks

The probe looks at such a network when it is loaded, and the fused forward of a GPU leaves it to transformers' modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sinkscope.base.errors import InputError
from sinkscope.base.registry import Registry


@dataclass(frozen=True)
class ChangedNetwork:
    """A model_type, and how its network comes from that of another one.

    Attributes:
        model_type: of its checkpoints. base: of the network that is changed.
        settings: names in config.json that `change` reads.
        change: (network on the meta device, config.json, what the user called the checkpoint) → nothing.
    """

    model_type: str
    base: str
    settings: tuple[str, ...]
    change: Callable[[Any, Mapping[str, Any], str], None]


def _model_type_of(thing: object) -> str:
    if not isinstance(thing, ChangedNetwork):
        raise InputError(f"an entry point of sinkscope.networks should be a ChangedNetwork, got {thing!r}")
    return thing.model_type


CHANGED: Registry[ChangedNetwork] = Registry("changed network", "sinkscope.networks", _model_type_of)
