"""Reading a trace: its labelled arrays, the decoding state of one sample, scores in blocks.

A trace is anything with a `.dataset`, or the `xarray.Dataset` itself, lazy or in memory. It is never loaded whole: scores
come in blocks that follow the stored chunks, so that no chunk is decompressed twice. Padding and keys that do not exist yet
have no score, whatever the stored value says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from sinkscope.base.errors import InputError, nearest

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


def check_alike(a: xr.Dataset, b: xr.Dataset, advices: Mapping[str, str]) -> None:
    """Refuse two traces of different sizes. advices: dimension → what to do where it differs."""
    for dim, advice in advices.items():
        if a.sizes.get(dim) != b.sizes.get(dim):
            raise InputError(f"the traces have {a.sizes.get(dim)} and {b.sizes.get(dim)} of {dim}; {advice}")


def scores_name(data: xr.Dataset, scores: str = "auto") -> str:
    """The variable that holds the scores: for causal traces `received_far`, or else `received_all`; `received` for others.

    `scores="received"` of a causal trace is the newest query's row, which is what a mask ranks; it cannot tell a sink.
    """
    known = [str(name) for name in data.data_vars if str(name).startswith("received") and name != "received_by"]
    if scores == "auto":
        usual = ("received_far", "received_all") if is_causal(data) else ()
        return next((name for name in usual if name in data), "received")
    if scores not in known:
        raise InputError(f"scores {scores!r} are not in this trace: {nearest(scores, [*known, 'auto'])}")
    return scores


def is_causal(data: xr.Dataset) -> bool:
    """Whether each query sees only the keys up to itself; block diffusion has `received_all` too, and kinds of forwards."""
    so_far = "received_far" in data or "received_all" in data
    return data.attrs.get("family") == "causal" or (so_far and "forward_kind" not in data)


def decoding_options(data: xr.Dataset) -> dict[str, Any]:
    """The options of the generation loop, {} when the trace does not say; a canvas is a block."""
    options = _json(data, "decoding")
    return {**options, "block": options["canvas"]} if options.get("canvas") else options


def special_ids(data: xr.Dataset) -> dict[str, Any]:
    """{"mask": id | None, "eos": [ids], "bos": id | None, "pad": id | None}; missing entries are None or []."""
    ids = _json(data, "special_ids")
    eos = ids.get("eos") or []
    return {
        "mask": ids.get("mask"),
        "eos": [int(i) for i in (eos if isinstance(eos, (list, tuple)) else [eos])],
        "bos": ids.get("bos"),
        "pad": ids.get("pad"),
    }


def _json(data: xr.Dataset, name: str) -> dict[str, Any]:
    value = data.attrs.get(name)
    parsed = json.loads(value) if value and isinstance(value, str) else value
    return dict(parsed) if isinstance(parsed, dict) else {}


@dataclass(frozen=True)
class SampleState:
    """The decoding state of one sample, small enough to hold.

    tokens int [T, K], masked bool [T, K], decided bool [T, K] (in that step), ties int [T], region str [K],
    position int [K] (−1 in padding), real bool [T, K] (the key exists in that step and is no padding), steps [T], active int [T]
    (block diffusion: how many of the last real keys are the block whose queries count; 0 where the trace does not say).
    """

    tokens: Array
    masked: Array
    decided: Array
    ties: Array
    region: Array
    position: Array
    real: Array
    steps: Array
    active: Array

    @property
    def length(self) -> int:
        """Positions from the first real token to the last."""
        return int(self.position.max(initial=-1)) + 1

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return int((self.region == PROMPT).sum())

    @property
    def prompt_digest(self) -> str:
        """The prompt's identity: a digest of its tokens. Samples of one prompt count together in every interval."""
        tokens = np.ascontiguousarray(self.tokens[0, self.region == PROMPT])
        return hashlib.sha256(tokens.tobytes()).hexdigest()[:16]

    def decisions(self) -> Array:
        """bool [T, K]: the key's token was fixed between the input of this recorded step and of the next one.

        Read off the states and not only `decided`, so that nothing is lost where only every n-th step was captured.
        """
        fixed = np.array(self.decided, dtype=bool)
        exists, masked = self.tokens >= 0, self.masked
        fixed[:-1] |= masked[:-1] & ~masked[1:]
        fixed[:-1] |= ~exists[:-1] & exists[1:]
        return np.asarray(fixed & (self.region == ANSWER))

    def decided_at(self) -> Array:
        """Index of the recorded step in which each answer key was decided, float [K], NaN if never or not in the answer."""
        decisions = self.decisions()
        when = np.where(decisions.any(axis=0), decisions.argmax(axis=0).astype(np.float64), np.nan)
        return np.where(self.region == ANSWER, when, np.nan)


def sample_state(data: xr.Dataset, sample: int) -> SampleState:
    """The decoding state of the sample at index `sample`."""
    keys, steps = data.sizes["key"], data.sizes["step"]
    of_sample = data.isel(sample=sample)

    def read(name: str, fill: Any, dtype: Any, **sizes: int) -> Array:
        if name not in of_sample:
            return np.full(tuple(sizes.values()), fill, dtype=dtype)
        return np.asarray(of_sample[name].transpose(*sizes).values).astype(dtype)

    # By way of a list: zarr's own string type does not cast to numpy's.
    region = np.array(read("region", ANSWER, object, key=keys).tolist(), dtype=str)
    tokens = read("tokens", 0, np.int64, step=steps, key=keys)
    if "position" in of_sample:
        position = read("position", 0, np.int64, key=keys)
    else:
        position = np.where(region == PADDING, -1, np.cumsum(region != PADDING) - 1)
    return SampleState(
        tokens=tokens,
        masked=read("masked", False, bool, step=steps, key=keys),
        decided=read("decided", False, bool, step=steps, key=keys),
        ties=read("ties", 0, np.int64, step=steps),
        region=region,
        position=position,
        real=(region != PADDING)[None, :] & (tokens >= 0),
        steps=labels(data, "step"),
        active=read("active", int(decoding_options(data).get("block") or 0), np.int64, step=steps),
    )


def causal_steps(data: xr.Dataset) -> Array | None:
    """bool [sample, step]: forwards of a block diffusion model that only store a finished block, and read it causally.

    They are another way of using the same weights (Nemotron-Labs-Diffusion), so nothing of them belongs into statistics of
    denoising. (Fast-dLLM v2 stores blocks as it denoises them, with attention both ways inside.) None where there are none.
    """
    if "forward_kind" not in data or not decoding_options(data).get("causal_context"):
        return None
    kinds = np.asarray(data["forward_kind"].transpose("sample", "step").values) == 1
    return kinds if kinds.any() else None


def one_by_one(data: xr.Dataset, use: Array) -> Iterator[xr.Dataset]:
    """Each sample with those of its steps that are to be used, bool [sample, step]."""
    for sample, steps in enumerate(use):
        yield data.isel(sample=[sample], step=np.flatnonzero(steps))


def labels(data: xr.Dataset, dim: str) -> Array:
    """The coordinate of a dimension, or its index when it has none."""
    return np.asarray(data[dim].values) if dim in data.coords else np.arange(data.sizes[dim])


def indices_of(data: xr.Dataset, dim: str, wanted: Iterable[Any]) -> list[int]:
    """The indices of some labels of a dimension; they must be there."""
    chosen, have = list(wanted), labels(data, dim).tolist()
    if missing := [label for label in chosen if label not in have]:
        raise InputError(f"{dim} {missing[0]} is not in this trace; it has {have[0]} to {have[-1]}")
    return [have.index(label) for label in chosen]


def head_count(data: xr.Dataset, name: str) -> int:
    """Heads of the scores; 1 for a trace that holds head means."""
    return int(data[name].sizes.get("head", 1))


def head_means(data: xr.Dataset, name: str = "received") -> bool:
    """Whether the scores are means over the heads of each layer."""
    return "head" not in data[name].dims


def all_heads(data: xr.Dataset) -> int | None:
    """Heads of the model, captured or not; None when the trace does not say."""
    return int(data.attrs["n_heads"]) if "n_heads" in data.attrs else None


def head_labels(data: xr.Dataset, name: str) -> Array:
    """Labels of the heads of the scores; [0] for head means."""
    return np.arange(1) if head_means(data, name) else labels(data, "head")


def note_of(*texts: str) -> str:
    """The remarks that are not empty, as one."""
    return "; ".join(text for text in texts if text)


def labelled(values: Array, name: str, coords: dict[str, Any], **attrs: Any) -> xr.DataArray:
    """values with the dimensions of `coords`, in their order."""
    return xr.DataArray(values, dims=tuple(coords), coords=coords, name=name, attrs=attrs)


def frame(columns: Any, **attrs: Any) -> pd.DataFrame:
    """A table with attributes (units, settings)."""
    table = pd.DataFrame(columns)
    table.attrs.clear()
    table.attrs.update(attrs)
    return table


@dataclass(frozen=True)
class Block:
    """Scores [sample, step, layer, head, key] of consecutive samples, steps and layers, in the stored dtype."""

    samples: range
    steps: range
    layers: range
    values: dict[str, Array]

    @property
    def cut(self) -> tuple[slice, slice, slice]:
        """The block's place in arrays [sample, step, layer, …]."""
        return as_slice(self.samples), as_slice(self.steps), as_slice(self.layers)

    def each_step(self) -> Iterator[tuple[int, int, dict[str, Array]]]:
        """(sample, step, values [layer, head, key] in single precision) of the block, in order."""
        for i, sample in enumerate(self.samples):
            for j, step in enumerate(self.steps):
                values = {n: v[i, j].astype(np.float32, copy=False) for n, v in self.values.items()}
                yield sample, step, values


def as_slice(indices: range) -> slice:
    """A range of step 1 as a slice."""
    return slice(indices.start, indices.stop)


def blocks(
    data: xr.Dataset, names: list[str], budget: int = BLOCK_BYTES, most_samples: int | None = None
) -> Iterator[Block]:
    """All of the named variables, block by block: groups of samples outside, then layers, then steps in their order.

    Block edges follow the stored chunks of the first variable. A block is at most `budget` bytes, or one chunk where a chunk is
    larger. Variables without a head dimension get one of size 1. most_samples: no more than these at once, for callers that keep
    something of each; chunks that hold more are then read more than once.
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
                values = {name: read_keys(data, name, here) for name in names}
                yield Block(here["sample"], here["step"], here["layer"], values)


def _chunk(variable: xr.DataArray, dim: str, size: int) -> int:
    stored = variable.encoding.get("preferred_chunks") or {}
    return max(1, min(size, int(stored.get(dim, 1))))


def _multiple(chunk: int, fits: int, size: int) -> int:
    return min(size, max(1, fits // chunk) * chunk)


def read_keys(data: xr.Dataset, name: str, window: dict[str, range]) -> Array:
    """A variable with a key axis as [sample, step, layer, head, key]; received attention is NaN where there is no key.

    Heads may be key-value heads, and are one where the variable has none.
    """
    variable = _window(data[name], window)
    heads = [dim for dim in ("head", "kv_head") if dim in variable.dims]
    values = np.asarray(variable.transpose("sample", "step", "layer", *heads, "key").values)
    values = values if heads else values[:, :, :, None, :]
    if name.startswith("received"):
        real = real_keys(data, window)[:, :, None, None, :]
        if not real.all():
            values = np.where(real, values, np.asarray(np.nan, dtype=values.dtype))
    return values


def real_keys(data: xr.Dataset, window: dict[str, range]) -> Array:
    """bool [sample, step, key]: the key exists in that step and is no padding."""
    shape = (len(window["sample"]), len(window["step"]), data.sizes["key"])
    real = np.ones(shape, dtype=bool)
    if "region" in data:
        stored = _window(data["region"], window).transpose("sample", "key").values
        region = np.array(stored.tolist(), dtype=str)
        real &= (region != PADDING)[:, None, :]
    if "tokens" in data:
        real &= np.asarray(_window(data["tokens"], window).transpose("sample", "step", "key").values) >= 0
    return real


def _window(variable: xr.DataArray, window: dict[str, range]) -> xr.DataArray:
    return variable.isel({dim: as_slice(indices) for dim, indices in window.items() if dim in variable.dims})
