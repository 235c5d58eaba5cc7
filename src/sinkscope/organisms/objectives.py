"""The losses: next token, masked diffusion, and masked diffusion with Dream's shift.

Masked diffusion follows LLaDA (arXiv 2502.09992): t ~ U(0,1) for each sequence, every target token is masked with
probability t, and the cross-entropy of the masked ones is weighted 1/t. Targets are the whole text for prose and the answer,
end tokens included, for tasks. BOS carries no information and is never masked. Times are spread evenly over the batch (one
random offset, then equal steps), which keeps each of them uniform and makes the loss less noisy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sinkscope.organisms.batches import Batch
from sinkscope.organisms.network import hidden_states
from sinkscope.organisms.recipe import Objective

SMALLEST_TIME = 1e-3
"""No sequence has a smaller t: its weight would be unbounded."""


def corrupt(batch: Batch, mask: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Masks target tokens.

    Returns:
        Long [B, S], the tokens with masks in them, and Float [B, S], the weight 1/t of every masked token, else 0.
    """
    device, (B, S) = batch.ids.device, batch.ids.shape
    offset = torch.rand(1, generator=random, device=device)
    times = (offset + torch.arange(B, device=device) / B) % 1.0 * (1 - SMALLEST_TIME) + SMALLEST_TIME
    times = times[torch.randperm(B, generator=random, device=device), None]
    chosen = torch.rand(B, S, generator=random, device=device) < times
    return masked_at(batch, chosen, mask, times)


def masked_at(batch: Batch, chosen: Tensor, mask: int, times: Tensor) -> tuple[Tensor, Tensor]:
    """The same for given positions Bool [B, S] and times Float [B, 1]."""
    masked = chosen & batch.targets(causal=False)
    return torch.where(masked, mask, batch.ids), torch.where(masked, 1.0 / times, 0.0)


def weights(batch: Batch) -> Tensor:
    """Float [B, S]: 1 for every token that a causal model is trained to give."""
    return batch.targets(causal=True).float()


class Loss(nn.Module):
    """The forward pass up to the loss, as one module that compiles to one graph."""

    def __init__(self, network: Any, objective: Objective) -> None:
        super().__init__()
        self.network = network
        self.objective = objective

    def forward(
        self, seen: Tensor, ids: Tensor, weight: Tensor, real: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
        """Σ weight · cross-entropy; dividing by the number of targets is left to the caller, who knows the whole batch.

        Args:
            seen: Long [B, S], what the model sees. ids: Long [B, S], what it should say. weight: Float [B, S].
            real: Bool [B, S], False in padding.
        """
        causal = self.objective == "next"
        hidden = hidden_states(self.network, seen, (cos, sin), causal, real)
        if self.objective != "masked":
            # Position j − 1 says what stands at j.
            hidden, ids, weight = hidden[:, :-1], ids[:, 1:], weight[:, 1:]
        logits = self.network.lm_head(hidden).float()
        each = functional.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none")
        return (each * weight.flatten()).sum()
