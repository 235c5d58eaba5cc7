"""Planted causal heads: ordinary ones that have no sink, and ones whose sink is known.

Maps are float [T, T], rows are queries. `causal_trace` makes a trace of them, `block_trace` one of block diffusion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import xarray as xr
from tests.sinks import synthetic

from sinkscope.base.sink_rule import distant, gap_of

Map = npt.NDArray[np.float32]
LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
SHARES = (0.1, 0.15, 0.3, 0.6, 0.9)
DIMS = ("sample", "step", "layer", "head", "key")


def softmax(scores: npt.NDArray[np.float64]) -> Map:
    """Causal attention of these scores [T, T]."""
    weights = np.tril(np.exp(scores - np.where(np.tri(len(scores)) > 0, scores, -np.inf).max(1, keepdims=True)))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float32)


def behind(length: int) -> npt.NDArray[np.float64]:
    """How far each query [T, 1] stands behind each key [1, T]; 0 for keys that it does not see."""
    return np.maximum(np.arange(length)[:, None] - np.arange(length)[None], 0).astype(np.float64)


def without_sinks(length: int, rng: np.random.Generator, draws: int = 8) -> Iterator[tuple[str, Map]]:
    """(name, map): local heads of any reach, power laws, windows, one fixed distance, induction, chance."""
    d = behind(length)
    for reach in sorted({2, 4, max(2, length // 16), max(2, length // 8)}):
        yield f"exp(−d/{reach})", softmax(-d / reach)
    for power in (0.5, 1.0, 2.0):
        yield f"d^−{power:g}", softmax(-power * np.log1p(d))
    for width in sorted({2, 4, max(2, length // 8), max(2, length // 4)}):
        yield f"window of {width}", softmax(np.where(d < width, 0.0, -50.0))
    yield "uniform", softmax(0 * d)
    for back in (1, 2, 4):
        yield f"{back} tokens back", softmax(np.where(d == back, 10.0, 0.0))
    for _ in range(draws):
        for spread in (0.5, 1.0, 2.0):
            yield f"random, spread {spread:g}", softmax(spread * rng.standard_normal(d.shape))
        for spread in (0.5, 1.0):
            yield (
                f"random and local, spread {spread:g}",
                softmax(spread * rng.standard_normal(d.shape) - d / max(2, length // 8)),
            )
        yield "induction", softmax(induction(length, rng))


def induction(length: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Scores of a head that goes to the token after the last earlier copy of its own, or stays where it is."""
    tokens = rng.integers(0, max(4, length // 4), length)
    scores, last = np.zeros((length, length)), {}
    for i, token in enumerate(tokens.tolist()):
        scores[i, last[token] + 1 if token in last else i] = 8.0 if token in last else 4.0
        last[token] = i
    return scores


def planted(length: int, share: float, columns: Sequence[int], background: str, rng: np.random.Generator) -> Map:
    """A head whose queries give `share` of their attention to these columns together, more or less, and the rest elsewhere."""
    d = behind(length)
    scores = {"uniform": 0 * d, "local": -d / max(2, length // 16), "power law": -np.log1p(d)}
    rest = softmax(scores[background] if background in scores else rng.standard_normal(d.shape))
    sink = np.zeros_like(rest)
    for column in columns:
        sink[column:, column] = share / len(columns)
    sink = np.minimum(sink * np.exp(0.3 * rng.standard_normal((length, 1))), 0.95 / len(columns))
    return np.asarray(rest * (1 - sink.sum(axis=1, keepdims=True)) + sink, dtype=np.float32)


BACKGROUNDS = ("uniform", "local", "power law", "random")


def causal_trace(maps: Sequence[Map], *, far: bool = True, window: int = 0, samples: int = 1) -> xr.Dataset:
    """One step after a text: the heads of one layer. far: with `received_far`."""
    length = len(maps[0])
    sums = {
        name: np.full((len(maps), length), np.nan, np.float32) for name in ("received", "received_all", "received_far")
    }
    position, so_far = np.arange(length), np.array([length])
    every, behind_it = (distant(so_far, position, window or None, gap) for gap in (0, None))
    gap = gap_of(min(length, window or length))
    for row, weights in enumerate(maps):
        sums["received"][row] = weights[-1] * length
        total = weights.sum(axis=0, dtype=np.float64)
        far_sum = np.tril(weights, -gap).sum(axis=0, dtype=np.float64)
        sums["received_all"][row] = np.where(every.count >= 16, total / every.uniform, np.nan)
        known = np.where(behind_it.known, behind_it.uniform, 1.0)
        sums["received_far"][row] = np.where(behind_it.known, far_sum / known, np.nan)
    if not far:
        del sums["received_far"]
    values = {name: (DIMS, np.broadcast_to(rows, (samples, 1, 1, *rows.shape))) for name, rows in sums.items()}
    ids = np.random.default_rng(length).choice(synthetic.ORDINARY, (samples, 1, length))
    values["tokens"] = (("sample", "step", "key"), ids)
    values["region"] = (("sample", "key"), np.full((samples, length), "prompt"))
    if window:
        values["window"] = (("layer",), np.array([window]))
    return synthetic.dataset(values, 1, length, family="causal")


def block_trace(maps: Sequence[Map], active: int | None) -> xr.Dataset:
    """One denoising step of block diffusion: maps [active, K] of the queries of the last block, which see every key."""
    received = np.stack([weights.mean(axis=0) * weights.shape[1] for weights in maps])[None, None, None]
    steps = ("sample", "step")
    values = {"received": (DIMS, received.astype(np.float32)), "forward_kind": (steps, np.zeros((1, 1), np.int8))}
    if active is not None:
        values["active"] = (steps, np.full((1, 1), active, np.int16))
    return synthetic.dataset(values, 1, received.shape[-1], family="sdar", block=0)
