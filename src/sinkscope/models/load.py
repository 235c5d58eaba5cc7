"""`ss.load`: a hub id or a folder in the Hugging Face layout becomes a Model."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sinkscope.base.checks import whole
from sinkscope.base.errors import CheckpointError, InputError, nearest
from sinkscope.models.adapter import CONFIG as ADAPTER
from sinkscope.models.adapter import AdapterCheckpoint, read_adapter
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES, family_of
from sinkscope.models.fetched import NAME, TWIN, find_fetched
from sinkscope.models.model import Model
from sinkscope.models.placement import DeviceMap, home, spread
from sinkscope.models.tokenizer import read_tokenizer

__all__ = ["FAMILIES", "as_model", "family_of", "find", "load", "resolve_device", "resolve_dtype", "without_mode"]

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}

ORGANISMS = Path(__file__).parents[1] / "organisms" / "weights"
"""The models that come with the package, one folder each."""
CAUSAL_MODE = "@causal"
"""Behind a source: the causal mode of a checkpoint that has two."""
ADAPTERS = Path(__file__).parent / "adapters"


def load(
    source: str | os.PathLike[str],
    device: str = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    check: bool = False,
    family: str | None = None,
    mask_token_id: int | None = None,
    device_map: DeviceMap | None = None,
) -> Model:
    """Loads a checkpoint: safetensors only, strictly, and without running any code that comes with it.

    Args:
        source: a folder in the Hugging Face layout, a hub id such as "GSAI-ML/LLaDA-8B-Instruct", or one of the small
            models that come with the package, such as "organism/scratch". SOURCE@causal: the causal mode of a checkpoint that
            has two (Nemotron-Labs-Diffusion).
        device: "auto" (a GPU when there is one), "cpu", "cuda", "cuda:1", "mps".
        dtype: "auto" (the checkpoint's own on a GPU, float32 on a CPU, where bfloat16 is slow), "float32", "bfloat16",
            "float16", "float64".
        revision: a branch, tag or commit on the hub; the commit that was used is in `model.revision`.
        check: run the self-check before returning (`model.check()`).
        family: None: as config.json says. Needed where it does not say that a model is no causal one (Open-dCoder).
        mask_token_id: None: as the checkpoint's files say, else the official id of the family.
        device_map: None: the whole network on one device. "auto" or a table from modules to devices: spread by accelerate over
            GPUs, CPU and disk; `device` is not asked then.

    >>> load("organism/scratch", device="cpu").family
    'llada'
    """
    if not isinstance(source, (str, os.PathLike)):
        raise InputError(
            f"load takes a folder or a hub id, got {type(source).__name__}; "
            "ss.wrap(network, tokenizer) takes a transformers network"
        )
    if device_map is not None and device != "auto":
        raise InputError(f"device {device!r} and device_map were both given; a map places every part: leave out device")
    where = torch.device("cpu") if device_map is not None else resolve_device(device)
    checkpoint = find(source, revision)
    spec = family_of(checkpoint, family)
    precision = resolve_dtype(dtype, where, checkpoint)
    tokenizer = read_tokenizer(checkpoint.folder, spec.chat_template)
    if isinstance(checkpoint, AdapterCheckpoint):
        # An adapter's folder need not hold a tokenizer: its base has the same one.
        tokenizer = tokenizer or read_tokenizer(checkpoint.base.folder, spec.chat_template)
        network = spec.build(checkpoint.base if spec.causal else checkpoint, where, precision)
        checkpoint.merge(network)
    else:
        network = spec.build(checkpoint, where, precision)
    if device_map is not None:
        spread(network, device_map)
        where = home(network) or next(network.parameters()).device
    model = Model(checkpoint, spec, network, tokenizer, where)
    if mask_token_id is not None:
        if not 0 <= whole("mask_token_id", mask_token_id, 0) < model.shape.vocabulary:
            raise InputError(f"mask_token_id {mask_token_id} is not in the vocabulary of {model.shape.vocabulary} ids")
        model.ids = replace(model.ids, mask=mask_token_id)
    if check:
        model.check().require()
    return model


def as_model(model: Model | str | os.PathLike[str]) -> Model:
    """A model, given as one or as what `load` takes."""
    if isinstance(model, Model):
        return model
    if isinstance(model, (str, os.PathLike)):
        return load(model)
    raise InputError(
        f"expected a model from ss.load, a folder or a hub id, got {type(model).__name__}; "
        "ss.wrap(network, tokenizer) takes a transformers network"
    )


def find(source: str | os.PathLike[str], revision: str | None = None) -> Checkpoint:
    """The checkpoint behind a folder or hub id, fetched if need be; no weights are read yet."""
    name = os.fspath(source)
    if name != without_mode(name):
        return replace(find(without_mode(name), revision), causal=True)
    if is_organism(name):
        return _organism(name, revision)
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        if revision is not None:
            raise InputError(f"{name} is a folder, which has no revisions; leave out revision={revision!r}")
        if (folder / ADAPTER).is_file():
            return read_adapter(folder.resolve(), name, find)
        return Checkpoint(folder.resolve(), name)
    # A folder of one of these names is the user's own, and went first.
    if name == TWIN:
        return read_adapter(ADAPTERS / TWIN, TWIN, find)
    if name == NAME:
        fetched = find_fetched()
        if fetched is None:
            raise CheckpointError(f"{name} is not on this machine: run `sinkscope fetch {name}` (93 MB, Apache-2.0)")
        return fetched
    if name and folder.exists():
        raise CheckpointError(f"{name} is a file; give the folder that holds config.json")
    if not name or name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise CheckpointError(f"there is no folder {name!r}; give a folder with config.json, or a hub id owner/name")
    from sinkscope.models.hub import fetch

    return fetch(name, revision)


def without_mode(source: str) -> str:
    """SOURCE of SOURCE@causal, and of SOURCE alone."""
    return source if Path(source).expanduser().is_dir() else source.removesuffix(CAUSAL_MODE)


def is_organism(source: object) -> bool:
    """Whether a source names one of the small models that come with the package."""
    return str(source).startswith("organism/")


def _organism(name: str, revision: str | None) -> Checkpoint:
    """One of the small models that come with the package."""
    shipped = sorted(path.name for path in ORGANISMS.iterdir() if path.is_dir()) if ORGANISMS.is_dir() else []
    folder = name.removeprefix("organism/")
    if folder not in shipped:
        hint = nearest(folder, shipped) if shipped else "this installation ships none"
        raise CheckpointError(f"{name} is not one of the organisms that come with sinkscope; {hint}")
    if revision is not None:
        raise InputError(f"{name} comes with the package and has no revisions; leave out revision={revision!r}")
    return Checkpoint(ORGANISMS / folder, name)


def resolve_device(device: str) -> torch.device:
    """The device meant by a name, which must be there."""
    name = str(device)
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")
    try:
        asked = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device {name!r} is not known; use auto, cpu, cuda, cuda:0 or mps") from error
    if asked.type == "cuda":
        usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (asked.index or 0) >= usable:
            raise InputError(
                f"device {name} was asked for, but this machine has {usable or 'no'} usable CUDA GPUs; use device cpu or auto"
            )
        return torch.device("cuda", torch.cuda.current_device() if asked.index is None else asked.index)
    if asked.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device mps was asked for, but this machine has none; use device cpu or auto")
    return asked


def resolve_dtype(dtype: Any, device: torch.device, checkpoint: Checkpoint) -> torch.dtype:
    """The dtype meant by a name; "auto" depends on the device."""
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    if dtype in DTYPES:
        return DTYPES[dtype]
    if dtype != "auto":
        raise InputError(f"dtype {dtype!r} is not known; {nearest(str(dtype), [*DTYPES, 'auto'])}")
    if device.type == "cpu":
        return torch.float32
    named = str(checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype") or "")
    return DTYPES.get(named.removeprefix("torch.")) or checkpoint.stored_dtype
