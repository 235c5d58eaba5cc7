"""The path of the strongest sink of a head, and its moves (figure 7).

Two keys of about equal strength would swap places in every step for no reason. So the path moves only when
a challenger is at least 1.2 times as strong as the key that holds the path now. Array layer: `Path`,
`path_of`. Labelled: `paths`, `moves`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.sink_rule import EPSILON
from sinkscope.sinks.dataset import Array

CHALLENGE = 1.2
"""How much stronger than the holder a challenger must be to take the path over."""


class Path:
    """The strongest sink of every head, fed one step at a time.

    The holder keeps the path through a step in which it is not a sink itself, as long as no sink is 1.2
    times its score. A step in which the head has no sink at all reads −1, and the holder is remembered.
    """

    def __init__(self, layers: int, heads: int, challenge: float = CHALLENGE) -> None:
        self.challenge = challenge
        self._holder = np.full((layers, heads), -1, dtype=np.int32)

    def update(self, received: Array, strongest: Array, any_sink: Array) -> Array:
        """received float [L, H, K] with no NaN, strongest int [L, H] (arg max), any_sink bool [L, H] → key
        or −1."""
        top = np.take_along_axis(received, strongest[..., None], axis=-1)[..., 0]
        held = np.take_along_axis(received, np.maximum(self._holder, 0)[..., None], axis=-1)[..., 0]
        held = np.where(self._holder < 0, 0.0, held)
        move = any_sink & (strongest != self._holder) & (top >= self.challenge * held)
        self._holder = np.where(move, strongest, self._holder).astype(np.int32)
        return np.where(any_sink, self._holder, -1).astype(np.int32)


def path_of(received: Array, sinks: Array, challenge: float = CHALLENGE) -> Array:
    """int [T, L, H]: the key of the strongest sink, −1 where the head has none. received float, sinks bool
    [T, L, H, K]."""
    filled = np.nan_to_num(np.asarray(received, dtype=np.float64), nan=0.0)
    path = Path(filled.shape[1], filled.shape[2], challenge)
    return np.stack(
        [path.update(filled[t], filled[t].argmax(axis=-1), sinks[t].any(axis=-1)) for t in range(len(filled))]
    )


def moves_of(path: Array) -> tuple[Array, Array, Array]:
    """The moves of path int [T, L, H] as indices (step, layer, head): between that step and the next the
    key changed.

    A step without a sink breaks the path; what comes after it is compared with nothing.
    """
    changed = (path[:-1] != path[1:]) & (path[:-1] >= 0) & (path[1:] >= 0)
    step, layer, head = np.nonzero(changed)
    return step, layer, head


def paths(trace: Any, epsilon: float = EPSILON, rule: str = "sum", *, scores: str = "auto") -> xr.Dataset:
    """Where the strongest sink of each head is in each step (figure 7).

    Variables: `key` int [sample, step, layer, head] (column of the trace, −1 = no sink), `position` int
    likewise (from the first real token, −1 = no sink). The path moves only when a challenger is at least
    1.2× stronger.
    """
    from sinkscope.sinks.scan import scans

    keys, positions, names, last = [], [], [], None
    for scan in scans(trace, epsilon, rule, scores=scores):
        keys.append(scan.path)
        positions.append(np.where(scan.path >= 0, scan.run.position[scan.path], -1))
        names.append(scan.sample)
        last = scan
    if last is None:
        return xr.Dataset()
    dims = ("sample", "step", "layer", "head")
    return xr.Dataset(
        {"key": (dims, np.stack(keys)), "position": (dims, np.stack(positions), {"units": "tokens"})},
        coords={"sample": names, "step": last.run.steps, "layer": last.layers, "head": last.heads},
        attrs={"challenge": CHALLENGE, "epsilon": epsilon, "rule": rule},
    )


def moves(trace: Any, epsilon: float = EPSILON, rule: str = "sum", *, scores: str = "auto") -> pd.DataFrame:
    """One row per move of a head's strongest sink: sample, layer, head, step (label of the step before the
    move), from_position, to_position, distance (tokens, right is positive)."""
    from sinkscope.sinks.scan import scans

    parts = []
    for scan in scans(trace, epsilon, rule, scores=scores):
        step, layer, head = moves_of(scan.path)
        before = scan.run.position[scan.path[step, layer, head]]
        after = scan.run.position[scan.path[step + 1, layer, head]]
        parts.append(
            pd.DataFrame(
                {
                    "sample": np.full(len(step), scan.sample),
                    "layer": scan.layers[layer],
                    "head": scan.heads[head],
                    "step": scan.run.steps[step],
                    "from_position": before,
                    "to_position": after,
                    "distance": after - before,
                }
            )
        )
    table = pd.concat(parts, ignore_index=True)
    table.attrs = {"units": {"distance": "tokens, right is positive"}, "challenge": CHALLENGE}
    return table
