"""Attention maps of single steps, added to a finished trace: each step's forward is computed again from its tokens.

A trace at level "heads" says how much attention a key receives, not from whom. The map of a step needs one forward pass; a
trace of maps of all steps would be hundreds of times larger.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sinkscope.base.errors import InputError
from sinkscope.models.model import Model
from sinkscope.policies import parse_policy
from sinkscope.trace.trace import Trace


def with_maps(model: Model, trace: Trace, steps: Sequence[int]) -> Trace:
    """The trace with `attention_at` (sample, map_step, layer, head, query, key) for these steps.

    Args:
        model: the one that made the trace; other weights are refused.
        steps: labels of recorded steps. Maps that the trace already has stay.

    Raises:
        InputError: a step that was not recorded, other weights, approximate steps, or a policy that chooses keys by the step
            before: its maps can only be recorded while it runs.
    """
    import xarray

    data = trace.dataset
    digest = data.attrs.get("weights_digest")
    if digest and digest != model.digest:
        raise InputError(
            f"this trace was made with other weights ({str(digest)[:12]}…) than {model.source} has ({model.digest[:12]}…)"
        )
    recorded = [int(step) for step in data["step"].values]
    missing = [step for step in steps if step not in recorded]
    if missing or not steps:
        raise InputError(
            f"step {missing or list(steps)} was not recorded; this trace has "
            + (f"{recorded[0]} to {recorded[-1]}" if recorded else "none")
        )
    if "fresh" in data and not bool(data["fresh"].where(data["tokens"] >= 0, True).all()):
        raise InputError("the steps of this trace were approximate: their maps cannot be computed again")
    policy = parse_policy(str(data.attrs["policy"])) if data.attrs.get("policy") else None
    real = data["region"].values != "padding"
    dims = ("sample", "map_step", "layer", "head", "query", "key")
    maps = []
    for step in steps:
        tokens = data["tokens"].sel(step=step).values
        count = int((tokens >= 0).any(axis=0).sum())  # a causal model has fewer keys than the trace has columns
        ids = torch.as_tensor(np.maximum(tokens[:, :count], 0))
        mask = None if real[:, :count].all() else torch.as_tensor(real[:, :count])
        attention = model.attention(ids, mask, policy).numpy().swapaxes(0, 1)
        rows, layers, heads = attention.shape[:3]
        whole = np.full((rows, layers, heads, tokens.shape[1], tokens.shape[1]), np.nan, dtype=np.float32)
        whole[..., :count, :count] = attention
        maps.append(whole)
    coords = {"map_step": list(steps), "layer": np.arange(layers), "head": np.arange(heads)}
    added = xarray.DataArray(np.stack(maps, axis=1), coords=coords, dims=dims, attrs={"units": "probability"})
    added = added.sel({dim: data[dim].values for dim in ("layer", "head") if dim in data.coords})
    if "attention_at" in data:
        before = data["attention_at"].sel(map_step=[s for s in data["map_step"].values if s not in steps])
        added = xarray.concat([before, added], "map_step").sortby("map_step")
        data = data.drop_dims("map_step")
    return Trace(dataset=data.assign(attention_at=added.assign_coords(query=np.arange(tokens.shape[1]))))
