"""What every analysis reads from a trace: the labelled arrays, the decoding state of one sample, blocks of
scores.

It takes anything with a `.dataset`, or the `xarray.Dataset` itself, lazy or in memory. It never loads a
whole trace: scores come in blocks that follow the stored chunks, so that no chunk is decompressed twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from sinkscope.errors import InputError, nearest

Array = npt.NDArray[Any]

BLOCK_BYTES = 32 * 2**20
"""How much of the stored scores is read at once, in bytes as stored."""

PROMPT, ANSWER, PADDING = "prompt", "answer", "padding"
HEAD_MEANS_NOTE = "found on the mean over heads of each layer, not per head"


def dataset_of(trace: Any) -> xr.Dataset:
    """The `xarray.Dataset` of a trace; a dataset passes through."""
    data = trace if isinstance(trace, xr.Dataset) else getattr(trace, "dataset", None)
    if not isinstance(data, xr.Dataset):
        raise InputError(
            f"got {type(trace).__name__}, expected a trace or its xarray.Dataset; "
            "pass run.trace of a generation with a capture, or ss.Trace.open(path)"
        )
    if "received" not in data:
        raise InputError(
            f"the dataset has no variable 'received' (it has {', '.join(map(str, data.data_vars))}); "
            "pass a trace recorded by sinkscope"
        )
    return data


def scores_name(data: xr.Dataset, scores: str = "auto") -> str:
    """Which variable holds the scores: `received_all` for causal traces, else `received`, unless named.

    The last row alone makes a causal model look restless (its strongest key changes with every new token),
    so "auto" takes the mean over all queries so far where the trace has it. `scores="received"` is the last
    row.
    """
    known = [
        str(name) for name in data.data_vars if str(name).startswith("received") and name != "received_by"
    ]
    if scores == "auto":
        return "received_all" if "received_all" in data else "received"
    if scores not in known:
        raise InputError(f"scores {scores!r} are not in this trace: {nearest(scores, [*known, 'auto'])}")
    return scores


def is_causal(data: xr.Dataset) -> bool:
    """Whether each query sees only the keys up to itself."""
    return data.attrs.get("family") == "causal" or "received_all" in data


def decoding_options(data: xr.Dataset) -> dict[str, Any]:
    """The options of the generation loop, {} when the trace does not say."""
    return _json(data, "decoding")


def special_ids(data: xr.Dataset) -> dict[str, Any]:
    """{"mask": id | None, "eos": [ids], "bos": id | None, "pad": id | None}; missing entries are None or
    []."""
    found = _json(data, "special_ids")
    eos = found.get("eos") or []
    return {
        "mask": found.get("mask"),
        "eos": [int(i) for i in (eos if isinstance(eos, (list, tuple)) else [eos])],
        "bos": found.get("bos"),
        "pad": found.get("pad"),
    }


def _json(data: xr.Dataset, name: str) -> dict[str, Any]:
    value = data.attrs.get(name)
    if not value:
        return {}
    found = json.loads(value) if isinstance(value, str) else value
    return dict(found) if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Run:
    """The decoding state of one sample, small enough to hold.

    tokens int [T, K], masked bool [T, K], decided bool [T, K] (in that step), ties int [T], region str [K],
    position int [K] (−1 in padding), real bool [T, K] (the key exists in that step and is no padding),
    steps [T].
    """

    tokens: Array
    masked: Array
    decided: Array
    ties: Array
    region: Array
    position: Array
    real: Array
    steps: Array

    @property
    def length(self) -> int:
        """Positions from the first real token to the last."""
        return int(self.position.max(initial=-1)) + 1

    @property
    def prompt_length(self) -> int:
        return int((self.region == PROMPT).sum())

    def decisions(self) -> Array:
        """bool [T, K]: the key's token was fixed between the input of this recorded step and of the next one.

        Read off the states and not only `decided`, so that nothing is lost where only every n-th step was
        captured.
        """
        found = np.array(self.decided, dtype=bool)
        there, masked = self.tokens >= 0, self.masked
        found[:-1] |= masked[:-1] & ~masked[1:]
        found[:-1] |= ~there[:-1] & there[1:]
        return np.asarray(found & (self.region == ANSWER))


def run_of(data: xr.Dataset, sample: int) -> Run:
    """The decoding state of the sample at index `sample`."""
    keys, steps = data.sizes["key"], data.sizes["step"]
    one = data.isel(sample=sample)

    def read(name: str, fill: Any, dtype: Any, shape: tuple[int, ...], dims: tuple[str, ...]) -> Array:
        if name not in one:
            return np.full(shape, fill, dtype=dtype)
        return np.asarray(one[name].transpose(*dims).values).astype(dtype)

    # By way of a list: zarr's own string type does not cast to numpy's.
    region = np.array(read("region", ANSWER, object, (keys,), ("key",)).tolist(), dtype=str)
    tokens = read("tokens", 0, np.int64, (steps, keys), ("step", "key"))
    if "position" in one:
        position = read("position", 0, np.int64, (keys,), ("key",))
    else:
        position = np.where(region == PADDING, -1, np.cumsum(region != PADDING) - 1)
    return Run(
        tokens=tokens,
        masked=read("masked", False, bool, (steps, keys), ("step", "key")),
        decided=read("decided", False, bool, (steps, keys), ("step", "key")),
        ties=read("ties", 0, np.int64, (steps,), ("step",)),
        region=region,
        position=position,
        real=(region != PADDING)[None, :] & (tokens >= 0),
        steps=labels(data, "step"),
    )


def labels(data: xr.Dataset, dim: str) -> Array:
    """The coordinate of a dimension, or its index when it has none."""
    return np.asarray(data[dim].values) if dim in data.coords else np.arange(data.sizes[dim])


def head_count(data: xr.Dataset, name: str) -> int:
    """Heads of the scores; 1 for a trace that holds head means."""
    return int(data[name].sizes.get("head", 1))


def head_means(data: xr.Dataset, name: str = "received") -> bool:
    return "head" not in data[name].dims


def mass_weight(run: Run, step: int, scores: str) -> Array:
    """w [K] such that `received_j · w_j` is the share of all attention of that step that key j gets.

    received_j = Σ_i A_ij / U_j with U_j = Σ_i u_ij, and the n query rows each sum to one, so w_j = U_j / n.
    Both ways: U_j = 1. The last row of a causal model: 1/n over one row, so again w_j = 1/n. All rows of a
    causal model: the key at position p is seen by the queries p … n−1, each with u = 1/(i+1), so U_p = H(n)
    − H(p) with harmonic numbers H.
    """
    real = run.real[step]
    n = int(real.sum())
    if n == 0:
        return np.zeros(len(real))
    if scores != "received_all":
        return np.where(real, 1.0 / n, 0.0)
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n + 1))])
    place = np.clip(run.position, 0, n)
    return np.where(real, (harmonic[n] - harmonic[place]) / n, 0.0)


@dataclass(frozen=True)
class Block:
    """Scores [sample, step, layer, head, key] of consecutive samples, steps and layers, in the stored
    dtype."""

    samples: range
    steps: range
    layers: range
    values: dict[str, Array]


def blocks(
    data: xr.Dataset, names: list[str], budget: int = BLOCK_BYTES, most_samples: int | None = None
) -> Iterator[Block]:
    """All of the named variables, block by block: groups of samples outside, then layers, then steps in
    their order.

    Block edges follow the stored chunks of the first variable. A block is at most `budget` bytes, or one
    chunk where a chunk is larger. Variables without a head dimension get one of size 1. most_samples: no
    more than these at once, for callers that keep something of each; chunks that hold more are then read
    more than once.
    """
    main = data[names[0]]
    sizes = {dim: int(data.sizes[dim]) for dim in ("sample", "step", "layer")}
    chunk = {dim: _chunk(main, dim, sizes[dim]) for dim in sizes}
    chunk["sample"] = min(chunk["sample"], most_samples or chunk["sample"])
    row = head_count(data, names[0]) * int(data.sizes["key"]) * main.dtype.itemsize * chunk["sample"]
    if row * chunk["step"] * sizes["layer"] <= budget or chunk["layer"] >= sizes["layer"]:
        layers = sizes["layer"]
        steps = _multiple(chunk["step"], budget // max(1, row * sizes["layer"]), sizes["step"])
    else:
        steps = chunk["step"]
        layers = _multiple(chunk["layer"], budget // max(1, row * steps), sizes["layer"])
    for s in range(0, sizes["sample"], chunk["sample"]):
        for k in range(0, sizes["layer"], layers):
            for t in range(0, sizes["step"], steps):
                here = {
                    "sample": range(s, min(s + chunk["sample"], sizes["sample"])),
                    "layer": range(k, min(k + layers, sizes["layer"])),
                    "step": range(t, min(t + steps, sizes["step"])),
                }
                window = {dim: slice(r.start, r.stop) for dim, r in here.items()}
                values = {name: _read(data[name], window) for name in names}
                yield Block(here["sample"], here["step"], here["layer"], values)


def _chunk(variable: xr.DataArray, dim: str, size: int) -> int:
    stored = variable.encoding.get("preferred_chunks") or {}
    return max(1, min(size, int(stored.get(dim, 1))))


def _multiple(chunk: int, fits: int, size: int) -> int:
    return min(size, max(1, fits // chunk) * chunk)


def _read(variable: xr.DataArray, window: dict[str, slice]) -> Array:
    part = variable.isel({dim: cut for dim, cut in window.items() if dim in variable.dims})
    heads = [dim for dim in ("head", "kv_head") if dim in variable.dims]
    values = np.asarray(part.transpose("sample", "step", "layer", *heads, "key").values)
    return values if heads else values[:, :, :, None, :]
