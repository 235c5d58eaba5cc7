"""Capture: what to record of a generation."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

from sinkscope.checks import indices, one_of, whole
from sinkscope.errors import InputError

LEVELS = ("heads", "layers", "maps")
QUERY_KINDS = ("masked", "decided", "prompt", "control a", "control b")
"""Classes of queries under `by_query`: mask tokens, written answer tokens, prompt tokens; and the answer's queries split at
random into two classes as large as the first two, for what differs between classes by chance."""


@dataclass(frozen=True)
class Capture:
    """What a trace holds.

    Attributes:
        level: "heads": received attention of every head. "layers": its mean over heads, and how many heads call each key a
            sink (ε = 3); 1/heads of the size. "maps": the full attention matrices besides, for small inputs only.
        by_query: received attention from masked, decided and prompt queries apart, and from two random classes of the answer.
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
        one_of("capture level", self.level, LEVELS)
        for name in ("layers", "heads"):
            object.__setattr__(self, name, indices(f"capture {name}", getattr(self, name)))
        if self.level == "layers" and self.heads is not None:
            raise InputError("level 'layers' averages over all heads; leave out heads, or use level 'heads'")
        whole("every", self.every, 1)

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
