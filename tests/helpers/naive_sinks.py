"""Which keys are sinks, from the definitions in plain loops: by how much each key exceeds what its rule allows.

A key's *margin* is in units of ε: it is a sink at ε when its margin is larger. A key that cannot be judged has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def gap_of(length: int) -> int:
    """How far behind a key a query must stand to be distant: an eighth of the text, rounded down to a power of two."""
    gap = 1
    while 2 * gap <= length / 8:
        gap *= 2
    return gap


def least_queries(length: int) -> int:
    """Distant queries without which a key is unknown."""
    return max(math.ceil(length / 8), min(8, length // 2), 4)


def distant_queries(length: int, key: int, window: int | None = None) -> list[int]:
    """The positions from which a key is seen from far enough; none where they are too few to judge it."""
    reach = length if window is None else min(length, window)
    far = [i for i in range(length) if i - key >= gap_of(reach) and (window is None or i - key < window)]
    return far if len(far) >= least_queries(reach) else []


def causal_margins(attention: Any, window: int | None = None) -> dict[int, float]:
    """Position → margin of one head's rows so far. attention: [n, n], query by key, of real tokens alone."""
    length = len(attention)
    reach = length if window is None else min(length, window)
    found = {}
    for j in range(length):
        far = distant_queries(length, j, window)
        if far:
            given = sum(float(attention[i][j]) for i in far) / len(far)
            nearby = sum(1 / (i - j + 1) for i in far) / len(far)
            found[j] = 64 * (given - nearby - 1 / (2 * reach))
    return found


def block_margins(received: Mapping[int, float], length: int, queries: Sequence[int]) -> dict[int, float]:
    """Position → margin, told by the queries of a block that see all keys. received: relative to uniform, 1 / length each."""
    found = {}
    for j, score in received.items():
        nearby = sum(1 / (abs(i - j) + 1) for i in queries) / len(queries)
        if nearby <= 1 / 4:
            found[j] = 64 * (score / length - nearby - 1 / (2 * length))
    return found


def reading_margins(attention: Any, block: int) -> dict[int, float]:
    """Position → margin where a whole text [n, n] is read in blocks: a key is seen by its own block and all behind it."""
    length, found = len(attention), {}
    for j in range(length):
        queries = range(j // block * block, length)
        nearby = sum(1 / (abs(i - j) + 1) for i in queries) / len(queries)
        if nearby <= 1 / 4:
            given = sum(float(attention[i][j]) for i in queries) / len(queries)
            found[j] = 64 * (given - nearby - 1 / (2 * length))
    return found


def paper_margins(received: Mapping[int, float]) -> dict[int, float]:
    """Key → by how much its received attention is above the mean of the others'."""
    total, others = math.fsum(received.values()), len(received) - 1
    return {j: score - (total - score) / others for j, score in received.items()} if others > 0 else {}


def distant_mean(attention: Any, key: int, window: int | None = None) -> float:
    """The mean attention of a key's distant queries; NaN where they are too few."""
    far = distant_queries(len(attention), key, window)
    return sum(float(attention[i][key]) for i in far) / len(far) if far else math.nan


def relative_far(attention: Any, key: int, window: int | None = None) -> float:
    """The attention of a key's distant queries, relative to what uniform attention over all they see would bring."""
    far = distant_queries(len(attention), key, window)
    seen = [i + 1 if window is None else min(i + 1, window) for i in far]
    given = sum(float(attention[i][key]) for i in far)
    return given / sum(1 / many for many in seen) if far else math.nan


def margins_of_far(received_far: Any, real: np.ndarray) -> dict[int, float]:
    """Column → margin, from a trace's `received_far` [K] of one head; real: bool [K], the tokens so far."""
    columns = np.flatnonzero(real)
    length, found = len(columns), {}
    for place, column in enumerate(columns):
        far = distant_queries(length, place)
        if far:
            given = float(received_far[column]) * sum(1 / (i + 1) for i in far) / len(far)
            nearby = sum(1 / (i - place + 1) for i in far) / len(far)
            found[int(column)] = 64 * (given - nearby - 1 / (2 * length))
    return found


def sinks_of_far(received_far: np.ndarray, real: np.ndarray, epsilon: float = 3.0) -> np.ndarray:
    """Bool like received_far [..., K]: the sinks of every head in it."""
    found = np.zeros(received_far.shape, dtype=bool)
    for at in np.ndindex(*received_far.shape[:-1]):
        margins = margins_of_far(received_far[at], real)
        assert all(abs(margin - epsilon) > 1e-4 for margin in margins.values()), "a key lies on the threshold"
        found[at][[j for j, margin in margins.items() if margin > epsilon]] = True
    return found
