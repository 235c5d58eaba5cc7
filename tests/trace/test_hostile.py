"""Traces from strangers: other formats, other codecs and lying sizes are refused before zarr opens anything."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import golden

import sinkscope as ss
from sinkscope.base.errors import InputError

IDS = torch.arange(5, 17)[None]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "good.zarr.zip"
    ss.generate(golden.model("llada"), IDS, ss.LladaDecoding(8, 8, 8), capture=ss.Capture(anatomy=True), out=path)
    return path


def rewritten(trace: Path, out: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy of a trace whose files were changed."""
    with zipfile.ZipFile(trace) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out


def edit(files: dict[str, bytes], array: str, **changes: Any) -> None:
    about = json.loads(files[f"{array}/zarr.json"])
    files[f"{array}/zarr.json"] = json.dumps({**about, **changes}).encode()


def many_keys(files: dict[str, bytes]) -> None:
    about = json.loads(files["received/zarr.json"])
    shape = [*about["shape"][:-1], 10**8]
    grid = {"name": "regular", "configuration": {"chunk_shape": shape}}
    edit(files, "received", shape=shape, chunk_grid=grid)


def many_empty_chunks(files: dict[str, bytes]) -> None:
    about = json.loads(files["position/zarr.json"])
    edit(files, "position", shape=[10**6, *about["shape"][1:]])


def old_format(files: dict[str, bytes]) -> None:
    files["evil/.zarray"] = json.dumps({"zarr_format": 2, "dtype": "|O", "filters": [{"id": "pickle"}]}).encode()


HOSTILE: dict[str, tuple[Callable[[dict[str, bytes]], None], str]] = {
    "zarr 2 with a pickle codec": (old_format, "format 2"),
    "another codec": (lambda files: edit(files, "received", codecs=[{"name": "numcodecs.pickle"}]), "codec"),
    "objects": (lambda files: edit(files, "received", data_type="object"), "numbers and truth values"),
    "a made-up dtype": (lambda files: edit(files, "received", data_type={"name": "numpy.object"}), "numbers"),
    "10⁸ keys": (many_keys, "declares"),
    "a million empty rows": (many_empty_chunks, "declares"),
    "negative sizes": (lambda files: edit(files, "received", shape=[-1, 2, 3, 4, 5]), "shape"),
    "deep JSON": (lambda files: files.update({"zarr.json": b"[" * 100_000 + b"]" * 100_000}), "JSON"),
    "no group": (lambda files: files.pop("zarr.json"), "no zarr group"),
    "a storage transformer": (
        lambda files: edit(files, "received", storage_transformers=[{"name": "x"}]),
        "transformer",
    ),
}


def test_a_good_trace_opens(trace: Path, tmp_path: Path) -> None:
    again = rewritten(trace, tmp_path / "again.zarr.zip", lambda files: None)
    assert ss.Trace.open(again).dataset.equals(ss.Trace.open(trace).dataset)


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_trace_is_refused(name: str, trace: Path, tmp_path: Path) -> None:
    change, says = HOSTILE[name]
    path = rewritten(trace, tmp_path / "bad.zarr.zip", change)
    with pytest.raises(InputError, match=says):
        ss.Trace.open(path)
    folder = tmp_path / "bad.zarr.zip.partial"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    (folder / "complete.json").write_text('{"steps": [0, 1]}')
    with pytest.raises(InputError, match=says):
        ss.Trace.open(folder)


def test_a_zip_bomb_is_refused(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "bomb.zarr.zip"
    with zipfile.ZipFile(trace) as archive, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in archive.namelist():
            packed.writestr(name, archive.read(name))
    with pytest.raises(InputError, match="compressed by zip"):
        ss.Trace.open(out)


def test_a_partial_folder_and_one_equal_value_everywhere_still_open(tmp_path: Path) -> None:
    """zarr leaves out chunks that hold nothing but the fill value: such arrays are small, and must not be refused."""
    model = golden.model("llada")
    run = ss.generate(model, IDS, ss.LladaDecoding(8, 8, 8), capture=ss.Capture(layers=[0], heads=[0]))
    run.trace.save(tmp_path / "one.zarr.zip")
    back = ss.Trace.open(tmp_path / "one.zarr.zip")
    np.testing.assert_allclose(back.dataset["received"], run.trace.dataset["received"], rtol=1e-3)
    with zipfile.ZipFile(tmp_path / "one.zarr.zip") as archive:
        archive.extractall(tmp_path / "two.zarr.zip.partial")
    (tmp_path / "two.zarr.zip.partial" / "complete.json").write_text(json.dumps({"steps": list(range(8))}))
    assert len(ss.Trace.open(tmp_path / "two.zarr.zip")) == 8
    shutil.rmtree(tmp_path / "two.zarr.zip.partial")


def test_attributes_that_are_no_json_are_one_clear_error(trace: Path, tmp_path: Path) -> None:
    def garble(files: dict[str, bytes]) -> None:
        about = json.loads(files["zarr.json"])
        files["zarr.json"] = json.dumps({**about, "attributes": {**about["attributes"], "decoding": "x"}}).encode()

    with pytest.raises(InputError, match="attribute 'decoding' is not JSON"):
        ss.Trace.open(rewritten(trace, tmp_path / "bad.zarr.zip", garble))


@pytest.mark.slow
def test_a_damaged_chunk_ends_a_command_in_one_line(trace: Path, tmp_path: Path) -> None:
    def garble(files: dict[str, bytes]) -> None:
        for name in files:
            if name.startswith("received/0"):
                files[name] = bytes(7)

    path = rewritten(trace, tmp_path / "bad.zarr.zip", garble)
    done = subprocess.run(
        [sys.executable, "-m", "sinkscope", "show", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: the trace is damaged")
    assert len(done.stderr.splitlines()) == 1
