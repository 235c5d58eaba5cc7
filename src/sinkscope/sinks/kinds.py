"""What a head's strongest sink does over a generation, in one word. docs/analysis.md has the definitions and where they fail."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from sinkscope.sinks.dataset import Array
from sinkscope.sinks.residence import DIP, bridged, runs_of

KINDS = (
    "none", "static", "moving", "flickering", "vanishing", "emerging", "too short", "intermittent",
)  # fmt: skip

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


def kinds_of(path: Array, sinks: Array, observed: Array, position: Array, order: Array) -> Array:
    """int8 [H], index into KINDS, of the heads of one layer.

    path int [T, H]: the key of the strongest sink, −1 without; sinks bool [T, H, K]; observed bool [T, H]: steps that could be
    scored; position int [K]; order float [K]: when each key was decided, NaN if never.
    """
    found = [
        KINDS.index(kind_of(path[use, h], sinks[use, h], position, order)) for h, use in enumerate(observed.T)
    ]
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
