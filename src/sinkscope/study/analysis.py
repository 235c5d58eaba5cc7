"""What is kept of a recorded generation for the tables: its mergeable statistics, in one small file.

The file is numpy's .npz: the dataset's arrays, and one JSON text with their dimensions, the coordinates and the attributes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkscope.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

ABOUT = "about"


def analyse(trace: Any, path: Path) -> dict[str, Any]:
    """Writes the sink statistics of a trace, and gives the number by which exemplars are chosen."""
    from sinkscope.sinks import sink_statistics

    part = sink_statistics(trace)
    save(part, path)
    steps = float(part["head_steps"].sum())
    sinks = float(part["detections"].sum()) / steps if steps else 0.0
    return {"sinks_per_head": round(sinks, 6)}


def save(part: xr.Dataset, path: Path) -> None:
    """A dataset as one file that is either not there or complete."""
    about = {
        "dims": {str(name): [str(dim) for dim in part[name].dims] for name in part.variables},
        "coords": [str(name) for name in part.coords],
        "attrs": dict(part.attrs),
    }
    arrays = {str(name): np.asarray(part[name].values) for name in part.variables}
    arrays[ABOUT] = np.asarray(json.dumps(about))
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # the stub takes the names for an option
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def load(path: Path) -> xr.Dataset:
    """What `save` wrote."""
    import xarray

    try:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(str(file[ABOUT]))
            arrays = {name: (tuple(dims), file[name]) for name, dims in about["dims"].items()}
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{path} is damaged ({error}); remove it and its trace, and run the same command again"
        ) from error
    coords = {name: arrays.pop(name) for name in about["coords"]}
    return xarray.Dataset(arrays, coords=coords, attrs=about["attrs"])
