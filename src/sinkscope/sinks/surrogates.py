"""How much would noise move? Surrogates of a trace: every key keeps its mean and its spread over the steps, and the scores of a
head their autocorrelation, but nothing else is left of what happened when.

Scores that change slowly leave places and come to others by chance. Independent noise does not, so it is no level to compare
with: under noise with the autocorrelation of real heads (about .9 from step to step) a quarter of the heads can count as moving.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

import numpy as np

from sinkscope.sinks.dataset import Array, read_keys
from sinkscope.sinks.drift import decoding_rank
from sinkscope.sinks.kinds import PathTracker, kinds_of
from sinkscope.sinks.scan import Scan

LEAST_SCORE = 1e-6
"""Scores count as logarithms, from this one on."""


def surrogate(scores: Array, rng: np.random.Generator) -> Array:
    """Gaussian AR(1) noise in place of the logarithms of scores, float [T, H, K]; NaN stays NaN.

    Each key has the mean and the spread over steps that it had, each head its autocorrelation from step to step, each row its
    sum.
    """
    logs = np.log(np.maximum(scores, LEAST_SCORE))
    scored, steps = np.isfinite(logs), len(scores)
    with np.errstate(invalid="ignore", divide="ignore"):
        count = scored.sum(axis=0)
        mean = np.where(scored, logs, 0.0).sum(axis=0) / count
        apart = np.where(scored, logs - mean, 0.0)
        pairs = (scored[1:] & scored[:-1]).sum(axis=(0, 2))
        square = (apart**2).sum(axis=(0, 2)) / count.sum(axis=1)
        measured = (apart[1:] * apart[:-1]).sum(axis=(0, 2)) / pairs / square
    roots, seen, left = short_series(steps)
    root = np.interp(np.nan_to_num(measured), seen, roots)[:, None]
    noise = rng.standard_normal(scores.shape)
    for t in range(1, steps):
        noise[t] = root * noise[t - 1] + np.sqrt(1 - root**2) * noise[t]
    spread = np.sqrt((apart**2).sum(axis=0) / np.maximum(count, 1) / np.interp(root, roots, left))
    drawn = np.where(scored, np.exp(mean + spread * (noise - noise.mean(axis=0))), np.nan)
    total, drawn_total = (np.nansum(values, axis=-1, keepdims=True) for values in (scores, drawn))
    return np.asarray(drawn * (total / np.where(drawn_total > 0, drawn_total, 1.0)), dtype=np.float32)


@lru_cache(maxsize=8)
def short_series(steps: int) -> tuple[Array, Array, Array]:
    """Autocorrelations of AR(1) noise, what a series of so many steps shows of each once its own mean is taken away, and of its
    variance: a short piece of slow noise looks faster, and narrower, than it is."""
    roots = np.concatenate([np.linspace(0, 0.9, 46), np.linspace(0.905, 0.999, 40)])
    lag = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
    seen, left = [], []
    for root in roots:
        covariance = root**lag
        covariance = covariance - covariance.mean(axis=0)
        covariance = covariance - covariance.mean(axis=1, keepdims=True)
        left.append(max(np.trace(covariance) / steps, 1e-9))
        seen.append(np.trace(covariance, 1) / max(1, steps - 1) / left[-1])
    return roots, np.maximum.accumulate(seen), np.array(left)


def surrogate_kinds(scan: Scan, epsilon: float, seed: int = 0) -> tuple[Array, Array]:
    """Kinds of the heads of a surrogate of the sample, int8 [L, H] (see `kinds.KINDS`), and steps in which they have a sink."""
    judge, state = scan.judge, scan.state
    # Keyed by the run itself, so that a shard gives the same draws as the whole.
    rng = np.random.default_rng([seed, zlib.crc32(np.ascontiguousarray(state.tokens).tobytes())])
    place, order = state.position, decoding_rank(state)
    kinds, steps = [], []
    for layer in range(len(scan.layers)):
        window = {
            "sample": range(scan.place, scan.place + 1), "step": range(len(scan.sinks)), "layer": range(layer, layer + 1)
        }  # fmt: skip
        drawn = surrogate(np.asarray(read_keys(judge.data, judge.name, window))[0, :, 0], rng)
        tracker, sinks = PathTracker(1, drawn.shape[1]), np.zeros(drawn.shape, dtype=bool)
        path = np.full(drawn.shape[:2], -1, dtype=np.int32)
        for t, received in enumerate(drawn):
            judged = judge.step(state, t, received[None], slice(layer, layer + 1))
            sinks[t] = judged.sinks(epsilon)[0]
            filled = np.nan_to_num(judged.score[0])
            strongest = (filled * sinks[t]).argmax(axis=-1)
            path[t] = tracker.update(filled[None], strongest[None], sinks[t].any(axis=-1)[None])[0]
        kinds.append(kinds_of(path, sinks, scan.observed[:, layer], place, order))
        steps.append(sinks.any(axis=-1).sum(axis=0))
    return np.stack(kinds), np.stack(steps)
