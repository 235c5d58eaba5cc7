"""Do sinks move: residences, kinds of heads, paths, moves, drift, moves at decoding events, overlaps, as labelled tables and
arrays.

Definitions are in docs/analysis.md; the array layer is in residence.py, kinds.py, drift.py, events.py.
Every function takes a trace (or its dataset), ε, the rule and the scores, as `detect` does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks.dataset import Array, dataset_of, decoding_options, frame, labelled, labels, sample_state
from sinkscope.sinks.drift import CENTROID_SIGMA, centroid_variance, drift_of, drift_table, layer_overlap_of
from sinkscope.sinks.events import align, alignment_table
from sinkscope.sinks.kinds import CHALLENGE, KINDS, STATIC_SHARE, moves_of
from sinkscope.sinks.residence import DIP, FATES
from sinkscope.sinks.scan import Scan, scans
from sinkscope.sinks.strength import step_position_map


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
        parts.append(
            pd.DataFrame(
                {
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
            )
        )
    units = {"length": "recorded steps", "strength": scan.judge.unit, "position": "tokens"}
    return frame(pd.concat(parts, ignore_index=True), units=units, dip=DIP, **scan.judge.attrs(epsilon))


def dynamics_kinds(trace: Any, epsilon: float = EPSILON, rule: str = "auto", *, scores: str = "auto") -> xr.DataArray:
    """The kind of each head, str [sample, layer, head]: static, moving, flickering, vanishing, emerging, intermittent, none."""
    found = list(scans(trace, epsilon, rule, scores=scores))
    values = np.stack([np.asarray(KINDS)[scan.kinds] for scan in found])
    return labelled(values, "kind", _coords(found, "layer", "head"), static_share=STATIC_SHARE, units="1")


def paths(trace: Any, epsilon: float = EPSILON, rule: str = "auto", *, scores: str = "auto") -> xr.Dataset:
    """Where the strongest sink of each head is in each step (figure 7).

    Variables: `key` int [sample, step, layer, head] (column of the trace, −1 = no sink), `position` int likewise (from the first
    real token, −1 = no sink). The path moves only when a challenger is at least 1.2× stronger.
    """
    found = list(scans(trace, epsilon, rule, scores=scores))
    keys = np.stack([scan.path for scan in found])
    position = np.stack([np.where(s.path >= 0, s.state.position[s.path], -1) for s in found])
    coords = _coords(found, "step", "layer", "head")
    return xr.Dataset(
        {"key": (tuple(coords), keys), "position": (tuple(coords), position, {"units": "tokens"})},
        coords=coords,
        attrs={"challenge": CHALLENGE, **found[0].judge.attrs(epsilon)},
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
        parts.append(
            pd.DataFrame(
                {
                    "sample": np.full(len(step), scan.sample),
                    "layer": scan.layers[layer],
                    "head": scan.heads[head],
                    "step": scan.state.steps[step],
                    "from_position": before,
                    "to_position": after,
                    "distance": after - before,
                }
            )
        )
    units = {"distance": "tokens, right is positive"}
    return frame(pd.concat(parts, ignore_index=True), units=units, challenge=CHALLENGE)


def drift(trace: Any, epsilon: float = EPSILON, rule: str = "auto", *, scores: str = "auto") -> pd.DataFrame:
    """Drift of the strongest sinks against position and against decoding order, with intervals over prompts.

    Two rows ("position", "decoding order"): drift (share of the length, or of the decoding order, over the whole generation),
    low, high, direction, ties (share of tied selections), decoding (direction of decoding itself: 1 = left to right). No
    direction is given above 20 % ties. Limits: a slope cannot see a sink that goes out and comes back; with one prompt there
    is no interval, and the direction rests on the size alone.
    """
    values, prompts = [], []
    for scan in scans(trace, epsilon, rule, scores=scores):
        values.append(drift_of(scan.state, scan.path))
        prompts.append(scan.state.prompt_digest)
    return drift_table(np.array(values, dtype=np.float64), np.array(prompts))


def event_alignment(
    trace: Any, epsilon: float = EPSILON, rule: str = "auto", *, scores: str = "auto", seed: int = 0
) -> pd.DataFrame:
    """How many moves of the strongest sinks fall together with decoding events, against permuted event times.

    One row per event ("left", "reached", "block"): moves, aligned, share, expected (mean share under permutation), lift
    (share / expected), p (one-sided: (1 + draws at least as aligned) / (1 + draws)), prompts. NaN where the run has no such
    event (no blocks, say). Limits: with one decision in almost every step, "some token decided" is always true, which is why
    only the sink's own token counts; p cannot go below 1/201.
    """
    block = decoding_options(dataset_of(trace)).get("block")
    found = [align(scan.state, scan.path, block, seed=seed) for scan in scans(trace, epsilon, rule, scores=scores)]
    return alignment_table(*(np.stack([np.asarray(a[i]) for a in found]) for i in range(4)))


def step_overlap(trace: Any, epsilon: float = EPSILON, rule: str = "auto", *, scores: str = "auto") -> xr.DataArray:
    """Overlap of each head's sink set with its own of the previous step, [sample, step, layer, head], in [0, 1].

    NaN in the first step and where both sets are empty. 1 = nothing changed; a moving sink reads 0 in the step it moves.
    """
    found = list(scans(trace, epsilon, rule, scores=scores))
    values = np.stack([scan.shared for scan in found])
    return labelled(values, "overlap", _coords(found, "step", "layer", "head"), units="Jaccard index")


def layer_overlap(trace: Any, epsilon: float = EPSILON, rule: str = "auto", *, scores: str = "auto") -> xr.DataArray:
    """Overlap of the sink positions of two layers (all heads together) in the same step, [sample, layer, other_layer].

    Mean over steps of the Jaccard index, in [0, 1]; NaN where both are always empty. Focus-dLLM (arXiv 2602.02159) relies on it
    being high across layers.
    """
    found = list(scans(trace, epsilon, rule, scores=scores))
    values = np.stack([layer_overlap_of(scan.counts > 0) for scan in found])
    coords = _coords(found, "layer") | {"other_layer": found[0].layers}
    return labelled(values, "overlap", coords, units="Jaccard index, mean over steps")


def variances(trace: Any, *, scores: str = "auto", sigma: float = CENTROID_SIGMA) -> xr.Dataset:
    """`centroid_variance` of each sample, from the mean over layers and heads: spatial, temporal, temporal_relative."""
    data = dataset_of(trace)
    pooled = step_position_map(trace, scores=scores).values
    found = [centroid_variance(pooled[i], sample_state(data, i).position, sigma) for i in range(len(pooled))]
    units = ("(received attention)²", "positions²", "(share of length)²")
    return xr.Dataset(
        {
            name: ("sample", [v[i] for v in found], {"units": unit})
            for i, (name, unit) in enumerate(zip(found[0]._fields, units, strict=True))
        },
        coords={"sample": labels(data, "sample")},
        attrs={"sigma": sigma},
    )


def _coords(found: list[Scan], *dims: str) -> dict[str, Any]:
    """Coordinates of an array [sample, dims…] made from scans."""
    first = found[0]
    known = {"step": first.state.steps, "layer": first.layers, "head": first.heads}
    return {"sample": [scan.sample for scan in found], **{dim: known[dim] for dim in dims}}
