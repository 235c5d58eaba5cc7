"""What a policy did in one forward: its account, from what each layer gave."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.attention.visibility import Visibility


@dataclass(frozen=True)
class StepAccount:
    """What a policy did in one forward.

    Attributes:
        share: Float [layer, B, H]: the share of attention that was removed, mean over the real queries it acts on.
        caught, sinks: Long [layer, B, H]: how many sinks were masked, of how many there are (ε = 3, over all keys; in causal
            models as distant queries tell).
        strongest: Float [layer, B, H]: 1 where the strongest sink was masked, 0 where it was not; NaN where there is none.
        removed, absorbed: Float64 [layer, B, H]: attention of this step that went to sinks that were masked, and to all sinks,
            in units of uniform attention.
        keys: layer → Bool [B|1, H|1, K]: the masked keys; a window, which masks others for every query, names none.
        raw: Float [layer, B, H, K]: received attention as if nothing had been masked.
        acted: Bool [B]: rows in which some layer masked a key.
        layers: the layers that the arrays hold, in their order: those that have softmax attention.
    """

    share: Tensor
    caught: Tensor
    sinks: Tensor
    strongest: Tensor
    removed: Tensor
    absorbed: Tensor
    keys: dict[int, Tensor]
    raw: Tensor
    acted: Tensor
    layers: tuple[int, ...]

    @property
    def hit(self) -> Tensor:
        """Float [layer, B, H]: the share of the sinks that was masked; NaN where there was none."""
        return torch.where(self.sinks > 0, self.caught / self.sinks.clamp(min=1), float("nan"))

    @property
    def sink_removed(self) -> Tensor:
        """Float [layer, B, H]: the share of the attention on sinks that was masked; NaN where there was none."""
        return (self.removed / torch.where(self.absorbed > 0, self.absorbed, float("nan"))).float()

    @property
    def sums(self) -> Tensor:
        """Float64 [8, B]: what the shares of a row are quotients of, each followed by what it is divided by.

        The mean share and 1, caught sinks and sinks, strongest sinks that were caught and heads that have one, attention on
        caught sinks and on all.
        """
        share = self.share.double().mean((0, 2))
        parts = (
            share, torch.ones_like(share), self.caught.sum((0, 2)), self.sinks.sum((0, 2)),
            self.strongest.nan_to_num(0.0).sum((0, 2)), (self.sinks > 0).sum((0, 2)), self.removed.sum((0, 2)),
            self.absorbed.sum((0, 2)),
        )  # fmt: skip
        return torch.stack([part.double() for part in parts])


@dataclass(frozen=True)
class LayerState:
    """What one layer gave in one forward: see StepAccount.

    Attributes:
        kept: Float [B, H, Q]: of each query's attention the share on keys that it kept; None: all.
        weights: Float [B, 1, Q], 0 in padding. window: whether a window acted.
        added: of a causal model, what it adds to the attention from distant queries (see `DistantSums.share`).
    """

    index: int
    raw: Tensor
    keys: Tensor | None
    kept: Tensor | None
    weights: Tensor
    window: bool
    visibility: Visibility
    added: Tensor | None


def account_of(
    layers: list[LayerState], raw: Tensor, sinks: Tensor, strength: Tensor, learned: bool = False
) -> StepAccount:
    """The account of all layers in one go: few kernels, and none that a CUDA graph could not repeat.

    Args:
        raw, sinks, strength: [layer, B, H, K]: received attention, which keys are sinks, and how strong (−inf: none).
        learned: learned sinks were taken away.
    """
    nothing = torch.zeros(raw.shape[1:3], device=raw.device)
    share = nothing.expand(raw.shape[:3])
    kept = [layer.kept for layer in layers if layer.kept is not None]
    if len(kept) == len(layers):
        share = _removed_share(torch.stack(kept), layers[0].weights)
    elif kept:
        share = torch.stack(
            [nothing if layer.kept is None else _removed_share(layer.kept, layer.weights) for layer in layers]
        )
    none = torch.zeros(1, 1, 1, dtype=torch.bool, device=raw.device)
    keys = torch.stack([(none if layer.keys is None else layer.keys).expand_as(raw[0]) for layer in layers])
    hit, acted = sinks & keys, keys.any(-1).any(2).any(0)
    caught = hit.sum(-1)
    strongest = hit.gather(-1, strength.argmax(-1, keepdim=True))[..., 0].float()
    removed = torch.where(hit, raw, 0.0).sum(-1, dtype=torch.float64)
    if learned or any(layer.window for layer in layers):
        acted = torch.ones_like(acted)
        # A window masks other keys for every query: of how many sinks there is no saying, so they are not counted.
        unknown = [layer.window and layer.keys is None for layer in layers]
        sinks = sinks & ~torch.tensor(unknown, device=raw.device)[:, None, None, None]
    some = sinks.any(-1)
    strongest, removed = torch.where(some, strongest, float("nan")), torch.where(some, removed, 0.0)
    absorbed = torch.where(sinks, raw, 0.0).sum(-1, dtype=torch.float64)
    keys_of = {layer.index: layer.keys for layer in layers if layer.keys is not None}
    indices = tuple(layer.index for layer in layers)
    return StepAccount(share, caught, sinks.sum(-1), strongest, removed, absorbed, keys_of, raw, acted, indices)


def _removed_share(kept: Tensor, weights: Tensor) -> Tensor:
    """The mean over real queries of what is not kept: Float [..., B, H, Q] → [..., B, H]."""
    # In double precision, so that the order of additions, and with it the batch, does not show in the digits that are kept.
    removed = ((1 - kept).clamp(min=0.0) * weights).nan_to_num(0.0).sum(-1, dtype=torch.float64)
    return (removed / weights.sum(-1).clamp(min=1.0)).float()
