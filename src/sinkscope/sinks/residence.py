"""How long sinks stay: residences, their lifetimes, and what kind of head they make.

A *residence* is a maximal run of steps in which one (layer, head, position) is a sink. A run that touches
the first or the last recorded step, or that begins or ends because the key could not be scored, is
*censored*: it may have been longer.

Array layer: `Runs` (fed step by step, memory of one step), `residences_of`, `classify`. Labelled layer:
`residences`, `dynamics_kinds`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.sink_rule import EPSILON
from sinkscope.sinks.dataset import Array

STATIC_SHARE = 0.9
"""A head is static when one residence covers at least this share of its steps."""

FLICKER_SHARE = 0.5
"""A head flickers when its strongest sink is one that lives for a single step in more than this share of
steps."""

DIRECTED_SHARE = 0.5
"""Unless it moves in one direction: net steps to one side ≥ this share of all moves, and ≥ 2 √moves."""

FEWEST_STEPS = 3
"""With fewer steps nothing can be said about movement."""

KINDS = ("none", "static", "moving", "flickering", "vanishing", "emerging", "too short")
FATES = ("open", "moved on", "vanished", "unscored")


class Residences(NamedTuple):
    """Columns of equal length, one entry per residence. start and stop are step indices, both inside the run.

    fate indexes FATES: open (still a sink in the last step), moved on (the head has another sink in the
    next step), vanished (it has none), unscored (the key lost its score). left, right: censored there.
    strength: mean received attention over the run. drains: in how many of its steps it was a drain.
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
    drains: Array

    @property
    def length(self) -> Array:
        """Recorded steps."""
        return np.asarray(self.stop - self.start + 1)


class Runs:
    """Residences of one sample, fed one step at a time; holds a few arrays of one step's size.

    `longest` int [L, H]: the longest residence; `lifetimes`: arrays int [n, 2] of length and censored;
    `shared` [L, H] of the last update: Jaccard overlap with the sinks of the step before, NaN when both are
    empty.
    """

    def __init__(
        self, layers: int, heads: int, keys: int, *, keep: bool = True, first_layer: int = 0
    ) -> None:
        self.shape = (layers, heads, keys)
        self.keep = keep
        self.first_layer = first_layer
        self.longest = np.zeros((layers, heads), dtype=np.int64)
        self.lifetimes: list[Array] = []
        self.flickered = np.zeros((0, 3), dtype=np.int64)
        self._rows: list[Residences] = []
        self._step = 0
        self._sinks = np.zeros(self.shape, dtype=bool)
        self._real = np.zeros(self.shape, dtype=bool)
        size = layers * heads * keys
        self._start = np.zeros(size, dtype=np.int32)
        self._left = np.zeros(size, dtype=bool)
        self._mass = np.zeros(size, dtype=np.float32) if keep else np.zeros(0, dtype=np.float32)
        self._drains = np.zeros(size, dtype=np.int32) if keep else np.zeros(0, dtype=np.int32)

    def update(
        self, sinks: Array, real: Array, received: Array | None = None, drains: Array | None = None
    ) -> Array:
        """One step: sinks, real bool [L, H, K]; received float and drains bool likewise, or None. Returns
        `shared`."""
        both = np.count_nonzero(sinks & self._sinks, axis=-1)
        union = np.count_nonzero(sinks | self._sinks, axis=-1)
        with np.errstate(invalid="ignore", divide="ignore"):
            shared = np.where(union > 0, both / union, np.nan) if self._step else np.full(union.shape, np.nan)
        ended = np.flatnonzero(self._sinks & ~sinks)
        self.flickered = np.zeros((0, 3), dtype=np.int64)
        if len(ended):
            gone = ~real.reshape(-1)[ended]
            followed = sinks.any(axis=-1).reshape(-1)[ended // self.shape[2]]
            fate = np.where(gone, 3, np.where(followed, 1, 2))
            self._emit(ended, self._step - 1, right=gone, fate=fate)
        begun = np.flatnonzero(sinks & ~self._sinks)
        self._start[begun] = self._step
        self._left[begun] = True if self._step == 0 else ~self._real.reshape(-1)[begun]
        if self.keep:
            self._mass[begun] = 0.0
            self._drains[begun] = 0
            active = np.flatnonzero(sinks)
            if received is not None:
                self._mass[active] += received.reshape(-1)[active]
            if drains is not None:
                self._drains[active] += drains.reshape(-1)[active]
        self._sinks, self._real = sinks, real
        self._step += 1
        return np.asarray(shared)

    def finish(self) -> Residences:
        """Close the runs that are still open, and return all of them (empty columns when `keep` is off)."""
        still = np.flatnonzero(self._sinks)
        if len(still):
            right = np.ones(len(still), dtype=bool)
            self._emit(still, self._step - 1, right=right, fate=np.zeros(len(still), dtype=np.int64))
        self._sinks = np.zeros(self.shape, dtype=bool)
        if not self._rows:
            empty = np.zeros(0, dtype=np.int64)
            return Residences(*(empty for _ in Residences._fields))
        return Residences(*(np.concatenate(column) for column in zip(*self._rows, strict=True)))

    def _emit(self, flat: Array, stop: int, *, right: Array, fate: Array) -> None:
        row, key = np.divmod(flat, self.shape[2])
        layer, head = np.divmod(row, self.shape[1])
        start, left = self._start[flat], self._left[flat].copy()
        length = stop - start + 1
        np.maximum.at(self.longest, (layer, head), length)
        single = (length == 1) & ~left & ~right
        self.flickered = np.stack([layer[single], head[single], key[single]], axis=1)
        self.lifetimes.append(np.stack([length, left | right], axis=1).astype(np.int32))
        if self.keep:
            self._rows.append(
                Residences(
                    layer=(layer + self.first_layer).astype(np.int32),
                    head=head.astype(np.int32),
                    key=key.astype(np.int32),
                    start=start.copy(),
                    stop=np.full(len(flat), stop, dtype=np.int32),
                    left=left,
                    right=right.copy(),
                    fate=fate.astype(np.int8),
                    strength=self._mass[flat] / length,
                    drains=self._drains[flat].copy(),
                )
            )


def residences_of(sinks: Array, real: Array | None = None, received: Array | None = None) -> Residences:
    """All residences of sinks bool [T, L, H, K]; real bool likewise (default: every key can be scored)."""
    sinks = np.asarray(sinks, dtype=bool)
    runs = Runs(*sinks.shape[1:])
    for t in range(len(sinks)):
        here = np.ones(sinks.shape[1:], dtype=bool) if real is None else real[t]
        runs.update(sinks[t], here, None if received is None else received[t])
    return runs.finish()


def classify(
    longest: Array, observed: Array, held: Array, flickers: Array, moves: Array, net: Array, at_end: Array
) -> Array:
    """The kind of each head, int index into KINDS, from integer arrays of one shape.

    In this order: too short (under 3 steps), none (no sink in any step), static (one residence ≥ 90 % of the
    steps), flickering (in more than half of the steps with a sink the strongest lives for that step only,
    and its moves have no direction: noise looks like this), moving (the path of the strongest sink moves),
    vanishing (no sink in the last step), emerging (it came after the start, stayed, and did not move).

    longest: the longest residence; observed: steps that could be scored; held: steps with a sink; flickers:
    of these, on a residence of one step; moves: of the path; net: moves to the right less moves to the
    left; at_end: a sink in the last step.
    """
    directed = (moves > 0) & (np.abs(net) >= np.maximum(DIRECTED_SHARE * moves, 2 * np.sqrt(moves)))
    kind = np.full(np.shape(longest), KINDS.index("emerging"), dtype=np.int8)
    kind = np.where(~np.asarray(at_end, dtype=bool), KINDS.index("vanishing"), kind)
    kind = np.where(moves > 0, KINDS.index("moving"), kind)
    kind = np.where((flickers > FLICKER_SHARE * held) & ~directed, KINDS.index("flickering"), kind)
    kind = np.where(longest >= STATIC_SHARE * observed, KINDS.index("static"), kind)
    kind = np.where(held == 0, KINDS.index("none"), kind)
    return np.where(observed < FEWEST_STEPS, KINDS.index("too short"), kind).astype(np.int8)


def residences(
    trace: Any, epsilon: float = EPSILON, rule: str = "sum", *, scores: str = "auto"
) -> pd.DataFrame:
    """One row per residence: how long one (layer, head, position) stayed a sink.

    Columns: sample, layer, head, key, position, region, start, stop (labels of the steps, both inside),
    length (recorded steps), left_censored, right_censored, fate, strength (mean received attention, uniform
    = 1), kind (drain, hub, both or unknown). Limits: where only every n-th step was captured, a shorter
    visit in between is not seen.
    """
    from sinkscope.sinks.scan import scans

    parts = []
    for scan in scans(trace, epsilon, rule, scores=scores, keep_residences=True):
        rows, run = scan.residences, scan.run
        kind = np.full(len(rows.key), "unknown", dtype=object)
        if scan.drains is not None:
            kind = np.where(rows.drains == 0, "hub", np.where(rows.drains == rows.length, "drain", "both"))
        parts.append(
            pd.DataFrame(
                {
                    "sample": np.full(len(rows.key), scan.sample),
                    "layer": scan.layers[rows.layer],
                    "head": scan.heads[rows.head],
                    "key": rows.key,
                    "position": run.position[rows.key],
                    "region": run.region[rows.key],
                    "start": run.steps[rows.start],
                    "stop": run.steps[rows.stop],
                    "length": rows.length,
                    "left_censored": rows.left.astype(bool),
                    "right_censored": rows.right.astype(bool),
                    "fate": np.asarray(FATES, dtype=object)[rows.fate],
                    "strength": rows.strength,
                    "kind": kind,
                }
            )
        )
    table = pd.concat(parts, ignore_index=True)
    table.attrs = {
        "units": {
            "length": "recorded steps",
            "strength": "received attention, uniform = 1",
            "position": "tokens",
        },
        "epsilon": epsilon,
        "rule": rule,
    }
    return table


def dynamics_kinds(
    trace: Any, epsilon: float = EPSILON, rule: str = "sum", *, scores: str = "auto"
) -> xr.DataArray:
    """What each head's sinks do, str [sample, layer, head]: see `classify` for the order of the tests."""
    from sinkscope.sinks.scan import scans

    found = list(scans(trace, epsilon, rule, scores=scores))
    return xr.DataArray(
        np.stack([np.asarray(KINDS)[scan.kinds] for scan in found]),
        dims=("sample", "layer", "head"),
        coords={"sample": [scan.sample for scan in found], "layer": found[0].layers, "head": found[0].heads},
        name="kind",
        attrs={"static_share": STATIC_SHARE, "flicker_share": FLICKER_SHARE, "units": "1"},
    )
