"""Traces on disk: a zarr folder that grows step by step, packed into one `.zarr.zip` when the generation is done.

While recording, `OUT.partial` holds one chunk per variable and step, and a small file that says how many steps are complete;
it is replaced last and atomically, so after a kill the folder opens up to the last complete step. Received attention is
stored as float16: its relative error is at most 2⁻¹¹ (0.05 %), and it is float32 again when read.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkscope.errors import InputError, SinkscopeError
from sinkscope.trace.capture import QUERY_KINDS, Capture
from sinkscope.trace.frame import REGIONS, Array, Frame, Variable, variables
from sinkscope.trace.trace import Trace

if TYPE_CHECKING:
    import xarray

PROGRESS = "complete.json"
SUFFIX = ".zarr.zip"


class TraceExists(InputError):
    """A trace would overwrite a file."""


def partial_path(out: Path) -> Path:
    """The folder that holds a recording until it is finished."""
    return out.with_name(out.name + ".partial")


class Folder:
    """A recording that streams to disk.

    Args:
        out: the finished file, `….zarr.zip`; the recording lives in `….zarr.zip.partial` until then.
    """

    def __init__(self, out: str | os.PathLike[str], frame: Frame, capture: Capture, attributes: dict[str, Any]) -> None:
        import zarr

        self.out = Path(out)
        self.folder = partial_path(self.out)
        self.steps: list[int] = []
        self._variables = variables(frame, capture)
        if self.out.exists():
            raise TraceExists(f"{self.out} exists already; give another --out, or move it away")
        if self.folder.exists():
            raise TraceExists(
                f"{self.folder} holds an earlier recording that was not finished; open it with ss.Trace.open, or remove it"
            )
        try:
            self.folder.mkdir(parents=True)
        except OSError as error:
            raise InputError(f"{self.folder} cannot be created ({error.strerror}); give another --out") from error
        self._group = zarr.open_group(str(self.folder), mode="w")
        self._group.attrs.update(attributes)
        self._arrays: dict[str, Any] = {}
        for name, variable in self._variables.items():
            if variable.stepwise:
                self._arrays[name] = self._create(name, variable, frame)
        self._static("layer", ("layer",), np.asarray(frame.layers))
        self._static("sample", ("sample",), np.arange(frame.rows))
        self._static("key", ("key",), np.arange(frame.columns))
        if capture.level != "layers":
            self._static("head", ("head",), np.asarray(frame.heads))
        self._static("region", ("sample", "key"), frame.region())
        self._static("position", ("sample", "key"), frame.position())
        self._step = self._group.create_array(
            "step", shape=(frame.steps,), chunks=(frame.steps,), dtype="int64", dimension_names=("step",)
        )
        self._progress()

    def _create(self, name: str, variable: Variable, frame: Frame) -> Any:
        """An array with one chunk per step."""
        sizes = frame.sizes
        shape = tuple(sizes[dim] for dim in variable.dims)
        chunks = tuple(1 if dim == "step" else sizes[dim] for dim in variable.dims)
        array = self._group.create_array(
            name,
            shape=shape,
            chunks=chunks,
            dtype="float16" if variable.halved else variable.dtype,
            fill_value=_fill(variable),
            dimension_names=variable.dims,
        )
        array.attrs.update(_attributes(variable))
        return array

    def _static(self, name: str, dims: tuple[str, ...], value: Array, attributes: dict[str, Any] | None = None) -> None:
        array = self._group.create_array(name, shape=value.shape, chunks=value.shape, dtype=value.dtype, dimension_names=dims)
        array.attrs.update(attributes or {})
        array[...] = value

    def write(self, index: int, step: int, arrays: dict[str, Array]) -> None:
        """Writes one recorded step; the count of complete steps comes last."""
        try:
            for name, array in arrays.items():
                halved = self._variables[name].halved
                self._arrays[name][:, index] = halve(array) if halved else array
            self.steps.append(step)
            self._progress()
        except OSError as error:
            raise SinkscopeError(
                f"writing step {step} to {self.folder} failed ({error.strerror or error}); the steps before it are safe there"
            ) from error

    def _progress(self) -> None:
        """Replaces the small file that says what is complete."""
        path = self.folder / PROGRESS
        path.with_suffix(".tmp").write_text(json.dumps({"steps": self.steps}), encoding="utf-8")
        os.replace(path.with_suffix(".tmp"), path)

    def close(self, static: dict[str, Array], attributes: dict[str, Any]) -> Trace:
        """Trims to the steps that ran, adds what is known at the end, packs, and opens the result."""
        count = len(self.steps)
        for name, array in self._arrays.items():
            array.resize(tuple(count if dim == "step" else size for dim, size in zip(self._variables[name].dims, array.shape)))
        self._step.resize((count,))
        self._step[...] = np.asarray(self.steps, dtype=np.int64)
        self._static("decided_step", ("sample", "key"), static["decided_step"])
        if "prefill_received" in static:
            variable = self._variables["prefill_received"]
            self._static("prefill_received", variable.dims, halve(static["prefill_received"]), _attributes(variable))
        self._group.attrs.update(attributes)
        pack(self.folder, self.out)
        shutil.rmtree(self.folder)
        return open_trace(self.out)

    def abandon(self) -> None:
        """Leaves the partial folder for `Trace.open`."""


def halve(array: Array) -> Array:
    """Float16; values past its range become its largest."""
    half: Array = np.clip(array, -65504.0, 65504.0).astype(np.float16)
    return half


def pack(folder: Path, out: Path) -> None:
    """Zips a folder; the file appears under its name only when it is complete."""
    unfinished = out.with_name(out.name + ".tmp")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != PROGRESS:
                archive.write(path, path.relative_to(folder).as_posix())
    os.replace(unfinished, out)


def open_trace(path: str | os.PathLike[str]) -> Trace:
    """A finished trace, or a partial one up to its last complete step; arrays are read when they are used."""
    import xarray

    out = Path(path)
    if out.is_dir():
        return Trace(_open_partial(out))
    if out.is_file():
        if not zipfile.is_zipfile(out):
            raise InputError(f"{out} is not a trace: expected a {SUFFIX} file or a .partial folder")
        from zarr.storage import ZipStore

        try:
            dataset = xarray.open_zarr(ZipStore(str(out), mode="r"), consolidated=False, chunks=None)
        except Exception as error:  # zarr raises its own kinds for a zip that holds something else
            raise InputError(f"{out} is not a trace: it holds no zarr group ({type(error).__name__})") from error
        return Trace(_finished(dataset))
    if partial_path(out).is_dir():
        return Trace(_open_partial(partial_path(out)))
    raise InputError(f"there is no trace {out}, and no unfinished {partial_path(out).name} beside it")


def _open_partial(folder: Path) -> xarray.Dataset:
    import xarray

    try:
        steps = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))["steps"]
        dataset = xarray.open_zarr(str(folder), consolidated=False, chunks=None)
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"{folder} is not an unfinished trace: it has no readable {PROGRESS}") from error
    dataset = dataset.isel(step=slice(0, len(steps))).assign_coords(step=np.asarray(steps, dtype=np.int64))
    dataset.attrs["unfinished"] = f"recording stopped after {len(steps)} steps"
    return _finished(dataset)


def _finished(dataset: xarray.Dataset) -> xarray.Dataset:
    """Names instead of codes for the regions."""
    names = np.asarray(REGIONS)[dataset["region"].values.astype(int)]
    dataset = dataset.assign(region=(("sample", "key"), names, {"units": "padding | prompt | answer"}))
    if "query_kind" in dataset.dims:
        dataset = dataset.assign_coords(query_kind=list(QUERY_KINDS))
    return dataset


def save(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Writes a trace that is in memory, or copies one that lies on disk elsewhere."""
    import zarr

    out = Path(path)
    if out.exists():
        raise TraceExists(f"{out} exists already; give another path, or move it away")
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = partial_path(out)
    if folder.exists():
        raise TraceExists(f"{folder} is in the way; remove it, or give another path")
    dataset = trace.dataset
    group = zarr.open_group(str(folder), mode="w")
    group.attrs.update({key: value for key, value in dataset.attrs.items() if value is not None})
    for name in [*dataset.data_vars, *dataset.coords]:
        if name == "query_kind":
            continue
        _save_array(group, str(name), dataset[name])
    pack(folder, out)
    shutil.rmtree(folder)


def _save_array(group: Any, name: str, array: xarray.DataArray) -> None:
    """One variable, a chunk per step."""
    halved = name.startswith("received") or name in ("attention", "prefill_received")
    value: Any = array.values
    if name == "region":
        value = np.searchsorted(np.asarray(REGIONS), value, sorter=np.argsort(REGIONS))
        value = np.argsort(REGIONS)[value].astype(np.int8)
    chunks = tuple(1 if dim == "step" and array.ndim > 1 else size for dim, size in zip(array.dims, array.shape))
    created = group.create_array(
        name,
        shape=array.shape,
        chunks=chunks,
        dtype="float16" if halved else value.dtype,
        dimension_names=tuple(str(dim) for dim in array.dims),
    )
    created.attrs.update({key: item for key, item in array.attrs.items() if isinstance(item, (str, int, float))})
    if halved:
        created.attrs["scale_factor"] = 1.0
    created[...] = halve(value) if halved else value


def _fill(variable: Variable) -> Any:
    return np.asarray(variable.empty, dtype="float16" if variable.halved else variable.dtype)[()]


def _attributes(variable: Variable) -> dict[str, Any]:
    """Units; and for float16 a scale of one, which makes xarray read it as float32."""
    return {"units": variable.unit, **({"scale_factor": 1.0} if variable.halved else {})}
