"""The residual stream of a forward: norms, largest activations, likeness to the first token."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.decoding.step import Request


class Residual:
    """What is measured of the residual stream of one group of so many rows.

    Attributes:
        causal: whether the model is. Positions in a cache keep what was measured when they were computed.
    """

    def __init__(self, rows: int, causal: bool) -> None:
        self.rows, self.causal = rows, causal
        self._kept: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        self._first_token: dict[int, Tensor] = {}

    def measure(self, layer: int, hidden: Tensor, real: Tensor | None, request: Request) -> dict[str, Tensor]:
        """Of the stream [B·branches, Q, width] entering a layer: name → Float [B, K], the median [B].

        Args:
            real: Bool [B, K] or None: padding.
        """
        hidden = hidden[: self.rows].float()
        size = hidden.abs()
        norm, largest, median = size.norm(dim=-1), size.amax(-1), _median(size, real)
        cosine = self._cosine(layer, hidden, real, request)
        is_kept = self.causal or (request.active is not None and request.stored)
        if is_kept and layer in self._kept:
            # Cached positions are not computed again: their hidden states are those of the step that wrote them. The
            # median stays that of the prompt.
            before = self._kept[layer]
            norm, largest, cosine = (
                torch.cat([old, new], 1) for old, new in zip(before, (norm, largest, cosine), strict=False)
            )
            median = before[3] if self.causal else median
        if is_kept and (self.causal or request.kind != "denoise"):
            self._kept[layer] = (norm, largest, cosine, median)
        names = ("hidden_norm", "largest_activation", "hidden_cosine", "median_activation")
        return dict(zip(names, (norm, largest, cosine, median), strict=True))

    def _cosine(self, layer: int, hidden: Tensor, real: Tensor | None, request: Request) -> Tensor:
        """Cosine of every hidden state with that of the first real token: Float [B, Q, width] → [B, Q]."""
        again = not self.causal and request.queries.start == 0
        if layer not in self._first_token or again:
            begin = torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)
            if real is not None:
                begin = real.long().argmax(-1)
            self._first_token[layer] = hidden[torch.arange(len(hidden), device=hidden.device), begin]
        return torch.nn.functional.cosine_similarity(hidden, self._first_token[layer][:, None], dim=-1)


def _median(size: Tensor, real: Tensor | None) -> Tensor:
    """Median of |x| over the real positions of each row: Float [B, Q, width] → [B]."""
    if real is None:
        return size.flatten(1).median(-1).values
    real = real[:, -size.shape[1] :]
    return torch.stack([row[here].median() for row, here in zip(size, real, strict=True)])
