"""The keys that a query may not use in one attention call: single keys per head, or all outside a window around each query.

Either may hold for some queries only."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sinkscope.attention.visibility import Visibility

TILE = 256
"""Query rows that are looked at together where a pattern differs between queries."""


@dataclass(frozen=True)
class Band:
    """The keys that a window leaves: |i − j| < width, or among the first real keys; never more than `future` ahead."""

    width: int
    first: int = 0
    future: int | None = None

    def rows(self, visibility: Visibility, start: int, stop: int, device: torch.device) -> Tensor:
        """Bool [B|1, 1, rows, K]: what the window leaves to query rows start..stop."""
        key = torch.arange(visibility.keys, device=device)
        query = torch.arange(start + visibility.offset, stop + visibility.offset, device=device)[:, None]
        left = ((query - key).abs() < self.width)[None, None]
        if self.first:
            begin = first_real(visibility, device)[:, None, None, None]
            left = left | ((key >= begin) & (key < begin + self.first))
        return left if self.future is None else left & (key - query <= self.future)

    def reach(self, visibility: Visibility, start: int, stop: int, device: torch.device) -> Tensor:
        """Long [n]: indices of the keys that some query row of start..stop may still see."""
        low = max(0, start + visibility.offset - self.width + 1)
        high = min(visibility.keys, stop + visibility.offset + self.width - 1)
        if self.future is not None:
            high = min(high, stop + visibility.offset + self.future)
        if visibility.causal:
            high = min(high, stop + visibility.offset)
        begin = int(first_real(visibility, device).max()) + self.first if self.first else 0
        front = torch.arange(0, min(begin, low), device=device)
        return torch.cat([front, torch.arange(low, high, device=device)])

    def covers(self, visibility: Visibility) -> bool:
        """Whether every query keeps every key that it sees: such a window masks nothing."""
        ahead = 0 if visibility.causal else visibility.keys - 1
        return self.width >= visibility.keys and (self.future is None or self.future >= ahead)


@dataclass(frozen=True)
class KeyMask:
    """The keys that may not be used in one attention call.

    Attributes:
        keys: Bool [B|1, H|1, K]: masked for all queries alike; None: none.
        band: a window outside of which keys are masked; None: none.
        silence: their attention stays, but their values contribute nothing; else they leave the softmax.
        most: keys that are masked for a head at most, where that is known without looking; None: not known. Looking would
            make a GPU wait.
        least: real keys that every row of the batch has at least, where that is known without looking; None: not known.
        listed: indices Long [B, H|1, most] of the masked keys, and Float [B, H|1, most] that is 0 where a head has fewer.
        bias: Float [B, H, 1, K] in the dtype of the queries: −inf for masked keys and padding. Both are made of `keys`, and given
            where that was done for all layers at once; None: not yet made.
        queries: Bool [B|1, Q]: the queries for which keys are masked; None: all.
    """

    keys: Tensor | None
    band: Band | None = None
    silence: bool = False
    most: int | None = None
    least: int | None = None
    listed: tuple[Tensor, Tensor] | None = None
    bias: Tensor | None = None
    queries: Tensor | None = None
    _stranded: list[tuple[Visibility, Tensor]] = field(default_factory=list, compare=False, repr=False)

    @property
    def alike(self) -> bool:
        """Whether the same keys are masked for all queries."""
        return self.band is None and self.queries is None

    def listing(self) -> tuple[Tensor, Tensor]:
        """`listed`, made of `keys` where it was not given; `most` must be known."""
        if self.listed is not None:
            return self.listed
        if self.keys is None or self.most is None:
            raise ValueError("only keys whose number is known can be listed")
        return listed(self.keys, self.most)

    def strands_none(self, visibility: Visibility) -> bool:
        """Whether it is known without looking that every query keeps a key."""
        if self.band is not None or self.most is None or not visibility.alike:
            return False
        least = visibility.keys if visibility.real is None else self.least
        return least is not None and self.most < least

    def rows(self, visibility: Visibility, start: int, stop: int, device: torch.device) -> Tensor:
        """Bool [B|1, H|1, rows, K]: the keys masked for query rows start..stop, stranded queries not yet excepted."""
        masked = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=device)
        if self.keys is not None:
            masked = masked | self.keys[:, :, None, :]
        if self.band is not None:
            masked = masked | ~self.band.rows(visibility, start, stop, device)
        return masked if self.queries is None else masked & self.queries[:, None, start:stop, None]

    def stranded(self, visibility: Visibility, device: torch.device) -> Tensor:
        """Bool [B|1, H|1, Q]: queries that would lose every key they see; by our rule they keep their scores."""
        for pattern, stranded in self._stranded:  # asked for up to three times in one call
            if pattern is visibility:
                return stranded
        self._stranded.append((visibility, self._find_stranded(visibility, device)))
        return self._stranded[-1][1]

    def _find_stranded(self, visibility: Visibility, device: torch.device) -> Tensor:
        nothing = self.band is None and self.keys is None
        if nothing or self.strands_none(visibility):
            return torch.zeros(1, 1, 1, dtype=torch.bool, device=device).expand(1, 1, visibility.queries)
        if self.band is None and self.keys is not None:
            # A query that sees nothing to begin with is not stranded.
            stranded = (visibility.seen(~self.keys, device) == 0) & (visibility.seen(None, device) > 0)
            return stranded if self.queries is None else stranded & self.queries[:, None]
        tiles = []
        for start in range(0, visibility.queries, TILE):
            stop = min(start + TILE, visibility.queries)
            visible = visibility.rows(start, stop, device)
            left = ~self.rows(visibility, start, stop, device)
            tiles.append(~left.any(-1) if visible is None else ~(left & visible).any(-1) & visible.any(-1))
        return torch.cat(tiles, -1)

    def in_force(self, visibility: Visibility, start: int, stop: int, device: torch.device) -> Tensor:
        """Bool [B|1, H|1, rows, K]: what is really masked for query rows start..stop."""
        stranded = self.stranded(visibility, device)[:, :, start:stop, None]
        return self.rows(visibility, start, stop, device) & ~stranded

    def keys_in_force(self, visibility: Visibility) -> Tensor:
        """Bool [B|1, H|1, K]: `keys`, but for heads whose queries would lose every key, and keep them.

        Queries that see the same keys are stranded together; where they do not, the last one that the mask is for stands for all.
        """
        if self.keys is None:
            raise ValueError("a window masks other keys for every query")
        if self.strands_none(visibility):
            return self.keys
        stranded = self.stranded(visibility, self.keys.device)
        if self.queries is None:
            return self.keys & ~stranded[..., -1:]
        last = (self.queries * torch.arange(visibility.queries, device=stranded.device)).argmax(-1)
        last = last.expand(len(stranded))[:, None, None].expand(-1, stranded.shape[1], 1)
        return self.keys & ~stranded.gather(2, last)


def listed(keys: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Indices of the marked keys of Bool [..., K], and 0 where a head has fewer than `most`: Long, Float [..., most]."""
    values, indices = keys.to(torch.float16).topk(most, -1)
    return indices, values


def key_bias(real: Tensor | None, masked: Tensor | None) -> Tensor | None:
    """Float32 [B|1, H|1, 1, K]: 0 for keys that may be used, −inf for padding and masked ones; None when all may."""
    out = masked
    if real is not None:
        out = ~real[:, None] if masked is None else ~real[:, None] | masked
    return None if out is None else torch.where(out, float("-inf"), 0.0)[:, :, None]


def first_real(visibility: Visibility, device: torch.device) -> Tensor:
    """Long [B|1]: index of the first real key of each row."""
    if visibility.real is None:
        return torch.zeros(1, dtype=torch.long, device=device)
    return visibility.real.long().argmax(-1)
