"""Split sinks: masked queries look at one key, decided queries at another (figure 6a).

Needs a capture with `by_query=True`. The paper shows one such step of LLaDA, at the end of a block, in the deepest layers.
Classes of few queries differ by chance alone, so the capture also records two random classes of the same sizes, drawn from
the same queries ("control a", "control b"): how often those split is the level that real classes must exceed.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks.dataset import Array, real_keys
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


def _strongest(received: Array) -> Array:
    return np.asarray(np.where(np.isnan(received), -np.inf, received).argmax(axis=-1))
