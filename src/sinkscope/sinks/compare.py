"""Two traces of the same prompts, such as masked against unmasked: where attention went, confidence, decoding delay.

The paper proposes two mechanisms and tests neither: attention redistributes when a sink is hidden (bidirectional attention finds
another place), and tokens that relied on the sink lose confidence and are decided later. Both are measured here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.base.errors import InputError
from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks.calibration import BINS, COUNTS, RUNS, calibrated, changes, confidence_unit
from sinkscope.sinks.dataset import (
    PROMPT,
    Array,
    SampleState,
    causal_steps,
    check_alike,
    dataset_of,
    frame,
    labels,
    read_keys,
    sample_state,
)
from sinkscope.sinks.drift import rank
from sinkscope.sinks.judging import Judge
from sinkscope.sinks.measures import Measure
from sinkscope.statistics import mean_interval

DESTINATIONS = ("old sinks", "new sinks", "prompt", "masked", "decided")
"""A partition of the keys of one head and step: sinks of the first trace; sinks of the second only; the rest by state."""

CHANGES = {
    "confidence_change_key": (Measure.CONFIDENCE_CHANGE, Measure.CONFIDENCE_OF),
    "delay": (Measure.DELAY, Measure.DELAY_OF),
}
"""Variables of a comparison that have a value per token → their measure over all tokens, and over some."""
DEPENDENT, OTHER, LESS = "dependent", "other", "dependent less other"
"""Tokens that pay more attention to sinks than the median one, the others, and the difference."""
BEYOND = f"{LESS}, beyond less damage", f"{LESS}, beyond more damage"
"""The difference beyond that under a control that did less damage than the policy, and under one that did more."""


def partition(sinks_a: Array, sinks_b: Array, state: SampleState, step: int) -> Array:
    """bool [5, …, K], in the order of DESTINATIONS; every real key is in exactly one."""
    shape = sinks_a.shape
    rest = ~(sinks_a | sinks_b) & state.real[step]
    prompt = state.region == PROMPT
    masked = state.masked[step] & ~prompt
    groups = [rest & np.broadcast_to(g, shape) for g in (prompt, masked, ~prompt & ~masked)]
    return np.stack([sinks_a, sinks_b & ~sinks_a, *groups])


def compare_traces(a: Any, b: Any, epsilon: float = EPSILON, rule: str = "auto", *, scores: str = "auto") -> xr.Dataset:
    """What changed from trace `a` (say, no policy) to trace `b` (say, sinks hidden), for the same samples and model.

    Variables
    ---------
    flow [sample, layer, destination]
        Change of the share of attention, b − a, averaged over heads and steps, for a partition of the keys: old sinks (of a), new
        sinks (of b only), the rest of the prompt, masked and decided answer. It sums to zero over destinations (bidirectional
        traces; of causal ones only attention from distant queries counts).
    flow_same_input [sample, layer, destination]
        The same over the steps in which both had the same input tokens, so that the difference is due to the policy and not to
        texts that have diverged.
    same_input [sample, step]
        bool: both had the same input tokens.
    confidence_change [sample, step], confidence_change_key [sample, key]
        Mean of b − a over positions masked in both.
    delay [sample, key]
        Step in which the token was decided in b minus that in a; NaN where it was not decided in both.
    calibration_positions, calibration_confidence, calibration_right [sample, run, step, bin]
        See `calibration`.
    dependence [sample, key]
        Share of attention that this answer token paid to sinks of a while it was masked, averaged over steps, layers and
        heads; NaN without maps in `a` (ss.Capture(level="maps")).

    Source: the explanations offered in arXiv 2510.15731 (sections 4.3 and 5). `mechanisms(comparison)` gives the table.
    Limits: after the first difference in the text, steps of the two runs are no longer the same situation.

    >>> masked = ss.generate(model, prompts, decoding, policy="top:1", capture=ss.Capture(anatomy=True)).trace
    >>> changed = ss.compare_traces(trace, masked)
    >>> changed["flow"].dims, bool(abs(changed["flow"].sum("destination")).max() < 1e-3)
    (('sample', 'layer', 'destination'), True)
    """
    advice = "compare the same prompts, model and capture"
    check_alike(dataset_of(a), dataset_of(b), dict.fromkeys(("sample", "layer", "head", "key"), advice))
    judges = Judge.of(a, epsilon, rule, scores), Judge.of(b, epsilon, rule, scores)
    first, second = (judge.data for judge in judges)
    causal = causal_steps(first), causal_steps(second)
    steps = min(first.sizes["step"], second.sizes["step"])
    samples, layers, keys = (first.sizes[d] for d in ("sample", "layer", "key"))
    flow = np.zeros((2, samples, layers, len(DESTINATIONS)))
    same = np.zeros((samples, steps), dtype=bool)
    by_step = np.full((samples, steps), np.nan)
    by_key, delay, dependence = (np.full((samples, keys), np.nan) for _ in range(3))
    counted_right = np.zeros((3, samples, len(RUNS), steps, BINS))
    for i in range(samples):
        states = sample_state(first, i), sample_state(second, i)
        if not np.array_equal(states[0].region, states[1].region):
            raise InputError(f"sample {i} has different prompts or lengths in the two traces; compare the same prompts")
        # Causal forwards, which only store a block, are no steps of either run that could be compared.
        stores = [stored[i][:steps] if stored is not None else np.zeros(steps, dtype=bool) for stored in causal]
        same[i] = (states[0].tokens[:steps] == states[1].tokens[:steps]).all(axis=1)
        used = np.zeros(2)
        paid, times = np.zeros(keys), np.zeros(keys)
        for t in np.flatnonzero(~(stores[0] | stores[1])).tolist():
            judged = [j.step(s, t, _scores(j, i, t)) for j, s in zip(judges, states, strict=True)]
            sinks = [one.sinks(epsilon) for one in judged]
            shares = [np.nan_to_num(one.score, nan=0.0) * one.mass for one in judged]
            groups = partition(sinks[0], sinks[1], states[0], t)
            moved = np.where(groups, shares[1] - shares[0], 0.0).sum(axis=-1).mean(axis=2).T
            # Row 0 of `flow` and `used` is over all steps, row 1 over those in which both had the same tokens.
            counted = np.array([True, same[i, t]])
            flow[counted, i] += moved
            used += counted
            if "attention" in first:
                masked = states[0].masked[t]
                paid[masked] += _paid(first, i, t, sinks[0])[masked]
                times[masked] += 1
        with np.errstate(invalid="ignore", divide="ignore"):
            flow[:, i] /= np.where(used > 0, used, np.nan)[:, None, None]
            if "attention" in first:
                dependence[i] = np.where(times > 0, paid / times, np.nan)
        counted_right[:, i] = calibrated((first, second), states, i, same[i])
        by_step[i], by_key[i] = _confidence(first, second, states, i, steps)
        delay[i] = _decided_in(states[1]) - _decided_in(states[0])
    layer_dims = ("sample", "layer", "destination")
    unit = f"{confidence_unit(first)}, b − a"
    return xr.Dataset(
        {
            "flow": (layer_dims, flow[0], {"units": "share of attention, b − a"}),
            "flow_same_input": (layer_dims, flow[1], {"units": "share of attention, b − a"}),
            "same_input": (("sample", "step"), same),
            "confidence_change": (("sample", "step"), by_step, {"units": unit}),
            "confidence_change_key": (("sample", "key"), by_key, {"units": unit}),
            "delay": (("sample", "key"), delay, {"units": "steps, b − a"}),
            "dependence": (("sample", "key"), dependence, {"units": "share of attention paid to sinks of a"}),
            **{
                name: (("sample", "run", "step", "bin"), counts)
                for name, counts in zip(COUNTS, counted_right, strict=True)
            },
        },
        coords={
            "sample": labels(first, "sample"),
            "step": labels(first, "step")[:steps],
            "layer": labels(first, "layer"),
            "key": labels(first, "key"),
            "destination": list(DESTINATIONS),
            "run": list(RUNS),
        },
        attrs={
            "epsilon": float(epsilon),
            "rule": judges[0].rule,
            "policy_a": str(first.attrs.get("policy", "")),
            "policy_b": str(second.attrs.get("policy", "")),
        },
    )


def mechanisms(comparison: xr.Dataset) -> pd.DataFrame:
    """The two proposed mechanisms as numbers, one row per measure: value, low, high (95 %, over prompts), unit, note.

    *Dependent* tokens pay more attention to the sinks of the first trace than the median token of their sample does. If the
    second mechanism holds, they lose more confidence and are decided later than the others ("… of dependent less other
    tokens"), and delay rises with dependence (rank correlation). Where both runs decide one token per step, the mean delay of
    all tokens is zero by construction. Without maps in the first trace the rows on dependence are NaN, and say so.
    """
    rows: list[tuple[Any, ...]] = []

    sure = comparison["confidence_change_key"].attrs["units"]

    def add(measure: Measure, values: Array, note: str = "", of: str = "") -> None:
        estimate = mean_interval(np.asarray(values, dtype=np.float64))
        unit = sure if measure in (Measure.CONFIDENCE_CHANGE, Measure.CONFIDENCE_OF) else measure.unit
        rows.append((measure.named(of), *estimate, unit, note))

    flow = comparison["flow"].mean("layer")
    for name in DESTINATIONS:
        add(Measure.FLOW, flow.sel(destination=name).values, of=name)
    add(Measure.SAME_INPUT, comparison["same_input"].mean("step").values)
    for name, (whole, _) in CHANGES.items():
        add(whole, _row_means(comparison[name].values))
    dependence = comparison["dependence"].values
    has_dependence = np.isfinite(dependence)
    note = "" if has_dependence.any() else "needs maps in the first trace: ss.Capture(level='maps')"
    middle = np.array(
        [np.median(row[k]) if k.any() else np.nan for row, k in zip(dependence, has_dependence, strict=True)]
    )
    with np.errstate(invalid="ignore"):
        dependent = has_dependence & (dependence > middle[:, None])
    for name, (_, some) in CHANGES.items():
        values = comparison[name].values
        # Tokens whose dependence is unknown are in neither group.
        means = [_row_means(np.where(use, values, np.nan)) for use in (dependent, has_dependence & ~dependent)]
        for of, each in ((DEPENDENT, means[0]), (OTHER, means[1]), (LESS, means[0] - means[1])):
            add(some, each, note, of)
    for measure, values in changes(comparison).items():
        add(
            measure,
            values,
            "steps with the same input" if np.isfinite(values).any() else "no confidence that is a probability",
        )
    correlation = _correlations(dependence, comparison["delay"].values)
    add(Measure.DEPENDENCE_DELAY, correlation, note)
    columns = ["measure", "value", "low", "high", "unit", "note"]
    return frame(pd.DataFrame(rows, columns=columns), interval="95 %, over prompts", **comparison.attrs)


def _scores(judge: Judge, sample: int, step: int) -> Array:
    """float [L, H, K]."""
    window = {"sample": range(sample, sample + 1), "step": range(step, step + 1)}
    return np.asarray(read_keys(judge.data, judge.name, window)[0, 0], dtype=np.float32)


def _paid(data: xr.Dataset, sample: int, step: int, sinks: Array) -> Array:
    """Share of attention that each query pays to its head's sinks, mean over layers and heads, float [query]."""
    maps = data["attention"].isel(sample=sample, step=step).transpose("layer", "head", "query", "key").values
    return np.asarray((np.nan_to_num(maps) * sinks[:, :, None, :]).sum(axis=-1).mean(axis=(0, 1)))


def _decided_in(state: SampleState) -> Array:
    """Label of the step in which each answer key was decided, float [K], NaN if never."""
    when = state.decided_at()
    step = state.steps[np.nan_to_num(when).astype(int)].astype(np.float64)
    return np.where(np.isfinite(when), step, np.nan)


def _confidence(
    a: xr.Dataset, b: xr.Dataset, states: tuple[SampleState, SampleState], sample: int, steps: int
) -> tuple[Array, Array]:
    """Mean change of confidence by step and by key."""
    if "confidence" not in a or "confidence" not in b:
        return np.full(steps, np.nan), np.full(states[0].tokens.shape[1], np.nan)
    both = states[0].masked[:steps] & states[1].masked[:steps]
    values = [
        np.asarray(d["confidence"].isel(sample=sample).transpose("step", "key").values, dtype=np.float64)
        for d in (a, b)
    ]
    # LLaDA writes −inf where a position may not be chosen in this block; such a difference is no number.
    with np.errstate(invalid="ignore"):
        change = np.where(both, values[1][:steps] - values[0][:steps], np.nan)
    change[~np.isfinite(change)] = np.nan
    return _row_means(change), _row_means(change.T)


def _row_means(values: Array) -> Array:
    known = np.isfinite(values)
    count = np.where(known.any(axis=1), known.sum(axis=1), np.nan)
    return np.asarray(np.where(known, values, 0.0).sum(axis=1) / count)


def _correlations(x: Array, y: Array) -> Array:
    """Rank correlation of each row, NaN with fewer than 3 values or without variation."""
    out = np.full(len(x), np.nan)
    for i in range(len(x)):
        known = np.isfinite(x[i]) & np.isfinite(y[i])
        if known.sum() >= 3:
            ranks = rank(x[i][known]), rank(y[i][known])
            if np.ptp(ranks[0]) > 0 and np.ptp(ranks[1]) > 0:
                out[i] = np.corrcoef(*ranks)[0, 1]
    return out
