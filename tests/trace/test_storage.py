"""Traces on disk: the same numbers up to float16, lazily, and whole up to the last complete step whatever happens."""

from __future__ import annotations

import errno
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray
from tests.helpers import golden

import sinkscope as ss
from sinkscope.trace import chunks, storage

pytestmark = pytest.mark.filterwarnings("error:Object at")

RELATIVE, SMALLEST = 2.0**-11, 2.0**-25
"""The stated error of float16: relative, and absolute for the numbers too small for that."""

DECODINGS: dict[str, Any] = {
    "llada": ss.LladaDecoding(length=8, steps=8, block=4, cfg=1.0),
    "dream": ss.DreamDecoding(length=8, steps=8, temperature=0.4, top_p=0.9),
    "mmada": ss.MmadaDecoding(length=8, steps=4, block=4),
    "llama": ss.GreedyDecoding(length=8, eos=None),
}
CAPTURES = {
    "everything": ss.Capture(by_query=True, anatomy=True),
    "layers, every other step": ss.Capture(level="layers", by_query=True, every=2),
    "maps of two layers": ss.Capture(level="maps", layers=(0, 2), heads=(1,)),
}


def arguments(family: str) -> tuple[Any, ...]:
    ids = torch.randint(0, 470, (2, 9), generator=torch.Generator().manual_seed(7))
    return golden.model(family), ids, DECODINGS[family]


def options() -> dict[str, Any]:
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, :3] = 0
    return {"attention_mask": mask, "seed": [4, 5]}


def is_half(name: str) -> bool:
    return name.startswith(("received", "prefill_received", "attention"))


def assert_same(found: Any, expected: Any, exact: bool = False) -> None:
    """Two datasets hold the same; attention up to float16, everything else exactly."""
    assert set(found.data_vars) == set(expected.data_vars)
    assert set(found.coords) == set(expected.coords)
    for name in expected.coords:
        np.testing.assert_array_equal(found[name].values, expected[name].values, err_msg=name)
    for name, values in expected.data_vars.items():
        assert found[name].dims == values.dims
        assert found[name].dtype == values.dtype, name
        assert found[name].attrs.get("units") == values.attrs.get("units"), name
        if is_half(name) and not exact:
            error = np.abs(found[name].values - values.values)
            allowed = np.maximum(np.abs(values.values) * RELATIVE, SMALLEST)
            np.testing.assert_array_equal(np.isnan(found[name].values), np.isnan(values.values), err_msg=name)
            assert (error <= allowed)[~np.isnan(error)].all(), name
        else:
            np.testing.assert_array_equal(found[name].values, values.values, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "capture"),
    [
        pytest.param(family, capture, id=f"{family}: {what}")
        for what, capture in CAPTURES.items()
        for family in DECODINGS
        if what == "everything" or family in ("dream", "llama")
    ],
)
def test_streamed_saved_and_in_memory_are_the_same(family: str, capture: ss.Capture, tmp_path: Path) -> None:
    memory = ss.generate(*arguments(family), **options(), capture=capture)
    streamed = ss.generate(*arguments(family), **options(), capture=capture, out=tmp_path / "s.zarr.zip")
    assert torch.equal(memory.states, streamed.states)
    assert_same(streamed.trace.dataset, memory.trace.dataset)
    assert len(streamed.trace) == len(memory.trace)
    reopened = ss.Trace.open(tmp_path / "s.zarr.zip")
    assert_same(reopened.dataset, streamed.trace.dataset, exact=True)
    memory.trace.save(tmp_path / "m.zarr.zip")
    saved = ss.Trace.open(tmp_path / "m.zarr.zip")
    assert_same(saved.dataset, streamed.trace.dataset, exact=True)
    # What was read from disk can be written again without another loss.
    saved.save(tmp_path / "again.zarr.zip")
    assert_same(ss.Trace.open(tmp_path / "again.zarr.zip").dataset, saved.dataset, exact=True)
    for trace in (streamed.trace, reopened, saved):
        assert trace.attributes == {**memory.trace.attributes, "recorded": trace.attributes["recorded"]}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.zarr.zip", "m.zarr.zip", "s.zarr.zip"]


def test_the_error_of_float16_is_really_there() -> None:
    """The bound above is tight: rounding does happen, and it would be noticed if it were larger."""
    values = np.array([1.0 + 2.0**-11, 3.3333, 1e-6, 2.0**-24, 70000.0, np.nan], dtype=np.float32)
    halved = storage.stored("received", values).astype(np.float32)
    assert 0 < abs(halved[0] - values[0]) <= values[0] * RELATIVE
    assert 0 < abs(halved[2] - values[2]) <= SMALLEST
    assert halved[3] == values[3]
    assert halved[4] == 65504.0
    assert np.isnan(halved[5])


@pytest.mark.slow
def test_a_policy_round_trips(tmp_path: Path) -> None:
    for family in ("llada", "llama"):
        run = ss.generate(*arguments(family), **options(), policy=ss.MaskTop(2), capture=ss.Capture())
        path = tmp_path / f"{family}.zarr.zip"
        streamed = ss.generate(*arguments(family), **options(), policy=ss.MaskTop(2), out=path)
        assert_same(streamed.trace.dataset, run.trace.dataset)
        np.testing.assert_array_equal(ss.Trace.open(path).masked_keys().values, run.trace.masked_keys().values)
        assert run.trace.masked_keys().values.any()


def test_opening_reads_no_array(tmp_path: Path) -> None:
    path = tmp_path / "t.zarr.zip"
    ss.generate(*arguments("llada"), **options(), out=path, capture=ss.Capture(anatomy=True))
    data = ss.Trace.open(path).dataset
    for name in ("received", "tokens", "confidence", "value_norm"):
        assert not isinstance(data[name].variable._data, np.ndarray), f"{name} was read on opening"
    assert data["received"].dtype == np.float32
    assert data["received"].sel(step=3, layer=1).values.shape == (2, 4, 17)
    assert not isinstance(data["received"].variable._data, np.ndarray), "a slice read the whole array"


def broken_after(steps: int, kind: type[BaseException] = KeyboardInterrupt) -> Any:
    def stop(done: int, expected: int, states: torch.Tensor) -> None:
        if done == steps:
            raise kind

    return stop


@pytest.mark.slow
def test_dimensions_have_one_order_whatever_the_store_lists_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.zarr.zip"
    ss.generate(*arguments("llada"), **options(), out=path, capture=ss.Capture(by_query=True))
    real, turns = xarray.open_zarr, iter((False, True))

    def turned(*given: Any, **named: Any) -> xarray.Dataset:
        found = real(*given, **named)
        names = sorted(map(str, found.variables), reverse=next(turns))
        return xarray.Dataset({name: found.variables[name] for name in names}, attrs=found.attrs)

    monkeypatch.setattr(xarray, "open_zarr", turned)
    orders = set()
    for _ in range(2):
        dataset = ss.Trace.open(path).dataset
        orders.add((*dataset.sizes, *dataset.data_vars, *dataset.coords))
    assert len(orders) == 1
    assert list(dataset.sizes)[:5] == ["sample", "step", "layer", "head", "key"]


def test_a_slice_reads_its_own_chunks_only(tmp_path: Path) -> None:
    path = tmp_path / "t.zarr.zip"
    with pytest.raises(KeyboardInterrupt):
        ss.generate(*arguments("llada"), **options(), out=path, progress=broken_after(5))
    folder = tmp_path / "t.zarr.zip.partial"
    (folder / "received" / "0.2.0.0.0").write_bytes(b"not a chunk")
    data = ss.Trace.open(path).dataset
    assert np.isfinite(data["received"].sel(step=1, sample=0).values).all()
    assert np.isfinite(data["received"].sel(step=3, sample=0).values).all()
    with pytest.raises(Exception):  # noqa: B017, PT011  (whatever the decompressor says)
        data["received"].sel(step=2).values  # noqa: B018


@pytest.mark.slow
@pytest.mark.parametrize("family", list(DECODINGS))
def test_an_interrupted_recording_opens_up_to_its_last_step(family: str, tmp_path: Path) -> None:
    path = tmp_path / "t.zarr.zip"
    whole = ss.generate(*arguments(family), **options(), capture=ss.Capture(by_query=True))
    with pytest.raises(KeyboardInterrupt):
        ss.generate(
            *arguments(family), **options(), capture=ss.Capture(by_query=True), out=path, progress=broken_after(3),
        )  # fmt: skip
    folder = tmp_path / "t.zarr.zip.partial"
    assert folder.is_dir()
    assert not path.exists()
    for given in (path, folder):  # the folder, or the name that the file would have had
        trace = ss.Trace.open(given)
        assert len(trace) == 3
        first = whole.trace.dataset.isel(step=slice(0, 3)).drop_vars(
            ["decided_step", "prefill_received", "window"], errors="ignore"
        )
        assert_same(trace.dataset, first)
        assert "3 steps" in trace.attributes["unfinished"]
        assert trace.attributes["model"] == golden.model(family).source
    # What is left of a recording is never overwritten, and can be packed by hand.
    with pytest.raises(ss.InputError, match=r"not finished.*Trace\.open"):
        ss.generate(*arguments(family), **options(), out=path)
    ss.Trace.open(folder).save(tmp_path / "kept.zarr.zip")
    assert_same(ss.Trace.open(tmp_path / "kept.zarr.zip").dataset, ss.Trace.open(folder).dataset, exact=True)


def test_a_recording_stopped_in_its_first_step_is_empty(tmp_path: Path) -> None:
    handle = golden.model("llada").network.model.layers[0].register_forward_hook(lambda *_: 1 / 0)
    try:
        with pytest.raises(ZeroDivisionError):
            ss.generate(*arguments("llada"), **options(), out=tmp_path / "t.zarr.zip")
    finally:
        handle.remove()
    trace = ss.Trace.open(tmp_path / "t.zarr.zip")
    assert len(trace) == 0
    assert trace.dataset.sizes["key"] == 17


def test_an_existing_trace_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "t.zarr.zip"
    run = ss.generate(*arguments("llada"), **options(), out=path)
    before = path.read_bytes()
    with pytest.raises(ss.InputError, match="exists already"):
        ss.generate(*arguments("llada"), **options(), out=path)
    with pytest.raises(ss.InputError, match="exists already"):
        run.trace.save(path)
    assert path.read_bytes() == before
    assert not (tmp_path / "t.zarr.zip.partial").exists()


def test_a_full_disk_keeps_the_steps_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = chunks.ChunkedArray.write, 0

    def fail(self: Any, index: int, value: Any) -> None:
        nonlocal calls
        if index == 4:
            calls += 1
            if calls == 3:  # in the middle of a step
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, index, value)

    whole = ss.generate(*arguments("llada"), **options(), capture=ss.Capture())
    monkeypatch.setattr(chunks.ChunkedArray, "write", fail)
    path = tmp_path / "t.zarr.zip"
    with pytest.raises(ss.SinkscopeError, match=r"step 4 .*No space left.*steps before it are safe"):
        ss.generate(*arguments("llada"), **options(), out=path)
    monkeypatch.undo()
    trace = ss.Trace.open(path)
    assert len(trace) == 4
    assert_same(trace.dataset, whole.trace.dataset.isel(step=slice(0, 4)).drop_vars("decided_step"))
    again = ss.generate(*arguments("llada"), **options())
    assert torch.equal(again.states, whole.states)


def test_a_full_disk_while_packing_keeps_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    whole = ss.generate(*arguments("llama"), **options(), capture=ss.Capture())
    monkeypatch.setattr(zipfile.ZipFile, "write", fail)
    path = tmp_path / "t.zarr.zip"
    with pytest.raises(ss.SinkscopeError, match=r"No space left.*all 8 steps are safe"):
        ss.generate(*arguments("llama"), **options(), out=path)
    monkeypatch.undo()
    assert [found.name for found in tmp_path.iterdir()] == ["t.zarr.zip.partial"]
    assert_same(ss.Trace.open(path).dataset, whole.trace.dataset)


@pytest.mark.slow
@pytest.mark.parametrize("family", list(DECODINGS))
def test_an_interruption_while_streaming_leaves_the_model_as_it_was(family: str, tmp_path: Path) -> None:
    before = ss.generate(*arguments(family), **options())
    with pytest.raises(KeyboardInterrupt):
        ss.generate(
            *arguments(family), **options(), capture=ss.Capture(anatomy=True), policy=ss.MaskTop(1),
            out=tmp_path / "t.zarr.zip", progress=broken_after(2),
        )  # fmt: skip
    assert not any(module._forward_pre_hooks for module in golden.model(family).network.modules())
    assert torch.equal(ss.generate(*arguments(family), **options()).states, before.states)


@pytest.mark.parametrize("what", ["nothing", "text", "other zip", "other folder", "broken count"])
def test_what_is_no_trace_is_said_to_be_none(what: str, tmp_path: Path) -> None:
    path = tmp_path / "t.zarr.zip"
    if what == "text":
        path.write_text("hello")
    elif what == "other zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.txt", "hello")
    elif what == "other folder":
        path.mkdir()
    elif what == "broken count":
        path.mkdir()
        (path / storage.PROGRESS).write_text("{")
    with pytest.raises(ss.InputError, match=r"t\.zarr\.zip"):
        ss.Trace.open(path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ss.InputError, match="cannot be created"):
        ss.generate(*arguments("llada"), **options(), out=tmp_path / "file" / "t.zarr.zip")


def test_missing_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "t.zarr.zip"
    run = ss.generate(*arguments("llada"), **options(), out=str(path))
    assert path.is_file()
    assert run.trace is not None
    run.trace.save(tmp_path / "c" / "t.zarr.zip")
    assert len(ss.Trace.open(tmp_path / "c" / "t.zarr.zip")) == 8


def test_bad_capture_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ss.InputError, match="layers 0 to 2"):
        ss.generate(*arguments("llada"), **options(), out=tmp_path / "t.zarr.zip", capture=ss.Capture(layers=[7]))
    assert not list(tmp_path.iterdir())


def test_the_count_of_steps_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the count says n, all chunks of n steps are there."""
    replace, seen = os.replace, []

    def check(source: Any, target: Any) -> None:
        replace(source, target)
        target = Path(target)
        if target.name == storage.PROGRESS:
            steps = len(json.loads(target.read_text())["steps"])
            arrays = [path for path in target.parent.iterdir() if path.is_dir()]
            if steps:
                last = [path for path in arrays if list(path.glob(f"*.{steps - 1}*"))]
                assert {"received", "tokens", "ties", "confidence"} <= {path.name for path in last}
            seen.append(steps)

    monkeypatch.setattr(os, "replace", check)
    ss.generate(*arguments("llada"), **options(), out=tmp_path / "t.zarr.zip")
    assert seen == list(range(9))
