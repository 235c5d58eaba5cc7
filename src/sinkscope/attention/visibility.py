"""Which keys each query can see before any policy, without ever building the S×S matrix; and the scores of a call over them.

Queries are always the last Q of the K keys, so query row r stands at key index K − Q + r: a plain forward has Q = K,
a step with a KV cache has Q = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sinkscope.attention.key_mask import KeyMask

Padded = Literal["keys", "none", "uniform"]


@dataclass(frozen=True)
class Visibility:
    """The pattern of one attention call.

    Attributes:
        queries: number of query rows Q.
        keys: number of keys K ≥ Q.
        real: Bool [B, K], False in padding; None when nothing is padded.
        causal: a query sees no key after itself.
        window: the model's own sliding window: i − j < window. None: no window.
        block: keys and queries stand in blocks of so many columns, counted from column 0; a query sees its own block and all
            earlier ones. None: no blocks.
        dense: Bool [B|1, H|1, Q, K] for models whose pattern is none of the above. The one case that costs S×S, and only
            because transformers hands the model such a mask anyway.
        padded: what the rows of padded queries do. "keys": attend to the real keys (LLaDA), "none": to nothing (Dream,
            causal), "uniform": to everything alike, padding included (MMaDA). No real query depends on it.
        bias: Float [B, H, 1, K] in the dtype of the queries, −inf in padding, where it was made for all layers at once.
        newest: the queries are those of a static cache, its newest token or its active block: they are real, and stand before
            columns that are not written yet (padding here).
    """

    queries: int
    keys: int
    real: Tensor | None = None
    causal: bool = False
    window: int | None = None
    dense: Tensor | None = None
    padded: Padded = "none"
    bias: Tensor | None = None
    newest: bool = False
    block: int | None = None

    @property
    def offset(self) -> int:
        """Key index of the first query row."""
        return self.keys - self.queries

    @property
    def banded(self) -> bool:
        """Whether the sliding window is narrower than the input."""
        return self.window is not None and self.keys > self.window

    @property
    def blocked(self) -> bool:
        """Whether some query cannot see a key because it stands in a later block."""
        return self.block is not None and self.offset // self.block < (self.keys - 1) // self.block

    @property
    def alike(self) -> bool:
        """Whether all queries of a row see the same keys, its real ones."""
        return self.dense is None and not self.ranged

    @property
    def ranged(self) -> bool:
        """Whether queries see ranges of keys that differ between them."""
        return (self.causal and self.queries > 1) or self.banded or self.blocked

    @property
    def triangular(self) -> bool:
        """Whether a query sees every key up to itself, and that is all."""
        return self.causal and self.real is None and self.dense is None and not (self.banded or self.blocked)

    @property
    def everything(self) -> bool:
        """Whether every query sees every key."""
        return self.real is None and self.alike

    def padded_rows(self, out: Tensor, value: Tensor) -> Tensor:
        """An output [B, H, Q, E] whose rows of padded queries are what the official code gives them (see `padded`)."""
        real = self.real_queries()
        if real is None or self.padded == "keys":
            return out
        if self.padded == "none":
            return out.masked_fill(~real[:, None, :, None], 0.0)
        mean = value.mean(2, keepdim=True).repeat_interleave(out.shape[1] // value.shape[1], 1)
        return torch.where(real[:, None, :, None], out, mean)

    def real_queries(self) -> Tensor | None:
        """Bool [B, Q]: the queries that are not padding; None when all are real."""
        return None if self.real is None or self.newest else self.real[:, self.offset :]

    def rows(self, start: int, stop: int, device: torch.device) -> Tensor | None:
        """Bool [B|1, H|1, rows, K]: what the query rows start..stop see; None when they see everything.

        Padded queries see the real keys here whatever `padded` says: they are dealt with where the output is made.
        """
        if self.alike:
            return None if self.real is None else self.real[:, None, None, :]
        if self.dense is not None:
            visible = self.dense[:, :, start:stop]
        else:
            first, last = (end[start:stop, None] for end in self._bounds(device))
            key = torch.arange(self.keys, device=device)
            visible = ((key >= first) & (key < last))[None, None]
        if self.real is not None:
            visible = visible & self.real[:, None, None, :]
        return visible

    def key_range(self, start: int, stop: int) -> tuple[int, int]:
        """The smallest range of keys that holds all that query rows start..stop can see."""
        first, last = 0, self.keys
        if self.causal:
            last = min(last, stop + self.offset)
        if self.block is not None:
            last = min(last, -(-(stop + self.offset) // self.block) * self.block)
        if self.window is not None:
            first = max(first, start + self.offset - self.window + 1)
            if not self.causal:
                last = min(last, stop + self.offset + self.window - 1)
        return first, last

    def seen(self, among: Tensor | None, device: torch.device) -> Tensor:
        """How many keys of the set `among` each query sees.

        Args:
            among: Bool [B|1, H|1, K], or None for all keys.

        Returns:
            Float64 [B|1, H|1, Q].
        """
        keys = torch.ones(1, 1, self.keys, dtype=torch.bool, device=device) if among is None else among
        if self.real is not None:
            keys = keys & self.real[:, None, :]
        if self.alike:
            return keys.sum(-1, keepdim=True).double().expand(*keys.shape[:-1], self.queries)
        if self.dense is not None:
            return torch.einsum("bhqk,bhk->bhq", self.dense.to(torch.float32), keys.to(torch.float32)).double()
        first, last = self._bounds(device)
        total = torch.nn.functional.pad(keys.double().cumsum(-1), (1, 0))
        return total[..., last] - total[..., first]

    def uniform(self, weights: Tensor) -> Tensor:
        """How much attention each key would receive if every query looked at all it sees alike: Σ_i w_i u_ij.

        Args:
            weights: Float [B, C, Q], one weight per class of queries and query; 0 leaves a query out.

        Returns:
            Float64 [B, C, K]: without heads, because the patterns of the models do not differ between them.
        """
        if self.everything:  # the same in fewer operations, of whose number a newest token's step is made
            return self.spread(weights.double() * (1.0 / self.keys))
        counts = self.seen(None, weights.device)[:, 0]  # [B|1, Q]
        share = torch.where(counts > 0, 1.0 / counts.clamp(min=1.0), 0.0)
        each = weights.double() * share[:, None, :]  # [B, C, Q]
        received = self.spread(each) if self.dense is None else each @ self.dense[:, 0].double()
        if self.real is not None:
            received = received * self.real[:, None, :]
        return received

    def spread(self, each: Tensor) -> Tensor:
        """Adds each query's share to all keys in its range: Float64 [B, C, Q] → [B, C, K]."""
        if not self.ranged:
            return each.sum(-1, keepdim=True).expand(*each.shape[:-1], self.keys)
        # Summing what begins and what ends at each key leaves rounding noise where no query looks; whole numbers do not.
        looks = (each != 0).to(torch.int64)
        return self._running(each).masked_fill_(self._running(looks) == 0, 0.0)

    def seen_by(self, weights: Tensor) -> Tensor:
        """How many of the queries that count see each key: Float [B, C, Q] → Float64 [B, C, K]."""
        if self.dense is not None:
            return weights.double() @ self.dense[:, 0].double()
        seen = self.spread(weights.double())
        return seen if self.real is None else seen * self.real[:, None]

    def _running(self, each: Tensor) -> Tensor:
        """Sum of `each` [B, C, Q] over the queries whose range holds a key: [B, C, K]."""
        first, last = self._bounds(each.device)
        steps = torch.zeros(*each.shape[:-1], self.keys + 1, dtype=each.dtype, device=each.device)
        steps.index_add_(-1, first, each)
        steps.index_add_(-1, last, -each)
        return steps.cumsum(-1)[..., :-1]

    def _bounds(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Long [Q], [Q]: the half-open range of key indices that each query sees, padding aside."""
        query = torch.arange(self.offset, self.keys, device=device)
        first = torch.zeros_like(query)
        last = torch.full_like(query, self.keys)
        if self.causal:
            last = query + 1
        if self.block is not None:
            last = last.minimum((query // self.block + 1) * self.block)
        if self.window is not None:
            first = (query - self.window + 1).clamp(min=0)
            if not self.causal:
                last = last.minimum(query + self.window)
        return first, last

    def of_rows(self, rows: int) -> Visibility:
        """The pattern of the first rows of the batch: with guidance those of the conditional branch."""
        if self.real is None or len(self.real) <= rows:
            return self
        dense = self.dense if self.dense is None or len(self.dense) == 1 else self.dense[:rows]
        return replace(self, real=self.real[:rows], dense=dense, bias=None)

    def prefix(self, count: int) -> Visibility:
        """The same pattern for the first `count` queries and keys of a causal call with Q = K."""
        real = None if self.real is None else self.real[:, :count]
        dense = None if self.dense is None else self.dense[:, :, :count, :count]
        return replace(self, queries=count, keys=count, real=real, dense=dense, bias=None)


def behind_a_prompt(prompt: int, keys: int, block: int | None, device: torch.device) -> Tensor:
    """Bool [1, 1, K, K]: a prompt of so many columns that sees itself causally, before columns that see everything.

    With blocks, which are counted from the end of the prompt: a prompt that sees itself both ways, before blocks that see all
    earlier columns and themselves.
    """
    column = torch.arange(keys, device=device)
    if block is None:
        end = torch.where(column < prompt, column + 1, keys)
    else:
        end = torch.where(column < prompt, prompt, prompt + ((column - prompt) // block + 1) * block)
    return (column < end[:, None])[None, None]


@dataclass(frozen=True)
class Scores:
    """The scores of one attention call; its weights are their softmax over the keys that are visible and not masked.

    Attributes:
        query: Float [B, H, Q, D]. key: Float [B, G, K, D], G dividing H (grouped heads are not repeated). Both after RoPE.
        key_mask: the keys that left the softmax; None: none. A query that would lose every visible key keeps its scores.
    """

    query: Tensor
    key: Tensor
    visibility: Visibility
    scale: float
    key_mask: KeyMask | None = None

    @property
    def device(self) -> torch.device:
        return self.query.device

    @property
    def exact(self) -> torch.dtype:
        """Float32 at least: in it statistics are computed, whatever the dtype of the model."""
        return torch.promote_types(self.query.dtype, torch.float32)

    def masked(self) -> Tensor | None:
        """Bool [B|1, H|1, K]: the keys that are masked for all queries alike; None: none."""
        if self.key_mask is None or self.key_mask.keys is None:
            return None
        return self.key_mask.keys_in_force(self.visibility)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Bool [B|1, H|1, rows|1, K|1]: the keys that query rows start..stop may use."""
        visible = self.visibility.rows(start, stop, self.device)
        if visible is None:
            visible = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.device)
        if self.key_mask is None:
            return visible
        return visible & ~self.key_mask.in_force(self.visibility, start, stop, self.device)


def per_head(keys_or_values: Tensor, query: Tensor) -> Tensor:
    """Keys or values [B, G, K, D] with as many heads as the queries [B, H, Q, D]."""
    groups = query.shape[1] // keys_or_values.shape[1]
    return keys_or_values if groups == 1 else keys_or_values.repeat_interleave(groups, 1)


def relative(mass: Tensor, uniform: Tensor) -> Tensor:
    """Column mass [B, H, C, K] divided by what uniform attention would bring [B|1, C, K]; NaN where that is nothing."""
    uniform = uniform[:, None]
    return torch.where(uniform > 0, mass / uniform.clamp(min=1e-300), float("nan")).to(torch.float32)


def query_weights(visibility: Visibility, weights: Tensor | None, query: Tensor) -> Tensor:
    """Float32 [B, C, Q] with padded queries at 0; without classes, one class of all real queries."""
    real = visibility.real_queries()
    if weights is None:
        weights = torch.ones(query.shape[0], 1, query.shape[2], device=query.device)
    weights = weights.to(torch.float32)
    return weights if real is None else weights * real[:, None, :]
