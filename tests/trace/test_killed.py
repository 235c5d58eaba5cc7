"""kill -9 in the middle of a recording: what is on disk opens, and equals the first steps of the whole."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.helpers import golden
from tests.helpers.forked import forked

import sinkscope as ss

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
    whole = ss.generate(
        golden.model("llada"), PROMPT, DECODING, capture=ss.Capture(by_query=True)
    ).trace.dataset.isel(step=slice(0, steps))
    assert trace.dataset["step"].values.tolist() == list(range(steps))
    for name in ("tokens", "masked", "candidate", "decided", "ties"):
        np.testing.assert_array_equal(trace.dataset[name].values, whole[name].values, err_msg=name)
    for name in ("received", "received_by", "confidence"):
        np.testing.assert_allclose(
            trace.dataset[name].values, whole[name].values, rtol=1e-3, atol=1e-5, err_msg=name
        )
    assert trace.attributes["weights_digest"] == golden.model("llada").digest
