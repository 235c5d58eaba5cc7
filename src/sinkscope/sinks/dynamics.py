"""Do sinks move: residences, paths and moves, as labelled tables and arrays.

Definitions are in docs/analysis.md; the array layer is in residence.py, kinds.py, drift.py, events.py, and its numbers over all
samples are in `summary`.
Every function takes a trace (or its dataset), ε, the rule and the scores, as `detect` does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks.dataset import Array, frame
from sinkscope.sinks.kinds import CHALLENGE, moves_of
from sinkscope.sinks.residence import DIP, FATES
from sinkscope.sinks.scan import scans


def residences(trace: Any, epsilon: float = EPSILON, rule: str = "auto", *, scores: str = "auto") -> pd.DataFrame:
    """One row per residence: how long one (layer, head, position) stayed a sink, dips of at most 2 steps included.

    Columns: sample, layer, head, key, position, region, start, stop (labels of the steps, both inside), length (recorded
    steps), dips (steps inside in which it was not a sink), left_censored, right_censored, fate, strength (mean received
    attention while it was a sink, unit in `attrs`), kind (drain, hub, both or unknown). Limits: where only every n-th step was
    captured, a shorter visit in between is not seen.
    """
    parts = []
    for scan in scans(trace, epsilon, rule, scores=scores, keep_residences=True):
        rows, state = scan.residences, scan.state
        kind: Array = np.full(len(rows.key), "unknown", dtype=object)
        if scan.drains is not None:
            # Norms are asked of the steps in which the key is a sink, and it is none during a dip.
            present = rows.length - rows.dips
            kind = np.where(rows.drains == 0, "hub", np.where(rows.drains == present, "drain", "both"))
        columns = {
            "sample": np.full(len(rows.key), scan.sample),
            "layer": scan.layers[rows.layer],
            "head": scan.heads[rows.head],
            "key": rows.key,
            "position": state.position[rows.key],
            "region": state.region[rows.key],
            "start": state.steps[rows.start],
            "stop": state.steps[rows.stop],
            "length": rows.length,
            "dips": rows.dips,
            "left_censored": rows.left.astype(bool),
            "right_censored": rows.right.astype(bool),
            "fate": np.asarray(FATES, dtype=object)[rows.fate],
            "strength": rows.strength,
            "kind": kind,
        }
        parts.append(pd.DataFrame(columns))
    units = {"length": "recorded steps", "strength": scan.judge.unit, "position": "tokens"}
    return frame(pd.concat(parts, ignore_index=True), units=units, dip=DIP, **scan.judge.attrs(epsilon))


def paths(trace: Any, epsilon: float = EPSILON, rule: str = "auto", *, scores: str = "auto") -> xr.Dataset:
    """Where the strongest sink of each head is in each step (figure 7).

    Variables: `key` int [sample, step, layer, head] (column of the trace, −1 = no sink), `position` int likewise (from the first
    real token, −1 = no sink). The path moves only when a challenger is at least 1.2× stronger.
    """
    found = list(scans(trace, epsilon, rule, scores=scores))
    keys = np.stack([scan.path for scan in found])
    position = np.stack([np.where(s.path >= 0, s.state.position[s.path], -1) for s in found])
    first = found[0]
    coords: dict[str, Any] = {"sample": [scan.sample for scan in found], "step": first.state.steps}
    coords |= {"layer": first.layers, "head": first.heads}
    return xr.Dataset(
        {"key": (tuple(coords), keys), "position": (tuple(coords), position, {"units": "tokens"})},
        coords=coords,
        attrs={"challenge": CHALLENGE, **first.judge.attrs(epsilon)},
    )


def moves(trace: Any, epsilon: float = EPSILON, rule: str = "auto", *, scores: str = "auto") -> pd.DataFrame:
    """One row per move of a head's strongest sink.

    Columns: sample, layer, head, step (label of the step before the move), from_position, to_position, distance (tokens, right is
    positive).
    """
    parts = []
    for scan in scans(trace, epsilon, rule, scores=scores):
        step, layer, head = moves_of(scan.path)
        before = scan.state.position[scan.path[step, layer, head]]
        after = scan.state.position[scan.path[step + 1, layer, head]]
        columns = {
            "sample": np.full(len(step), scan.sample),
            "layer": scan.layers[layer],
            "head": scan.heads[head],
            "step": scan.state.steps[step],
            "from_position": before,
            "to_position": after,
            "distance": after - before,
        }
        parts.append(pd.DataFrame(columns))
    units = {"distance": "tokens, right is positive"}
    return frame(pd.concat(parts, ignore_index=True), units=units, challenge=CHALLENGE)
