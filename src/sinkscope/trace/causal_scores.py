"""What the keys of a causal model receive: from the newest query, from all so far, and from distant ones, step by step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.attention.context import NEWEST_AND_ALL, AttentionCall, Expected
from sinkscope.attention.distant import DistantSums
from sinkscope.decoding.step import Request

SEEN_BY = 16
"""Received attention over all queries so far is NaN for a key seen by fewer queries: the newest keys have too few."""


@dataclass(frozen=True)
class _CausalLayer:
    """What one layer of a causal model gave in one forward.

    Attributes:
        last, every: Float32 [B, H, K]: attention from the last query, and from all of them.
        expected: what both would bring if queries looked at all keys alike, and how many queries see a key.
        queries: how many there were. added: what it adds to the attention from distant queries.
    """

    last: Tensor
    every: Tensor
    expected: Expected
    queries: int
    added: Tensor


class CausalScores:
    """The sums of one group of rows over all queries so far.

    Args:
        width: keys that there will be at the end. by_query: sums over the prompt's queries are kept too.
    """

    PASSING = ("_layers",)

    def __init__(self, width: int, by_query: bool) -> None:
        self.width, self.by_query = width, by_query
        self.distant = DistantSums(width)
        self._layers: list[_CausalLayer] = []
        self._sums: tuple[Tensor, ...] = ()
        self._prompt_sums: tuple[Tensor, ...] = ()  # mass and uniform of the first forward, which is the prefill

    def begin(self) -> None:
        """Start a forward."""
        self._layers = []

    def take(self, call: AttentionCall, _: str) -> None:
        """Keep the last row and the sum over all queries of one layer; `settle` goes on with all layers together."""
        queries = call.query.shape[2]
        if queries == 1:
            last = every = call.newest()
        else:
            last, every = call.mass(NEWEST_AND_ALL).unbind(2)
        added = self.distant.share(call, last)
        self._layers.append(_CausalLayer(last, every, call.expected(NEWEST_AND_ALL), queries, added))

    def settle(self, _: Request, wanted: bool) -> dict[str, Tensor]:
        """Add the queries of a forward to those so far; what they received, Float32 [B, layer, H, …, K], where it is wanted.

        All layers in one go: a step with a cache has one query, and its time is that of many small operations.
        """
        layers, self._layers = self._layers, []
        if not layers:
            return {}
        last = every = torch.stack([layer.last for layer in layers], 1)  # [B, layer, H, K]
        if layers[0].queries > 1:
            every = torch.stack([layer.every for layer in layers], 1)
        uniform, seen = self._expected(layers)
        mass, expected, seen = self._so_far(every, uniform[:, :, 1], seen)
        self.distant.add([layer.added for layer in layers], [layer.expected.visibility for layer in layers])
        if not self._prompt_sums and self.by_query:
            self._prompt_sums = (mass.clone(), expected.clone())
        if not wanted:
            return {}
        far, could = self.distant.far()
        relative = torch.where(could.known, far / torch.where(could.known, could.uniform, 1.0), float("nan"))
        arrays = {
            "received": over(last, uniform[:, :, 0]),
            "received_all": over(mass, expected, seen >= SEEN_BY),
            "received_far": relative.to(torch.float32),
        }
        if self.by_query:
            arrays["received_by"] = self._by_kind(mass, expected)
        if layers[0].queries == mass.shape[-1]:
            arrays["prefill_received"] = over(every, uniform[:, :, 1])
        return arrays

    def sink_heads(self, *_: object) -> Tensor:
        """Int16 [B, layer, K]: how many heads call each key a sink."""
        return self.distant.sinks().sum(2).to(torch.int16)

    @staticmethod
    def _expected(layers: list[_CausalLayer]) -> tuple[Tensor, Tensor]:
        """Uniform attention [B|1, layer|1, 2, K] and the queries that see a key [B|1, layer|1, K]."""
        first = layers[0].expected
        if all(layer.expected is first for layer in layers):  # layers that see the same pattern share one object
            return first.uniform[:, None], first.seen_by[:, None, 1]
        uniform = torch.stack([layer.expected.uniform for layer in layers], 1)
        return uniform, torch.stack([layer.expected.seen_by[:, 1] for layer in layers], 1)

    def _so_far(self, *more: Tensor) -> tuple[Tensor, ...]:
        """Sums over all queries so far, those of this forward added, over the keys that it has.

        Always in the same memory, wide enough for the whole answer: a captured step goes on adding to it, and none is copied
        for one more key.

        Args:
            more: mass [B, layer, H, K], uniform attention and the number of queries that see a key [B|1, layer|1, K].
        """
        keys = more[0].shape[-1]
        if not self._sums:
            width = max(keys, self.width)
            self._sums = tuple(now.new_zeros(*now.shape[:-1], width, dtype=torch.float64) for now in more)
        if any(old.shape[1] < now.shape[1] for old, now in zip(self._sums, more, strict=True)):
            # The layers have come to differ in their patterns.
            self._sums = tuple(
                old.expand(*now.shape[:-1], -1).clone() for old, now in zip(self._sums, more, strict=True)
            )
        so_far = tuple(old[..., :keys] for old in self._sums)
        for old, now in zip(so_far, more, strict=True):
            old += now
        return so_far

    def _by_kind(self, mass: Tensor, uniform: Tensor) -> Tensor:
        """Float32 [B, layer, H, kind, K]: received from the written and the prompt queries so far; no other kinds here.

        Args:
            mass, uniform: over all queries so far, [B, layer, H, K] and [B|1, layer|1, K].
        """
        grown = mass.shape[-1] - self._prompt_sums[0].shape[-1]
        prompt, expected = (torch.nn.functional.pad(part, (0, grown)) for part in self._prompt_sums)
        written, could = mass - prompt, uniform - expected
        # A difference of equal sums may be a rounding error away from 0; one query gives a key at least 1/K.
        least = 0.5 / mass.shape[-1]
        kinds = over(written, could, could > least), over(prompt, expected, expected > least)
        none = torch.full_like(kinds[0], float("nan"))
        return torch.stack([none, *kinds, none, none], 3)


def over(mass: Tensor, uniform: Tensor, known: Tensor | None = None) -> Tensor:
    """Mass [B, layer, H, K], or layers first, over uniform attention [B|1, layer|1, K]; NaN where it is 0 or not `known`."""
    known = uniform > 0 if known is None else known & (uniform > 0)
    return (mass / torch.where(known, uniform, float("nan"))[:, :, None]).to(torch.float32)
