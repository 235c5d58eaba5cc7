"""Split sinks: masked queries look at one key, decided queries at another (figure 6a).

Needs a capture with `by_query=True`. The paper shows one such step of LLaDA, at the end of a block, in the deepest layers.
Classes of few queries differ by chance alone, so the capture also records two random classes of the same sizes, drawn from
the same queries ("control a", "control b"): how often those split is the level that real classes must exceed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.base.errors import InputError
from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks.dataset import Array, dataset_of, frame, head_means, labels, real_keys
from sinkscope.sinks.detection import sinks_of

CLASSES = ("masked", "decided")
CONTROLS = ("control a", "control b")


def split_of(a: Array, b: Array, epsilon: float = EPSILON, rule: str = "sum") -> tuple[Array, Array]:
    """(split, both) bool [...]: both classes of queries have a sink, and their strongest ones are different keys.

    a, b: received attention of that class of queries, float [..., K], uniform = 1, all NaN when the class is empty. Besides
    being strongest for its own class, each key must not be a sink for the other: two sinks that both classes share, in
    another order, are not split.
    """
    sinks = [sinks_of(x, epsilon, rule) for x in (a, b)]
    both = np.asarray(sinks[0].any(axis=-1) & sinks[1].any(axis=-1))
    top = [_strongest(x)[..., None] for x in (a, b)]
    foreign = [
        np.take_along_axis(sinks[1], top[0], axis=-1)[..., 0],
        np.take_along_axis(sinks[0], top[1], axis=-1)[..., 0],
    ]
    return np.asarray(both & (top[0] != top[1])[..., 0] & ~foreign[0] & ~foreign[1]), both


def by_query(data: xr.Dataset, sample: int, step: int) -> dict[str, Array]:
    """Class of queries → received attention float [layer, head, key] (one head for head means); NaN where there is no key."""
    variable = data["received_by"].isel(sample=sample, step=step)
    heads = ("head",) if "head" in variable.dims else ()
    values = np.asarray(variable.transpose("query_kind", "layer", *heads, "key").values, dtype=np.float32)
    values = values if heads else values[:, :, None]
    window = {"sample": range(sample, sample + 1), "step": range(step, step + 1)}
    values = np.where(real_keys(data, window)[0, 0], values, np.float32(np.nan))
    return {str(kind): values[i] for i, kind in enumerate(data["query_kind"].values.tolist())}


def split_counts(data: xr.Dataset, sample: int, epsilon: float = EPSILON, rule: str = "sum") -> dict[str, Array]:
    """Head-steps of one sample by layer, float [L]: split, both, and control_split, control_both of the random classes.

    NaN for the controls when the trace has none.
    """
    names = ("split", "both", "control_split", "control_both")
    counts = {name: np.zeros(data.sizes["layer"]) for name in names}
    controlled = set(CONTROLS) <= set(map(str, data["query_kind"].values.tolist()))
    for step in range(data.sizes["step"]):
        values = by_query(data, sample, step)
        for prefix, classes in (("", CLASSES), ("control_", CONTROLS)):
            if prefix and not controlled:
                continue
            split, both = split_of(values[classes[0]], values[classes[1]], epsilon, rule)
            counts[f"{prefix}split"] += split.sum(axis=-1)
            counts[f"{prefix}both"] += both.sum(axis=-1)
    if not controlled:
        counts |= {name: np.full(data.sizes["layer"], np.nan) for name in names[2:]}
    return counts


def split_sinks(trace: Any, epsilon: float = EPSILON, rule: str = "sum") -> xr.Dataset:
    """Where masked and decided answer queries have different sinks (figure 6a).

    Variables [sample, step, layer, head]: `split` bool; `both` bool (both classes have a sink: the base that split counts
    against); `masked_key`, `decided_key` int (strongest key of each class, −1 without a sink). Source: arXiv 2510.15731,
    figure 6a. Limits: a class of few queries (early and late steps) is noisy, and nearly any key can be its sink:
    `split_by_layer` has the level of chance.
    """
    data = _with_classes(trace)
    dims = ("sample", "step", "layer", "head")
    coords: dict[str, Any] = {d: labels(data, d) for d in dims[:3]}
    coords["head"] = np.arange(1) if head_means(data, "received_by") else labels(data, "head")
    shape = [len(coords[d]) for d in dims]
    split, both = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    keys = {kind: np.full(shape, -1, dtype=np.int32) for kind in CLASSES}
    for sample, step in np.ndindex(*shape[:2]):
        values = by_query(data, sample, step)
        masked, decided = (values[kind] for kind in CLASSES)
        split[sample, step], both[sample, step] = split_of(masked, decided, epsilon, rule)
        for kind in CLASSES:
            # The strongest key of a head without a sink means nothing.
            present = sinks_of(values[kind], epsilon, rule).any(axis=-1)
            keys[kind][sample, step] = np.where(present, _strongest(values[kind]), -1)
    return xr.Dataset(
        {"split": (dims, split), "both": (dims, both), **{f"{kind}_key": (dims, keys[kind]) for kind in CLASSES}},
        coords=coords,
        attrs={"epsilon": epsilon, "rule": rule, "units": "split, both: 1; keys: column of the trace"},
    )


def split_by_layer(trace: Any, epsilon: float = EPSILON, rule: str = "sum") -> pd.DataFrame:
    """One row per layer: split_share and head_steps (that many have a sink for both classes), chance and chance_head_steps.

    chance: the same share for two random classes of the same sizes; NaN for traces that did not record them.
    """
    data = _with_classes(trace)
    each = [split_counts(data, sample, epsilon, rule) for sample in range(data.sizes["sample"])]
    total = {name: np.sum([counts[name] for counts in each], axis=0) for name in each[0]}
    with np.errstate(invalid="ignore", divide="ignore"):
        return frame(
            {
                "layer": labels(data, "layer"),
                "split_share": total["split"] / total["both"],
                "head_steps": total["both"].astype(np.int64),
                "chance": total["control_split"] / total["control_both"],
                "chance_head_steps": total["control_both"],
            },
            units={"split_share": "share of heads and steps where both classes have a sink"},
        )


def _with_classes(trace: Any) -> xr.Dataset:
    data = dataset_of(trace)
    if "received_by" not in data:
        raise InputError("split sinks need a capture by query kind; capture with ss.Capture(by_query=True)")
    return data


def _strongest(received: Array) -> Array:
    return np.asarray(np.where(np.isnan(received), -np.inf, received).argmax(axis=-1))
