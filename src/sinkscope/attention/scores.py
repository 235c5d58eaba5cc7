"""The scores of one attention call, q·k·scale, and the keys that each query may use: its statistics follow from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.attention.key_mask import KeyMask
from sinkscope.attention.visibility import Visibility


@dataclass(frozen=True)
class Scores:
    """The scores of one attention call; its weights are their softmax over the keys that are visible and not masked.

    Attributes:
        query: Float [B, H, Q, D]. key: Float [B, G, K, D], G dividing H (grouped heads are not repeated). Both after RoPE.
        key_mask: the keys that left the softmax; None: none. A query that would lose every visible key keeps its scores.
    """

    query: Tensor
    key: Tensor
    visibility: Visibility
    scale: float
    key_mask: KeyMask | None = None

    @property
    def device(self) -> torch.device:
        """Of the call."""
        return self.query.device

    @property
    def exact(self) -> torch.dtype:
        """Float32 at least: in it statistics are computed, whatever the dtype of the model."""
        return torch.promote_types(self.query.dtype, torch.float32)

    def per_head(self, keys_or_values: Tensor) -> Tensor:
        """Keys or values [B, G, K, D] with as many heads as the queries."""
        groups = self.query.shape[1] // keys_or_values.shape[1]
        return keys_or_values if groups == 1 else keys_or_values.repeat_interleave(groups, 1)

    def masked(self) -> Tensor | None:
        """Bool [B|1, H|1, K]: the keys that are masked for all queries alike; None: none."""
        if self.key_mask is None or self.key_mask.keys is None:
            return None
        return self.key_mask.keys_in_force(self.visibility)

    @property
    def all_allowed(self) -> bool:
        """Whether every query may use every key."""
        return self.key_mask is None and self.visibility.everything

    def allowed(self, start: int, stop: int) -> Tensor:
        """Bool [B|1, H|1, rows|1, K|1]: the keys that query rows start..stop may use."""
        visible = self.visibility.rows(start, stop, self.device)
        if visible is None:
            visible = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.device)
        if self.key_mask is None:
            return visible
        return visible & ~self.key_mask.in_force(self.visibility, start, stop, self.device)


def relative(mass: Tensor, uniform: Tensor) -> Tensor:
    """Column mass [B, H, C, K] divided by what uniform attention would bring [B|1, C, K]; NaN where that is nothing."""
    uniform = uniform[:, None]
    return torch.where(uniform > 0, mass / uniform.clamp(min=1e-300), float("nan")).to(torch.float32)


def query_weights(visibility: Visibility, weights: Tensor | None, query: Tensor) -> Tensor:
    """Float32 [B, C, Q] with padded queries at 0; without classes, one class of all real queries."""
    real = visibility.real_queries()
    if weights is None:
        weights = torch.ones(query.shape[0], 1, query.shape[2], device=query.device)
    weights = weights.to(torch.float32)
    return weights if real is None else weights * real[:, None, :]
