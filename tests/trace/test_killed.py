"""kill -9 in the middle of a recording: what is on disk opens, and equals the first steps of the whole."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import golden
from tests.helpers.forked import forked

import sinkscope as ss
from sinkscope import cli
from sinkscope.trace import storage

PROMPT = torch.arange(20).view(2, 10)
DECODING = ss.LladaDecoding(length=64, steps=64, block=32)


@pytest.mark.slow
def test_a_killed_recording_opens(tmp_path: Path) -> None:
    out, said = tmp_path / "t.zarr.zip", tmp_path / "said"
    said.touch()

    def slowly(done: int, expected: int, states: torch.Tensor) -> None:
        print(done, flush=True)
        time.sleep(0.05)

    def record() -> None:
        model, capture = golden.model("llada"), ss.Capture(by_query=True)
        ss.generate(model, PROMPT, DECODING, capture=capture, out=out, progress=slowly)

    process = forked(record, said)
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end and process.exitcode is None and "7" not in said.read_text().split():
            time.sleep(0.005)
    finally:
        process.kill()
        process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert not out.exists()
    trace = ss.Trace.open(out)
    steps = len(trace)
    assert 7 <= steps < 64
    whole = ss.generate(golden.model("llada"), PROMPT, DECODING, capture=ss.Capture(by_query=True)).trace.dataset.isel(
        step=slice(0, steps)
    )
    assert trace.dataset["step"].values.tolist() == list(range(steps))
    for name in ("tokens", "masked", "candidate", "decided", "ties"):
        np.testing.assert_array_equal(trace.dataset[name].values, whole[name].values, err_msg=name)
    for name in ("received", "received_by", "confidence"):
        np.testing.assert_allclose(trace.dataset[name].values, whole[name].values, rtol=1e-3, atol=1e-5, err_msg=name)
    assert trace.attributes["weights_digest"] == golden.model("llada").digest


def command(*words: object) -> None:
    """`sinkscope trace` of the same prompt into the same file."""
    ids = words[0]
    sys.argv = [
        "sinkscope", "trace", str(golden.checkpoint("llada")), "--prompt-ids", str(ids), *map(str, words[1:]),
    ]  # fmt: skip
    cli.main()


@pytest.mark.slow
def test_a_killed_command_says_what_is_there_and_replaces_it_when_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ids, out, said = tmp_path / "ids", tmp_path / "t.zarr.zip", tmp_path / "said"
    ids.write_text(" ".join(map(str, range(10))))
    options = ("--device", "cpu", "--decoding", "length=64,steps=64,block=32")
    monkeypatch.setattr(sys, "argv", [])

    def again(*more: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            command(ids, "--out", out, *options, *more)
        return int(ended.value.code or 0), capfd.readouterr().err

    def slowly() -> None:
        write = storage.Folder.write

        def later(*given: Any) -> None:
            write(*given)
            time.sleep(0.05)

        monkeypatch.setattr(storage.Folder, "write", later)
        command(ids, "--out", out, *options)

    process = forked(slowly, said)
    partial = storage.partial_path(out)
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end and process.exitcode is None:
            if (partial / storage.PROGRESS).exists() and len(storage.recorded_steps(partial)) >= 5:
                break
            time.sleep(0.005)
        code, err = again("--overwrite")
        assert (code, "another process is recording" in err) == (2, True), err
    finally:
        process.kill()
        process.join(60)
    assert process.exitcode == -signal.SIGKILL, said.read_text()
    steps = len(ss.Trace.open(partial))
    code, err = again()
    assert (code, err.count("error: ")) == (2, 1)
    assert f"{steps} steps" in err
    assert "--overwrite" in err
    assert len(ss.Trace.open(partial)) == steps, "refusing must not cost what was recorded"
    code, err = again("--overwrite")
    assert code == 0, err
    assert f"{steps} steps" in err
    assert "replaced" in err
    assert not partial.exists()
    whole = ss.generate(golden.model("llada"), torch.arange(10)[None], DECODING, capture=ss.Capture()).trace
    np.testing.assert_array_equal(ss.Trace.open(out).dataset["tokens"].values, whole.dataset["tokens"].values)
    first = out.read_bytes()
    assert "exists already" in again()[1]
    monkeypatch.setattr(storage, "pack", lambda *given: (_ for _ in ()).throw(OSError("no room")))
    assert again("--overwrite")[0] == 2
    assert out.read_bytes() == first, "the old trace stays until the new one is whole"
