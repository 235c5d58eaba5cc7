"""Traces on disk: a zarr folder that grows step by step, packed into one `.zarr.zip` when the generation is done.

While recording, `OUT.partial` holds one chunk per variable and step, and a small file that says how many steps are complete;
it is replaced last and atomically, so after a kill the folder opens up to the last complete step. Received attention is
stored as float16: its relative error is at most 2⁻¹¹ (0.05 %), below 2⁻¹⁴ its absolute error at most 2⁻²⁵; it is float32
again when read.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from sinkscope.base.errors import InputError, SinkscopeError
from sinkscope.base.files import MisfitError, fit, read_json, reading
from sinkscope.trace.capture import QUERY_KINDS, REGIONS, Array, Variable
from sinkscope.trace.chunks import ChunkedArray, is_halved, stored, write_whole
from sinkscope.trace.store_check import check_store
from sinkscope.trace.trace import Trace

if TYPE_CHECKING:
    import xarray

PROGRESS = "complete.json"
SUFFIX = ".zarr.zip"
DIMENSIONS = {
    "received": ("sample", "step", "layer", "key"), "tokens": ("sample", "step", "key"), "masked": ("sample", "step", "key"),
    "region": ("sample", "key"), "position": ("sample", "key"),
}  # fmt: skip
"""What every trace holds."""
EVERY_DIMENSION = (
    "sample", "step", "map_step", "layer", "head", "kv_head", "block", "query", "query_kind", "key", "byte",
)  # fmt: skip


class _Progress(TypedDict):
    steps: tuple[int, ...]


class _Options(TypedDict, total=False):
    block: int | None
    every: int


ATTRIBUTES: dict[str, type] = dict.fromkeys(("n_heads", "n_kv_heads", "window", "future"), int) | dict.fromkeys(
    ("model", "revision", "weights_digest", "family", "dtype", "decoding", "policy", "capture", "seed", "versions",
     "special_ids", "token_texts", "recorded"), str,
)  # fmt: skip
"""What a trace says of itself."""
JSON_ATTRIBUTES: dict[str, Any] = {
    "capture": _Options,
    "decoding": _Options,
    "seed": int | tuple[int, ...],
    "special_ids": Mapping[str, int | tuple[int, ...] | None],
    "token_texts": Mapping[str, Any],  # of half a character too, which no other text may hold
    "versions": Mapping[str, str],
}
"""Attributes that are JSON in a text → what they hold."""


class TraceExistsError(InputError):
    """A trace would overwrite a file."""


def partial_path(out: Path) -> Path:
    """The folder that holds a recording until it is finished."""
    return out.with_name(out.name + ".partial")


class Folder:
    """A recording that streams to disk.

    Args:
        out: the finished file, `….zarr.zip`; the recording lives in `….zarr.zip.partial` until then.
        named: every variable. sizes: dimension → length. labels: coordinate → labels of its dimension.
        static: variables without steps that are known now; regions as their codes.
        overwrite: in place of a trace that is there, which stays until the new one is whole, and of an unfinished recording.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        named: Mapping[str, Variable],
        sizes: Mapping[str, int],
        labels: Mapping[str, Any],
        static: dict[str, Array],
        attributes: dict[str, Any],
        overwrite: bool = False,
    ) -> None:
        import zarr

        self.out = Path(out)
        self.folder = partial_path(self.out)
        self.steps: list[int] = []
        self._variables = named
        check_free(self.out, overwrite)
        try:
            if self.folder.exists():
                # Claimed before it is removed: another process may still be writing to it.
                os.close(_claim(self.folder))
                shutil.rmtree(self.folder)
            self.folder.mkdir(parents=True)
        except OSError as error:
            raise InputError(f"{self.folder} cannot be created ({error.strerror}); give another --out") from error
        self._group = zarr.open_group(str(self.folder), mode="w", attributes=attributes)
        self._arrays = {
            name: ChunkedArray(self._group, name, variable, sizes)
            for name, variable in named.items()
            if variable.stepwise
        }
        for name, values in labels.items():
            if name not in ("step", "query_kind"):
                write_whole(self._group, name, (name,), values)
        self._static: dict[str, Array] = {}
        self._write_static(static)
        self._progress()
        self._claim: int | None = _claim(self.folder)

    def write(self, index: int, step: int, arrays: dict[str, Array]) -> None:
        """Writes one recorded step; the count of complete steps comes last."""
        with _disk(f"writing step {step} to {self.folder}", "the steps before it are safe there"):
            for name, array in arrays.items():
                self._arrays[name].write(index, array)
            self.steps.append(step)
            self._progress()

    def _write_static(self, static: dict[str, Array]) -> None:
        """Writes what does not grow with the steps, each variable once."""
        for name in static.keys() - self._static.keys():
            variable, values = self._variables[name], stored(name, static[name])
            write_whole(self._group, name, variable.dims, values, {"units": variable.unit})
        self._static |= static

    def _progress(self) -> None:
        """Replaces the small file that says what is complete."""
        path = self.folder / PROGRESS
        path.with_suffix(".tmp").write_text(json.dumps({"steps": self.steps}), encoding="utf-8")
        os.replace(path.with_suffix(".tmp"), path)

    def close(self, static: dict[str, Array], attributes: dict[str, Any]) -> Trace:
        """Trims to the steps that ran, adds what is known at the end, packs, and opens the result."""
        with _disk(f"packing {self.out}", f"all {len(self.steps)} steps are safe in {self.folder}"):
            for array in self._arrays.values():
                array.trim(len(self.steps))
            write_whole(self._group, "step", ("step",), np.asarray(self.steps, dtype=np.int64))
            self._write_static(static)
            self._group.attrs.update(attributes)
            pack(self.folder, self.out)
            self.abandon()
            shutil.rmtree(self.folder)
            return open_trace(self.out)

    def abandon(self) -> None:
        """Leaves the partial folder for `Trace.open`."""
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None


def check_free(out: Path, overwrite: bool = False) -> str:
    """Refuse to record where a trace or an unfinished recording is, unless it may go; then, what will be replaced.

    A recording cannot go on where it stopped: random streams, caches and a policy's scores went with its process.
    """
    there, partial = [f"{out} exists already"] if out.exists() else [], partial_path(out)
    if partial.exists():
        steps = "some"
        with suppress(InputError):
            steps = str(len(recorded_steps(partial)))
        there.append(f"{partial} holds {steps} steps of a recording that was not finished (Trace.open reads it)")
    named = " and ".join(there)
    if there and not overwrite:
        raise TraceExistsError(f"{named}; give another path, or --overwrite (overwrite=True) to record anew")
    return named


def _claim(folder: Path) -> int:
    """A descriptor of the folder of a recording that locks it for as long as it is open; freed by the system after a kill."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise TraceExistsError(f"another process is recording into {folder}; give another --out") from error
    except OSError:  # a file system that locks no folders
        pass
    return descriptor


@contextmanager
def _disk(doing: str, safe: str) -> Iterator[None]:
    """A full or missing disk is one line that says what is safe."""
    try:
        yield
    except OSError as error:
        raise SinkscopeError(f"{doing} failed ({error.strerror or error}); {safe}") from error


def pack(folder: Path, out: Path) -> None:
    """Zips a folder; the file appears under its name only when it is complete."""
    unfinished = out.with_name(out.name + ".tmp")
    try:
        unfinished.unlink(missing_ok=True)
        # Opened exclusively: a link planted in its place is refused, not followed.
        with unfinished.open("xb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and path.name != PROGRESS:
                    archive.write(path, path.relative_to(folder).as_posix())
        os.replace(unfinished, out)
    finally:
        unfinished.unlink(missing_ok=True)


def open_trace(path: str | os.PathLike[str]) -> Trace:
    """A finished trace, or a partial one up to its last complete step; arrays are read when they are used."""
    from zarr.storage import ZipStore

    out = Path(path)
    if out.is_file():
        if not zipfile.is_zipfile(out):
            raise InputError(f"{out} is not a trace: expected a {SUFFIX} file or a .partial folder")
        with reading(out, "it is not a trace, or record it again"):
            check_store(out)
            return Trace(_read(ZipStore(str(out), mode="r")))
    folder = out if out.is_dir() else partial_path(out)
    if not folder.is_dir():
        raise InputError(f"there is no trace {out}, and no unfinished {folder.name} beside it")
    steps = recorded_steps(folder)
    with reading(folder, "it is not an unfinished trace, or record it again"), warnings.catch_warnings():
        check_store(folder)
        warnings.filterwarnings("ignore", message=f"Object at {PROGRESS}")  # it is no array, and zarr says so
        return Trace(_read(str(folder), steps))


def recorded_steps(folder: Path) -> tuple[int, ...]:
    """The steps that a recording had finished when it stopped."""
    advice = f"{folder} is not an unfinished trace, or record it again"
    steps: tuple[int, ...] = read_json(folder / PROGRESS, advice, kind=_Progress)["steps"]
    return steps


def _read(store: Any, steps: tuple[int, ...] | None = None) -> xarray.Dataset:
    """Float32 instead of float16, lazily, and names instead of codes for the regions; steps: of an unfinished recording."""
    import xarray

    dataset = xarray.open_zarr(store, zarr_format=3, consolidated=False, chunks=None, mask_and_scale=False)
    if steps is not None:
        dataset = dataset.isel(step=slice(0, len(steps))).assign_coords(step=np.asarray(steps, dtype=np.int64))
        dataset.attrs["unfinished"] = f"recording stopped after {len(steps)} steps"
    for attribute in set(ATTRIBUTES) & set(dataset.attrs):
        text = fit(ATTRIBUTES[attribute], dataset.attrs[attribute], attribute)
        if attribute in JSON_ATTRIBUTES:
            try:
                document = json.loads(text or "null")
            except ValueError as error:
                raise MisfitError(f"its attribute {attribute!r} is not JSON ({error})") from error
            fit(JSON_ATTRIBUTES[attribute] | None, document, f"its attribute {attribute!r}")
    for name in dataset.data_vars:
        dims = dataset[name].dims
        # All are of samples, but for the windows of a causal model's layers.
        if not set(dims) <= set(EVERY_DIMENSION) or (dims[:1] != ("sample",) and dims != ("layer",)):
            raise MisfitError(f"{name} is an array over {', '.join(map(str, dataset[name].dims))}")
    for name, needed in DIMENSIONS.items():
        if name not in dataset or not set(needed) <= set(dataset[name].dims):
            raise MisfitError(f"{name} should be an array over {', '.join(needed)}")
    for name in dataset.data_vars:
        if is_halved(str(name)):
            # A scale of one in float32 is xarray's way to read half precision as single without loading it.
            dataset[name].attrs["scale_factor"] = np.float32(1.0)
    dataset = xarray.decode_cf(dataset, decode_times=False, decode_coords=False)
    regions = np.asarray(REGIONS)[dataset["region"].values.astype(int)]
    dataset = dataset.assign(region=(("sample", "key"), regions, dataset["region"].attrs))
    if "query_kind" in dataset.dims:
        # Traces of earlier versions have no random classes.
        dataset = dataset.assign_coords(query_kind=list(QUERY_KINDS)[: dataset.sizes["query_kind"]])
    # zarr lists the arrays of a group in any order; received attention first gives the dimensions their usual one.
    names = sorted(map(str, dataset.data_vars), key=lambda name: (name != "received", name))
    return xarray.Dataset(
        {name: dataset[name].variable for name in names},
        coords={name: dataset[name].variable for name in sorted(map(str, dataset.coords))},
        attrs=dataset.attrs,
    )


def save(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Writes a trace that is in memory, or copies one that lies on disk elsewhere."""
    dataset = trace.dataset
    about = {key: value for key, value in dataset.attrs.items() if value is not None}
    named = {
        str(name): Variable(tuple(map(str, array.dims)), str(array.attrs.get("units", "")), str(array.dtype), 0)
        for name, array in dataset.data_vars.items()
    }
    labels = {str(name): array.values for name, array in dataset.coords.items()}
    static = {name: dataset[name].values for name, variable in named.items() if not variable.stepwise}
    static["region"] = (static["region"][..., None] == np.array(REGIONS)).argmax(-1).astype(np.int8)
    folder = Folder(path, named, {str(dim): size for dim, size in dataset.sizes.items()}, labels, static, about)
    for index, step in enumerate(labels["step"].tolist()):
        here = {name: dataset[name].isel(step=index).values for name, variable in named.items() if variable.stepwise}
        folder.write(index, step, here)
    folder.close({}, {})
