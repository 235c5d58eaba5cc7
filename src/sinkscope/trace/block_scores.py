"""What the keys of a block loop receive: from the active block, and from all queries so far, those behind the cache included."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.attention.context import AttentionCall
from sinkscope.attention.distant import block_sinks, in_blocks
from sinkscope.attention.visibility import Visibility
from sinkscope.base.sink_rule import torch_sinks_of
from sinkscope.decoding.step import Request
from sinkscope.trace.causal_scores import over


class BlockScores:
    """The sums of one group of so many rows over the queries that are in the cache."""

    PASSING = ("_layers", "_visibility")

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._visibility: Visibility | None = None
        self._stored: tuple[Tensor, ...] = ()  # mass [layer, B, H, K] and uniform of the queries in the cache

    def begin(self) -> None:
        """Start a forward."""
        self._layers = []

    def take(self, call: AttentionCall, queries: str) -> None:
        """Keep what one layer received from these classes of queries: the active ones, all, and others."""
        received = call.received(queries)[: self.rows]
        self._layers.append((received, call.expected(queries).uniform[: self.rows, 1]))
        self._visibility = call.visibility

    def settle(self, request: Request, wanted: bool) -> dict[str, Tensor]:
        """What was received, Float32 [B, layer, H, …, K]; all layers in one go.

        Args:
            wanted: whether the step is recorded; what a forward between two steps received is.
        """
        layers, self._layers = self._layers, []
        if not layers:
            return {}
        received = torch.stack([layer for layer, _ in layers], 1)  # [B, layer, H, class, K]
        from_block, every = received[:, :, :, 0], received[:, :, :, 1]
        arrays = {} if request.step else {f"{request.kind}_received": every}
        if request.stored:
            uniform = torch.stack([layer for _, layer in layers], 1).expand(self.rows, -1, -1)
            mass = every.nan_to_num(0.0).double() * uniform[:, :, None]
            before = self._behind_the_cache(mass, uniform)
            mass, uniform = mass + before[0], uniform + before[1]
            if request.kind != "denoise":
                for old, now in zip(before, (mass, uniform), strict=True):
                    old.copy_(now)
            every = over(mass, uniform)
        if request.step and wanted:
            arrays |= {"received": from_block, "received_all": every}
            if received.shape[3] > 2:
                arrays["received_by"] = received[:, :, :, 2:]
        return arrays

    def sink_heads(self, received: Tensor, active: int) -> Tensor:
        """Int16 [B, layer, K]: how many heads call each key a sink; received: Float [B, layer, H, K] from the active queries."""
        if self._visibility is None:
            raise RuntimeError("no layer was recorded")
        expected = in_blocks(self._visibility.of_rows(self.rows), active, received.device)
        layers = [block_sinks(layer, expected).sum(-2).to(torch.int16) for layer in received.unbind(1)]
        return torch.stack(layers, 1)

    def _behind_the_cache(self, *like: Tensor) -> tuple[Tensor, ...]:
        """Mass and uniform of the queries in the cache, over as many keys as `like` has; over all keys, always in one memory."""
        stored = self._stored or tuple(part[..., :0] for part in like)
        grown = like[0].shape[-1] - stored[0].shape[-1]
        if grown or not self._stored:
            stored = self._stored = tuple(torch.nn.functional.pad(part, (0, grown)) for part in stored)
        return stored


def sink_heads(received: Tensor, visibility: Visibility) -> Tensor:
    """How many heads call each key a sink (ε = 3): Float [B, H, K], NaN where there is no key → Int16 [B, K]."""
    if visibility.block is None:
        return torch_sinks_of(received).sum(-2).to(torch.int16)
    expected = in_blocks(visibility, visibility.queries, received.device)
    return block_sinks(received, expected).sum(-2).to(torch.int16)
