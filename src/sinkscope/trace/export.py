"""One step of a trace for other tools: a cache with TransformerLens' names, and a safetensors file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sinkscope.base.errors import InputError

if TYPE_CHECKING:
    import xarray

    from sinkscope.trace.trace import Trace

NAMES = {
    "attention": "blocks.{layer}.attn.hook_pattern",
    "received": "blocks.{layer}.attn.hook_received",
    "value_norm": "blocks.{layer}.attn.hook_v_norm",
    "key_norm": "blocks.{layer}.attn.hook_k_norm",
    "hidden_norm": "blocks.{layer}.hook_resid_pre_norm",
}
"""Variable of a trace → the name of its activation. `hook_pattern` is TransformerLens' own; the others follow its scheme."""


def one_step(trace: Trace, sample: int, step: int) -> xarray.Dataset:
    """The recorded variables of one sample and step, padding and keys that do not exist yet left out.

    `attention` is the map of this step, recorded with it (`Capture(level="maps")`) or added later (`attention_at`).
    """
    dataset = trace.dataset
    if not 0 <= sample < dataset.sizes["sample"]:
        raise InputError(f"sample {sample} is not in the trace, which has 0 to {dataset.sizes['sample'] - 1}")
    recorded = dataset["step"].values
    if step not in recorded:
        raise InputError(f"step {step} was not recorded; the trace has {recorded[0]} to {recorded[-1]}")
    chosen = dataset.isel(sample=sample).sel(step=step)
    if "attention_at" in chosen:
        maps = chosen["attention_at"]
        chosen = chosen.drop_dims("map_step").drop_vars("map_step", errors="ignore")
        if "attention" not in chosen and step in maps["map_step"].values:
            chosen = chosen.assign(attention=maps.sel(map_step=step, drop=True))
    real = (dataset["region"].isel(sample=sample).values != "padding") & (chosen["tokens"].values >= 0)
    chosen = chosen.isel(key=real)
    return chosen.isel(query=real) if chosen.sizes.get("query") == len(real) else chosen


def activation_cache(trace: Trace, sample: int = 0, step: int = 0) -> dict[str, Tensor]:
    """See `Trace.to_activation_cache`; maps may have been added later (`sinkscope trace --maps-at`)."""
    chosen = one_step(trace, sample, step)
    cache = {}
    for variable, name in NAMES.items():
        if variable in chosen:
            for layer in chosen["layer"].values:
                values = np.ascontiguousarray(chosen[variable].sel(layer=layer).values)
                cache[name.format(layer=int(layer))] = torch.from_numpy(values)[None]
    return cache


def save_step(trace: Trace, path: str | os.PathLike[str], sample: int = 0, step: int = 0) -> None:
    """Write the numbers of one step as a safetensors file, one tensor for each variable.

    The file's metadata says the axes of each (`axes.received`: layer,head,key) and the labels of an axis (`labels.layer`: 0,1,2).
    """
    from safetensors.numpy import save_file

    chosen = one_step(trace, sample, step)
    arrays = {str(name): values for name, values in chosen.data_vars.items() if values.dtype.kind in "biuf"}
    metadata = {
        "sample": str(sample),
        "step": str(step),
        **{f"axes.{name}": ",".join(map(str, array.dims)) for name, array in arrays.items()},
        **{f"labels.{dim}": ",".join(map(str, chosen[dim].values)) for dim in chosen.dims if dim in chosen.coords},
    }
    save_file({name: np.ascontiguousarray(array.values) for name, array in arrays.items()}, path, metadata)
