"""Random streams: one for the whole batch as in the official loops, or one per row so that a row equals its run alone.

With one stream the draws have the batch's shape, exactly as the official code makes them. With a stream per row every row
draws what it would draw in a batch of one. `torch.Generator().manual_seed(s)` gives the same numbers as `torch.manual_seed(s)`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Streams:
    """The random numbers of one generation.

    Args:
        seeds: an int for the official single stream, or one int per row.
        padding: columns by which each row is padded on the left, for which it draws nothing; empty: none.
    """

    def __init__(self, seeds: int | Sequence[int], device: torch.device, padding: Sequence[int] = ()) -> None:
        single = isinstance(seeds, int)
        self.per_row = not single
        many = [seeds] if isinstance(seeds, int) else list(seeds)
        self._generators = [torch.Generator(device).manual_seed(seed) for seed in many]
        self._device = device
        self._padding = list(padding) or [0] * len(self._generators)

    def uniform(self, shape: tuple[int, ...], dtype: torch.dtype, rows: Sequence[bool] = ()) -> Tensor:
        """Numbers in [0, 1) of the given shape [B, S, …]; 0 in padding of rows that have streams of their own.

        Args:
            rows: which rows draw where they have streams of their own, the others being 0; empty: all.
        """
        if not self.per_row:
            return torch.rand(shape, generator=self._generators[0], dtype=dtype, device=self._device)
        numbers = torch.zeros(shape, dtype=dtype, device=self._device)
        for row, generator in self._drawing(rows):
            skipped = self._padding[row]
            drawn = (1, shape[1] - skipped, *shape[2:])
            numbers[row, skipped:] = torch.rand(drawn, generator=generator, dtype=dtype, device=self._device)[0]
        return numbers

    def _drawing(self, rows: Sequence[bool]) -> list[tuple[int, torch.Generator]]:
        """The rows that draw, each with its stream; empty: all do."""
        return [(row, stream) for row, stream in enumerate(self._generators) if not rows or rows[row]]

    def integers(self, shape: tuple[int, ...], high: int, rows: Sequence[bool]) -> Tensor:
        """Whole numbers in [0, high) of the shape [B, …]; with a stream for every row 0 in rows that do not draw."""
        if not self.per_row:
            return torch.randint(high, shape, generator=self._generators[0], device=self._device)
        numbers = torch.zeros(shape, dtype=torch.long, device=self._device)
        for row, generator in self._drawing(rows):
            numbers[row] = torch.randint(high, (1, *shape[1:]), generator=generator, device=self._device)[0]
        return numbers

    def binomial(self, row: int, count: int, probability: Tensor) -> int:
        """How many of `count` trials succeed, drawn from the row's stream."""
        generator = self._generators[row if self.per_row else 0]
        trials = torch.tensor(float(count), dtype=torch.float64, device=self._device)
        return int(torch.binomial(trials, probability.to(trials), generator=generator))

    def uniform_where(self, where: Tensor) -> Tensor:
        """Float32 numbers in [0, 1), one for each marked position of Bool [B, S], flattened in row-major order."""
        if not self.per_row:
            return torch.rand(int(where.sum()), generator=self._generators[0], device=self._device)
        counts = where.sum(1).tolist()
        pairs = zip(counts, self._generators, strict=True)
        return torch.cat([torch.rand(count, generator=generator, device=self._device) for count, generator in pairs])

    def one_of_each(self, probabilities: Tensor, where: Tensor) -> Tensor:
        """One draw from each row of Float [N, V]; the N rows belong to the marked positions of Bool [B, S] in order.

        Returns:
            Long [N].
        """
        if not self.per_row:
            return _draw(probabilities, self._generators[0])
        parts = torch.split(probabilities, where.sum(1).tolist())
        return torch.cat([_draw(part, generator) for part, generator in zip(parts, self._generators, strict=True)])

    def some_without_replacement(self, weights: Tensor, counts: list[int]) -> list[Tensor]:
        """For each row of Float [B, S], counts[row] distinct positions drawn by weight.

        With one stream all counts are equal and it is one draw over the batch.
        """
        nothing = torch.empty(0, dtype=torch.long, device=weights.device)
        if not self.per_row:
            if not counts[0]:
                return [nothing] * len(counts)
            return list(torch.multinomial(weights, counts[0], generator=self._generators[0]))
        return [
            torch.multinomial(row[None, skipped:], count, generator=generator)[0] + skipped if count else nothing
            for row, count, generator, skipped in zip(weights, counts, self._generators, self._padding, strict=True)
        ]


def _draw(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    if not len(probabilities):
        return torch.empty(0, dtype=torch.long, device=probabilities.device)
    return torch.multinomial(probabilities, 1, True, generator=generator)[:, 0]
