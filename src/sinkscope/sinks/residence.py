"""How long sinks stay: residences, on arrays.

A *residence* is a run of steps in which one (layer, head, key) is a sink. A dip of at most `DIP` steps, in which the key is
scored but is not a sink, does not end it. A run that touches the first or the last recorded step, or that begins or ends
because the key could not be scored, is *censored*: it may have been longer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sinkscope.sinks.dataset import Array

DIP = 2
"""A residence, or a stay of the path, outlives this many steps in a row without the sink."""

FATES = ("open", "moved on", "vanished", "unscored")


class Residences(NamedTuple):
    """Columns of equal length, one entry per residence. start and stop are step indices, both inside the run.

    fate indexes FATES: open (a sink in the last step), moved on (the head has another sink in the next step), vanished (it
    has none), unscored (the key lost its score). left, right: censored there. strength: mean received attention over the
    steps in which it was a sink. dips: steps inside the run in which it was not. drains: steps in which it was a drain.
    """

    layer: Array
    head: Array
    key: Array
    start: Array
    stop: Array
    left: Array
    right: Array
    fate: Array
    strength: Array
    dips: Array
    drains: Array

    @property
    def length(self) -> Array:
        """Recorded steps."""
        return np.asarray(self.stop - self.start + 1)


def bridged(present: Array, scored: Array | None = None, dip: int = DIP) -> Array:
    """bool [T, …]: `present`, with gaps of at most `dip` steps between two present ones filled; scored: gaps must be,
    everywhere."""
    filled = np.array(present, dtype=bool)
    absent = ~present if scored is None else ~present & scored
    for gap in range(1, min(dip, len(present) - 2) + 1):
        inside = present[: -gap - 1] & present[gap + 1 :]
        for i in range(1, gap + 1):
            inside = inside & absent[i : len(present) - gap - 1 + i]
        for i in range(1, gap + 1):
            filled[i : len(present) - gap - 1 + i] |= inside
    return filled


def runs_of(present: Array) -> tuple[Array, Array, Array]:
    """The runs of present bool [T, C] as (column, start, stop), stop inside, ordered by column and start."""
    edges = np.diff(np.pad(present.astype(np.int8), ((1, 1), (0, 0))), axis=0)
    column, start = np.nonzero((edges == 1).T)
    stop = np.nonzero((edges == -1).T)[1] - 1
    return column, start, stop


def residences_of(
    sinks: Array,
    scored: Array | None = None,
    received: Array | None = None,
    drains: Array | None = None,
    layer: int = 0,
) -> Residences:
    """All residences of one layer. sinks bool [T, H, K]; scored bool [T, K] (default: every key can be scored).

    received float [T, H, K] and drains bool [T, H, K] at sinks (anything elsewhere): for strength and drains. layer: its index.
    """
    T, H, K = sinks.shape
    cells = sinks.reshape(T, H * K)
    real = np.ones((T, K), dtype=bool) if scored is None else scored
    # Most keys are never a sink of a head, so only the others are gone through.
    used = np.flatnonzero(cells.any(axis=0))
    here = cells[:, used]
    column, start, stop = runs_of(bridged(here, real[:, used % K]))
    cell = used[column]
    head, key = cell // K, cell % K
    before, after = np.maximum(start - 1, 0), np.minimum(stop + 1, T - 1)
    last = stop == T - 1
    lost = ~last & ~real[after, key]
    followed = np.asarray(sinks.any(axis=2))[after, head]
    # The first that holds: a run cut off by the end, or by a key that can no longer be judged, ended for no reason of its own.
    fate = np.where(last, 0, np.where(lost, 3, np.where(followed, 1, 2)))

    def total(values: Array | None) -> Array:
        """Σ over the sink steps of each run."""
        if values is None:
            return np.zeros(len(column))
        # The sum of a run is the difference of two running sums.
        sums = np.cumsum(np.where(here, values.reshape(T, H * K)[:, used], 0.0), axis=0, dtype=np.float64)
        sums = np.concatenate([np.zeros((1, len(used))), sums])
        return np.asarray(sums[stop + 1, column] - sums[start, column])

    present = total(np.ones(sinks.shape, dtype=np.int8)).astype(np.int64)
    return Residences(
        layer=np.full(len(cell), layer, dtype=np.int32),
        head=head.astype(np.int32),
        key=key.astype(np.int32),
        start=start.astype(np.int32),
        stop=stop.astype(np.int32),
        left=(start == 0) | ~real[before, key],
        right=last | lost,
        fate=fate.astype(np.int8),
        strength=(total(received) / np.maximum(1, present)).astype(np.float32),
        dips=(stop - start + 1 - present).astype(np.int32),
        drains=total(drains).astype(np.int32),
    )
