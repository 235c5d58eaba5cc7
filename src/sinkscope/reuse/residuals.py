"""The residual stream that enters each layer, kept between forwards, so that a later one can begin in the middle."""

from __future__ import annotations

from torch import Tensor


class Residuals:
    """The residual stream before every layer of one group of rows, for each column as it was last computed.

    Refreshes alone bring it: the columns of a partial forward stay active until the next refresh, which computes them again.

    Attributes:
        active: Long [B, A]: the columns that the streams to come are of; None: of all columns.
    """

    def __init__(self) -> None:
        self.active: Tensor | None = None
        self._kept: dict[int, Tensor] = {}

    def see(self, layer: int, stream: Tensor) -> None:
        """Keep the stream that enters a layer: Float [B, S, width], or [B, A, width] of the active columns."""
        if self.active is None:
            self._kept[layer] = stream
        else:
            self._kept[layer].scatter_(1, self.active[..., None].expand(stream.shape), stream)

    def entering(self, layer: int) -> Tensor:
        """Float [B, S, width]: of all columns, before a layer."""
        return self._kept[layer]
