"""Where do moving sinks drift: to the right or left, and along the order of decoding or against it?

A sink that follows the decoding frontier drifts to the right only because the model decodes from left to
right. So the drift is measured twice: against position, and against the order in which positions were
decided. Where many selections were ties, that order is an accident of `topk`, and no direction is given.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sinkscope.sink_rule import EPSILON
from sinkscope.sinks.dataset import ANSWER, Array, Run
from sinkscope.sinks.intervals import Interval, ratio_interval

MOST_TIES = 0.2
"""Above this share of tied selections no direction is given."""

LEAST_DRIFT = 0.1
"""A direction needs a drift of at least this share of the length over the whole generation."""


class Drift(NamedTuple):
    """Sums over heads, so that samples can be pooled: position and order drift × weight, their weights
    (path steps), tied and all selections, and the direction of decoding itself (rank correlation of
    position and time, in [−1, 1])."""

    position: float
    position_weight: float
    order: float
    order_weight: float
    ties: int
    selections: int
    decoding: float


def slopes(values: Array, time: Array, use: Array) -> tuple[Array, Array]:
    """Least-squares slope of values against time for every column, and its points. values, use [T, …], time
    [T]."""
    shape = (len(time),) + (1,) * (values.ndim - 1)
    n = use.sum(axis=0)
    t = np.broadcast_to(time.reshape(shape), values.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        t_mean = np.where(use, t, 0.0).sum(axis=0) / n
        v_mean = np.where(use, values, 0.0).sum(axis=0) / n
        dt = np.where(use, t - t_mean, 0.0)
        slope = (dt * np.where(use, values - v_mean, 0.0)).sum(axis=0) / (dt**2).sum(axis=0)
    return slope, n


def decoding_rank(run: Run) -> Array:
    """When each answer key was decided, as a share in [0, 1] of all decisions (ties share their mean); NaN
    if never."""
    decisions = run.decisions()
    when = np.where(decisions.any(axis=0), decisions.argmax(axis=0).astype(np.float64), np.nan)
    when[run.region != ANSWER] = np.nan
    return rank(when)


def rank(values: Array) -> Array:
    """Ranks scaled to [0, 1], equal values share their mean rank, NaN stays."""
    known = np.isfinite(values)
    out = np.full(values.shape, np.nan)
    n = int(known.sum())
    if n >= 2:
        _, index, count = np.unique(values[known], return_inverse=True, return_counts=True)
        last = np.cumsum(count)
        out[known] = ((last - count + last - 1) / 2 / (n - 1))[index]
    return out


def drift_of(run: Run, path: Array) -> Drift:
    """Drift of the strongest sinks of one sample. path int [T, L, H], −1 = no sink.

    Position drift of a head: slope of (position / length) against (step / steps), so 1 = from the first to
    the last token over the whole generation. Order drift: slope of the decoding rank of the key that holds
    the sink, over the steps where that is an answer token; a sink that sits on what is being decided just
    now has 1. Heads weigh by their path's steps.
    """
    T = len(path)
    time = np.linspace(0.0, 1.0, T)
    use = path >= 0
    place = np.where(use, run.position[path] / max(1, run.length), 0.0)
    order_of = decoding_rank(run)
    ranked = np.where(use, order_of[path], np.nan)
    known = np.isfinite(ranked)
    sums = []
    for values, chosen in ((place, use), (np.nan_to_num(ranked), known)):
        slope, n = slopes(values, time, chosen)
        fine = (n >= 3) & np.isfinite(slope)
        sums += [float((slope[fine] * n[fine]).sum()), float(n[fine].sum())]
    decided = np.isfinite(order_of)
    order = float("nan")
    if decided.sum() >= 3 and np.ptp(order_of[decided]) > 0:
        where = rank(np.where(decided, run.position.astype(np.float64), np.nan))
        order = float(np.corrcoef(where[decided], order_of[decided])[0, 1])
    selections = int(run.decided.sum())
    return Drift(sums[0], sums[1], sums[2], sums[3], int(run.ties.sum()), selections, order)


def verdict(drift: Interval, ties: float, words: tuple[str, str]) -> str:
    """The direction in words: words[0] for positive drift, words[1] for negative, or why there is none."""
    if np.isfinite(ties) and ties > MOST_TIES:
        return f"no verdict: {ties:.0%} of the selections were ties"
    if not np.isfinite(drift.value):
        return "not enough evidence"
    clear = not np.isfinite(drift.low) or drift.low > 0 or drift.high < 0
    if abs(drift.value) < LEAST_DRIFT or not clear:
        return "no direction"
    return words[0] if drift.value > 0 else words[1]


def drift(trace: Any, epsilon: float = EPSILON, rule: str = "sum", *, scores: str = "auto") -> pd.DataFrame:
    """Drift of the strongest sinks against position and against decoding order, with intervals over prompts.

    Two rows ("position", "decoding order"): drift (share of the length, or of the decoding order, over the
    whole generation), low, high, direction, ties (share of tied selections), decoding (direction of
    decoding itself: 1 = left to right). No direction is given above 20 % ties. Limits: a slope cannot see a
    sink that goes out and comes back; with one prompt there is no interval, and the direction rests on the
    size alone.
    """
    from sinkscope.sinks.scan import scans
    from sinkscope.sinks.sink_statistics import prompt_digest

    found, prompts = [], []
    for scan in scans(trace, epsilon, rule, scores=scores):
        found.append(drift_of(scan.run, scan.path))
        prompts.append(prompt_digest(scan.run))
    return drift_table(np.array(found, dtype=np.float64), np.array(prompts))


def drift_table(values: Array, prompts: Array) -> pd.DataFrame:
    """The table of `drift` from the fields of `Drift`, float [N, 7], and the prompt of each sample."""
    selections = values[:, 5].sum()
    ties = float(values[:, 4].sum() / selections) if selections > 0 else float("nan")
    order = values[:, 6]
    decoding = float(np.mean(order[np.isfinite(order)])) if np.isfinite(order).any() else float("nan")
    rows = []
    for name, column, words in (
        ("position", 0, ("right", "left")),
        ("decoding order", 2, ("along decoding", "against decoding")),
    ):
        found = ratio_interval(values[:, column], values[:, column + 1], prompts)
        rows.append(
            {
                "relative_to": name,
                "drift": found.value,
                "low": found.low,
                "high": found.high,
                "direction": verdict(found, ties, words),
                "ties": ties,
                "decoding": decoding,
            }
        )
    table = pd.DataFrame(rows)
    table.attrs = {"units": {"drift": "share of the length per generation"}, "most_ties": MOST_TIES}
    return table
