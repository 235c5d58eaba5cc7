"""The path of the strongest sink of a head, and its moves (figure 7), on arrays.

Two keys of about equal strength would swap places in every step for no reason. So the path moves only when a challenger is at
least 1.2 times as strong as the key that holds the path now.
"""

from __future__ import annotations

import numpy as np

from sinkscope.sinks.dataset import Array

CHALLENGE = 1.2
"""How much stronger than the holder a challenger must be to take the path over."""


class PathTracker:
    """The strongest sink of every head, fed one step at a time.

    The holder keeps the path through a step in which it is not a sink itself, as long as no sink is 1.2 times its score. A
    step in which the head has no sink at all reads −1, and the holder is remembered.
    """

    def __init__(self, layers: int, heads: int, challenge: float = CHALLENGE) -> None:
        self.challenge = challenge
        self._holder = np.full((layers, heads), -1, dtype=np.int32)

    def update(self, received: Array, strongest: Array, any_sink: Array) -> Array:
        """The key that holds the path after this step, int [L, H], −1 without a sink.

        received float [L, H, K] with no NaN, strongest int [L, H] (arg max), any_sink bool [L, H].
        """
        top = np.take_along_axis(received, strongest[..., None], axis=-1)[..., 0]
        held = np.take_along_axis(received, np.maximum(self._holder, 0)[..., None], axis=-1)[..., 0]
        held = np.where(self._holder < 0, 0.0, held)
        move = any_sink & (strongest != self._holder) & (top >= self.challenge * held)
        self._holder = np.where(move, strongest, self._holder).astype(np.int32)
        return np.where(any_sink, self._holder, -1).astype(np.int32)


def path_of(received: Array, sinks: Array, challenge: float = CHALLENGE) -> Array:
    """int [T, L, H]: the key of the strongest sink, −1 where the head has none. received float, sinks bool [T, L, H, K]."""
    filled = np.nan_to_num(np.asarray(received, dtype=np.float64), nan=0.0)
    path = PathTracker(filled.shape[1], filled.shape[2], challenge)
    return np.stack(
        [path.update(filled[t], filled[t].argmax(axis=-1), sinks[t].any(axis=-1)) for t in range(len(filled))]
    )


def moves_of(path: Array) -> tuple[Array, Array, Array]:
    """The moves of path int [T, L, H] as indices (step, layer, head): between that step and the next the key changed.

    A step without a sink breaks the path; the step after it is compared with nothing.
    """
    changed = (path[:-1] != path[1:]) & (path[:-1] >= 0) & (path[1:] >= 0)
    step, layer, head = np.nonzero(changed)
    return step, layer, head
