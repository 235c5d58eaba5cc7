"""Is a masked model wrong, or unsure? Its confidence against the tokens that it has right, step by step.

Right is the token that the run without the policy wrote there in the end. Only steps in which both runs had the same input count,
so that the policy makes the difference and not a text that has gone another way. A model that is unsure where it is wrong loses
as much confidence as it loses right tokens; one that is wrong without knowing it becomes overconfident.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.sinks.dataset import Array, SampleState, decoding_options, frame
from sinkscope.sinks.measures import Measure
from sinkscope.statistics import ratio_interval

BINS = 10
UNITS = {"entropy": "negative entropy in nats", "topk_margin": "margin of probabilities"}
"""Rule of a decoding → unit of its confidence, where that is no probability."""
PROBABILITY = "probability"
RUNS = "without", "masked"
COUNTS = "calibration_positions", "calibration_confidence", "calibration_right"
"""Variables of a comparison, [sample, run, step, bin]."""
THIRDS = 3
"""Parts of a generation between which calibration is compared."""


def confidence_unit(data: xr.Dataset) -> str:
    """What a trace's confidence is."""
    return UNITS.get(str(decoding_options(data).get("algorithm")), PROBABILITY)


def calibrated(
    pair: tuple[xr.Dataset, xr.Dataset], states: tuple[SampleState, SampleState], sample: int, same: Array
) -> Array:
    """Float [3, run, step, bin] of one sample: masked positions, Σ confidence and right tokens by confidence; NaN without these.

    pair, states: the traces without and with the policy; same bool [T]: steps with the same input.
    """
    steps, out = len(same), np.zeros((3, 2, len(same), BINS))
    unknown = any({"confidence", "candidate"} - set(data) or confidence_unit(data) != PROBABILITY for data in pair)
    if unknown:
        return np.full(out.shape, np.nan)
    (sure, best), (masked_sure, masked_best) = (
        [data[name].isel(sample=sample).transpose("step", "key").values[:steps] for name in ("confidence", "candidate")]
        for data in pair
    )  # fmt: skip
    plain, candidate = states[0], pair[0]["candidate"].isel(sample=sample, step=-1).values
    written = np.where(plain.masked[-1], np.where(plain.decided[-1], candidate, -1), plain.tokens[-1])
    both = np.isfinite(sure) & np.isfinite(masked_sure)
    step, key = np.nonzero(same[:, None] & plain.masked[:steps] & both & (written >= 0))
    for run, (each, told) in enumerate(((sure, best), (masked_sure, masked_best))):
        confidence = each[step, key].astype(np.float64)
        tenth = np.minimum((confidence * BINS).astype(int), BINS - 1)
        for kind, amount in enumerate((1.0, confidence, told[step, key] == written[key])):
            np.add.at(out[kind, run], (step, tenth), amount)
    return out


def by_thirds(comparison: xr.Dataset) -> xr.Dataset:
    """The counts of a comparison by thirds of its steps, [sample, run, bin, third]: all that `calibration` reads."""
    steps = comparison.sizes["step"]
    third = np.arange(steps) * THIRDS // steps
    return (comparison[list(COUNTS)] * xr.DataArray(np.eye(THIRDS)[third], dims=("step", "third"))).sum("step")


def calibration(comparison: xr.Dataset) -> pd.DataFrame:
    """Confidence against right tokens, from `compare_traces` (or its counts `by_thirds`).

    For each run a row for each tenth of confidence, one for all, and one for each third of the steps. Columns: run ("without" or
    "masked"), third (1 to 3; NaN: all), low_edge (of the tenth; NaN: all), positions, confidence (mean), right (share, with its
    95 % interval over prompts). Rows without a position are left out.
    """
    summed = comparison if "third" in comparison.dims else by_thirds(comparison)
    counts = np.stack([summed[name].transpose("run", "sample", "third", "bin") for name in COUNTS], axis=1)
    rows = []
    for run, each in zip(RUNS, counts, strict=True):
        tenths = [(np.nan, i / BINS, each[..., i].sum(axis=-1)) for i in range(BINS)]
        course = [(i + 1, np.nan, each[:, :, i].sum(axis=-1)) for i in range(THIRDS)]
        for third, edge, (positions, sure, right) in (*tenths, (np.nan, np.nan, each.sum(axis=(2, 3))), *course):
            if positions.sum():
                share = ratio_interval(right, positions, None, "share")
                rows.append((run, third, edge, int(positions.sum()), sure.sum() / positions.sum(), *share))
    columns = ["run", "third", "low_edge", "positions", "confidence", "right", "right_low", "right_high"]
    return frame(pd.DataFrame(rows, columns=columns), interval="95 %, over prompts")


def changes(comparison: xr.Dataset) -> dict[Measure, Array]:
    """By sample: change of the share of right tokens under the policy, and of confidence less that share; NaN: unknown."""
    positions, sure, right = (comparison[name].sum(["step", "bin"], skipna=False).values for name in COUNTS)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = right / np.where(positions > 0, positions, np.nan)
        over = sure / np.where(positions > 0, positions, np.nan) - shares
    return {Measure.RIGHT_CHANGE: np.diff(shares)[:, 0], Measure.OVERCONFIDENCE: np.diff(over)[:, 0]}
