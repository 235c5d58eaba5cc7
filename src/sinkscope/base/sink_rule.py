"""The sink rule, the one place that states it.

**Bidirectional attention** (the paper's rule): a key is a sink when it exceeds the mean of the other keys by more than ε.
Source: "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731), equation 3, on column sums (received attention,
uniform = 1), so that ε = 3 means about four times uniform. With T = Σ received over n keys,
`r_j > (T − r_j) / (n − 1) + ε` is the same as `r_j > T/n + ε (n − 1)/n`: one threshold for a whole row.

**Causal attention**: late keys are seen by near queries only, so there a multiple of uniform attention measures recency, and
more so the longer the text. Instead a key is a sink when *distant* queries give it more than distance alone can explain:

    mean over queries i with i − j ≥ gap of A_ij   >   mean over the same queries of 1 / (i − j + 1)  +  ε / 64  +  1 / (2 n)

A head that looks at distance alone, and never at a farther key more than at a nearer one, gives a key at distance d at most
1 / (d + 1): the d keys in between get at least as much. So local heads of any reach, power laws, sliding windows and uniform
attention have no sink at any length: that is a theorem, not a threshold. ε / 64 is the paper's ε at the paper's length, as a
share of a query's attention; half of uniform attention is left to chance, which matters in short texts. The gap is an eighth of
the text, rounded down to a power of two, so that sums can be kept while a text grows. A key that fewer than
`least_queries` distant queries see cannot be judged: it is unknown, not "no sink".

Sums are in double precision in all forms, so that numpy and torch decide alike. Other rules (mean, percent, zscore) are in
`sinks/detection.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 3.0
"""The paper's ε; it filters out at least 96 % of the tokens there."""

PAPER_LENGTH = 64
"""Tokens of the sequence for which the paper chose its ε: ε / 64 is that threshold as a share of a query's attention."""


def threshold_line(received: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """(base, slope, keys), each float [..., 1]: the threshold of a row is base + ε · slope.

    received: float [..., K], uniform = 1, NaN where there is no key. A row with fewer than two keys has no others to compare
    with: its base is +inf.
    """
    missing = np.isnan(received)
    keys = received.shape[-1] - np.count_nonzero(missing, axis=-1, keepdims=True).astype(np.float64)
    filled = np.where(missing, received.dtype.type(0), received) if missing.any() else received
    safe = np.maximum(keys, 1.0)
    mean = np.sum(filled, axis=-1, keepdims=True, dtype=np.float64) / safe
    return np.where(keys >= 2, mean, np.inf), (keys - 1) / safe, keys


def torch_sinks_of(received: Tensor, epsilon: float = EPSILON) -> Tensor:
    """`sinks_of` of a tensor, on its device."""
    import torch

    real = ~received.isnan()
    keys = real.sum(-1, keepdim=True)
    safe = keys.clamp(min=1).double()
    total = received.nan_to_num(0.0).sum(-1, keepdim=True, dtype=torch.float64)
    return (received > total / safe + epsilon * ((keys - 1) / safe)) & (keys >= 2)


# ---- causal attention ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Distant:
    """What the distant queries of each key could give it; arrays [..., K], of numpy or torch, without heads.

    Attributes:
        gap: [..., 1]: how far behind a key they stand at least.
        count: how many distant queries see the key.
        uniform: what they would give it together if each looked at all it sees alike.
        local: the most that they can give it together by distance alone.
        known: whether there are enough of them to judge the key.
        noise: 1 / (2 n), the margin for chance of each of them.
    """

    gap: Any
    count: Any
    uniform: Any
    local: Any
    known: Any
    noise: Any

    def limit(self, epsilon: float = EPSILON) -> Any:
        """The attention from all of them together above which a key is a sink."""
        return self.local + self.count * (epsilon / PAPER_LENGTH + self.noise)


def distant(length: Any, position: Any, window: int | None = None, gap: int | None = None) -> Distant:
    """What follows from the number of tokens so far and the keys' positions, where every query sees the keys up to itself.

    Args:
        length: Long [..., 1]: real tokens so far. position: Long [..., K]: of the keys, counted from the first real token;
            outside of 0 … length − 1 there is no key. Both of numpy or both of torch, on one device.
        window: of a layer in which a query sees only so many keys; None: it sees all up to itself.
        gap: 0 counts all queries, near ones too, which the rule then allows for; None: an eighth of the text (see above).
    """
    harmonic, gaps = _tables(position)
    reach = length if window is None else length.clip(max=window)
    there = (position >= 0) & (position < length)
    position = position.clip(0) * there
    gap = gaps[reach] if gap is None else gap + 0 * length
    end = length if window is None else _least(length, position + window)
    begin = _least(position + gap, end)
    count = (end - begin) * there
    seen = _least(gap, end - position)
    local = (harmonic[end - position] - harmonic[seen]) * there
    if window is None:
        uniform = harmonic[end] - harmonic[begin]
    else:  # a query beyond the window sees `window` keys
        uniform = _reaching(harmonic, end, window) - _reaching(harmonic, begin, window)
    known = there & (count >= least_queries(reach)) & (reach >= 5)
    return Distant(gap, count, uniform * there, local, known, 0.5 * harmonic[1] / reach.clip(1))


def around(length: Any, position: Any, start: Any, stop: Any) -> Distant:
    """The same where the queries are those of a block, columns start … stop − 1, which see every key: block diffusion.

    A key so near that distance alone may explain a quarter of its attention cannot be judged.

    Args:
        length, position: as for `distant`. start, stop: Long [..., 1]: positions of the block's queries.
    """
    harmonic, _ = _tables(position)
    there = (position >= 0) & (position < length)
    before, behind = (start - position).clip(0), (position - stop + 1).clip(0)
    inside = (before + behind == 0) & there
    far, near = _most(stop - position, position - start + 1), _most(before, behind)
    local = harmonic[far.clip(0)] - harmonic[near]
    local = local * ~inside + inside * (
        harmonic[(position - start + 1).clip(0)] + harmonic[(stop - position).clip(0)] - 1
    )
    count = (stop - start) * there
    return Distant(
        0 * length,
        count,
        harmonic[1] * count / length.clip(1),
        local * there,
        there & (4 * local <= count),
        0.5 * harmonic[1] / length.clip(1),
    )


def least_queries(length: Any) -> Any:
    """Distant queries that a key needs to be judged: an eighth of the text; in short texts up to 8, or half of the text, or 4.

    With fewer, a head that looks at one fixed distance, or goes back to the token after an earlier copy, passes for a sink.
    """
    return _most(_most((length + 7) // 8, (length // 2).clip(max=8)), length * 0 + 4)


def gap_of(length: int) -> int:
    """How far behind a key a query must stand to be distant, in a text of so many tokens."""
    return int(_numpy_tables(_size(length))[1][length])


def _reaching(harmonic: Any, count: Any, window: int) -> Any:
    """Σ over the first `count` queries of 1 / (keys that they see)."""
    return harmonic[count.clip(max=window)] + harmonic[1] * (count - window).clip(0) / window


def _least(a: Any, b: Any) -> Any:
    return a - (a - b).clip(0)


def _most(a: Any, b: Any) -> Any:
    return a + (b - a).clip(0)


def _size(keys: int) -> int:
    return 1 << max(12, int(keys + 1).bit_length())


@cache
def _numpy_tables(size: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Harmonic numbers H(0) … and the gap of every length. H(1) is 1 in double precision, in which quotients are taken."""
    number = np.arange(size, dtype=np.int64)
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, size))])
    power = np.floor(np.log2(np.maximum(number, 8) // 8)).astype(np.int64)
    return harmonic, 1 << power


@cache
def _torch_tables(size: int, device: Any) -> tuple[Tensor, Tensor]:
    import torch

    harmonic, gaps = (torch.from_numpy(table) for table in _numpy_tables(size))
    return harmonic.to(device), gaps.to(device)


def _tables(position: Any) -> tuple[Any, Any]:
    """The tables for so many keys, of the same library and on the same device."""
    size = _size(position.shape[-1])
    return _numpy_tables(size) if isinstance(position, np.ndarray) else _torch_tables(size, position.device)
