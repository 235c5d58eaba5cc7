"""SparseReuse: of the keys that are kept only some stay, chosen by what they received, by distance, or at random."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkscope.base.checks import one_of, share, whole
from sinkscope.base.errors import InputError
from sinkscope.base.sink_rule import torch_sinks_of
from sinkscope.policies.policy import top
from sinkscope.reuse.rule import REUSES, Candidates, Refresh, Reuse, check_refresh

SCORES = {
    "sinks": ("sinks",), "above": ("sinks", "random"), "others": ("sinks",), "received": ("received",), "recent": ("near",),
    "first": (), "random": ("random",),
}  # fmt: skip
"""Name of a rule → the fields of Candidates that it ranks by."""


@REUSES.add
@dataclass(frozen=True)
class SparseReuse(Reuse):
    """Computes the current block, and lets it look at itself and at some of the other keys only.

    One set of keys for each layer, chosen in every full forward. A causal model keeps its cache; in each step the newest token
    looks at the chosen keys and at itself.

    Attributes:
        keep: how many of the other keys stay: a whole number, or a share of them (above 0, at most 1); in a causal model
            a share of all keys so far.
        by: which: "sinks" (most attention from all queries: heavy hitters, of which few may be sinks), "above" (sinks, which are
            above ε = 3 in the mean over the layer's heads; random keys for what is left), "others" (heavy hitters that are
            none, while there are enough), "received" (most from the queries of the block; in a causal model
            the running sum of H2O, arXiv 2306.14048), "recent" (nearest to the block), "first", "random". Rules joined by + share
            the number equally, unless one has its own behind a colon: "first:4+recent" is StreamingLLM (arXiv 2309.17453).
        refresh: steps from one full forward to the next, or "block". In a causal model a refresh looks at all keys again, and
            "block" means that a key which was dropped stays dropped. 1 is the exact loop.
        seed: of "random".

    >>> str(SparseReuse(0.5, by="sinks+recent", refresh=8))
    'sparse:0.5,by=sinks+recent,refresh=8'
    """

    keep: int | float
    by: str = "sinks"
    refresh: Refresh = "block"
    seed: int = 0

    word: ClassVar[str] = "sparse"
    causal: ClassVar[bool] = True
    selects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.keep, int) and not isinstance(self.keep, bool):
            whole("keep", self.keep, 1)
        else:
            share("keep", self.keep, "; a whole number such as 64 is a count of keys")
        fixed = [count for _, count in self.parts() if count is not None]
        if isinstance(self.keep, int) and sum(fixed) > self.keep:
            raise InputError(f"by {self.by!r} names {sum(fixed)} keys, but keep is {self.keep}")
        check_refresh(self.refresh)
        whole("seed", self.seed, 0)

    @property
    def draws(self) -> bool:
        """Where a rule takes random keys, unless every step is exact."""
        return not self.exact and "random" in self.scores

    @property
    def series(self) -> str:
        return self.by

    def choosing(self, by: str) -> SparseReuse:
        return dataclasses.replace(self, by=by, seed=0)

    def parts(self) -> list[tuple[str, int | None]]:
        """The single rules of `by`, each with its own number of keys or None."""
        terms: list[tuple[str, int | None]] = []
        for term in str(self.by).split("+"):
            name, colon, count = term.strip().partition(":")
            one_of("by", name, SCORES)
            if colon and not count.isdecimal():
                raise InputError(f"by: behind {name}: comes a whole number of keys, got {count!r}")
            terms.append((name, int(count) if colon else None))
        return terms

    def counts(self, available: Tensor, total: Tensor) -> Tensor:
        """How many keys stay, of those that are available; a share is of the total: Long [B] each."""
        if isinstance(self.keep, int):
            return available.clamp(max=self.keep)
        # In float64, and a little less: a rounding error must not make one key more.
        return (total.double() * self.keep - 1e-9).ceil().long().minimum(available)

    @property
    def scores(self) -> frozenset[str]:
        return frozenset(field for name, _ in self.parts() for field in SCORES[name])

    def choose(self, candidates: Candidates) -> Tensor:
        """Each rule of `by` takes the best of what those before it have left."""
        order = -torch.arange(candidates.keys.shape[1], device=candidates.keys.device).double()
        left = self.counts(candidates.keys.sum(1), candidates.total)
        parts = self.parts()
        open_parts = sum(count is None for _, count in parts)
        chosen = torch.zeros_like(candidates.keys)
        spare = (left - sum(count or 0 for _, count in parts)).clamp(min=0)
        for name, count in parts:
            if count is None:
                number = -(-spare // open_parts)
                spare, open_parts = spare - number, open_parts - 1
            else:
                number = left.clamp(max=count)
            number = number.minimum(left)
            ranked = order.expand(chosen.shape) if name == "first" else getattr(candidates, SCORES[name][0])
            if name == "above":  # every sink comes before the random numbers, which are made less than 1
                drawn = candidates.random / (1 + candidates.random.amax(1, keepdim=True))
                ranked = torch.where(torch_sinks_of(ranked), 1 + ranked.double(), drawn)
            elif name == "others":
                ranked = torch.where(torch_sinks_of(ranked), -1 - ranked, ranked)
            chosen |= top(ranked.nan_to_num(float("-inf")), candidates.keys & ~chosen, number[:, None])
            left = left - number
        return chosen
