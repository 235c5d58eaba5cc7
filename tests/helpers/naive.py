"""Attention written the slow, obvious way, with every matrix in full: what sinkscope.attention is compared with.

Nothing here is imported from sinkscope's attention code except the plain data classes that describe a case.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from hypothesis import strategies as st
from torch import Tensor

from sinkscope.attention.key_mask import Band, KeyMask
from sinkscope.attention.visibility import Padded, Visibility


@dataclass(frozen=True)
class Case:
    """One attention call: sizes, pattern, what is taken away, classes of queries.

    Attributes:
        padding: number of padded keys at one side of each row, or None for no mask at all.
        right: the padding stands on the right.
        block: columns of a block, or None for no blocks.
        taken_kind: "none", "columns", "band" or "both".
    """

    B: int
    H: int
    G: int
    Q: int
    K: int
    D: int
    causal: bool
    window: int | None
    padding: tuple[int, ...] | None
    dense: bool
    taken_kind: str
    shared_rows: bool
    shared_heads: bool
    hide_share: float
    width: int
    first: int
    future: int | None
    classes: int
    padded: Padded
    tile_bytes: int
    seed: int
    block: int | None = None
    right: bool = False

    @property
    def generator(self) -> torch.Generator:
        """Random numbers of this case."""
        return torch.Generator().manual_seed(self.seed)

    def tensors(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, float]:
        """q [B,H,Q,D], k [B,G,K,D], v [B,G,K,D] and a scale."""
        draw = self.generator
        q = torch.randn(self.B, self.H, self.Q, self.D, generator=draw) * 1.5
        k = torch.randn(self.B, self.G, self.K, self.D, generator=draw) * 1.5
        v = torch.randn(self.B, self.G, self.K, self.D, generator=draw)
        return q.to(dtype), k.to(dtype), v.to(dtype), self.D**-0.5

    def real(self) -> Tensor | None:
        """Bool [B, K]."""
        if self.padding is None:
            return None
        padding = torch.tensor(self.padding)[:, None]
        index = torch.arange(self.K)[None]
        return index < self.K - padding if self.right else index >= padding

    def dense_mask(self) -> Tensor | None:
        """Bool [B, 1, Q, K] in which every query sees at least itself."""
        if not self.dense:
            return None
        draw = torch.Generator().manual_seed(self.seed + 1)
        mask = torch.rand(self.B, 1, self.Q, self.K, generator=draw) < 0.6
        own = torch.arange(self.Q) + self.K - self.Q
        mask[:, :, torch.arange(self.Q), own] = True
        return mask

    def visibility(self) -> Visibility:
        """The pattern as sinkscope describes it."""
        return Visibility(
            self.Q, self.K, self.real(), self.causal, self.window, self.dense_mask(), self.padded, block=self.block,
        )  # fmt: skip

    def taken(self, silence: bool = False) -> KeyMask | None:
        """What a policy takes away in this case."""
        if self.taken_kind == "none":
            return None
        columns = None
        if self.taken_kind in ("columns", "both"):
            draw = torch.Generator().manual_seed(self.seed + 2)
            shape = (1 if self.shared_rows else self.B, 1 if self.shared_heads else self.H, self.K)
            columns = torch.rand(shape, generator=draw) < self.hide_share
        band = Band(self.width, self.first, self.future) if self.taken_kind in ("band", "both") else None
        return KeyMask(columns, band, silence)

    def weights(self) -> Tensor:
        """Float [B, C, Q]: every query in one of C classes."""
        draw = torch.Generator().manual_seed(self.seed + 3)
        which = torch.randint(0, self.classes, (self.B, self.Q), generator=draw)
        return torch.nn.functional.one_hot(which, self.classes).transpose(1, 2).float()

    @lru_cache(maxsize=4)  # noqa: B019 (cases are small, and a test asks several times)
    def visible(self) -> Tensor:
        """Bool [B, H, Q, K], key by key from the definition; padded queries as if they were real."""
        real, dense = self.real(), self.dense_mask()
        seen = torch.zeros(self.B, self.H, self.Q, self.K, dtype=torch.bool)
        for b in range(self.B):
            for i in range(self.Q):
                here = i + self.K - self.Q
                for j in range(self.K):
                    sees = real is None or bool(real[b, j])
                    sees = sees and (not self.causal or j <= here)
                    if self.block is not None:
                        sees = sees and j // self.block <= here // self.block
                    if self.window is not None:
                        sees = sees and here - j < self.window
                        sees = sees and (self.causal or j - here < self.window)
                    if dense is not None:
                        sees = sees and bool(dense[b, 0, i, j])
                    seen[b, :, i, j] = sees
        return seen

    @lru_cache(maxsize=4)  # noqa: B019
    def allowed(self) -> Tensor:
        """Bool [B, H, Q, K]: visible and not taken; a query that would lose all it sees keeps it all."""
        visible, taken = self.visible(), self.taken()
        if taken is None:
            return visible
        left = visible.clone()
        if taken.keys is not None:
            left &= ~taken.keys[:, :, None, :]
        if taken.band is not None:
            real = self.real()
            for b in range(self.B):
                begin = 0 if real is None else int(real[b].long().argmax())
                for i in range(self.Q):
                    here = i + self.K - self.Q
                    for j in range(self.K):
                        kept = abs(here - j) < self.width or begin <= j < begin + self.first
                        if self.future is not None and j - here > self.future:
                            kept = False
                        left[b, :, i, j] &= kept
        return torch.where(left.any(-1, keepdim=True), left, visible)

    def real_queries(self) -> Tensor:
        """Bool [B, Q]."""
        real = self.real()
        return torch.ones(self.B, self.Q, dtype=torch.bool) if real is None else real[:, self.K - self.Q :]


def scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """q·kᵀ·scale in float64, grouped heads repeated: [B, H, Q, K]."""
    repeated = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    return torch.einsum("bhqd,bhkd->bhqk", q.double(), repeated.double()) * scale


def softmax(scored: Tensor, allowed: Tensor) -> Tensor:
    """Attention over the allowed keys, float64; rows without any key are 0."""
    return scored.masked_fill(~allowed, float("-inf")).softmax(-1).nan_to_num(0.0)


def received(attention: Tensor, visible: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_i w_i A_ij / Σ_i w_i u_ij and Σ_i w_i u_ij, both [B, H, C, K]; NaN where nobody could look."""
    uniform = visible.double() / visible.sum(-1, keepdim=True).clamp(min=1)
    expected = torch.einsum("bcq,bhqk->bhck", weights.double(), uniform)
    mass = torch.einsum("bcq,bhqk->bhck", weights.double(), attention.double())
    return torch.where(expected > 0, mass / expected.clamp(min=1e-300), float("nan")), expected


@st.composite
def cases(draw: st.DrawFn, taken: tuple[str, ...] = ("none", "columns", "band", "both")) -> Case:
    """Cases of every kind that a model or a policy can bring about."""
    G = draw(st.integers(1, 3))
    H = G * draw(st.integers(1, 3))
    B = draw(st.integers(1, 3))
    K = draw(st.integers(1, 26))
    causal = draw(st.booleans())
    block = None if causal else draw(st.one_of(st.none(), st.integers(1, 9)))
    some = st.one_of(st.just(K), st.just(1), st.integers(1, K))
    Q = draw(some) if causal or block is not None else K
    dense = block is None and draw(st.integers(0, 5)) == 0
    window = draw(st.one_of(st.none(), st.integers(1, 30))) if causal and not dense else None
    if not causal and not dense and block is None and draw(st.integers(0, 5)) == 0:
        window = draw(st.integers(1, 30))
    padding = None
    if draw(st.booleans()):
        padding = tuple(draw(st.integers(0, K - 1)) for _ in range(B))
    plain = not causal and window is None and not dense
    return Case(
        B=B, H=H, G=G, Q=Q, K=K, D=draw(st.sampled_from([4, 8, 16])), causal=causal and not dense, window=window,
        padding=padding, dense=dense, taken_kind=draw(st.sampled_from(taken)), shared_rows=draw(st.booleans()),
        shared_heads=draw(st.booleans()), hide_share=draw(st.sampled_from([0.0, 0.1, 0.3, 0.7, 0.95, 1.0])),
        width=draw(st.integers(1, 12)), first=draw(st.integers(0, 3)), future=draw(st.one_of(st.none(), st.integers(0, 6))),
        classes=draw(st.integers(1, 4)), padded=draw(st.sampled_from(["keys", "none", "uniform"])) if plain else "none",
        tile_bytes=draw(st.sampled_from([1, 500, 4000, 1 << 20])), seed=draw(st.integers(0, 2**20)), block=block,
        right=block is not None and draw(st.booleans()),
    )  # fmt: skip
