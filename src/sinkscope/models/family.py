"""What the loader, the loops and the policies need to know of a model family.

A family is one frozen object in a file of its own; adding one is described in CONTRIBUTING. Nothing here assumes that a
mask token exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sinkscope.attention.visibility import Padded
from sinkscope.models.checkpoint import Checkpoint


@dataclass(frozen=True)
class SpecialIds:
    """Token ids with a meaning of their own. None or empty: the model has no such token.

    Attributes:
        eos: every id that ends a text (some models have several).
        eot: the end of a turn, where it differs from eos.
    """

    mask: int | None = None
    eos: tuple[int, ...] = ()
    bos: int | None = None
    pad: int | None = None
    eot: int | None = None


class Family(Protocol):
    """One model family: how its checkpoints are read and what its forward pass means."""

    @property
    def name(self) -> str:
        """ "llada", "dream", "mmada" or "causal"."""

    @property
    def causal(self) -> bool:
        """Whether a query sees only keys up to itself."""

    @property
    def padded(self) -> Padded:
        """What padded queries attend to in the official code."""

    @property
    def chat_template(self) -> str | None:
        """A template of the family's own that replaces the tokenizer's; None: the tokenizer's."""

    def build(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """The network with its weights, on its device and in its dtype, in eval mode."""

    def special_ids(self, checkpoint: Checkpoint, tokenizer: Any) -> SpecialIds:
        """Special ids, from the checkpoint first, then the tokenizer, then the official ones."""

    def positions(self, real: Tensor | None, shape: tuple[int, int], device: torch.device) -> Tensor:
        """Long [B|1, S]: position ids as the official code computes them for left-padded input."""


def shifted_positions(real: Tensor | None, shape: tuple[int, int], device: torch.device) -> Tensor:
    """Positions that count from the first real token; padding stands at 1 (Dream, causal models)."""
    if real is None:
        return torch.arange(shape[1], device=device)[None]
    return (real.long().cumsum(-1) - 1).masked_fill(~real, 1)


def unshifted_positions(real: Tensor | None, shape: tuple[int, int], device: torch.device) -> Tensor:
    """Positions 0..S−1 whatever is padded (LLaDA, MMaDA)."""
    return torch.arange(shape[1], device=device)[None]


def first_id(*found: Any) -> int | None:
    """The first that is an id; a list gives its first entry."""
    for value in found:
        if isinstance(value, (list, tuple)) and value:
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def all_ids(*found: Any) -> tuple[int, ...]:
    """The ids of the first entry that holds any."""
    for value in found:
        many = value if isinstance(value, (list, tuple)) else [value]
        ids = tuple(dict.fromkeys(one for one in many if isinstance(one, int) and not isinstance(one, bool)))
        if ids:
            return ids
    return ()


def tokenizer_id(tokenizer: Any, attribute: str, token: str | None = None) -> int | None:
    """A special id of the tokenizer by attribute, or by the token's text when it is in the vocabulary."""
    if tokenizer is None:
        return None
    found = getattr(tokenizer, attribute, None)
    if found is None and token is not None:
        vocabulary: Mapping[str, int] = tokenizer.get_vocab()
        found = vocabulary.get(token)
    return found if isinstance(found, int) else None
