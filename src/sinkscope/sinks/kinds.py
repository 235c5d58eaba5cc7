"""The path of a head's strongest sink (figure 7), and what it does over a generation in one word, on arrays.

Two keys of about equal strength would swap places in every step for no reason. So the path moves only when a challenger is at
least 1.2 times as strong as the key that holds it now. docs/analysis.md defines the kinds of heads and says where they fail.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from sinkscope.sinks.dataset import Array
from sinkscope.sinks.residence import DIP, bridged, runs_of

CHALLENGE = 1.2
"""How much stronger than the holder a challenger must be to take the path over."""


KINDS = (
    "none", "static", "moving", "flickering", "vanishing", "emerging", "too short", "intermittent",
)  # fmt: skip
MOVERS = "moving", "vanishing", "emerging"
"""Kinds that say that a sink does not stay; noise that lasts has them too (`surrogates`)."""

FEWEST_STEPS = 3
"""With fewer steps nothing can be said."""

STATIC_SHARE = 0.9
"""A key is fixed when it is a sink in this share of the steps, and a head static when fixed keys hold its path that long."""

LEAST_STAY = 3
"""A stay is sustained when its key holds the path in at least this many steps; independent noise hardly ever does."""

MAJORITY = 0.5
"""Sustained stays must hold this share of the steps with a sink, and move in this share of the later ones."""

LEAST_TREND = 2 / 3
"""Kendall's τ of a direction; a random one of the remaining masks has about ½."""

TREND_Z = 2.807
"""And its z beyond what exchangeable noise does in 1 of 200 draws."""


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


def moves_of(path: Array) -> tuple[Array, Array, Array]:
    """The moves of path int [T, L, H] as indices (step, layer, head): between that step and the next the key changed.

    A step without a sink breaks the path; the step after it is compared with nothing.
    """
    changed = (path[:-1] != path[1:]) & (path[:-1] >= 0) & (path[1:] >= 0)
    step, layer, head = np.nonzero(changed)
    return step, layer, head


def kinds_of(path: Array, sinks: Array, observed: Array, position: Array, order: Array) -> Array:
    """int8 [H], index into KINDS, of the heads of one layer.

    path int [T, H]: the key of the strongest sink, −1 without; sinks bool [T, H, K]; observed bool [T, H]: steps that could be
    scored; position int [K]; order float [K]: when each key was decided, NaN if never.
    """
    found = [KINDS.index(kind_of(path[use, h], sinks[use, h], position, order)) for h, use in enumerate(observed.T)]
    return np.array(found, dtype=np.int8)


def kind_of(path: Array, sinks: Array, position: Array, order: Array) -> str:
    """The kind of one head over its scored steps: path int [T], sinks bool [T, K]."""
    held = path >= 0
    if len(path) < FEWEST_STEPS:
        return "too short"
    if not held.any():
        return "none"
    keys, counts = np.unique(path[held], return_counts=True)
    keys = keys[counts >= LEAST_STAY]
    fixed = keys[bridged(sinks[:, keys]).mean(axis=0) >= STATIC_SHARE]
    if bridged(np.isin(path, fixed)).mean() >= STATIC_SHARE:
        return "static"
    stays = _stays(path, keys)
    sustained = sum(int(np.count_nonzero(path[a : b + 1] == key)) for a, b, key in stays)
    lasting = sustained >= MAJORITY * np.count_nonzero(held)
    if (lasting and _displaced(path, sinks, stays)) or _directed(path[held], position, order):
        return "moving"
    if not lasting:
        return "flickering"
    if len(fixed):
        return "static"
    if not held[-DIP - 1 :].any():
        return "vanishing"
    return "emerging" if not held[: DIP + 1].any() else "intermittent"


def _stays(path: Array, keys: Array) -> list[tuple[int, int, int]]:
    """Sustained stays (start, stop, key) in the order of their start."""
    column, start, stop = runs_of(bridged(path[:, None] == keys))
    stays = [(int(a), int(b), int(keys[c])) for c, a, b in zip(column, start, stop, strict=True)]
    return sorted(stay for stay in stays if (path[stay[0] : stay[1] + 1] == stay[2]).sum() >= LEAST_STAY)


def _displaced(path: Array, sinks: Array, stays: list[tuple[int, int, int]]) -> bool:
    """Whether the key of the stay before is mostly no sink any more while the later ones hold the path."""
    later = gone = 0
    for (_, _, before), (start, stop, key) in pairwise(stays):
        steps = start + np.flatnonzero(path[start : stop + 1] == key)
        later += len(steps)
        gone += int(np.count_nonzero(~sinks[steps, before]))
    return later > 0 and gone >= MAJORITY * later


def _directed(keys: Array, position: Array, order: Array) -> bool:
    """Whether the path goes one way, along positions or along the order of decoding. keys int [n]: its keys, in time."""
    ranked = order[keys]
    known = np.isfinite(ranked)
    ways = [position[keys].astype(np.float64)]
    if known.sum() >= MAJORITY * len(keys):
        ways.append(ranked[known])
    return any(_trend(values) for values in ways)


def _trend(values: Array) -> bool:
    """Mann and Kendall's test for a trend, with a least τ. Ties count for neither side, which is careful."""
    n = len(values)
    if n < 2 or np.ptp(values) == 0:
        return False
    signs = np.sign(values[None, :] - values[:, None])
    score = abs(float(np.triu(signs, 1).sum()))
    tau, z = score / (n * (n - 1) / 2), score / np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return bool(tau >= LEAST_TREND and z >= TREND_Z)
