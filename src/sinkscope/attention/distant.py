"""Attention that keys get from queries far behind them, kept while a text grows: what the sink rule of causal models needs.

The gap that makes a query distant grows with the text (see `sink_rule`), so sums are kept for every gap that the text will come
to. Within one gap a new query only adds: nothing is ever taken out of a sum, and no attention matrix is kept.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.attention.context import ALL, AttentionCall
from sinkscope.attention.received import column_mass
from sinkscope.attention.visibility import Scores, Visibility, query_weights
from sinkscope.base.sink_rule import EPSILON, Distant, around, distant, gap_of


class DistantSums:
    """Σ over the queries so far of the attention that each key got, by how far behind it they stand at least.

    Args:
        width: keys that there will be at the end. raw: as if no policy had masked anything.
    """

    def __init__(self, width: int, raw: bool = False) -> None:
        self.width, self.raw = width, raw
        self._first = 1  # tokens of the shortest row in the first forward
        self._sums: Tensor | None = None  # Float64 [gap, B, layer, H, width]; the first gap is 0: all queries
        self._windows: tuple[int | None, ...] = ()
        self._length, self._position = (torch.zeros(0, 0, dtype=torch.long) for _ in range(2))

    def share(self, call: AttentionCall, newest: Tensor) -> Tensor:
        """What one call adds; `add` goes on with all layers together.

        Args:
            newest: Float32 [B, H, K]: the attention of its last query, 0 where there is no key; B rows of the batch count.

        Returns:
            `newest` of an only query; else Float32 [gap, B, H, K], that of all queries at least so far behind.
        """
        visibility = call.visibility
        if visibility.queries == 1:
            return newest
        if self._sums is None:
            real = visibility.real
            self._first = visibility.keys if real is None else int(real.sum(1).min())
        shares = masses(*call.softmax(self.raw), call.expected(ALL).weights, self._gaps(visibility.window))
        return shares[:, : len(newest)]

    def add(self, shares: list[Tensor], patterns: list[Visibility]) -> None:
        """Add the queries of a forward, all layers in one go: a step with a cache is made of the number of its operations."""
        keys, device = patterns[0].keys, shares[0].device
        length, position = positions(patterns[0], device)
        windows = tuple(pattern.window for pattern in patterns)
        gaps = {window: self._gaps(window) for window in dict.fromkeys(windows)}
        most = max(map(len, gaps.values()))
        if shares[0].dim() == 4:
            # [gap, B, H, K] of each layer, of which narrow windows have fewer gaps → [gap, B, layer, H, K]
            share = torch.stack([pad(each, (0, 0) * 3 + (0, most - len(each))) for each in shares], 2)
        else:
            behind = torch.where(position >= 0, length - 1 - position, -1)  # [B|1, K]
            far = {
                window: torch.stack([behind >= gap for gap in (*some, *(self.width + 1,) * (most - len(some)))])
                for window, some in gaps.items()
            }
            seen = [far[window] for window in windows] if len(far) > 1 else list(far.values())
            share = torch.stack(shares, 1) * torch.stack(seen, 2)[:, :, :, None]
        if self._sums is None:
            shape = (*share.shape[:-1], max(self.width, keys))
            self._sums = torch.zeros(shape, dtype=torch.float64, device=device)
            self._windows = windows
        self._sums[..., :keys] += share
        # Always in the same memory: a captured step finds there where the one before it stood.
        self._length, self._position = settled(self._length, length), settled(self._position, position)

    def _gaps(self, window: int | None) -> tuple[int, ...]:
        """0, and every gap that a layer of such a window will come to, as the text grows."""
        least, most = (gap_of(min(count, window or count)).bit_length() for count in (self._first, self.width))
        return (0, *(1 << power for power in range(least - 1, most)))

    @property
    def windows(self) -> list[int]:
        """Of the layers; 0: none."""
        return [window or 0 for window in self._windows]

    def sinks(self, epsilon: float = EPSILON, scope: str = "head") -> Tensor:
        """Bool [B, layer, h, K]: of each head, of the mean over heads ("layer"), or over layers and heads ("model")."""
        mass, expected = self.far()
        limit, known = expected.limit(epsilon), expected.known
        if scope != "head":
            mass = mass.mean(2, keepdim=True)
        if scope == "model":
            mass, limit, known = mass.mean(1, True), limit.mean(1, True), known.all(1, keepdim=True)
        sinks: Tensor = (mass > limit) & known
        return sinks

    def far(self, gap: int | None = None) -> tuple[Tensor, Distant]:
        """Attention from distant queries, Float64 [B, layer, H, K], and what could be expected of it [B|1, layer|1, 1, K].

        Args:
            gap: 0: from all queries so far, near ones too.
        """
        if self._sums is None:
            raise RuntimeError("no query was added yet")
        keys = self._position.shape[-1]
        kinds = list(dict.fromkeys(self._windows))
        by_window = {window: distant(self._length, self._position, window, gap) for window in kinds}
        if gap == 0:
            mass = self._sums[0, ..., :keys]
        else:
            rows = torch.arange(self._sums.shape[1], device=self._sums.device)
            index = {}
            for window, expected in by_window.items():
                # Gaps are powers of two from the second on; their exponents are exact in floating point.
                exponent = (expected.gap[:, 0].double().log2().round().long() + 1).expand(len(rows))
                index[window] = exponent - self._gaps(window)[1].bit_length() + 1
            if len(kinds) == 1:
                mass = self._sums[index[kinds[0]], rows][..., :keys]
            else:
                layers = [self._sums[index[window], rows, layer] for layer, window in enumerate(self._windows)]
                mass = torch.stack(layers, 1)[..., :keys]
        fields = [vars(by_window[window]).values() for window in (self._windows if len(kinds) > 1 else kinds)]
        # [B|1, K] of each kind of layer → [B|1, layer|1, 1, K]
        return mass, Distant(*(torch.stack(field, 1)[:, :, None] for field in zip(*fields, strict=True)))


def whole(calls: list[AttentionCall]) -> DistantSums:
    """The sums of one forward over a whole text, from the calls of its layers."""
    sums = DistantSums(calls[0].visibility.keys)
    sums.add([sums.share(call, call.query) for call in calls], [call.visibility for call in calls])
    return sums


def _nearer(visibility: Visibility, gap: int) -> Visibility:
    """The same pattern, without the keys that are `gap` or more behind a query."""
    if visibility.dense is None:
        return replace(visibility, window=min(gap, visibility.window or gap))
    queries, keys = visibility.dense.shape[-2:]
    band = torch.ones(queries, keys, dtype=torch.bool, device=visibility.dense.device)
    return replace(visibility, dense=visibility.dense & band.triu(keys - queries - gap + 1))


def masses(scores: Scores, lse: Tensor, weights: Tensor, gaps: tuple[int, ...]) -> Tensor:
    """Attention that each key gets from queries at least so far behind it: Float32 [gap, B, H, K]; arguments as `column_mass`.

    What a window of that width holds is taken from the whole: both are patterns that the kernels know.
    """
    every = column_mass(scores, lse, weights)[:, :, 0]
    far = []
    for gap in gaps:
        nearer = replace(scores, visibility=_nearer(scores.visibility, gap))
        near = column_mass(nearer, lse, weights)[:, :, 0] if gap else every * 0
        far.append((every - near).clamp(min=0.0))
    return torch.stack(far)


def forward_sinks(scores: Scores, lse: Tensor, epsilon: float, means: bool) -> Tensor:
    """Sinks of a causal model by the queries of one forward alone: Bool [B, H, K], or [B, 1, K] of the means over heads."""
    visibility, device = scores.visibility, scores.device
    expected = distant(*positions(visibility, device), visibility.window)
    gaps = [int(gap) for gap in expected.gap.flatten()]  # one for each row, or for all
    each = tuple(sorted(set(gaps)))
    far = masses(scores, lse, query_weights(visibility, None, scores.query), each)
    of_row = torch.tensor([each.index(gap) for gap in gaps], device=device).expand(far.shape[1])
    mass = far[of_row, torch.arange(far.shape[1], device=device)].double()
    mass = mass.mean(1, keepdim=True) if means else mass
    sinks: Tensor = (mass > expected.limit(epsilon)[:, None]) & expected.known[:, None]
    return sinks


def in_blocks(visibility: Visibility, active: int, device: torch.device) -> Distant:
    """What the last `active` queries of a block loop's forward could give each key, [B|1, K].

    Those of one block see every key; where a whole text is read at once, a key is seen from its own block on (blocks of one
    column are causal attention).
    """
    length, position = positions(visibility, device)
    if visibility.block == 1 and active == visibility.keys:
        return distant(length, position, visibility.window, gap=0)
    start, block = length - active, visibility.block
    if block is None or active <= block:
        return around(length, position, start, length)
    column = torch.arange(visibility.keys, device=device)
    begin = position[:, column // block * block].clip(0)
    expected = around(length, position, torch.maximum(start, begin), length)
    weights = (torch.arange(visibility.queries, device=device) >= visibility.queries - active).float()[None]
    real = visibility.real_queries()
    weights = weights if real is None else weights * real
    return replace(expected, uniform=visibility.uniform(weights[:, None])[:, 0])


def settled(memory: Tensor | None, now: Tensor) -> Tensor:
    """The same in the memory of an earlier tensor of its shape, where a captured step goes on looking; else in its own."""
    if memory is None or memory.shape != now.shape:
        return now.clone()
    return now if memory is now else memory.copy_(now)


def block_sinks(received: Tensor, expected: Distant, epsilon: float = EPSILON) -> Tensor:
    """Sinks of a block loop's step.

    Args:
        received: Float [N, h, K], uniform = 1, NaN where a layer does not see a key; N a multiple of B.
        expected: see `in_blocks`.
    """
    fields = vars(expected).items()
    of_row = Distant(**{name: field.repeat(len(received) // len(field), 1)[:, None] for name, field in fields})
    # Of a sliding layer's queries the attention is that to fewer keys, and each may be chance more often.
    noise = 0.5 / received.isfinite().any(1).sum(-1).clip(1).double()[:, None, None]
    limit = replace(of_row, noise=noise).limit(epsilon)
    sinks: Tensor = (received.nan_to_num(0.0).double() * of_row.uniform * (noise / of_row.noise) > limit) & of_row.known
    return sinks


def positions(visibility: Visibility, device: torch.device) -> tuple[Tensor, Tensor]:
    """Long [B|1, 1]: real tokens so far; Long [B|1, K]: the position of each key, −1 where there is none."""
    if visibility.real is None:
        index = torch.arange(visibility.keys, device=device)[None]
        return torch.full((1, 1), visibility.keys, device=device), index
    order = visibility.real.long().cumsum(-1)
    return order[:, -1:], torch.where(visibility.real, order - 1, -1)
