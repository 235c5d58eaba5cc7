"""Capture: what to record of a generation."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

from sinkscope.errors import InputError, nearest

LEVELS = ("heads", "layers", "maps")
QUERY_KINDS = ("masked", "decided", "prompt")
"""Classes of queries under `by_query`: mask tokens, written answer tokens, prompt tokens."""


@dataclass(frozen=True)
class Capture:
    """What a trace holds.

    Attributes:
        level: "heads": received attention of every head. "layers": its mean over heads, and how many heads call each key a
            sink (ε = 3); 1/heads of the size. "maps": the full attention matrices besides, for small inputs only.
        by_query: received attention from masked, decided and prompt queries apart.
        anatomy: norms of values, keys and hidden states, and the largest activations.
        layers, heads: record only these; None: all.
        every: record every n-th step.
    """

    level: Literal["heads", "layers", "maps"] = "heads"
    by_query: bool = False
    anatomy: bool = False
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    every: int = 1

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise InputError(f"capture level {self.level!r} is not known; {nearest(str(self.level), LEVELS)}")
        for name in ("layers", "heads"):
            object.__setattr__(self, name, _indices(name, getattr(self, name)))
        if self.level == "layers" and self.heads is not None:
            raise InputError("level 'layers' averages over all heads; leave out heads, or use level 'heads'")
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise InputError(f"every should be a whole number of at least 1, got {self.every!r}")

    def check(self, layers: int, heads: int) -> None:
        """Raises InputError when a chosen layer or head does not exist."""
        for name, chosen, many in (("layer", self.layers, layers), ("head", self.heads, heads)):
            if chosen and chosen[-1] >= many:
                raise InputError(
                    f"capture names {name} {chosen[-1]}, but the model has {name}s 0 to {many - 1}"
                )

    def to_json(self) -> str:
        """The settings as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))


def _indices(name: str, value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    many = [value] if isinstance(value, int) else value
    if not isinstance(many, (list, tuple, range)) or not len(many):
        raise InputError(f"capture {name} should be a list of indices, or None for all, got {value!r}")
    for one in many:
        if isinstance(one, bool) or not isinstance(one, int) or one < 0:
            raise InputError(f"capture {name} should be indices from 0 on, got {one!r}")
    return tuple(sorted(set(many)))
