"""One network over several devices: spread by accelerate, whose hooks move inputs and weights to where a layer is computed.

Attention is computed, measured and masked on one of the devices, the model's own: queries, keys and values of other layers come
there and their outputs go back, so that nothing downstream knows of the others.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sinkscope.base.errors import CheckpointError, InputError
from sinkscope.base.files import one_line

DeviceMap = str | Mapping[str, str | int]


def spread(network: nn.Module, device_map: DeviceMap) -> None:
    """Spread a network that lies on the CPU, in place.

    Args:
        device_map: "auto": as its layers fit into the GPUs, and what is left on the CPU; or module → device ("cpu", "disk", 0,
            "cuda:1"), as accelerate reads it.
    """
    import accelerate
    from accelerate.utils import get_balanced_memory

    if device_map == "auto":
        whole = {"no_split_module_classes": list(getattr(network, "_no_split_modules", None) or [])}
        memory = get_balanced_memory(network, **whole)
        chosen: dict[str, Any] = dict(accelerate.infer_auto_device_map(network, max_memory=memory, **whole))
    elif isinstance(device_map, Mapping):
        chosen = dict(device_map)
    else:
        raise InputError(f"device_map should be 'auto' or a table from modules to devices, got {device_map!r}")
    options: dict[str, Any] = {}
    if "disk" in chosen.values():
        folder = tempfile.mkdtemp(prefix="sinkscope-weights-")
        weakref.finalize(network, shutil.rmtree, folder, ignore_errors=True)
        options["offload_dir"] = folder
    try:
        accelerate.dispatch_model(network, chosen, force_hooks=True, **options)
    except Exception as error:  # a map may name modules that are not there, or devices
        raise CheckpointError(f"accelerate cannot spread the network as asked: {one_line(error)}") from error


def home(network: nn.Module) -> torch.device | None:
    """Of a network spread over devices, the one that inputs go to and attention is computed on: its first GPU, else the CPU."""
    places: dict[str, Any] | None = getattr(network, "hf_device_map", None)
    if places is None or (len(set(places.values())) < 2 and "disk" not in places.values()):
        return None
    devices = [torch.device(place) for place in places.values() if place != "disk"]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
