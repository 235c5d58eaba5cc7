"""Split sinks: masked queries look at one key, decided queries at another (figure 6a).

Needs a capture with `by_query=True`. The paper shows one such step of LLaDA, at the end of a block, in the
deepest layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.errors import InputError
from sinkscope.sink_rule import EPSILON
from sinkscope.sinks.dataset import Array, dataset_of, labels
from sinkscope.sinks.detection import sinks_of


def split_of(
    masked: Array, decided: Array, epsilon: float = EPSILON, rule: str = "sum"
) -> tuple[Array, Array]:
    """(split, both) bool [...]: both classes of queries have a sink, and their strongest ones are different
    keys.

    masked, decided: received attention of that class of queries, float [..., K], uniform = 1, all NaN when
    the class is empty. Besides being strongest for its own class, each key must not be a sink for the
    other: two sinks that both classes share, in another order, are not split.
    """
    sinks = [sinks_of(x, epsilon, rule) for x in (masked, decided)]
    both = np.asarray(sinks[0].any(axis=-1) & sinks[1].any(axis=-1))
    top = [np.where(np.isnan(x), -np.inf, x).argmax(axis=-1)[..., None] for x in (masked, decided)]
    foreign = [
        np.take_along_axis(sinks[1], top[0], axis=-1)[..., 0],
        np.take_along_axis(sinks[0], top[1], axis=-1)[..., 0],
    ]
    return np.asarray(both & (top[0] != top[1])[..., 0] & ~foreign[0] & ~foreign[1]), both


def split_sinks(trace: Any, epsilon: float = EPSILON, rule: str = "sum") -> xr.Dataset:
    """Where masked and decided answer queries have different sinks (figure 6a).

    Variables [sample, step, layer, head]: `split` bool; `both` bool (both classes have a sink: the base
    that split counts against); `masked_key`, `decided_key` int (strongest key of each class, −1 without a
    sink). Source: arXiv 2510.15731, figure 6a. Limits: a class of few queries (early and late steps) is
    noisy, and nearly any key can be its sink.
    """
    data = dataset_of(trace)
    if "received_by" not in data:
        raise InputError("split sinks need a capture by query kind; capture with ss.Capture(by_query=True)")
    dims = (
        ("sample", "step", "layer", "head")
        if "head" in data["received_by"].dims
        else ("sample", "step", "layer")
    )
    shape = [data.sizes[d] for d in dims]
    split, both = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    keys = {kind: np.full(shape, -1, dtype=np.int32) for kind in ("masked", "decided")}
    for sample in range(shape[0]):
        for step in range(shape[1]):
            one = data["received_by"].isel(sample=sample, step=step)
            values = {
                kind: np.asarray(
                    one.sel(query_kind=kind).transpose(*dims[2:], "key").values, dtype=np.float32
                )
                for kind in keys
            }
            split[sample, step], both[sample, step] = split_of(
                values["masked"], values["decided"], epsilon, rule
            )
            for kind, received in values.items():
                found = sinks_of(received, epsilon, rule).any(axis=-1)
                top = np.where(np.isnan(received), -np.inf, received).argmax(axis=-1)
                keys[kind][sample, step] = np.where(found, top, -1)
    return xr.Dataset(
        {
            "split": (dims, split),
            "both": (dims, both),
            "masked_key": (dims, keys["masked"]),
            "decided_key": (dims, keys["decided"]),
        },
        coords={d: labels(data, d) for d in dims},
        attrs={"epsilon": epsilon, "rule": rule, "units": "split, both: 1; keys: column of the trace"},
    )


def split_by_layer(trace: Any, epsilon: float = EPSILON, rule: str = "sum") -> pd.DataFrame:
    """One row per layer: split_share (of the head-steps where both classes have a sink), head_steps (that
    many)."""
    found = split_sinks(trace, epsilon, rule)
    over = [d for d in found["split"].dims if d != "layer"]
    base = found["both"].sum(over).values
    hits = found["split"].sum(over).values
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(base > 0, hits / np.maximum(base, 1), np.nan)
    table = pd.DataFrame({"layer": found["layer"].values, "split_share": share, "head_steps": base})
    table.attrs = {"units": {"split_share": "share of head-steps where both classes have a sink"}}
    return table
