"""Synthetic traces with planted sinks: the known answers of the analysis tests.

Each trace follows the contract of `trace.dataset`. A bidirectional decoding is simulated (blocks, a random
or given order inside them, left-padded prompts of varied length), a plant puts strong keys into every head,
noise is log-normal with a chosen sigma, and each row is scaled to mean 1, as column sums of a softmax are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import xarray as xr

from sinkscope.sinks.kinds import KINDS, PathTracker
from sinkscope.sinks.scan import scans

MASK, EOS, BOS, NEWLINE = 1, 2, 3, 4
TEXTS = {0: "<pad>", MASK: "<|mdm_mask|>", EOS: "<|endoftext|>", BOS: "<|startoftext|>", NEWLINE: "Ċ"}
TEXTS |= {5: ".", 6: ",", 7: "Ġ", 8: "7", 9: "Ġ12", 10: "<|start_header_id|>", 11: "<|end_header_id|>"}
TEXTS |= {i: f"Ġword{i}" for i in range(12, 60)}
ORDINARY = np.array([i for i in TEXTS if i not in (0, MASK, EOS, BOS, NEWLINE, 10, 11)])

# plant(state, rng) → extra received attention float [L, H, K] of one step, on top of 1 everywhere
Plant = Callable[["State", np.random.Generator], np.ndarray]
LENGTHS = (17, 23, 30, 41, 26, 35)


class State:
    """One step of one sample, as a plant sees it."""

    def __init__(self, sample, step, steps, tokens, masked, region, position, block, shape):
        self.sample, self.step, self.steps, self.tokens, self.masked = sample, step, steps, tokens, masked
        self.region, self.position, self.block, self.shape = region, position, block, shape

    def key_at(self, position: int) -> int:
        return int(np.flatnonzero(self.position == position)[0])

    def empty(self) -> np.ndarray:
        return np.zeros((*self.shape, len(self.tokens)))


def static_first(strength: float = 30.0) -> Plant:
    def plant(state, rng):
        extra = state.empty()
        extra[..., state.key_at(0)] = strength
        return extra

    return plant


def moving_right(strength: float = 30.0) -> Plant:
    """On the first key of the block that is being decoded."""

    def plant(state, rng):
        extra = state.empty()
        answer = np.flatnonzero(state.region == "answer")
        masked = answer[state.masked[answer]]
        first = (masked[0] if len(masked) else answer[-1]) - answer[0]
        extra[..., answer[0] + first // state.block * state.block] = strength
        return extra

    return plant


def right_to_left(strength: float = 30.0) -> Plant:
    """On the last position that is still masked; with a decoding order from right to left it drifts to the
    left."""

    def plant(state, rng):
        extra = state.empty()
        masked = np.flatnonzero(state.masked)
        answer = np.flatnonzero(state.region == "answer")
        extra[..., masked[-1] if len(masked) else answer[0]] = strength
        return extra

    return plant


def newline_bound(strength: float = 12.0) -> Plant:
    def plant(state, rng):
        extra = state.empty()
        extra[..., (state.tokens == NEWLINE) & (state.position >= 0)] = strength
        return extra

    return plant


def flicker(strength: float = 30.0, rate: float = 0.3) -> Plant:
    """Now and then, at a random place, for one step: never in two neighbouring steps, so no run is longer
    than one."""

    def plant(state, rng):
        extra = state.empty()
        real = np.flatnonzero(state.position >= 0)
        for layer in range(state.shape[0]):
            for head in range(state.shape[1]):
                if (state.step + head) % 2 == 0 and rng.random() < 2 * rate:
                    extra[layer, head, rng.choice(real)] = strength
        return extra

    return plant


def vanishing(strength: float = 30.0) -> Plant:
    """At one prompt position in the first half of the steps, then gone."""

    def plant(state, rng):
        extra = state.empty()
        if state.step < state.steps // 2:
            extra[..., state.key_at(5)] = strength
        return extra

    return plant


def none() -> Plant:
    return lambda state, rng: state.empty()


PLANTS: dict[str, Callable[..., Plant]] = {
    "static": static_first, "moving": moving_right, "right_to_left": right_to_left, "newline": newline_bound,
    "flicker": flicker, "vanishing": vanishing, "none": none,
}  # fmt: skip


def trace(
    plant: Plant | str = "none",
    *,
    sigma: float = 0.2,
    lengths: Sequence[int] = LENGTHS,
    answer: int = 32,
    block: int = 8,
    layers: int = 2,
    heads: int = 3,
    order: str = "random",
    ties: float = 0.0,
    anatomy: str | None = None,
    maps: bool = False,
    seed: int = 0,
    per_step: int = 1,
) -> xr.Dataset:
    """A bidirectional trace. order: "random" inside the block, "right" (right to left over the whole
    answer) or "left".

    anatomy: None, "drain" (planted keys have small values) or "hub". ties: share of the selections that
    were ties.
    """
    rng = np.random.default_rng(seed)
    plant = PLANTS[plant]() if isinstance(plant, str) else plant
    N, K, T = len(lengths), max(lengths) + answer, answer // per_step
    shape = (layers, heads)
    received = np.full((N, T, layers, heads, K), np.nan, dtype=np.float32)
    tokens = np.zeros((N, T, K), dtype=np.int64)
    masked = np.zeros((N, T, K), dtype=bool)
    decided = np.zeros((N, T, K), dtype=bool)
    confidence = np.full((N, T, K), np.nan, dtype=np.float32)
    region = np.full((N, K), "padding", dtype="<U7")
    position = np.full((N, K), -1, dtype=np.int64)
    value_norm = np.full((N, T, layers, 1, K), np.nan, dtype=np.float32)
    attention = np.zeros((N, T, layers, heads, K, K), dtype=np.float32) if maps else None
    for n, length in enumerate(lengths):
        first = K - answer - length
        region[n, first : first + length], region[n, first + length :] = "prompt", "answer"
        position[n, first:] = np.arange(length + answer)
        now = np.zeros(K, dtype=np.int64)
        now[first : first + length] = _text(length, rng)
        final = _text(answer, rng)
        now[first + length :] = MASK
        schedule = _schedule(answer, block, order, rng)
        for t in range(T):
            tokens[n, t], masked[n, t] = now, (now == MASK) & (region[n] == "answer")
            state = State(n, t, T, now, masked[n, t], region[n], position[n], block, shape)
            extra = plant(state, rng)
            real = position[n] >= 0
            rows = (1.0 + extra[..., real]) * rng.lognormal(0.0, sigma, (*shape, int(real.sum())))
            rows *= rows.shape[-1] / rows.sum(axis=-1, keepdims=True)
            received[n, t][..., real] = rows
            if attention is not None:
                attention[n, t][..., np.ix_(real, real)[0], np.ix_(real, real)[1]] = (rows / rows.shape[-1])[
                    ..., None, :
                ]
            norms = rng.lognormal(0.0, 0.1, (layers, 1, K))
            if anatomy == "drain":
                norms = np.where(extra.max(axis=1, keepdims=True) > 0, 0.2 * norms, norms)
            value_norm[n, t] = np.where(real, norms, np.nan)
            confidence[n, t, masked[n, t]] = rng.random(int(masked[n, t].sum()))
            chosen = first + length + schedule[t * per_step : (t + 1) * per_step]
            decided[n, t, chosen] = True
            now = now.copy()
            now[chosen] = final[chosen - first - length]
    selections = decided.sum(axis=2)
    variables = {
        "received": (("sample", "step", "layer", "head", "key"), received),
        "tokens": (("sample", "step", "key"), tokens),
        "masked": (("sample", "step", "key"), masked),
        "decided": (("sample", "step", "key"), decided),
        "confidence": (("sample", "step", "key"), confidence),
        "ties": (("sample", "step"), (rng.random(selections.shape) < ties) * selections),
        "region": (("sample", "key"), region),
        "position": (("sample", "key"), position),
    }
    if anatomy:
        variables["value_norm"] = (("sample", "step", "layer", "kv_head", "key"), value_norm)
    if attention is not None:
        variables["attention"] = (("sample", "step", "layer", "head", "query", "key"), attention)
    return dataset(variables, T, K, block=block, length=answer)


def dataset(variables, steps: int, keys: int, *, family: str = "llada", block: int = 8, length: int = 32) -> xr.Dataset:
    """Label the arrays as a trace does."""
    sizes = {
        dim: size
        for dims, values in (v[:2] for v in variables.values())
        for dim, size in zip(dims, np.shape(values), strict=True)
    }
    return xr.Dataset(
        variables,
        coords={dim: np.arange(size) for dim, size in sizes.items() if dim != "query_kind"},
        attrs={
            "family": family,
            "model": "synthetic",
            "policy": "",
            "decoding": json.dumps({"kind": family, "block": block, "length": length, "steps": steps}),
            "special_ids": json.dumps({"mask": MASK, "eos": [EOS], "bos": BOS, "pad": 0}),
            "token_texts": json.dumps({str(i): text for i, text in TEXTS.items()}),
        },
    )


def split_trace(*, sigma: float = 0.2, same: bool = False, seed: int = 0) -> xr.Dataset:
    """Masked queries have their sink at position 0, decided ones at position 3 (same=True: both at position
    0)."""
    data = trace("none", sigma=sigma, seed=seed, layers=2, heads=2)
    rng = np.random.default_rng(seed + 1)
    N, T, L, H, K = data["received"].shape
    by = np.full((N, T, L, H, 3, K), np.nan, dtype=np.float32)
    position, masked = data["position"].values, data["masked"].values
    answer = (data["region"].values == "answer")[:, None]
    present = [masked.any(-1), (answer & ~masked).any(-1), np.ones(masked.shape[:2], bool)]
    for n in range(N):
        real = position[n] >= 0
        for kind, place in enumerate((0, 0 if same else 3, 7)):
            rows = np.ones((T, L, H, int(real.sum()))) * rng.lognormal(0.0, sigma, (T, L, H, int(real.sum())))
            rows[..., place] += 30.0
            rows *= rows.shape[-1] / rows.sum(axis=-1, keepdims=True)
            by[n][..., kind, real] = np.where(present[kind][n][:, None, None, None], rows, np.nan)
    return data.assign(received_by=(("sample", "step", "layer", "head", "query_kind", "key"), by)).assign_coords(
        query_kind=["masked", "decided", "prompt"]
    )


def _text(length: int, rng: np.random.Generator) -> np.ndarray:
    """Ordinary tokens with a newline now and then, at places that vary from prompt to prompt."""
    words = rng.choice(ORDINARY, length)
    words[rng.random(length) < 0.08] = NEWLINE
    words[rng.integers(2, length)] = NEWLINE
    return words


def _schedule(answer: int, block: int, order: str, rng: np.random.Generator) -> np.ndarray:
    if order == "left":
        return np.arange(answer)
    if order == "right":
        return np.arange(answer)[::-1]
    blocks = [rng.permutation(np.arange(first, min(first + block, answer))) for first in range(0, answer, block)]
    return np.concatenate(blocks)


def kinds_of_heads(data: xr.Dataset) -> np.ndarray:
    """The kind of each head, str [sample, layer, head]."""
    return np.stack([np.asarray(KINDS)[scan.kinds] for scan in scans(data)])


def path_of(received: np.ndarray, sinks: np.ndarray) -> np.ndarray:
    """int [T, L, H]: the key of the strongest sink, −1 where the head has none. received float, sinks bool [T, L, H, K]."""
    filled = np.nan_to_num(np.asarray(received, dtype=np.float64), nan=0.0)
    path = PathTracker(filled.shape[1], filled.shape[2])
    return np.stack(
        [path.update(filled[t], filled[t].argmax(axis=-1), sinks[t].any(axis=-1)) for t in range(len(filled))]
    )
